"""What the engine remembers of each job, node, incident and order: its state, and the read models made from it.

The engine alone changes records; the journal projects each touched record in the event's own transaction.
Pages, reports and the command line read them. All times are Unix seconds of the controller unless named otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState, attempt_name
from holdfast.model.evidence import Diagnosis, Finding, Remedy, Role
from holdfast.model.orders import AnyOrder, OrderStatus


class JobState(StrEnum):
    """A job in recovery's eyes. The table of moves is `decide/machine.py`."""

    WATCHING = "watching"
    IN_PLACE = "in_place"
    STOPPING = "stopping"
    EVACUATING = "evacuating"
    DIAGNOSING = "diagnosing"
    HELD = "held"
    WAITING_FOR_NODES = "waiting_for_nodes"
    RELEASED = "released"
    RESTARTING = "restarting"
    PROVING = "proving"
    COMPLETED = "completed"
    GIVEN_UP = "given_up"
    CANCELLED = "cancelled"


class NodeState(StrEnum):
    """A node in recovery's eyes."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"
    DRAINING = "draining"
    REPAIRING = "repairing"
    VALIDATING = "validating"
    RETIRED = "retired"
    UNKNOWN = "unknown"


class JobTrigger(StrEnum):
    """What happened to a job, in recovery's words."""

    STOP = "stop"
    """The attempt is broken, or must leave its nodes: end it (StopAttempt, or RequeueHeld which also requeues)."""
    LOOK = "look"
    """Before anything is ended stacks are taken."""
    ASK = "ask"
    """Before anything is ordered a person's approval is needed."""
    LEAVE = "leave"
    """The launcher leaves the allocation: what follows comes from outside."""
    EVACUATE = "evacuate"
    """Save a checkpoint and stop."""
    ATTEMPT_OVER = "attempt_over"
    """No process of the attempt runs any more."""
    FALSE_ALARM = "false_alarm"
    """It moves again, or nothing may be done (observe, rejected, lapsed)."""
    PROVE_AGAIN = "prove_again"
    """As a false alarm, but an earlier restart still waits for its proof."""
    RESTART_IN_PLACE = "restart_in_place"
    HOLD = "hold"
    """It is back in the queue and held there, or a person holds it."""
    RELEASE = "release"
    ADOPT = "adopt"
    """The scheduler or a person has queued it again: go on from there instead of requeuing twice."""
    WAIT = "wait"
    """Released, but too few nodes are free."""
    RUNS = "runs"
    """The scheduler runs it again; its processes are not all started yet."""
    STARTED = "started"
    """All processes of a new attempt are started."""
    PROVEN = "proven"
    """Progress as policy asks for it."""
    COMPLETED = "completed"
    GIVE_UP = "give_up"
    CANCEL = "cancel"
    REVIVED = "revived"
    """Somebody else queued a finished job once more."""


class NodeTrigger(StrEnum):
    """What happened to a node, in recovery's words."""

    SUSPECT = "suspect"
    """Evidence against it."""
    CLEARED = "cleared"
    """The evidence is gone, or a person says that it is well."""
    QUARANTINE = "quarantine"
    """New work is kept off it (ordered)."""
    FENCED = "fenced"
    """New work is kept off it (done); its running work goes on."""
    REPAIR = "repair"
    """Nothing runs on it any more, or policy does not wait: reset, reboot or replace."""
    CHECK = "check"
    """Repaired, or its fault went away by itself: it must pass the checks."""
    FAILED_CHECK = "failed_check"
    RETURN = "return"
    """It takes work again."""
    RETIRE = "retire"
    """Handed to a person."""
    SILENT = "silent"
    HEARD_HEALTHY = "heard_healthy"
    HEARD_SUSPECT = "heard_suspect"
    HEARD_QUARANTINED = "heard_quarantined"
    HEARD_DRAINING = "heard_draining"
    HEARD_REPAIRING = "heard_repairing"
    HEARD_VALIDATING = "heard_validating"
    HEARD_RETIRED = "heard_retired"


