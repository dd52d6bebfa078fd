"""Checks of GPUs, judged from what NVML says. Pure: facts in, problems out.

Rates come from counters that only grow; what grows once is no trend, and a counter that fell was reset. Thresholds are
those of `check.Limits`; where NVIDIA gives one (slowdown temperature, DCGM's 8 PCIe replays a minute), it is that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.adapters.probes.check import ANY_TIME, Check, Judging, Mode, Problem
from holdfast.adapters.probes.facts import GpuFacts, NvmlFacts
from holdfast.detect.trends import Course
from holdfast.model.evidence import Place, Remedy

WARM_UP_S = 300.0
"""A driver may take minutes to bring up eight GPUs."""
HW_SLOWDOWN = 0x8
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


def place(gpu: GpuFacts, link: str = "") -> Place:
    """Where a GPU is."""
    return Place(gpu=gpu.index, gpu_id=gpu.uuid or gpu.pci, link=link)


def _answering(facts: NvmlFacts) -> Iterator[GpuFacts]:
    return (gpu for gpu in facts.gpus if not gpu.error)


def lost(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """GPUs that NVML counts and that do not answer."""
    del judging
    return [
        Problem(
            rule="check.gpu_lost" if gpu.lost else "check.gpu_unreadable",
            summary=f"GPU {gpu.index} does not answer: {gpu.error}",
            place=place(gpu),
            text=gpu.error,
            warning=not gpu.lost,
        )
        for gpu in facts.gpus
        if gpu.error
    ]


def count(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """Fewer GPUs than the profile says, or than there were; another model than the profile says."""
    found = len(facts.gpus)
    if not found:
        return []  # the driver's matter: see `driver`
    expected = judging.profile.gpus
    if expected is None:
        expected = int(judging.learned.setdefault("gpus", str(found)))
    problems = []
    if found < expected:
        summary = f"{found} of {expected} GPUs are there"
        problems.append(Problem(rule="check.gpu_count", summary=summary, text=summary))
    wrong = [gpu for gpu in _answering(facts) if judging.profile.gpu_name.lower() not in gpu.name.lower()]
    if wrong:
        summary = f"GPU {wrong[0].index} is a {wrong[0].name}, not a {judging.profile.gpu_name}"
        problems.append(Problem(rule="check.gpu_identity", summary=summary, place=place(wrong[0])))
    return problems


def driver(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """No GPU at all where there were some."""
    return driver_absent("NVML counts no GPU", judging) if not facts.gpus else []


def driver_absent(why: str, judging: Judging) -> list[Problem]:
    """NVML is not there, on a node that has GPUs."""
    expected = judging.profile.gpus or int(judging.learned.get("gpus", "0"))
    if not expected:
        return []
    summary = f"none of the {expected} GPUs can be reached: {why}"
    return [Problem(rule="check.gpu_driver", summary=summary, text=why)]


def ecc(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """Uncorrectable memory errors that came since the last look; many corrected ones; a rising rate of them."""
    problems = []
    for gpu in _answering(facts):
        if gpu.ecc_uncorrected is not None:
            rise = judging.counters.rise(f"{gpu.uuid}:ue", gpu.ecc_uncorrected, judging.at)
            by_hand = gpu.ecc_uncorrected if judging.mode is not Mode.PERIODIC else 0
            if rise or by_hand:
                summary = f"{_plural(rise or by_hand, 'uncorrectable memory error')} on GPU {gpu.index}"
                text = f"volatile uncorrectable errors: {gpu.ecc_uncorrected}"
                # Errors of before, with no row pending, are history that a reset would wipe: a person should know.
                old = not rise and not gpu.remap_pending
                problems.append(
                    Problem(
                        rule="check.gpu_ecc_uncorrected",
                        summary=summary,
                        place=place(gpu),
                        text=text,
                        warning=old,
                        happened=True,
                    )
                )
        if gpu.ecc_corrected is not None:
            problems += _corrected(gpu, gpu.ecc_corrected, judging)
    return problems


def _corrected(gpu: GpuFacts, value: int, judging: Judging) -> list[Problem]:
    key = f"{gpu.uuid}:ce"
    judging.counters.rise(key, value, judging.at)
    per_h = judging.counters.within(key, 3600.0, judging.at)
    least = judging.limits.gpu_corrected_per_h
    if judging.counters.grows(key, 1200.0, judging.at, least=max(1, least // 10)):
        summary = f"corrected memory errors of GPU {gpu.index} come ever faster: {per_h} in an hour"
        return [Problem(rule="check.gpu_trend_ecc", summary=summary, place=place(gpu), text=summary, predicts=True)]
    if per_h >= least:
        summary = f"{per_h} corrected memory errors on GPU {gpu.index} in an hour"
        return [Problem(rule="check.gpu_ecc_corrected", summary=summary, place=place(gpu), text=summary, warning=True)]
    return []


def remap(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """Rows or pages that wait for a reset to be taken out of use, or cannot be."""
    del judging
    problems = []
    for gpu in _answering(facts):
        if gpu.remap_failed:
            summary = f"GPU {gpu.index} has no spare row left: remapping failed"
            problems.append(Problem(rule="check.gpu_row_remap_failed", summary=summary, place=place(gpu)))
        elif gpu.remap_pending:
            summary = f"GPU {gpu.index} needs a reset to remap a bad row"
            problems.append(Problem(rule="check.gpu_row_remap_pending", summary=summary, place=place(gpu)))
        if gpu.retired_pending:
            summary = f"GPU {gpu.index} needs a reset to retire a bad page"
            problems.append(Problem(rule="check.gpu_retired_pending", summary=summary, place=place(gpu)))
    return problems


def thermal(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """Too hot now, slowed down for heat, or on the way there."""
    problems = []
    for gpu in _answering(facts):
        limit = judging.limits.gpu_hot_c or gpu.slowdown_c
        slowed = bool((gpu.throttle or 0) & HW_THERMAL)
        if gpu.temperature is None:
            continue
        text = f"{gpu.temperature} C, slowdown at {gpu.slowdown_c} C, shutdown at {gpu.shutdown_c} C"
        if slowed or (limit is not None and gpu.temperature >= limit):
            how = "is slowed down by heat" if slowed else "is too hot"
            summary = f"GPU {gpu.index} {how}: {gpu.temperature} C"
            problems.append(Problem(rule="check.gpu_thermal", summary=summary, place=place(gpu), text=text))
            continue
        course = judging.courses.setdefault(f"{gpu.uuid}:temperature", Course(judging.limits.trend_span_s))
        course.add(judging.at, gpu.temperature)
        if limit is None:
            continue
        ahead = course.reaches_in_s(limit, near=judging.limits.trend_near_c)
        if ahead is not None and ahead <= judging.limits.trend_ahead_s:
            summary = f"GPU {gpu.index} reaches {limit} C in about {max(1, round(ahead / 60))} min if it goes on so"
            problems.append(
                Problem(rule="check.gpu_trend_thermal", summary=summary, place=place(gpu), text=text, predicts=True)
            )
    return problems


def throttle(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """Slowed down by the power supply's brake or, while it works, by software for heat."""
    del judging
    problems = []
    for gpu in _answering(facts):
        bits = gpu.throttle or 0
        if bits & HW_POWER_BRAKE:
            summary = f"GPU {gpu.index} is slowed down by the power supply's brake"
            problems.append(
                Problem(rule="check.gpu_power_brake", summary=summary, place=place(gpu), text=f"0x{bits:x}")
            )
        elif bits & SW_THERMAL and not bits & HW_THERMAL:
            summary = f"GPU {gpu.index} lowers its clocks for heat ({gpu.temperature} C)"
            problems.append(
                Problem(rule="check.gpu_throttle", summary=summary, place=place(gpu), text=f"0x{bits:x}", warning=True)
            )
    return problems


