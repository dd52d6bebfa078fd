"""What a check is, what it says, and what it may ask for. Read by everything in this package, the agent and the docs.

A *source* reads facts (from a tool, from NVML, from files) within a time limit; a *check* judges them, which is pure.
One reading serves all checks of its source. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

from msgspec import Struct

from holdfast.detect.counters import CounterFold
from holdfast.detect.trends import Course
from holdfast.model.evidence import Place, Remedy


class Mode(StrEnum):
    """When a check is run."""

    PERIODIC = "periodic"
    """By the agent, again and again; cheap."""
    PROLOG = "prolog"
    """Before a job, on a node that has none."""
    EPILOG = "epilog"
    """After a job."""
    DEEP = "deep"
    """Before a node returns to service; may take an hour and the whole machine."""


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"
    """It could not be told: it hung, or was answered with nonsense. Never a reason to fence a node."""
    ABSENT = "not applicable"
    """What it looks at does not exist here."""
    WARMING = "warming up"
    """Its warm-up grace is not over: what it saw does not count yet."""
    OFF = "switched off"


NAGIOS = {Status.OK: 0, Status.WARNING: 1, Status.CRITICAL: 2, Status.UNKNOWN: 3}
"""Exit codes of `holdfast check`; the others count as OK. CRITICAL wins over WARNING, WARNING over UNKNOWN."""


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    rule: str
    """The catalogue's rule, such as `check.gpu_lost`: gives domain, role, severity, remedy."""
    summary: str
    place: Place = Place()
    text: str = ""
    """What was read, as evidence."""
    warning: bool = False
    """A person should know; no reason to keep work away."""
    happened: bool = False
    """Something that happened rather than a state that lasts: it has no end to be told."""
    predicts: bool = False
    """The fault has not happened yet."""
    remedy: Remedy | None = None
    """The device's own word about what mends it; goes before the catalogue's."""
    captures: dict[str, str] = {}

    @property
    def key(self) -> str:
        """Equal for the same problem at two looks."""
        place = self.place
        return f"{self.rule}|{place.gpu_id or place.gpu}|{place.link}|{place.path}"


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node of this type has. What is not said is not compared, or learned at the agent's first look."""

    gpus: int | None = None
    """How many."""
    gpu_name: str = ""
    """Part of the name of every GPU."""
    nvlinks_per_gpu: int | None = None
    """That are up."""
    pcie_gen: int | None = None
    """Of the GPUs' PCIe links, under load."""
    pcie_width: int | None = None
    """Of the GPUs' PCIe links."""
    infiniband: int | None = None
    """InfiniBand or RoCE devices that must be active."""
    efa: int | None = None
    """EFA devices that must be active."""
    rate_gbps: float | None = None
    """Least rate of each of them."""
    neuron: int | None = None
    """Neuron devices."""
    nics: tuple[str, ...] = ()
    """Network interfaces that must have a carrier."""
    nic_speed_mbps: int | None = None
    """Least speed of each of them."""
    cpus: int | None = None
    """Processors that are online."""
    numa_nodes: int | None = None
    """How many."""
    memory_gib: float | None = None
    """Least memory."""
    mounts: tuple[str, ...] = ()
    """Mount points that must be there and answer."""
    services: tuple[str, ...] = ()
    """systemd units that must be active; without systemd: processes of that name."""
    write_probe: tuple[str, ...] = ()
    """Folders in which a small file is written, synced, read back and removed."""
    pci: dict[str, str] = {}
    """PCI address -> `numa=N width=N speed=GT/s`, as `holdfast check topology --profile` prints it."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds. Rates are per window so that one stray error is no fault."""

    disk_free_percent: float = 0.5
    disk_free_mib: float = 1.0
    """A file system is full below the smaller of the two."""
    disk_warn_percent: float = 5.0
    """Nearly full: a warning."""
    memory_free_percent: float = 1.0
    """Less available memory than this is a warning."""
    gpu_hot_c: int | None = None
    """Too hot from here on; default: the GPU's own slowdown temperature."""
    gpu_corrected_per_h: int = 1000
    """Corrected memory errors of one GPU in an hour that are a warning."""
    trend_ahead_s: float = 900.0
    """A limit that is reached within this time is told ahead."""
    trend_near_c: float = 10.0
    """... once the temperature is that near."""
    trend_span_s: float = 600.0
    """A temperature's course is judged over this time, once half of it is known."""
    nvlink_errors_per_10min: int = 1000
    """Errors of one link in 10 minutes that are a warning; transient CRC errors are repaired by the link itself."""
    nvlink_recoveries_per_10min: int = 3
    """Link recoveries in 10 minutes: the link breaks again and again."""
    pcie_replays_per_min: int = 8
    """As DCGM's health watch has it."""
    link_flaps_per_10min: int = 3
    """Losses of carrier of one network link."""
    fabric_errors_per_10min: int = 100
    """Symbol, receive and integrity errors of one InfiniBand port."""
    edac_corrected_per_h: int = 100
    """Corrected errors of one memory controller in an hour that are a warning."""
    clock_step_s: float = 5.0
    """A clock that jumps by more than this is told."""
    clock_offset_s: float = 0.5
    """Off by more than this, as chrony sees it, is a warning."""
    fabric_mb_per_s: float | None = None
    """Least rate of the largest message of the loopback; unset: it must only work."""


class Judging(Struct, kw_only=True):
    """What a judge may look at besides the facts."""

    profile: Profile
    limits: Limits
    mode: Mode
    at: float
    """Seconds that never go back."""
    now: float
    """Unix seconds."""
    counters: CounterFold
    courses: dict[str, Course]
    learned: dict[str, str]
    """What was found at the first look (device count, links up), where the profile says nothing; kept over restarts."""
    kernel_log: bool = False
    """The kernel log is read: what it tells need not be told again."""
    job: str = ""
    """Slurm's job id, in a prolog or epilog."""


class Reading(Struct, frozen=True, kw_only=True):
    """How a source answered: with facts, or why not."""

    facts: Any = None
    absent: str = ""
    """What it reads is not here."""
    failed: str = ""
    """It answered with an error or with nonsense."""
    hung: bool = False
    seconds: float = 0.0


class Source(Struct, frozen=True, kw_only=True):
    """Something that can be read."""

    name: str
    about: str
    needs: str
    """What must be here; without it the checks are not applicable."""
    limit_s: float
    read: Callable[[Any], Awaitable[Reading]]
    """Called with the `rounds.Reach`."""
    every_s: float | None = None
    """Seconds between two looks, when not the agent's poll interval."""


class Check(Struct, frozen=True, kw_only=True):
    """One check. `judge` is pure: facts of its source in, problems out."""

    name: str
    about: str
    source: str
    modes: tuple[Mode, ...]
    judge: Callable[[Any, Judging], list[Problem]]
    rules: tuple[str, ...]
    """Rules that its problems may have."""
    grace_s: float = 0.0
    """Warm-up: seconds after boot (or after the source has come to life) in which problems do not count."""
    looks: int = 1
    """So many looks in a row must see a problem before it counts."""
    lasting_s: float = 0.0
    """A problem counts once it has been seen for so long without a break."""
    on_absent: Callable[[str, Judging], list[Problem]] | None = None
    """Judges that the source is not there, where that may be a problem of its own."""
    emulated_ok: bool = True
    """Run on emulated nodes, too; what burns the whole machine is not."""


ANY_TIME = (Mode.PERIODIC, Mode.PROLOG, Mode.EPILOG, Mode.DEEP)