class Authority(StrEnum):
    """Who decides on this job now: the launcher inside its allocation, or the controller."""

    LAUNCHER = "launcher"
    CONTROLLER = "controller"


class Mark(StrEnum):
    """Points of an incident's timeline, in the order in which they usually come, the node's repair and return last."""

    FAULT = "fault"
    """True time of an injected fault (drills), else the earliest `at` of its findings."""
    DETECTED = "detected"
    DIAGNOSED = "diagnosed"
    ISOLATED = "isolated"
    """The bad node takes no new work."""
    STOPPED = "stopped"
    """The broken attempt is provably over."""
    REQUEUED = "requeued"
    """Back in the queue, or the in-place restart was ordered."""
    RELEASED = "released"
    PLACED = "placed"
    """The scheduler gave the released job nodes, or its launcher said so first."""
    STARTED = "started"
    """The new attempt's processes are started."""
    FIRST_STEP = "first_step"
    PROVEN = "proven"
    NODE_REPAIRED = "node_repaired"
    NODE_RETURNED = "node_returned"
    CLOSED = "closed"


PHASE_MARKS = tuple(mark for mark in Mark if mark not in {Mark.NODE_REPAIRED, Mark.NODE_RETURNED, Mark.CLOSED})
"""From the fault to the proven recovery, in order: each but the first ends a phase of the timeline."""
JOB_MARKS = tuple(mark for mark in PHASE_MARKS if mark not in {Mark.FAULT, Mark.ISOLATED})
"""Those of the job's own side, which follow each other in time."""


RUNS = frozenset({SchedulerState.RUNNING, SchedulerState.COMPLETING})
"""The scheduler runs it."""
JOB_ENDED = frozenset({JobState.COMPLETED, JobState.GIVEN_UP, JobState.CANCELLED})
"""Nothing is waited for any more."""


def slug(key: JobKey) -> str:
    """A job's key as one text: `cluster/1778#1`."""
    return f"{key.cluster}/{key.id}#{key.generation}"


class AttemptRecord(Struct, omit_defaults=True):
    """One execution of a job."""

    number: int
    epoch: int = 0
    restart_count: int = 0
    in_place: int = 0
    nodes: tuple[str, ...] = ()
    ranks: int = 0
    standby: bool = False
    log_dir: str = ""
    started_at: float = 0.0
    placed_at: float = 0.0
    """When the scheduler gave it its nodes, where a launcher told of a later start: prolog and container image lie
    between the two. 0: not known, or restarted in place."""
    first_step_at: float = 0.0
    first_step: int | None = None
    resumed_from: int | None = None
    last_step: int | None = None
    durable_step: int | None = None
    durable_at: float = 0.0
    ended_at: float = 0.0
    exit_code: int | None = None
    signal: int | None = None
    stopped: bool = False
    evacuated: bool = False
    """It was asked to save and stop, and the job has not been released since."""
    incident: str = ""
    """The incident that ended it."""

    @property
    def reached(self) -> int | None:
        """The highest step that is known to be completed; a durable checkpoint tells of it too."""
        last, durable = self.last_step, self.durable_step
        if last is None or durable is None:
            return durable if last is None else last
        return max(last, durable)

    @property
    def began_at(self) -> int | None:
        """The step from which it goes on; without a word of that, its newest durable one."""
        return self.durable_step if self.resumed_from is None else self.resumed_from


class Broke(Struct, frozen=True, omit_defaults=True):
    """Where an attempt broke: it tells a crash that comes back from another one of its kind."""

    nodes: tuple[str, ...] = ()
    """Nodes that the evidence of this attempt names, sorted."""
    step: int | None = None
    """Last completed step; None: nothing told of steps."""


