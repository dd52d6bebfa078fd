"""Checks of GPUs, judged from what NVML says. Pure but for the source: facts in, problems out.

Absurd numbers make the whole reading count as failed, because half of it could be true. Rates come from counters that
only grow; what grows once is no trend, and a counter that fell was reset. Thresholds are those of `check.Limits`; where
NVIDIA gives one (slowdown temperature, DCGM's 8 PCIe replays a minute), it is that.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.adapters.probes.check import Judging, Mode, Problem, Reading, check, problem, source
from holdfast.adapters.probes.facts import GpuFacts, NvmlFacts, implausible
from holdfast.adapters.probes.reach import Reach, fitted, limit
from holdfast.detect.trends import Course
from holdfast.model.evidence import Place, Remedy

LIMIT_S = 10.0
"""A node whose driver is busy answers within seconds; one that needs longer hangs."""
WARM_UP_S = 300.0
"""A driver may take minutes to bring up eight GPUs."""
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80
"""Bits of nvmlClocksEventReasons."""
_RECOVERY = {
    1: ("a GPU reset", Remedy.RESET_GPU),
    2: ("a reboot of the node", Remedy.REBOOT),
    3: ("its peers to be drained", Remedy.QUARANTINE),
    4: ("drain and reset", Remedy.RESET_GPU),
    5: ("its IMEX domain to be recovered", Remedy.QUARANTINE),
    6: ("a bus reset", Remedy.REBOOT),
    7: ("a reboot of the system", Remedy.REBOOT),
}
"""nvmlDeviceGpuRecoveryAction: what it asks for, and the rung that does it."""


@source(
    "nvml",
    "NVIDIA's management library, through nvidia-ml-py, in a process of its own",
    "libnvidia-ml.so.1 and the driver",
    LIMIT_S + 5,
)
async def _read(reach: Reach) -> Reading:
    processes = reach.mode in {Mode.PROLOG, Mode.EPILOG}
    reading = fitted(await reach.gpus.ask("nvml", limit(LIMIT_S), processes=processes, job=reach.job), NvmlFacts)
    if isinstance(reading.facts, NvmlFacts) and (why := implausible(reading.facts)):
        return replace(reading, facts=None, failed=f"NVML gives nonsense: {why}")
    return reading


def place(gpu: GpuFacts, link: str = "") -> Place:
    """Where a GPU is."""
    return Place(gpu=gpu.index, gpu_id=gpu.uuid or gpu.pci, link=link)


def _answering(facts: NvmlFacts) -> Iterator[tuple[GpuFacts, Place]]:
    return ((gpu, place(gpu)) for gpu in facts.gpus if not gpu.error)


@check("gpu-lost", "GPUs that do not answer", "nvml", "check.gpu_lost", "check.gpu_unreadable")
def lost(facts: NvmlFacts, _judging: Judging) -> Iterator[Problem]:
    """GPUs that NVML counts and that do not answer."""
    for gpu in facts.gpus:
        if gpu.error:
            rule = "check.gpu_lost" if gpu.lost else "check.gpu_unreadable"
            summary = f"GPU {gpu.index} does not answer: {gpu.error}"
            yield problem(rule, summary, place(gpu), text=gpu.error, warning=not gpu.lost)


@check("gpu-count", "number and model of the GPUs", "nvml", "check.gpu_count", "check.gpu_identity", grace_s=WARM_UP_S)
def count(facts: NvmlFacts, judging: Judging) -> Iterator[Problem]:
    """Fewer GPUs than the profile says, or than there were; another model than the profile says."""
    found = len(facts.gpus)
    if not found:
        return  # the driver's matter: see `driver`
    expected = judging.expected(judging.profile.gpus, "gpus", found)
    if found < expected:
        yield problem("check.gpu_count", f"{found} of {expected} GPUs are there")
    for gpu, where in _answering(facts):
        if judging.profile.gpu_name.lower() not in gpu.name.lower():
            summary = f"GPU {gpu.index} is a {gpu.name}, not a {judging.profile.gpu_name}"
            yield problem("check.gpu_identity", summary, where, text="")
            return


def driver_absent(why: str, judging: Judging) -> list[Problem]:
    """NVML is not there, on a node that has GPUs."""
    expected = judging.profile.gpus or int(judging.learned.get("gpus", "0"))
    if not expected:
        return []
    return [problem("check.gpu_driver", f"none of the {expected} GPUs can be reached: {why}", text=why)]


@check("gpu-driver", "the driver is there", "nvml", "check.gpu_driver", on_absent=driver_absent, lasting_s=WARM_UP_S)
def driver(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """No GPU at all where there were some."""
    return driver_absent("NVML counts no GPU", judging) if not facts.gpus else []


@check(
    "gpu-ecc",
    "memory errors, by how fast they come",
    "nvml",
    "check.gpu_ecc_uncorrected",
    "check.gpu_ecc_corrected",
    "check.gpu_trend_ecc",
)
def ecc(facts: NvmlFacts, judging: Judging) -> Iterator[Problem]:
    """Uncorrectable memory errors that came since the last look; many corrected ones; a rising rate of them."""
    for gpu, where in _answering(facts):
        if gpu.ecc_uncorrected is not None:
            rise = judging.rise(f"{gpu.uuid}:ue", gpu.ecc_uncorrected)
            if number := rise or (gpu.ecc_uncorrected if judging.mode is not Mode.PERIODIC else 0):
                yield problem(
                    "check.gpu_ecc_uncorrected",
                    f"{_plural(number, 'uncorrectable memory error')} on GPU {gpu.index}",
                    where,
                    text=f"volatile uncorrectable errors: {gpu.ecc_uncorrected}",
                    # Errors of before, with no row pending, are history that a reset would wipe: a person should know.
                    warning=not rise and not gpu.remap_pending,
                    happened=True,
                )
        if gpu.ecc_corrected is not None:
            least = judging.limits.gpu_corrected_per_h
            per_h, grows = judging.hourly(f"{gpu.uuid}:ce", gpu.ecc_corrected, least)
            if grows:
                summary = f"corrected memory errors of GPU {gpu.index} come ever faster: {per_h} in an hour"
                yield problem("check.gpu_trend_ecc", summary, where, predicts=True)
            elif per_h >= least:
                summary = f"{per_h} corrected memory errors on GPU {gpu.index} in an hour"
                yield problem("check.gpu_ecc_corrected", summary, where, warning=True)


@check(
    "gpu-remap",
    "rows and pages that wait for a reset, or cannot be replaced",
    "nvml",
    "check.gpu_row_remap_failed",
    "check.gpu_row_remap_pending",
    "check.gpu_retired_pending",
)
def remap(facts: NvmlFacts, _judging: Judging) -> Iterator[Problem]:
    """Rows or pages that wait for a reset to be taken out of use, or cannot be."""
    for gpu, where in _answering(facts):
        if gpu.remap_failed:
            summary = f"GPU {gpu.index} has no spare row left: remapping failed"
            yield problem("check.gpu_row_remap_failed", summary, where, text="")
        elif gpu.remap_pending:
            summary = f"GPU {gpu.index} needs a reset to remap a bad row"
            yield problem("check.gpu_row_remap_pending", summary, where, text="")
        if gpu.retired_pending:
            summary = f"GPU {gpu.index} needs a reset to retire a bad page"
            yield problem("check.gpu_retired_pending", summary, where, text="")


@check(
    "gpu-thermal",
    "temperature, now and where it is heading",
    "nvml",
    "check.gpu_thermal",
    "check.gpu_trend_thermal",
    looks=2,
)
def thermal(facts: NvmlFacts, judging: Judging) -> Iterator[Problem]:
    """Too hot now, slowed down for heat, or on the way there."""
    for gpu, where in _answering(facts):
        limit = judging.limits.gpu_hot_c or gpu.slowdown_c
        slowed = bool((gpu.throttle or 0) & HW_THERMAL)
        if gpu.temperature is None:
            continue
        text = f"{gpu.temperature} C, slowdown at {gpu.slowdown_c} C, shutdown at {gpu.shutdown_c} C"
        if slowed or (limit is not None and gpu.temperature >= limit):
            how = "is slowed down by heat" if slowed else "is too hot"
            yield problem("check.gpu_thermal", f"GPU {gpu.index} {how}: {gpu.temperature} C", where, text=text)
            continue
        course = judging.courses.setdefault(f"{gpu.uuid}:temperature", Course(judging.limits.trend_span_s))
        course.add(judging.at, gpu.temperature)
        if limit is None:
            continue
        ahead = course.reaches_in_s(limit, near=judging.limits.trend_near_c)
        if ahead is not None and ahead <= judging.limits.trend_ahead_s:
            summary = f"GPU {gpu.index} reaches {limit} C in about {max(1, round(ahead / 60))} min if it goes on so"
            yield problem("check.gpu_trend_thermal", summary, where, text=text, predicts=True)


@check(
    "gpu-throttle",
    "clocks held down by power or heat",
    "nvml",
    "check.gpu_power_brake",
    "check.gpu_throttle",
    modes=(Mode.PERIODIC, Mode.DEEP),
    looks=4,
)
def throttle(facts: NvmlFacts, _judging: Judging) -> Iterator[Problem]:
    """Slowed down by the power supply's brake or, while it works, by software for heat."""
    for gpu, where in _answering(facts):
        bits = gpu.throttle or 0
        if bits & HW_POWER_BRAKE:
            summary = f"GPU {gpu.index} is slowed down by the power supply's brake"
            yield problem("check.gpu_power_brake", summary, where, text=f"0x{bits:x}")
        elif bits & SW_THERMAL and not bits & HW_THERMAL:
            summary = f"GPU {gpu.index} lowers its clocks for heat ({gpu.temperature} C)"
            yield problem("check.gpu_throttle", summary, where, text=f"0x{bits:x}", warning=True)


