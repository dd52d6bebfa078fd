"""Policy: limits, ladders, modes and proofs. Data only; reading TOML into it is `model/policy_toml.py`.

A site writes `holdfast.toml`; presets stand in `holdfast/presets/*.toml`. Values can be set for the whole cluster and
again per group (partition or node group) and per job; the most particular wins. Durations are seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from holdfast.model.evidence import Remedy

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class Mode(StrEnum):
    """How far Holdfast may go."""

    OBSERVE = "observe"
    """Diagnose, tell people, count, and record each order that would have been given: nothing is carried out. The
    incident is open until the job has come past the fault by itself or is over, and the node is repaired or cleared."""
    ADVISE = "advise"
    """Propose each order; a person approves it or lets it lapse."""
    ACT = "act"
    """Carry orders out."""


class Trouble(StrEnum):
    """Kinds of trouble that have a ladder of their own."""

    APPLICATION = "application"
    HARDWARE = "hardware"
    NETWORK = "network"
    STORAGE = "storage"
    NODE_LOST = "node_lost"
    HANG = "hang"
    STRAGGLER = "straggler"
    BAD_NUMBERS = "bad_numbers"
    """NaN or a loss that left its path."""
    PLATFORM = "platform"
    UNKNOWN = "unknown"


class Proof(StrEnum):
    """When a restart counts as succeeded."""

    FIRST_CHECKPOINT = "first_checkpoint"
    """The first durable checkpoint after the restart (default)."""
    PASSED_FAULT = "passed_fault"
    """A completed step beyond the last one before the fault."""
    FIRST_STEP = "first_step"


def _job_ladders() -> dict[Trouble, tuple[Remedy, ...]]:
    r = Remedy
    return {
        Trouble.APPLICATION: (r.RESTART_IN_PLACE, r.REQUEUE, r.STOP),
        Trouble.HARDWARE: (r.QUARANTINE, r.REQUEUE, r.STOP),
        Trouble.NETWORK: (r.RESTART_IN_PLACE, r.REQUEUE, r.STOP),
        Trouble.STORAGE: (r.RESTART_IN_PLACE, r.REQUEUE, r.STOP),
        Trouble.NODE_LOST: (r.QUARANTINE, r.REQUEUE, r.STOP),
        Trouble.HANG: (r.RESTART_IN_PLACE, r.REQUEUE, r.STOP),
        Trouble.STRAGGLER: (r.NOTIFY,),
        Trouble.BAD_NUMBERS: (r.RESTART_IN_PLACE, r.STOP),
        Trouble.PLATFORM: (r.REQUEUE, r.STOP),
        Trouble.UNKNOWN: (r.RESTART_IN_PLACE, r.REQUEUE, r.STOP),
    }


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Budgets of one job. Counts are reset by progress.

    Progress is a durable checkpoint, made since the last restart, beyond the furthest one. Where an attempt resumed
    before the furthest (newer ones are damaged, gone or mistrusted), progress counts from where it resumed. A job that
    falls back to the same step once more, or behind it, must pass what it had regained: the same crash at the same step
    after each fall back still stops the job.
    """

    max_in_place: Count = 3
    max_requeues: Count = 3
    max_same_fingerprint: Count = 2
    """The same root cause this often with no progress in between is a crash loop: stop and say why. What broke on other
    nodes and further on than the time before is another one."""
    max_restarts_per_node: Count = 3
    """Restarts charged to one node before it is excluded even with thin evidence."""


class Waits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations in seconds that the engine waits for something."""

    settle_s: Seconds = 0.15
    """After the first sign of a fault, how long further findings are gathered before the diagnosis is first written."""
    stop_grace_s: Seconds = 0.0
    """Between SIGTERM and SIGKILL for ranks of a broken attempt."""
    evacuate_s: Seconds = 120.0
    stacks_s: Seconds = 5.0
    order_s: Seconds = 60.0
    """An order without an outcome for this long is looked at again."""
    start_s: Seconds = 900.0
    """From release to the attempt's processes started (image load included)."""
    prove_s: Seconds = 3600.0
    nodes_s: Seconds = 1800.0
    """Waiting for nodes before people are told again."""
    drain_s: Seconds = 86400.0
    repair_s: Seconds = 3600.0
    validate_s: Seconds = 1800.0
    propose_s: Seconds = 900.0
    """A proposed order lapses after this long (advise)."""
    unknown_s: Seconds = 60.0
    """A silent node stays unknown this long before its jobs are restarted elsewhere on the lease's end."""


class NodeRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How nodes are repaired and returned."""

    ladder: tuple[Remedy, ...] = (Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE, Remedy.RETIRE)
    follow_hint: bool = True
    """Begin at the rung that the finding's catalogue entry names (74 -> replace, 73 -> reboot)."""
    repair_when_drained: bool = True
    failed_prolog_is_a_fault: bool = False
    """Slurm: a node that Slurm drained because its Prolog or Epilog failed, or a task there could not be killed, is
    fenced, repaired and returned; otherwise such a drain is left to people."""
    action_reason: bool = False
    """Slurm: mark a fenced node in HyperPod's words, state FAIL and reason `Action:Replace` or `Action:Reboot`."""
    validate: bool = True
    lemon_offences: Count = 3
    lemon_window_s: Seconds = 28 * 86400.0
    flap_hold_s: Seconds = 300.0
    """A node that comes back and fails again is held back this long, doubled each time."""


