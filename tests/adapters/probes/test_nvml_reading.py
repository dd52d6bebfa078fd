"""What one H200 in a virtual machine answered to NVML (driver 580.159.04): it is read whole, and found well.

The answers were recorded by calling each function that `nvml_reading` calls. NVLink, retired pages and what else the
card does not have are NVML_ERROR_NOT_SUPPORTED (3) there.
"""

from __future__ import annotations

import types

import msgspec
import pynvml
import pytest

from holdfast.adapters.probes import nvml_reading
from holdfast.adapters.probes.check import Judging, Limits, Mode, Profile
from holdfast.adapters.probes.checks import CHECKS
from holdfast.adapters.probes.facts import NvmlFacts, implausible
from holdfast.detect.counters import CounterFold

NOT_SUPPORTED = 3
FIELDS = {82: 40, 230: 0}
"""Memory temperature and recovery action."""
THRESHOLDS = {0: 95, 1: 89, 2: 95, 3: 87}
"""Shutdown, slowdown, memory, maximum."""
ANSWERS = {
    "nvmlInit": None,
    "nvmlDeviceGetCount": 1,
    "nvmlSystemGetDriverVersion": "580.159.04",
    "nvmlDeviceGetHandleByIndex": "handle",
    "nvmlDeviceGetPciInfo": types.SimpleNamespace(busId="00000000:00:06.0"),
    "nvmlDeviceGetUUID": "GPU-7fd01dca-9392-9766-f5e2-636b44c401ff",
    "nvmlDeviceGetName": "NVIDIA H200",
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetPcieReplayCounter": 1,
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetPowerUsage": 80949,
    "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=0, memory=0),
    "nvmlDeviceGetCurrentClocksEventReasons": 1,
    "nvmlDeviceGetTemperature": 39,
    "nvmlDeviceGetMarginTemperature": 48,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlEventSetCreate": "events",
    "nvmlDeviceRegisterEvents": None,
}


class Recorded:
    """NVIDIA's binding, with the answers of that card."""

    NVMLError = pynvml.NVMLError

    def __getattr__(self, name: str) -> object:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*_args: object) -> object:
            if name not in ANSWERS:
                raise pynvml.NVMLError(NOT_SUPPORTED)
            return ANSWERS[name]

        return answer

    def nvmlDeviceGetTemperatureThreshold(self, _handle: object, which: int) -> int:  # noqa: N802 - NVIDIA's name
        return THRESHOLDS[which]

    def nvmlDeviceGetFieldValues(self, _handle: object, fields: list[int]) -> list[object]:  # noqa: N802 - as above
        values = types.SimpleNamespace
        return [values(fieldId=one, nvmlReturn=0, value=values(uiVal=FIELDS[one])) for one in fields]

    def nvmlEventSetWait(self, _events: object, _wait_ms: int) -> object:  # noqa: N802 - as above
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> NvmlFacts:
    monkeypatch.setattr(nvml_reading, "_SESSION", [nvml_reading._Session(Recorded())])
    return msgspec.convert(nvml_reading.read({"processes": True}), NvmlFacts)


def test_what_the_card_has_is_read_and_what_it_has_not_is_left_out(read: NvmlFacts) -> None:
    """Pages that wait to be retired, and links, are things that this card does not have."""
    (gpu,) = read.gpus
    assert (read.driver, gpu.name, gpu.pci, gpu.error) == ("580.159.04", "NVIDIA H200", "00000000:00:06.0", "")
    assert (gpu.temperature, gpu.memory_temperature, gpu.slowdown_c, gpu.shutdown_c) == (39, 40, 89, 95)
    assert (gpu.remap_pending, gpu.remap_failed, gpu.retired_pending) == (False, False, None)
    assert (gpu.pcie_gen, gpu.pcie_width, gpu.pcie_replays, gpu.links) == (5, 16, 1, ())
    assert (gpu.throttle, gpu.recovery_action, gpu.power, gpu.pids) == (1, 0, 80.949, ())


@pytest.mark.parametrize("mode", [Mode.PERIODIC, Mode.PROLOG])
def test_a_healthy_card_gives_no_finding(read: NvmlFacts, mode: Mode) -> None:
    """An idle GPU's clock reason, the PCIe replay of its start and a GPU without links are nothing to tell."""
    assert not implausible(read)
    judging = Judging(profile=Profile(), limits=Limits(), mode=mode, at=0.0, now=1e9,
                      counters=CounterFold(), courses={}, learned={})  # fmt: skip
    for _look in range(5):
        judging.at += 15.0
        assert [found for one in CHECKS.values() if one.source == "nvml" for found in one(read, judging)] == []