class JobRecord(Struct, omit_defaults=True):
    """A job and its recovery."""

    key: JobKey
    view: JobView
    state: JobState = JobState.WATCHING
    since: float = 0.0
    authority: Authority = Authority.CONTROLLER
    led_at: int = 0
    """Restart count of the newest launcher that took authority: words of an older one's end are stale."""
    attempts: list[AttemptRecord] = field(default_factory=list)
    epoch: int = 0
    released_at: float = 0.0
    """When we last let it start from the queue: what was asked of its runs before is done with."""
    incident: str = ""
    """The open incident that governs its recovery now."""
    rung: int = 0
    """Place on the current ladder."""
    excluded: tuple[str, ...] = ()
    """Nodes that Holdfast keeps it off."""
    excluded_asked: tuple[str, ...] = ()
    """Nodes that a `SetExcluded` named and that may be excluded still: what was asked for may outlive its reason."""
    requeues: int = 0
    in_place: int = 0
    """Restarts since the last progress (budgets)."""
    spent: dict[str, int] = field(default_factory=dict)
    """Restarts per fingerprint since the last progress."""
    broke: dict[str, Broke] = field(default_factory=dict)
    """Per fingerprint, where the attempt before the newest of those restarts had broken."""
    charged: tuple[int, int] = (-1, -1)
    """Restart count and number of the newest attempt when a restart was last charged: what it saved is no progress."""
    progressed: int = 0
    """How often a durable checkpoint was progress."""
    durable_step: int = 0
    """The furthest step of a durable checkpoint."""
    fell_to: int | None = None
    """Step that an attempt resumed from although later steps had been durable; None: no attempt has, since the furthest
    step was passed."""
    regained: int = 0
    """The furthest durable step since the job fell back: what a checkpoint must pass to be progress."""
    durable_steps: list[int] = field(default_factory=list)
    """Steps of the newest durable checkpoints, ascending, bounded: what a poisoned one can be stepped over to."""
    best_step: int = 0
    restore_step_max: int | None = None
    held_by: str = ""
    """A person who holds it, if any."""
    in_queue: bool = False
    """Back in the queue by our order, and not released yet."""
    requeue_dropped: int | None = None
    """Restart count in a requeue of ours that was taken back when the job ended; it may take effect all the same."""
    story: list[str] = field(default_factory=list)

    @property
    def attempt(self) -> AttemptRecord | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    def numbered(self, number: int | None) -> AttemptRecord | None:
        """The attempt of this number."""
        return next((attempt for attempt in reversed(self.attempts) if attempt.number == number), None)

    @property
    def about(self) -> str:
        """The job as a subject of orders, and its name in the engine's state."""
        return slug(self.key)

    @property
    def timer(self) -> str:
        """The name of its one timer."""
        return f"job:{slug(self.key)}"

    @property
    def alive(self) -> bool:
        """Its newest attempt still runs, as far as anybody knows."""
        if self.attempt is not None and self.attempt.ended_at:
            return False
        return self.view.state in RUNS or self.view.state is SchedulerState.UNKNOWN

    @property
    def over(self) -> bool:
        """Nothing is waited for any more."""
        return self.state in JOB_ENDED

    @property
    def in_recovery(self) -> bool:
        """Something is being done about it."""
        return self.state is not JobState.WATCHING and not self.over

    @property
    def name(self) -> str:
        """`1778(2)` of the newest attempt, `1778` before the first; an array's task is `12_2(0)`."""
        job = self.view.task + str(self.key).removeprefix(self.key.id) if self.view.task else str(self.key)
        return attempt_name(job, self.attempts[-1].number) if self.attempts else job