@check(
    "gpu-nvlink",
    "NVLinks: state, errors, recoveries",
    "nvml",
    "check.gpu_nvlink_down",
    "check.gpu_nvlink_errors",
    "check.gpu_trend_nvlink",
    grace_s=60.0,
)
def nvlink(facts: NvmlFacts, judging: Judging) -> Iterator[Problem]:
    """Links that are down, that break again and again, or whose errors pile up."""
    for gpu, _ in _answering(facts):
        up = sum(link.active for link in gpu.links)
        # Some boards leave links unconnected: as many as were up at first must stay up.
        expected = judging.most(judging.profile.nvlinks_per_gpu, f"{gpu.uuid}:links", up)
        if up < expected:
            down = next((str(link.link) for link in gpu.links if not link.active), "")
            summary = f"{up} of {expected} NVLinks of GPU {gpu.index} are up"
            yield problem("check.gpu_nvlink_down", summary, place(gpu, down))
        for link in gpu.links:
            for what, value, least in (
                ("errors", link.errors, judging.limits.nvlink_errors_per_10min),
                ("recoveries", link.recoveries, judging.limits.nvlink_recoveries_per_10min),
            ):
                if value is None:
                    continue
                key = f"{gpu.uuid}:link{link.link}:{what}"
                judging.rise(key, value)
                lately, grows = judging.within(key, 600.0), judging.grows(key, 600.0, least)
                if grows or lately >= least:
                    rule = "check.gpu_trend_nvlink" if grows else "check.gpu_nvlink_errors"
                    summary = f"{lately} {what} on NVLink {link.link} of GPU {gpu.index} in 10 minutes"
                    yield problem(rule, summary, place(gpu, str(link.link)), warning=not grows, predicts=grows)


