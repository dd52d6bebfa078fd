"""What leader and nodes say to each other; `os.frames` carries it on a TCP connection under the job's secret.

The leader talks to its own node through the same structs without a wire, so that both paths are one. Pure: no clock.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.launch.environment import AttemptSpec
from holdfast.launch.process import Exit
from holdfast.model.evidence import Finding


class Ask(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="ask"):
    """Base of what the leader asks of a node."""


class StartRanks(Ask, frozen=True, kw_only=True, tag="start"):
    """Start this node's ranks of an attempt. Already started: nothing happens, and it is reported again."""

    spec: AttemptSpec


class EndRanks(Ask, frozen=True, kw_only=True, tag="end"):
    """End this node's ranks and report `RanksGone` when all are provably gone."""

    attempt: int
    grace_s: float = 0.0


class DumpStacks(Ask, frozen=True, kw_only=True, tag="dump"):
    """Dump the stacks of this node's ranks within `limit_s`."""

    attempt: int
    limit_s: float


class AskEvacuate(Ask, frozen=True, kw_only=True, tag="evacuate"):
    """Ask the ranks to save and stop."""

    attempt: int


class PassSignal(Ask, frozen=True, kw_only=True, tag="signal"):
    """Send a signal to the ranks. `is_end`: the job is being ended, so their exits are not faults."""

    signum: int
    is_end: bool = False


class Leave(Ask, frozen=True, kw_only=True, tag="leave"):
    """The job is over: end what still runs and exit with this code."""

    exit_code: int
    why: str = ""


class Grant(Ask, frozen=True, kw_only=True, tag="grant"):
    """The leader's beat: the attempt lease runs for `lease_s` from when beat number `beat` was sent."""

    beat: int
    lease_s: float


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="report"):
    """Base of what a node reports."""


class Beat(Report, frozen=True, kw_only=True, tag="beat"):
    """I am here. Numbered, so that a lease counts from when this was sent."""

    beat: int
    at: float = 0.0
    """The sender's clock, as in its other reports."""


class RanksStarted(Report, frozen=True, kw_only=True, tag="started"):
    """All of this node's ranks run."""

    attempt: int
    standbys_used: int = 0


class StartFailed(Report, frozen=True, kw_only=True, tag="start_failed"):
    """The ranks could not be started here."""

    attempt: int
    why: str


class RankEnded(Report, frozen=True, kw_only=True, tag="ended"):
    """A rank (or the command: `rank` None) has ended by itself; `tail` holds the last lines of its log."""

    attempt: int
    rank: int | None
    exit: Exit
    at: float
    tail: tuple[str, ...] = ()
    error: str = ""
    """What the rank's own error file says (TORCHELASTIC_ERROR_FILE)."""
    log: str = ""

    @property
    def who(self) -> str:
        """As people are told."""
        return "the command" if self.rank is None else f"rank {self.rank}"


class RanksGone(Report, frozen=True, kw_only=True, tag="gone"):
    """No process of this attempt runs on this node. `why` when it was this node's own doing (lease)."""

    attempt: int
    why: str = ""


class SlotBrief(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the leader needs of a rank's slot. Ages are seconds before the report was made."""

    rank: int
    phase: str
    phase_age_s: float = 0.0
    begun: int | None = None
    ended: int | None = None
    step_s: float | None = None
    first: int | None = None
    """First step that this process completed."""
    loss: float | None = None
    accuracy: float | None = None
    staged: int | None = None
    durable: int | None = None
    durable_took_s: float | None = None
    """From staged to durable, when both are of the same step."""
    samples: int = 0
    tokens: int = 0
    saves: int = 0
    saves_s: float = 0.0
    """Times that the checkpoint phase was left, and seconds spent in it."""
    writes: int = 0
    is_gone: bool = False
    """Its process was seen to run and does not any more."""


class SlotsSeen(Report, frozen=True, kw_only=True, tag="slots"):
    """Slots of this node's ranks that have changed."""

    attempt: int
    at: float
    slots: tuple[SlotBrief, ...]


class LineSeen(Report, frozen=True, kw_only=True, tag="line"):
    """Progress or a checkpoint told by log lines that were read together (role `progress` or `checkpoint`).

    `step` and `checkpoint` are the newest, `first` the first step among them.
    """

    attempt: int
    at: float
    rank: int | None = None
    first: int | None = None
    step: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    step_s: float | None = None
    checkpoint: int | None = None
    durable: bool = False
    path: str = ""
    took_s: float | None = None


class Spotted(Report, frozen=True, kw_only=True, tag="spotted"):
    """Findings of this node's output."""

    findings: tuple[Finding, ...]


STOPPED = "is stopped (SIGSTOP)"
"""Why a rank in state T gives no stack."""


class RankStack(Struct, frozen=True, omit_defaults=True):
    """One rank's training stack, innermost first, as (function, file, line); empty: it gave none, and `why`."""

    rank: int
    frames: tuple[tuple[str, str, int], ...] = ()
    why: str = ""


class StacksDumped(Report, frozen=True, kw_only=True, tag="stacks"):
    """The answer to `DumpStacks`."""

    attempt: int
    stacks: tuple[RankStack, ...]


class EndAsked(Report, frozen=True, kw_only=True, tag="end_asked"):
    """This node's launcher was told by a signal to end the job."""

    signum: int


class Bye(Report, frozen=True, kw_only=True, tag="bye"):
    """This launcher leaves on purpose; its end is no evidence of a lost node."""

    exit_code: int = 0
    why: str = ""


AnyAsk = StartRanks | EndRanks | DumpStacks | AskEvacuate | PassSignal | Leave | Grant
AnyReport = (
    Beat
    | RanksStarted
    | StartFailed
    | RankEnded
    | RanksGone
    | SlotsSeen
    | LineSeen
    | Spotted
    | StacksDumped
    | EndAsked
    | Bye
)


class Hello(Struct, frozen=True, kw_only=True):
    """First frame of a follower, under the connection's key: proves that it holds the secret."""

    node: str
    local_ranks: int
    address: str = ""
    attempt: int | None = None
    """The attempt whose ranks still run there."""
    process: str = ""
    """Tells two launchers of one node apart; the same for each connection of one process."""


class Welcome(Struct, frozen=True, kw_only=True):
    """The leader's answer to `Hello`, under the same key."""

    lease_s: float
    refused: str = ""
    """Why the connection is not taken; empty: it is."""
