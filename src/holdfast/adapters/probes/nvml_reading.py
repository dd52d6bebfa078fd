"""Reads NVML through NVIDIA's own binding, inside the reading process. What a GPU does not support is left out.

The link counters are read at every fourth look only: there are hundreds of them, and each is a call into the driver.
No time passes but what the driver takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.adapters.probes.sysfs_reading import AbsentError, of_another_job

COUNTERS_EVERY = 4
LINKS_MAX = 18
XIDS_PER_LOOK = 64
_EVENT_XID = 8
_FIELD_MEMORY_TEMPERATURE = 82
_FIELD_RECOVERY_ACTION = 230
_ABSENT = {9: "the NVIDIA driver is not loaded", 12: "there is no libnvidia-ml.so.1"}
_GONE = frozenset({15, 16})
"""NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED."""


class NvmlFailedError(Exception):
    """NVML as a whole does not answer; the process must be started anew before it is asked again."""


class NvmlGoneError(NvmlFailedError):
    """The driver was unloaded under us: there is nothing to read until it is back."""


class _Session:
    """NVML, initialised."""

    def __init__(self, binding: Any) -> None:
        self.nvml = binding
        self.looks = 0
        self.fixed: dict[int, dict[str, Any]] = {}
        self.events: Any = None
        self.count = -1


_SESSION: list[_Session] = []


def read(args: dict[str, Any]) -> dict[str, Any]:
    """All GPUs, in the form of `facts.NvmlFacts`."""
    session = _session()
    nvml = session.nvml
    try:
        count = nvml.nvmlDeviceGetCount()
        driver = _text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        raise _failed(error, NvmlGoneError) from error
    if count > 4096:
        return {"driver": driver, "gpus": [{"index": index} for index in range(65)]}
    with_counters = session.looks % COUNTERS_EVERY == 0
    session.looks += 1
    gpus = [_gpu(session, index, args, with_counters=with_counters) for index in range(count)]
    if session.count != count:
        session.count = count
        _register(session)
    return {"driver": driver, "gpus": gpus, "xids": _xids(session)}


def _session() -> _Session:
    if _SESSION:
        return _SESSION[0]
    try:
        import pynvml  # noqa: PLC0415 - only this process needs it, and only when GPUs are asked for
    except ImportError as error:
        raise AbsentError("nvidia-ml-py is not installed") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _failed(error, AbsentError) from error
    _SESSION.append(_Session(pynvml))
    return _SESSION[0]


def _failed(error: Exception, absent: type[Exception]) -> Exception:
    """What to raise when NVML as a whole does not answer; `absent` where there is nothing to ask."""
    why = _ABSENT.get(getattr(error, "value", 0), "")
    return absent(why) if why else NvmlFailedError(f"NVML: {error}")


def _gpu(session: _Session, index: int, args: dict[str, Any], *, with_counters: bool) -> dict[str, Any]:
    nvml = session.nvml
    facts: dict[str, Any] = {"index": index, **session.fixed.get(index, {})}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if index not in session.fixed:
            session.fixed[index] = _fixed(nvml, handle)
            facts |= session.fixed[index]
        facts |= _moving(nvml, handle)
        now_c = facts.pop("slowdown_now_c", None)
        facts["slowdown_c"] = facts["slowdown_c"] if facts.get("slowdown_c") is not None else now_c
        facts["links"] = _links(nvml, handle, with_counters)
        if args.get("processes"):
            found = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
            facts["pids"] = [one.pid for one in found if not of_another_job(Path("/"), one.pid, args.get("job", ""))]
    except nvml.NVMLError as error:
        facts |= {"error": str(error), "lost": getattr(error, "value", 0) in _GONE}
    return {name: value for name, value in facts.items() if value is not None}


def _fixed(nvml: Any, handle: Any) -> dict[str, Any]:
    """What does not change while the driver is loaded."""
    pci = _ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    return {
        "pci": _text(pci.busId) if pci is not None else "",
        "uuid": _text(_ask(nvml, nvml.nvmlDeviceGetUUID, handle) or ""),
        "name": _text(_ask(nvml, nvml.nvmlDeviceGetName, handle) or ""),
        "slowdown_c": _ask(nvml, nvml.nvmlDeviceGetTemperatureThreshold, handle, 1),
        "shutdown_c": _ask(nvml, nvml.nvmlDeviceGetTemperatureThreshold, handle, 0),
        "pcie_gen_max": _ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_width_max": _ask(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    }


def _moving(nvml: Any, handle: Any) -> dict[str, Any]:
    remapped = _ask(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
    retired = _ask(nvml, nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    milliwatts = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    rates = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    throttle = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    facts = {
        "temperature": _ask(nvml, nvml.nvmlDeviceGetTemperature, handle, 0),
        "power": None if milliwatts is None else milliwatts / 1000,
        "throttle": _ask(nvml, throttle or nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        "ecc_corrected": _ask(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, 0, 0),
        "ecc_uncorrected": _ask(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, 1, 0),
        "retired_pending": None if retired is None else bool(retired),
        "pcie_gen": _ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        "pcie_width": _ask(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        "pcie_replays": _ask(nvml, nvml.nvmlDeviceGetPcieReplayCounter, handle),
        "utilization": None if rates is None else rates.gpu,
    }
    if (margin := getattr(nvml, "nvmlDeviceGetMarginTemperature", None)) is not None and facts[
        "temperature"
    ] is not None:
        # Newer GPUs have no slowdown temperature to ask for, but say how far they are from it.
        left = _ask(nvml, margin, handle)
        facts["slowdown_now_c"] = None if left is None else facts["temperature"] + left
    if remapped is not None:
        _, _, pending, failed = remapped
        facts |= {"remap_pending": bool(pending), "remap_failed": bool(failed)}
    for value in (
        _ask(nvml, nvml.nvmlDeviceGetFieldValues, handle, [_FIELD_MEMORY_TEMPERATURE, _FIELD_RECOVERY_ACTION]) or ()
    ):
        if value.nvmlReturn == 0:
            name = "memory_temperature" if value.fieldId == _FIELD_MEMORY_TEMPERATURE else "recovery_action"
            facts[name] = value.value.uiVal
    return facts


def _links(nvml: Any, handle: Any, with_counters: bool) -> list[dict[str, Any]]:
    found = []
    for link in range(LINKS_MAX):
        active = _ask(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if active is None:
            break
        one: dict[str, Any] = {"link": link, "active": bool(active)}
        if with_counters and active:
            counts = [_ask(nvml, nvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, which) for which in (0, 2, 3)]
            known = [count for count in counts if count is not None]
            if known:
                one["errors"] = sum(known)
            one["recoveries"] = _ask(nvml, nvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, 1)
        found.append({name: value for name, value in one.items() if value is not None})
    return found


def _register(session: _Session) -> None:
    """Have NVML keep Xids for us. A GPU that cannot is left out."""
    nvml = session.nvml
    with contextlib.suppress(nvml.NVMLError):
        session.events = nvml.nvmlEventSetCreate()
        for index in range(session.count):
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(index), _EVENT_XID, session.events)


def _xids(session: _Session) -> list[list[int]]:
    nvml = session.nvml
    found: list[list[int]] = []
    if session.events is None:
        return found
    for _ in range(XIDS_PER_LOOK):
        try:
            event = nvml.nvmlEventSetWait(session.events, 0)
        except nvml.NVMLError:
            break
        if event.eventType & _EVENT_XID:
            index = _ask(nvml, nvml.nvmlDeviceGetIndex, event.device)
            found.append([-1 if index is None else index, int(event.eventData)])
    return found


def _ask(nvml: Any, function: Callable[..., Any], *args: Any) -> Any:
    """The value, or None when this GPU or driver does not have it. A lost GPU is raised."""
    try:
        return function(*args)
    except nvml.NVMLError as error:
        if getattr(error, "value", 0) in _GONE:
            raise
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
