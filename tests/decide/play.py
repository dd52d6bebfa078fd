"""Play: an engine with short ways to say what happens. Invariants are checked, and snapshots compared, at every event."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.decide import invariants
from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, NodeView, RecoverySpec, SchedulerState
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Role
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Brake, Policy, PolicySet
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, JobState, NodeRecord, NodeState, slug

KEY = JobKey("c", "7")
NODES = ("n1", "n2", "n3", "n4")
S = SchedulerState
TIMERS = (o.StartTimer, o.CancelTimer)
QUIET = (o.StartTimer, o.CancelTimer, o.Notify)


def match(order: o.AnyOrder, kind: type, **fields: Any) -> bool:
    """Is it an order of this kind with these fields? Fields that are not named may be anything."""
    return isinstance(order, kind) and all(getattr(order, name) == value for name, value in fields.items())


def kinds(orders: list[o.AnyOrder]) -> list[str]:
    """Kinds of orders, timers and notices left out: what is done to the world."""
    return [type(order).__name__ for order in orders if not isinstance(order, QUIET)]


class Play:
    """See the module's docstring. Times begin at 1000.0 and go on by `step_s` with each event, or as told by `at`."""

    def __init__(
        self, policy: Policy | PolicySet | None = None, *, scope: str = "cluster", **policy_fields: Any
    ) -> None:
        if not isinstance(policy, PolicySet):
            # Four nodes are a small group: with the default brake a second quarantine within the hour is held back.
            policy_fields.setdefault("brake", Brake(max_nodes=100, max_percent=100.0))
            policy = PolicySet(site=policy or Policy(**policy_fields))
        self.policies = policy
        self.engine = Engine(policy, scope=scope)
        self.scope = scope
        self.now = 1000.0
        self.step_s = 0.01
        self.count = 0
        self.events: list[e.AnyEvent] = []
        self.all: list[o.AnyOrder] = []
        self.closed: list[IncidentRecord] = []

    # --- events ---

    def send(self, event: e.AnyEvent) -> list[o.AnyOrder]:
        """Hand an event in; check what must always hold."""
        self.events.append(event)
        orders = self.engine.handle(event)
        self.all.extend(orders)
        invariants.check(self.engine.state, self.engine.index)
        for order in orders:  # a controller that is killed now gives it again only when it is known as pending
            assert isinstance(order, TIMERS) or self.engine.state.orders[order.id].status is OrderStatus.PENDING, order
        for notice in (order for order in orders if isinstance(order, o.Notify)):
            assert not notice.title.endswith("."), notice
            assert notice.text.rstrip(".") != notice.title.partition(": ")[2] or not notice.text, notice
        for record in self.engine.touched().incidents:
            if record.closed_at and record not in self.closed:
                self.closed.append(record)
        return orders

    def do(self, kind: type, /, *, at: float | None = None, source: str = "", **fields: Any) -> list[o.AnyOrder]:
        """An event of this kind, now."""
        self.now = max(self.now + self.step_s, at or 0.0)
        self.count += 1
        event = kind(
            id=f"e{self.count}",
            at=fields.pop("seen_at", self.now),
            received_at=self.now,
            seq=self.count,
            source=source,
            **fields,
        )
        return self.send(event)

    # --- setting the scene ---

    def nodes(self, *names: str, **fields: Any) -> Play:
        for name in names or NODES:
            self.node(name, **fields)
        return self

    def node(self, name: str, **fields: Any) -> list[o.AnyOrder]:
        known = self.engine.state.nodes.get(name)
        base = {"group": "gpu", "alive": True, "boot_id": f"boot-{name}", "instance_id": f"machine-{name}"}
        view = (
            NodeView(name=name, **{**base, **fields})
            if known is None
            else msgspec.structs.replace(known.view, **fields)
        )
        return self.do(e.NodeObserved, node=view)

    def job(self, key: JobKey = KEY, **fields: Any) -> list[o.AnyOrder]:
        known = self.engine.state.jobs.get(slug(key))
        base = {"partition": "gpu", "state": S.RUNNING, "nodes": NODES, "recovery": RecoverySpec()}
        view = (
            JobView(key=key, **{**base, **fields}) if known is None else msgspec.structs.replace(known.view, **fields)
        )
        return self.do(e.JobObserved, job=view)

    def attach(self, *, restart_count: int = 0, nodes: tuple[str, ...] = NODES, key: JobKey = KEY) -> list[o.AnyOrder]:
        return self.do(
            e.LauncherAttached, job=key, restart_count=restart_count, nodes=nodes, ranks=8, source="launcher:7"
        )

    def start(self, attempt: int = 0, *, key: JobKey = KEY, **fields: Any) -> list[o.AnyOrder]:
        base = {"epoch": attempt + 1, "nodes": NODES, "ranks": 8}
        return self.do(e.AttemptStarted, job=key, attempt=attempt, source="launcher:7", **{**base, **fields})

    def running(self, *, nodes: tuple[str, ...] = NODES, allocation: tuple[str, ...] | None = None) -> Play:
        """Nodes seen, the job runs, its launcher is attached, its first attempt has made a checkpoint at step 100."""
        held = allocation or nodes
        if self.scope == "cluster":
            self.nodes(*held)
            self.job(nodes=held)
        self.attach(nodes=held)
        self.start(0, nodes=nodes)
        self.first_step(0, 1)
        self.checkpoint(0, 100)
        return self

    def plain(self, key: JobKey = KEY, **fields: Any) -> Play:
        """A job without a launcher runs."""
        self.nodes()
        self.job(key, **fields)
        return self

    def first_step(self, attempt: int, step: int, resumed_from: int = 0) -> list[o.AnyOrder]:
        return self.do(
            e.FirstStepDone, job=KEY, attempt=attempt, step=step, resumed_from=resumed_from, source="launcher:7"
        )

    def checkpoint(self, attempt: int, step: int, *, durable: bool = True) -> list[o.AnyOrder]:
        return self.do(e.CheckpointSaved, job=KEY, attempt=attempt, step=step, durable=durable, source="launcher:7")

    def step(self, attempt: int, step: int) -> list[o.AnyOrder]:
        return self.do(e.StepReached, job=KEY, attempt=attempt, step=step, source="launcher:7")

    def ended(self, attempt: int, **fields: Any) -> list[o.AnyOrder]:
        base = {"signal": 9, "stopped": True}
        return self.do(e.AttemptEnded, job=KEY, attempt=attempt, source="launcher:7", **{**base, **fields})

    # --- faults ---

    def finding(self, rule: str, *, source: str = "", at: float | None = None, **fields: Any) -> list[o.AnyOrder]:
        place = Place(
            node=fields.pop("node", ""),
            rank=fields.pop("rank", None),
            gpu=fields.pop("gpu", None),
            path=fields.pop("path", ""),
        )
        kind = fields.pop("kind", EvidenceKind.EXIT)
        self.now = max(self.now, at or 0.0)
        made = Finding(
            id=fields.pop("id", f"f{self.count + 1}"),
            rule=rule,
            at=fields.pop("seen_at", self.now),
            role=fields.pop("role", Role.ROOT),
            place=place,
            fingerprint=fields.pop("fingerprint", rule),
            evidence=fields.pop("evidence", (Evidence(kind, rule),)),
            **fields,
        )
        return self.do(e.FindingSeen, finding=made, source=source)

    def crash(
        self, attempt: int = 0, *, rank: int = 5, node: str = "n3", key: JobKey = KEY, **fields: Any
    ) -> list[o.AnyOrder]:
        """A rank dies of signal 11."""
        base = {"domain": Domain.APPLICATION, "remedy": Remedy.RESTART_IN_PLACE, "summary": "died of signal 11"}
        return self.finding(
            "exit.signal.11", job=key, attempt=attempt, rank=rank, node=node, source="launcher:7", **{**base, **fields}
        )

    def xid(self, node: str = "n2", number: int = 74, **fields: Any) -> list[o.AnyOrder]:
        """The node's kernel log has an Xid line."""
        base = {
            "domain": Domain.HARDWARE,
            "remedy": {73: Remedy.REBOOT, 74: Remedy.REPLACE}.get(number, Remedy.REPLACE),
            "gpu": 3,
            "kind": EvidenceKind.LOG,
            "summary": f"Xid {number}",
        }
        return self.finding(f"nvidia.xid.{number}", node=node, source=f"agent:{node}", **{**base, **fields})

    def hang(self, attempt: int | None = 0, **fields: Any) -> list[o.AnyOrder]:
        base = {"remedy": Remedy.RESTART_IN_PLACE, "kind": EvidenceKind.TELEMETRY, "summary": "no step"}
        return self.finding("hang.step", job=KEY, attempt=attempt, source="launcher:7", **{**base, **fields})

    # --- outcomes ---

    def done(self, kind: type, **fields: Any) -> list[o.AnyOrder]:
        """The one open order of this kind is carried out."""
        return self.do(e.OrderDone, order=self.open(kind, **fields).id, detail="done")

    def fail(self, kind: type, why: str = "no", *, permanent: bool = True) -> list[o.AnyOrder]:
        return self.do(e.OrderFailed, order=self.open(kind).id, why=why, permanent=permanent)

    def fire(self, name: str) -> list[o.AnyOrder]:
        """Let the timer's time come; `name` may be its beginning."""
        full = next(timer for timer in self.engine.state.timers if timer.startswith(name))
        due = self.engine.state.timers[full].due_at
        return self.do(e.TimerFired, timer=full, at=max(self.now, due))

    def settle(self) -> list[o.AnyOrder]:
        return self.fire("settle:")

    def until_release(self, bad: str = "n2") -> None:
        """A node of the job goes bad; the job is requeued, held and kept off it, and its release is ordered."""
        self.xid(bad)
        self.done(o.RequeueHeld)
        self.job(state=S.HELD, restart_count=1, nodes=())
        self.settle()
        self.done(o.SetExcluded)

    def say(self, command: e.Command, *, who: str = "mei", **fields: Any) -> list[o.AnyOrder]:
        return self.do(e.OperatorCommand, command=command, who=who, source=f"operator:{who}", **fields)

    # --- looking ---

    def open(self, kind: type, **fields: Any) -> Any:
        found = [record.order for record in self.engine.state.orders.values() if match(record.order, kind, **fields)]
        assert len(found) == 1, f"{len(found)} open {kind.__name__}: {found}"
        return found[0]

    def opened(self, kind: type) -> list[Any]:
        return [record.order for record in self.engine.state.orders.values() if isinstance(record.order, kind)]

    @property
    def j(self) -> JobRecord:
        return self.engine.state.jobs[slug(KEY)]

    @property
    def state(self) -> JobState:
        return self.j.state

    def n(self, name: str = "n2") -> NodeRecord:
        return self.engine.state.nodes[name]

    def ns(self, name: str = "n2") -> NodeState:
        return self.n(name).state

    @property
    def incident(self) -> IncidentRecord:
        """The one open incident."""
        (only,) = self.engine.open_incidents()
        return only

    @property
    def attempt(self) -> AttemptRecord:
        found = self.j.attempt
        assert found is not None
        return found

    def notices(self) -> list[str]:
        return [order.title for order in self.all if isinstance(order, o.Notify)]

    # --- whole ways ---

    def restart_in_place(self, attempt: int = 1) -> Play:
        """From StopAttempt to the new attempt's start, inside the launcher's engine or watched by the controller's."""
        self.ended(attempt - 1)
        if any(timer.startswith("settle:") for timer in self.engine.state.timers):
            self.settle()
        self.start(attempt, in_place=attempt)
        return self

    def through_queue(self, restart_count: int = 1, *, nodes: tuple[str, ...] = ("n1", "n3", "n4", "n5")) -> Play:
        """From RequeueHeld to the new attempt's start."""
        self.done(o.RequeueHeld)
        self.job(state=S.HELD, restart_count=restart_count, nodes=())
        if any(timer.startswith("settle:") for timer in self.engine.state.timers):
            self.settle()
        if self.opened(o.SetExcluded):
            self.done(o.SetExcluded)
        self.done(o.ReleaseJob)
        self.job(state=S.PENDING)
        self.job(state=S.RUNNING, nodes=nodes)
        self.attach(restart_count=restart_count, nodes=nodes)
        self.start(self.attempt.number + 1, restart_count=restart_count, nodes=nodes, epoch=self.j.epoch)
        return self
