"""Evidence and judgement: findings (something seen) and diagnoses (the root cause chosen from them).

Detectors in `detect/`, agents and launchers make findings; `decide/diagnosis` chooses among them.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from holdfast.model.cluster import JobKey


class Domain(StrEnum):
    """Where the trouble lies."""

    HARDWARE = "hardware"
    NETWORK = "network"
    STORAGE = "storage"
    PLATFORM = "platform"
    APPLICATION = "application"
    OPERATOR = "operator"
    UNKNOWN = "unknown"


class Role(StrEnum):
    """What a line or finding means for the judgement."""

    ROOT = "root"
    CASCADE = "cascade"
    CONTEXT = "context"
    PROGRESS = "progress"
    CHECKPOINT = "checkpoint"
    BENIGN = "benign"


class Severity(StrEnum):
    """How bad, for people and for routing. Recovery is decided by role, domain and remedy, not by this."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"


class Remedy(StrEnum):
    """Rungs of the remedy ladders, also used as hints in the catalogue. In order of gentleness within a kind."""

    NONE = "none"
    NOTIFY = "notify"
    # the job's rungs
    RESTART_IN_PLACE = "restart_in_place"
    EVACUATE = "evacuate"
    REQUEUE = "requeue"
    STOP = "stop"
    # the node's rungs
    QUARANTINE = "quarantine"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"
    RETIRE = "retire"


class EvidenceKind(StrEnum):
    """By what the thing was seen."""

    LOG = "log"
    EXIT = "exit"
    COUNTER = "counter"
    HEARTBEAT = "heartbeat"
    TELEMETRY = "telemetry"
    STACK = "stack"
    CHECK = "check"
    SCHEDULER = "scheduler"
    PERSON = "person"


class Place(Struct, frozen=True, omit_defaults=True):
    """Where it was seen. Fields that are not known stay at their default."""

    node: str = ""
    rank: int | None = None
    gpu: int | None = None
    gpu_id: str = ""
    """UUID or PCI address."""
    link: str = ""
    path: str = ""

    def __str__(self) -> str:
        parts = [self.node] if self.node else []
        if self.rank is not None:
            parts.append(f"rank {self.rank}")
        if self.gpu is not None:
            parts.append(f"GPU {self.gpu}")
        elif self.gpu_id:
            parts.append(f"GPU {self.gpu_id}")
        if self.link:
            parts.append(f"link {self.link}")
        if self.path:
            parts.append(self.path)
        return ", ".join(parts) or "place unknown"


class Evidence(Struct, frozen=True, omit_defaults=True):
    """One piece of what was seen, bounded in size, as it was: never interpreted again, escaped when shown."""

    kind: EvidenceKind
    text: str = ""
    file: str = ""
    line: int = 0


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something seen, with evidence, a place and a time (`at`, Unix seconds on the seeing machine)."""

    id: str
    """Unique: the same finding reported twice is one."""
    rule: str
    """Catalogue id such as `nvidia.xid.74`, `exit.signal.11`, `hang.step`, `node.lost`."""
    at: float
    domain: Domain = Domain.UNKNOWN
    role: Role = Role.CONTEXT
    severity: Severity = Severity.ERROR
    remedy: Remedy = Remedy.NONE
    """The catalogue's hint; the ladder decides."""
    place: Place = Place()
    job: JobKey | None = None
    attempt: int | None = None
    summary: str = ""
    fingerprint: str = ""
    """Same trouble, same fingerprint: rank, node, pid, address and time stripped."""
    evidence: tuple[Evidence, ...] = ()
    confidence: float = 1.0
    captures: dict[str, str] = {}
    predicts: bool = False
    """A trend: the fault has not happened yet."""
    count: int = 1
    """How many like it were folded into this one."""

    @property
    def is_rank_log(self) -> bool:
        """Is it a line of a job's own output? A rank may print anything, so the line alone moves nothing."""
        if self.job is None and self.place.rank is None:
            return False
        return bool(self.evidence) and all(piece.kind is EvidenceKind.LOG for piece in self.evidence)

    @property
    def recurs_as(self) -> str:
        """What tells the same trouble from another: the fingerprint, or the rule where it has none."""
        return self.fingerprint or self.rule


class JudgedFinding(Struct, frozen=True, omit_defaults=True):
    """A finding's id with the role that the diagnosis gave it, and why."""

    finding: str
    rule: str
    role: Role
    why: str = ""


class Diagnosis(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The root cause chosen from findings."""

    cause: str
    """Rule id of the root, or `unknown`."""
    domain: Domain = Domain.UNKNOWN
    summary: str = ""
    confidence: float = 0.0
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    """Suspects, most likely first; GPUs as `node/index` or `node/pci-address`."""
    remedy: Remedy = Remedy.NONE
    restart_helps: bool | None = None
    fingerprint: str = ""
    judged: tuple[JudgedFinding, ...] = ()
    story: str = ""

    @property
    def clause(self) -> str:
        """The summary without its full stop, to stand in another sentence; the cause where there is no summary."""
        return self.summary.rstrip(". ") or self.cause