class Brake(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many nodes of a group are quarantined inside the window, each so often. The smaller limit holds."""

    max_nodes: Count = 4
    max_percent: Annotated[float, Meta(ge=0, le=100)] = 25.0
    window_s: Seconds = 3600.0
    calm_s: Seconds = 600.0
    """Without a new wish to quarantine for this long the brake closes again by itself, once its window has room."""


class HangRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the hang detector. Learned limits are `multiple` x the observed time, never below the floor."""

    enabled: bool = True
    multiple: Annotated[float, Meta(ge=1)] = 3.0
    floor_s: Seconds = 1.0
    learn_steps: Count = 5
    startup_s: Seconds = 900.0
    load_s: Seconds = 1800.0
    first_step_s: Seconds = 900.0
    step_max_s: Seconds = 540.0
    """Ceiling of the learned step limit: below NCCL's own time-out of 600 s."""
    eval_s: Seconds = 1800.0
    checkpoint_s: Seconds = 900.0
    shutdown_s: Seconds = 300.0
    pause_s: Seconds = 300.0
    """Between two steps a job that announces no evaluations may stand this long, until its own pauses are learned."""


class StragglerRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rank is a straggler when it is slower than its peers by this factor over this many steps."""

    factor: Annotated[float, Meta(ge=1)] = 1.5
    steps: Count = 3
    exclude: bool = False


class Trust(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one reporter's word, and how many people an approval takes. The defaults hold nothing back.

    A reporter is the agent of a node or the launcher of a job; lines of a job's output count as its launcher's word.
    The values of the site or the group hold for every job there, also for a job that asks for a policy by name.
    """

    two_witnesses: bool = False
    """A node that only jobs speak against is not quarantined before a second kind of evidence has come: its own agent,
    the scheduler, or a failed check of it. A passed check clears it, and a person may approve its quarantine."""
    reporter_nodes: Count = 0
    """At most so many different nodes of a group are quarantined inside the window on one reporter's word alone; more
    wait as under `two_witnesses`. 0: no bound."""
    reporter_requeues: Count = 0
    """At most so many running jobs are stopped and requeued inside the window on one reporter's word alone, its own job
    not counted; more wait for a person. 0: no bound."""
    reporter_window_s: Seconds = 3600.0
    approvals: Annotated[int, Meta(ge=1, le=8)] = 1
    """So many different people must approve a proposed order. A person is a token: by its name and its id."""

    @property
    def is_on(self) -> bool:
        """Does anything depend on whose word it is?"""
        return self.two_witnesses or self.reporter_nodes > 0 or self.reporter_requeues > 0


class Slo(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Objectives that reports judge by. 0: none is set. Nothing here changes what Holdfast does."""

    detect_s: Seconds = 0.0
    """95 of 100 faults are noticed within this."""
    recover_s: Seconds = 0.0
    """95 of 100 recoveries train again within this, from the fault to the first new step."""
    availability: Annotated[float, Meta(ge=0, lt=100)] = 0.0
    """Percent of the jobs' time in which they could train, such as 99.9: of a month that leaves 43.2 minutes."""
    performance_loss: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """Percent by which throughput after a recovery may stay below what it was before the fault."""


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a site can set about judgement and recovery."""

    name: str = "default"
    mode: Mode = Mode.ACT
    modes: dict[Remedy, Mode] = {}
    """Mode per rung; a rung that is not named has `mode`."""
    enabled_by_default: bool = False
    """Recover jobs whose owners did not ask."""
    requeue_held: bool = True
    """Requeue held, attribute, exclude, then release (Mission Control); False: requeue at once."""
    hold_first: bool = False
    """A job that has failed is requeued held at once and attributed while it is held; False: it is attributed first."""
    always_replace: bool = False
    """Never reboot: every hardware repair is a replacement (HyperPod on Slurm)."""
    proof: Proof = Proof.FIRST_CHECKPOINT
    """The point that an attempt has to reach to be a successful restart, for recovery and in reports."""
    ladders: dict[Trouble, tuple[Remedy, ...]] = field(default_factory=_job_ladders)
    limits: Limits = Limits()
    waits: Waits = Waits()
    node: NodeRules = NodeRules()
    brake: Brake = Brake()
    hang: HangRules = HangRules()
    straggler: StragglerRules = StragglerRules()
    trust: Trust = Trust()
    evacuate_on_trend: bool = True
    slo: Slo = Slo()

    def mode_for(self, remedy: Remedy) -> Mode:
        """How far Holdfast may go with this remedy, where no person has set a mode at run time."""
        return self.modes.get(remedy, self.mode)


class PolicySet(Struct, frozen=True, kw_only=True):
    """The site's policy with its particular cases, resolved. `for_group` and `for_job` give the one that holds."""

    site: Policy = Policy()
    groups: dict[str, Policy] = {}
    named: dict[str, Policy] = {}
    """Presets and policies that a job may ask for by name."""

    def for_group(self, group: str) -> Policy:
        """The policy of this partition or node group."""
        return self.groups.get(group, self.site)

    def for_job(self, partition: str, asked: str) -> Policy:
        """The policy of a job: the one its owner asked for by name, else its partition's."""
        return self.named.get(asked) or self.for_group(partition)