class NodeRecord(Struct, omit_defaults=True):
    """A node and its recovery."""

    name: str
    view: NodeView
    state: NodeState = NodeState.HEALTHY
    before_unknown: NodeState = NodeState.HEALTHY
    since: float = 0.0
    first_seen_at: float = 0.0
    """When it came into the cluster, as far as the controller saw; 0: before records said so."""
    left_at: float = 0.0
    """When it left the cluster; 0: it is there."""
    incident: str = ""
    rung: int = 0
    drained_by_us: bool = False
    clean_at: float = 0.0
    """Since when it counts as clean (returned, replaced, a person's word): older evidence about it is stale."""
    gone: bool = False
    """There is positive evidence that it does not run."""
    boot_id: str = ""
    instance_id: str = ""
    agent_boot_id: str = ""
    """What its agent calls the boot, where the scheduler has its own name for it in `boot_id`."""
    agent_instance_id: str = ""
    silent: bool = False
    heard: bool = True
    """Its agent has spoken at some time; what no agent was heard of is healthy as far as the scheduler knows."""
    drill_ok: bool = False
    findings: list[str] = field(default_factory=list)
    """Rules that made it suspect and were not cleared."""
    witnesses: dict[str, list[str]] = field(default_factory=dict)
    """Rule -> who says so: `agent:NODE`, `launcher:JOB`, `controller`, `checks`, `person`; where `[trust]` is on."""
    offences: list[float] = field(default_factory=list)
    """When it was quarantined, over the last 28 days (lemon score)."""
    story: list[str] = field(default_factory=list)

    @property
    def about(self) -> str:
        """The node as a subject of orders."""
        return f"node:{self.name}"

    @property
    def timer(self) -> str:
        """The name of its one timer."""
        return f"node:{self.name}"

    @property
    def phase(self) -> NodeState:
        """Its state in recovery, also while it is silent."""
        return self.before_unknown if self.state is NodeState.UNKNOWN else self.state

    @property
    def shown(self) -> str:
        """Its state for people: `unheard` in place of `healthy` where no agent was ever heard."""
        return shown_state(self.state, heard=self.heard)


UNHEARD = "unheard"
"""In place of `healthy`, for people: no agent was ever heard there, so that nothing but the scheduler speaks for it."""
SHOWN_STATES = (*(state.value for state in NodeState), UNHEARD)
"""What `shown_state` gives."""


def shown_state(state: NodeState, *, heard: bool) -> str:
    """A node's state for people."""
    return state.value if heard or state is not NodeState.HEALTHY else UNHEARD


class Observed(Struct, frozen=True):
    """What mode `observe` kept from being done to a job or a node."""

    about: str
    """Slug of a job, or `node:NAME`."""
    remedy: Remedy


class IncidentRecord(Struct, omit_defaults=True):
    """One underlying trouble, from first evidence to proven recovery or to giving up."""

    id: str
    opened_at: float
    source: str = ""
    """Who saw it first: the source of the event that opened it."""
    jobs: list[JobKey] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Bounded: the earliest and the most telling ones are kept, the rest counted."""
    findings_dropped: int = 0
    diagnosis: Diagnosis | None = None
    remedies: list[Remedy] = field(default_factory=list)
    """Rungs tried, in order."""
    observed: list[Observed] = field(default_factory=list)
    """What mode `observe` kept from being done, in order."""
    would: list[str] = field(default_factory=list)
    """The same for people, a sentence of each: `n2 would have been quarantined`."""
    marks: dict[Mark, float] = field(default_factory=dict)
    said_at: float = 0.0
    """When its evidence was first reported, by the reporter's clock. A wait's mark `fault` is where the wait began."""
    attempt_before: int | None = None
    attempt_after: int | None = None
    step_before: int | None = None
    """Last completed step before the fault."""
    step_resumed: int | None = None
    """Step of the checkpoint that the restart loaded."""
    drill: str = ""
    jobs_open: list[JobKey] = field(default_factory=list)
    """Jobs whose side of it is not settled yet."""
    nodes_open: list[str] = field(default_factory=list)
    jobs_done: bool = False
    """Every job of it is proven, completed, given up or cancelled."""
    nodes_done: bool = False
    closed_at: float = 0.0
    outcome: str = ""
    """`recovered`, `given_up`, `cancelled`, `observed`; empty while open."""
    story: list[str] = field(default_factory=list)

    @property
    def lost_steps(self) -> int | None:
        """Completed steps that had to be done again."""
        if self.step_before is None or self.step_resumed is None:
            return None
        return max(0, self.step_before - self.step_resumed)

    def is_observed(self, about: str, remedy: Remedy | None = None) -> bool:
        """Did mode `observe` keep this rung, or any, from being taken for this job (its slug) or `node:NAME`?

        An older version wrote sentences alone. Each of those may be about any job, node and rung.
        """
        if len(self.would) > len(self.observed):
            return True
        return any(one.about == about and remedy in {None, one.remedy} for one in self.observed)

    def concerns(self, *, job: str = "", node: str = "") -> bool:
        """Whether this job (as `str(JobKey)` writes it) and this node are among its own; empty: whatever they are."""
        return (not job or any(str(key) == job for key in self.jobs)) and (not node or node in self.nodes)

    @property
    def fingerprints(self) -> frozenset[str]:
        """Fingerprints of the findings that are taken for a root; of all findings when none is."""
        roots = {f.fingerprint for f in self.findings if f.role is Role.ROOT and f.fingerprint}
        return frozenset(roots or {f.fingerprint for f in self.findings if f.fingerprint})


def between(marks: Mapping[Mark, float], begin: Mark, end: Mark) -> float | None:
    """Seconds from one mark to another, never negative; None when either is not known."""
    first, last = marks.get(begin), marks.get(end)
    if first is None or last is None:
        return None
    return max(0.0, last - first)


class Approval(Struct, frozen=True):
    """One person's approval of a proposed order that needs several."""

    who: str
    by: str
    """Name and id of the token that it came with: what tells one person from another."""
    at: float

    def is_of(self, by: str) -> bool:
        """Is this token one of the same person? Tokens of one name are, in whatever case, and all without a name."""
        (name, _, token), (other, _, other_token) = self.by.partition(" "), by.partition(" ")
        return name.casefold() == other.casefold() or (token == other_token and bool(token))