def nvlink(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """Links that are down, that break again and again, or whose errors pile up."""
    problems = []
    for gpu in _answering(facts):
        up = sum(link.active for link in gpu.links)
        expected = judging.profile.nvlinks_per_gpu
        if expected is None:
            # Some boards leave links unconnected: as many as were up at first must stay up.
            known = int(judging.learned.get(f"{gpu.uuid}:links", "0"))
            expected = max(known, up)
            judging.learned[f"{gpu.uuid}:links"] = str(expected)
        if up < expected:
            down = next((str(link.link) for link in gpu.links if not link.active), "")
            summary = f"{up} of {expected} NVLinks of GPU {gpu.index} are up"
            problems.append(
                Problem(rule="check.gpu_nvlink_down", summary=summary, place=place(gpu, down), text=summary)
            )
        problems += _link_errors(gpu, judging)
    return problems


def _link_errors(gpu: GpuFacts, judging: Judging) -> list[Problem]:
    problems = []
    for link in gpu.links:
        for what, value, least in (
            ("errors", link.errors, judging.limits.nvlink_errors_per_10min),
            ("recoveries", link.recoveries, judging.limits.nvlink_recoveries_per_10min),
        ):
            if value is None:
                continue
            key = f"{gpu.uuid}:link{link.link}:{what}"
            judging.counters.rise(key, value, judging.at)
            lately = judging.counters.within(key, 600.0, judging.at)
            grows = judging.counters.grows(key, 600.0, judging.at, least=least)
            if grows or lately >= least:
                summary = f"{lately} {what} on NVLink {link.link} of GPU {gpu.index} in 10 minutes"
                rule = "check.gpu_trend_nvlink" if grows else "check.gpu_nvlink_errors"
                problems.append(
                    Problem(
                        rule=rule,
                        summary=summary,
                        place=place(gpu, str(link.link)),
                        text=summary,
                        warning=not grows,
                        predicts=grows,
                    )
                )
    return problems


def pcie(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """A link on fewer lanes or, while the GPU works, at a lower generation than the profile says; replays."""
    problems = []
    for gpu in _answering(facts):
        width = judging.profile.pcie_width or gpu.pcie_width_max
        if gpu.pcie_width is not None and width is not None and 0 < gpu.pcie_width < width:
            summary = f"the PCIe link of GPU {gpu.index} runs on {gpu.pcie_width} of {width} lanes"
            problems.append(Problem(rule="check.gpu_pcie_width", summary=summary, place=place(gpu), text=summary))
        gen = judging.profile.pcie_gen
        # An idle GPU lowers its link's speed to save power.
        if gen is not None and gpu.pcie_gen is not None and gpu.pcie_gen < gen and (gpu.utilization or 0) > 0:
            summary = f"the PCIe link of GPU {gpu.index} runs at generation {gpu.pcie_gen}, not {gen}"
            problems.append(Problem(rule="check.gpu_pcie_gen", summary=summary, place=place(gpu), warning=True))
        if gpu.pcie_replays is not None:
            key = f"{gpu.uuid}:replay"
            judging.counters.rise(key, gpu.pcie_replays, judging.at)
            lately = judging.counters.within(key, 60.0, judging.at)
            if lately > judging.limits.pcie_replays_per_min:
                summary = f"{lately} PCIe replays of GPU {gpu.index} in a minute"
                problems.append(Problem(rule="check.gpu_pcie_replay", summary=summary, place=place(gpu), warning=True))
    return problems


def recovery(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """What the driver itself says that a GPU needs."""
    del judging
    problems = []
    for gpu in _answering(facts):
        if gpu.recovery_action:
            words, remedy = _RECOVERY.get(gpu.recovery_action, (f"action {gpu.recovery_action}", Remedy.QUARANTINE))
            summary = f"the driver asks for {words} because of GPU {gpu.index}"
            problems.append(
                Problem(
                    rule="check.gpu_recovery_action",
                    summary=summary,
                    place=place(gpu),
                    text=f"recovery action {gpu.recovery_action}",
                    remedy=remedy,
                    captures={"verdict": words},
                )
            )
    return problems


def xids(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """Xids that NVML told of, where the kernel log cannot be read."""
    if judging.kernel_log:
        return []
    known = {gpu.index: gpu for gpu in facts.gpus}
    return [
        Problem(
            rule=f"nvidia.xid.{event.xid}",
            summary="",
            place=place(known[event.gpu]) if event.gpu in known else Place(),
            text=f"NVML: Xid {event.xid} on GPU {event.gpu}",
            happened=True,
            captures={"xid": str(event.xid)},
        )
        for event in facts.xids
    ]


def busy(facts: NvmlFacts, judging: Judging) -> list[Problem]:
    """Processes that still compute on a GPU when there should be none."""
    del judging
    return [
        Problem(
            rule="check.left_over",
            summary=f"{_plural(len(gpu.pids), 'process', 'es')} still on GPU {gpu.index}",
            place=place(gpu),
            text=f"pids {', '.join(map(str, gpu.pids[:10]))}",
        )
        for gpu in _answering(facts)
        if gpu.pids
    ]


def _plural(number: int, noun: str, ending: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else ending}"


def _check(
    name: str,
    about: str,
    judge: Callable[[NvmlFacts, Judging], list[Problem]],
    *rules: str,
    modes: tuple[Mode, ...] = ANY_TIME,
    grace_s: float = 0.0,
    looks: int = 1,
) -> Check:
    return Check(
        name=name, about=about, source="nvml", modes=modes, judge=judge, rules=rules, grace_s=grace_s, looks=looks
    )


GPU_CHECKS = (
    _check("gpu-lost", "GPUs that do not answer", lost, "check.gpu_lost", "check.gpu_unreadable"),
    _check(
        "gpu-count", "number and model of the GPUs", count, "check.gpu_count", "check.gpu_identity", grace_s=WARM_UP_S
    ),
    Check(
        name="gpu-driver",
        about="the driver is there",
        source="nvml",
        modes=ANY_TIME,
        judge=driver,
        on_absent=driver_absent,
        rules=("check.gpu_driver",),
        lasting_s=WARM_UP_S,
    ),
    _check(
        "gpu-ecc",
        "memory errors, by how fast they come",
        ecc,
        "check.gpu_ecc_uncorrected",
        "check.gpu_ecc_corrected",
        "check.gpu_trend_ecc",
    ),
    _check(
        "gpu-remap",
        "rows and pages that wait for a reset, or cannot be replaced",
        remap,
        "check.gpu_row_remap_failed",
        "check.gpu_row_remap_pending",
        "check.gpu_retired_pending",
    ),
    _check(
        "gpu-thermal",
        "temperature, now and where it is heading",
        thermal,
        "check.gpu_thermal",
        "check.gpu_trend_thermal",
        looks=2,
    ),
    _check(
        "gpu-throttle",
        "clocks held down by power or heat",
        throttle,
        "check.gpu_power_brake",
        "check.gpu_throttle",
        modes=(Mode.PERIODIC, Mode.DEEP),
        looks=4,
    ),
    _check(
        "gpu-nvlink",
        "NVLinks: state, errors, recoveries",
        nvlink,
        "check.gpu_nvlink_down",
        "check.gpu_nvlink_errors",
        "check.gpu_trend_nvlink",
        grace_s=60.0,
    ),
    _check(
        "gpu-pcie",
        "PCIe lanes, generation, replays",
        pcie,
        "check.gpu_pcie_width",
        "check.gpu_pcie_gen",
        "check.gpu_pcie_replay",
        looks=2,
    ),
    _check("gpu-recovery", "what the driver says a GPU needs", recovery, "check.gpu_recovery_action"),
    _check(
        "gpu-xid", "Xids by NVML, where the kernel log cannot be read", xids, "nvidia.xid.*", modes=(Mode.PERIODIC,)
    ),
    _check("gpu-busy", "processes on GPUs that no job owns", busy, "check.left_over", modes=(Mode.PROLOG, Mode.EPILOG)),
)
