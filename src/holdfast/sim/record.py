"""What a simulated run leaves behind: the truth about the world, the journal, and figures. Judges read nothing else.

`world.py` and the other parts of the simulation write happenings here as they make them happen. Times are virtual Unix
seconds; `at - VIRTUAL_START` is the time since the run's beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from msgspec import Struct, field

from holdfast.model.cluster import WorldView
from holdfast.ports import Entry
from holdfast.sim.history import History
from holdfast.sim.options import SimOptions
from holdfast.sim.store import Disk

T = TypeVar("T")


class Fault(Struct, frozen=True, kw_only=True):
    """One planned fault, drawn from the seed before the run: what the system does cannot change it."""

    id: str
    """`gpu-7`: kind and number; what `SimOptions.drop` takes."""
    at_s: float
    """Since the run's beginning."""
    kind: str
    """See `faults.KINDS`."""
    cause: str = ""
    """Rule id of the finding that names it truly, when one can."""
    label: str = ""
    """The cause in people's words: `GPU HBM3 memory`."""
    node: str = ""
    group: tuple[str, ...] = ()
    """All nodes that it takes down: a switch's, a rack's."""
    for_s: float = 0.0
    """How long it lasts, when it ends by itself."""
    machine: str = ""
    """It lives in this machine only (a lemon): once replaced, it does not happen."""
    luck: float = 0.0
    """A draw in [0, 1) of its own, for whatever else must be chosen."""
    remedy: str = ""
    """What mends it: `reset`, `reboot`, `replace`; empty: nothing need be mended."""

    def picks(self, among: Sequence[T]) -> T:
        """One of these, by its luck."""
        return among[int(self.luck * len(among))]


class Happening(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that truly happened in the world, in order."""

    at: float
    what: str
    """A word of `record.WORDS`."""
    fault: str = ""
    """Id of the fault that it belongs to."""
    who: str = ""
    """Whose doing: `fault`, `scheduler`, `controller`, `operator:mei`, `launcher:1`, `repair`, `owner`."""
    order: str = ""
    """Id of the order that made it happen."""
    node: str = ""
    job: str = ""
    """As `str(JobKey)` writes it."""
    detail: str = ""
    nodes: tuple[str, ...] = ()


WORDS = {
    "fault": "a planned fault took effect (`fault`, `node`, `nodes`; `detail` is its label)",
    "fault_missed": "a planned fault found nothing to break (`detail` says why)",
    "fault_ended": "a fault that lasts has ended",
    "job_submitted": "an owner submitted a job",
    "job_started": "the scheduler started the job on `nodes`; `detail` is its restart count",
    "job_requeued": "the job is back in the queue (`detail`: held or pending)",
    "job_released": "a held job may start",
    "job_held": "a job in the queue may not start",
    "job_excluded": "the job is kept off `nodes`",
    "job_ended": "the job left the scheduler; `detail` is its last state",
    "attempt_started": "all processes of an attempt run; `detail` is its number",
    "attempt_training": "the attempt trains; `detail` is the step it resumed from",
    "attempt_ended": "no process of the attempt is left; `detail` is its number",
    "checkpoint": "a durable checkpoint; `detail` is its step",
    "node_down": "the node does not run",
    "node_up": "the node runs, perhaps as another machine",
    "node_cut": "the node is cut off from the network",
    "node_healed": "it is connected again",
    "node_drained": "the node takes no new work; `detail` is the reason",
    "node_resumed": "it takes work again",
    "node_bad": "the machine is broken in a way that breaks jobs on it",
    "node_mended": "it is not broken any more",
    "node_repair": "a repair began; `detail` is which",
    "node_repair_failed": "a repair did not work",
    "node_checked": "checks ran; `detail` is passed or failed",
    "node_retired": "the node was handed to a person",
    "node_returned_by_person": "a person brought a retired node back",
    "command_failed": "a command of the scheduler failed and did nothing",
    "command_refused": "a command of the scheduler was refused for good",
    "command_hung": "a command of the scheduler did not answer",
    "command_lied": "a command worked and said that it failed",
    "command_late": "a command said that it failed and worked later",
    "controller_started": "a controller has the lease; `detail` is its epoch",
    "controller_killed": "a controller was killed",
    "controller_fenced": "a controller stopped because another had taken over",
    "lie": "a hostile reporter begins to lie for a while; `who` is its source",
    "lie_taken": "a beat of the hostile reporter was taken in: of `node`, or of the job with the id `job`",
    "operator": "a person's deed; `detail` says which",
    "notice": "people were told; `detail` is the title",
    "calm": "the phase of faults is over: nothing breaks any more",
    "refused": "the engine refused an event: a bug; `detail` says why",
}


class Ledger(Struct):
    """Where the wall time of one job went, in seconds. The parts add up to `wall_s`."""

    job: str
    nodes: int
    wall_s: float = 0.0
    productive_s: float = 0.0
    """Training that counts: it was not lost again."""
    badput: dict[str, float] = field(default_factory=dict)
    """Category -> seconds; see `ledger.CATEGORIES`."""
    attempts: int = 0
    checkpoints: int = 0
    failures: int = 0
    """Attempts that ended before their time."""
    completed: bool = False

    @property
    def ettr(self) -> float:
        """Effective training time ratio: productive over wall time; 0.0 before anything ran."""
        return self.productive_s / self.wall_s if self.wall_s > 0 else 0.0


class SimResult(History, kw_only=True):
    """See the module. `entries()` and `journal()` need `keep_journal`; `judging.history_of` adds steps and deeds."""

    options: SimOptions
    faults: tuple[Fault, ...]
    """All that were planned, also the dropped ones."""
    truth: list[Happening]
    started_at: float
    calm_at: float
    """When faults stopped."""
    converged: bool
    """Everything came to rest within `converge_s` (True as well when there was no such phase)."""
    unrest: list[str]
    """What had not come to rest: one line each."""
    final: WorldView
    ledgers: list[Ledger]
    events: int
    orders_given: int
    digest: str
    """SHA-256 of the canonical journal, whether it was kept or not."""
    bytes_written: int
    """Length of the canonical journal."""
    refused: list[str]
    """Events that the engine refused, with why: each is a bug."""
    effects: dict[str, int]
    """Order id -> how often it changed the world."""
    state: bytes
    """The engine's snapshot at the end."""
    counts: dict[str, int]
    """Further counts: looks, kills, refused, resubmitted."""
    disk: Disk
    """What is kept of the journal."""

    def entries(self) -> Iterator[Entry]:
        """Every event with its orders, oldest first."""
        return self.disk.entries()

    def journal(self) -> bytes:
        """The canonical journal: a line of JSON for each event with its orders."""
        return b"".join(self.disk.lines())