class OrderRecord(Struct, omit_defaults=True):
    """An order and what became of it."""

    order: AnyOrder
    status: OrderStatus
    issued_at: float
    ended_at: float = 0.0
    expires_at: float = 0.0
    """When a proposed order lapses."""
    detail: str = ""
    waits_for: str = ""
    """Whose word keeps a proposed order from being given; empty: policy says advise."""
    approvals_needed: int = 1
    approvals: list[Approval] = field(default_factory=list)
    """Those of a proposed order that needs several, or that waits for a brake since."""

    @property
    def is_approved(self) -> bool:
        """Proposed, and approved by as many people as it takes: it waits for the brake of its group alone."""
        return self.status is OrderStatus.PROPOSED and len(self.approvals) >= self.approvals_needed


class Rested(Struct, omit_defaults=True):
    """What rests on one reporter's word alone, inside the window of `[trust]`."""

    nodes: dict[str, float] = field(default_factory=dict)
    """Node -> when it was last quarantined so."""
    requeues: list[float] = field(default_factory=list)
    """When running jobs were requeued so."""
    held: list[str] = field(default_factory=list)
    """Proposed orders that wait because of it."""


class BrakeRecord(Struct, omit_defaults=True):
    """The quarantine brake of one group."""

    group: str
    nodes: int = 0
    """Nodes that the group is known to have."""
    recent: list[float] = field(default_factory=list)
    """When quarantines were ordered, inside the window."""
    recent_nodes: list[str] = field(default_factory=list)
    """The node of each; of the oldest ones it is missing where an older version counted them."""
    tripped_at: float = 0.0
    """When it first held a node back because the group has no place left; 0: it does not."""
    waiting: list[str] = field(default_factory=list)
    """Nodes whose quarantine the brake holds back."""
    reporters: dict[str, Rested] = field(default_factory=dict)
    """Reporter (`agent:NODE`, `launcher:JOB`) -> what rests on its word; empty where `[trust]` is off."""

    @property
    def quarantined(self) -> Counter[str]:
        """Node -> its quarantines inside the window; one whose node is missing is of a node of its own."""
        missing = len(self.recent) - len(self.recent_nodes)
        return Counter([*(f"?{i}" for i in range(missing)), *self.recent_nodes])


class Touched(Struct):
    """Records that an event changed; the journal projects them in the event's own transaction.

    They are the engine's live records: write them before the next event is handled.
    """

    jobs: list[JobRecord] = []
    nodes: list[NodeRecord] = []
    incidents: list[IncidentRecord] = []
    orders: list[OrderRecord] = []
    brakes: list[BrakeRecord] = []
