"""What a check is, what it says, and what it may ask for. Read by everything in this package, the agent and the docs.

A *source* reads facts (from a tool, from NVML, from files) within a time limit; a *check* judges them, which is pure.
One reading serves all checks of its source. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.detect.counters import CounterFold
from holdfast.detect.trends import Course
from holdfast.model.evidence import Place, Remedy

SITE = "site/"
POLL_S = 15.0


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


_SOMEWHERE = Place()


def problem(rule: str, summary: str, place: Place = _SOMEWHERE, **more: Any) -> Problem:
    """A problem whose summary is its evidence, unless `text` is given."""
    return Problem(rule=rule, summary=summary, place=place, **{"text": summary, **more})


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


class CheckSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check, otherwise than it comes. What is not said stays as it is."""

    enabled: bool = True
    """The kill switch."""
    every_s: float | None = None
    """Seconds between two looks of its source; the shortest of the source's checks wins."""
    limit_s: float | None = None
    """Time limit of its source's reading; the longest of the source's checks wins."""
    grace_s: float | None = None
    """Warm-up after boot, or after the source has come to life."""
    looks: int | None = None
    """So many looks in a row must see a problem before it counts."""
    modes: tuple[Mode, ...] | None = None
    """When it is run."""


class LogFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Further logs to watch."""

    path: str
    """A file or a pattern with `*`."""
    kind: str = "output"
    """`output` (of jobs: context only, a job may print anything), `kernel` or `scheduler`."""
    log_rules: str = ""
    """File of HyperPod's log rules for this output; what they find acts on the job that runs on the node."""


class NodeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    poll_s: float = POLL_S
    """Seconds between two looks at what has no interval of its own."""
    preset: str = ""
    """`hyperpod-eks`: do what that vendor's guide has agents do, which is to believe the kernel's lines in
    /var/log/messages too. Any user can write to syslog: leave it empty elsewhere."""
    metrics: str = ""
    """Where `/metrics` and `/healthz` are served, such as `127.0.0.1:9471`; empty: nowhere."""
    parser_user: str = "nobody"
    """User that the process which judges lines becomes where the agent is root, without rights and without files."""
    disable: tuple[str, ...] = ()
    """Kill switch: names of checks, or beginnings of names with `*`."""
    validate: tuple[str, ...] = ("prolog", "cpu-stress", "fi-pingpong")
    """What a node must pass before it takes work again: names of checks, beginnings with `*`, or modes. It must fit
    into the policy's `waits.validate_s`: `deep` with DCGM's level 4 needs hours."""
    validate_suites: tuple[str, ...] = ()
    """Suites of `holdfast validate` that a node must pass too before it takes work: `cpu`, `gpu`, `storage`..."""
    validate_baseline: str = ""
    """What they are compared with: a shipped baseline's name, a file, `none`; default: what matches the node."""
    dcgm_exporter: str = ""
    """Page of a dcgm-exporter, such as `http://127.0.0.1:9400/metrics`."""
    dcgm_policy: bool = False
    """Follow violations of the policies that the site has set in DCGM."""
    fabric_provider: str = "efa"
    """libfabric's name of the fabric for the loopback."""
    site_checks: str = "/etc/holdfast/checks.d"
    """Folder of the site's own checks: executables that end as Nagios' plug-ins do; empty: none. `site/NAME` in
    `disable` switches one off."""
    profile: Profile = Profile()
    limits: Limits = Limits()
    checks: dict[str, CheckSettings] = {}
    logs: tuple[LogFile, ...] = ()

    def of(self, name: str) -> CheckSettings:
        """The settings of a check, its kill switches included."""
        known = self.checks.get(name, CheckSettings())
        off = any(matches(pattern, name) for pattern in self.disable)
        return replace(known, enabled=False) if off else known

    @property
    def reads_messages(self) -> bool:
        """Are the kernel's lines in /var/log/messages believed?"""
        return self.preset == "hyperpod-eks"

    @property
    def site_off(self) -> tuple[str, ...]:
        """Names of the site's own checks that are switched off."""
        return tuple(word.removeprefix(SITE) for word in self.disable if word.startswith(SITE))


def matches(pattern: str, name: str) -> bool:
    """`gpu-*` and the like."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


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

    def expected(self, told: int | None, key: str, found: int) -> int:
        """How many there should be: what the profile says, else what was found at the first look."""
        return int(self.learned.setdefault(key, str(found))) if told is None else told

    def most(self, told: int | None, key: str, found: int) -> int:
        """How many there should be: what the profile says, else the most that were ever found."""
        if told is not None:
            return told
        self.learned[key] = str(max(int(self.learned.get(key, "0")), found))
        return int(self.learned[key])

    def rise(self, key: str, value: int) -> int:
        """How much a counter has risen since the look before."""
        return self.counters.rise(key, value, self.at)

    def within(self, key: str, window_s: float) -> int:
        """How much a counter has risen within so many seconds."""
        return self.counters.within(key, window_s, self.at)

    def grows(self, key: str, window_s: float, least: int) -> bool:
        """Do the rises of a counter come ever faster? See `CounterFold.grows`."""
        return self.counters.grows(key, window_s, self.at, least=least)

    def hourly(self, key: str, value: int, least: int) -> tuple[int, bool]:
        """Rises of a counter of errors in the last hour, and whether they come ever faster."""
        self.rise(key, value)
        return self.within(key, 3600.0), self.grows(key, 1200.0, max(1, least // 10))


class Reading(Struct, frozen=True, kw_only=True):
    """How a source answered: with facts, or why not."""

    facts: Any = None
    absent: str = ""
    """What it reads is not here."""
    failed: str = ""
    """It answered with an error or with nonsense."""
    hung: bool = False


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


def source(
    name: str, about: str, needs: str, limit_s: float, every_s: float | None = None
) -> Callable[[Callable[[Any], Awaitable[Reading]]], Source]:
    """Make a function that reads a source."""
    return lambda read: Source(name=name, about=about, needs=needs, limit_s=limit_s, read=read, every_s=every_s)


ANY_TIME = (Mode.PERIODIC, Mode.PROLOG, Mode.EPILOG, Mode.DEEP)
Judge = Callable[[Any, Judging], Iterable[Problem]]


class Check(Struct, frozen=True, kw_only=True):
    """One check. `judge` is pure: facts of its source in, problems out. Calling the check judges."""

    name: str
    about: str
    source: str
    modes: tuple[Mode, ...] = ANY_TIME
    judge: Judge
    rules: tuple[str, ...]
    """Rules that its problems may have."""
    grace_s: float = 0.0
    """Warm-up: seconds after boot (or after the source has come to life) in which problems do not count."""
    looks: int = 1
    """So many looks in a row must see a problem before it counts."""
    lasting_s: float = 0.0
    """A problem counts once it has been seen for so long without a break."""
    on_absent: Judge | None = None
    """Judges that the source is not there and why, where that may be a problem of its own."""
    emulated_ok: bool = True
    """Run on emulated nodes, too; what burns the whole machine is not."""

    def __call__(self, facts: Any, judging: Judging) -> list[Problem]:
        """The problems that these facts show."""
        return list(self.judge(facts, judging))


def check(name: str, about: str, source: str, *rules: str, **more: Any) -> Callable[[Judge], Check]:
    """Make a function that judges a check; `more` are fields of `Check`."""
    return lambda judge: Check(name=name, about=about, source=source, rules=rules, judge=judge, **more)