@check(
    "gpu-pcie",
    "PCIe lanes, generation, replays",
    "nvml",
    "check.gpu_pcie_width",
    "check.gpu_pcie_gen",
    "check.gpu_pcie_replay",
    looks=2,
)
def pcie(facts: NvmlFacts, judging: Judging) -> Iterator[Problem]:
    """A link on fewer lanes or, while the GPU works, at a lower generation than the profile says; replays."""
    gen = judging.profile.pcie_gen
    for gpu, where in _answering(facts):
        width = judging.profile.pcie_width or gpu.pcie_width_max
        if gpu.pcie_width is not None and width is not None and 0 < gpu.pcie_width < width:
            summary = f"the PCIe link of GPU {gpu.index} runs on {gpu.pcie_width} of {width} lanes"
            yield problem("check.gpu_pcie_width", summary, where)
        # An idle GPU lowers its link's speed to save power.
        if gen is not None and gpu.pcie_gen is not None and gpu.pcie_gen < gen and (gpu.utilization or 0) > 0:
            summary = f"the PCIe link of GPU {gpu.index} runs at generation {gpu.pcie_gen}, not {gen}"
            yield problem("check.gpu_pcie_gen", summary, where, text="", warning=True)
        if gpu.pcie_replays is not None:
            judging.rise(f"{gpu.uuid}:replay", gpu.pcie_replays)
            lately = judging.within(f"{gpu.uuid}:replay", 60.0)
            if lately > judging.limits.pcie_replays_per_min:
                summary = f"{lately} PCIe replays of GPU {gpu.index} in a minute"
                yield problem("check.gpu_pcie_replay", summary, where, text="", warning=True)


@check("gpu-recovery", "what the driver says a GPU needs", "nvml", "check.gpu_recovery_action")
def recovery(facts: NvmlFacts, _judging: Judging) -> Iterator[Problem]:
    """What the driver itself says that a GPU needs."""
    for gpu, where in _answering(facts):
        if gpu.recovery_action:
            words, remedy = _RECOVERY.get(gpu.recovery_action, (f"action {gpu.recovery_action}", Remedy.QUARANTINE))
            yield problem(
                "check.gpu_recovery_action",
                f"the driver asks for {words} because of GPU {gpu.index}",
                where,
                text=f"recovery action {gpu.recovery_action}",
                remedy=remedy,
                captures={"verdict": words},
            )


@check("gpu-xid", "Xids by NVML, where the kernel log cannot be read", "nvml", "nvidia.xid.*", modes=(Mode.PERIODIC,))
def xids(facts: NvmlFacts, judging: Judging) -> Iterator[Problem]:
    """Xids that NVML told of, where the kernel log cannot be read."""
    known = {gpu.index: place(gpu) for gpu in facts.gpus}
    for event in () if judging.kernel_log else facts.xids:
        yield problem(
            f"nvidia.xid.{event.xid}",
            "",
            known.get(event.gpu, Place()),
            text=f"NVML: Xid {event.xid} on GPU {event.gpu}",
            happened=True,
            captures={"xid": str(event.xid)},
        )


@check("gpu-busy", "processes on GPUs that no job owns", "nvml", "check.left_over", modes=(Mode.PROLOG, Mode.EPILOG))
def busy(facts: NvmlFacts, _judging: Judging) -> Iterator[Problem]:
    """Processes that still compute on a GPU when there should be none."""
    for gpu, where in _answering(facts):
        if gpu.pids:
            summary = f"{_plural(len(gpu.pids), 'process', 'es')} still on GPU {gpu.index}"
            yield problem("check.left_over", summary, where, text=f"pids {', '.join(map(str, gpu.pids[:10]))}")


def _plural(number: int, noun: str, ending: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else ending}"
