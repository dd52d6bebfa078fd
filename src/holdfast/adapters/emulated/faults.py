"""The faults that emulated GPUs can have: what each changes in the shared state, and the line that the driver writes.

`holdfast drill inject` and the emulated `dcgmi test --inject` use them. Standard library only. No time passes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from holdfast.adapters.emulated import layout
from holdfast.adapters.emulated.layout import Devices, Gpu

HW_THERMAL_SLOWDOWN = 0x40
HW_SLOWDOWN = 0x8
POWER_BRAKE = 0x80


class Hit(NamedTuple):
    """Where and how hard."""

    gpu: int = 0
    link: int = 0
    value: int = 1


class Fault(NamedTuple):
    """One kind of fault."""

    about: str
    apply: Callable[[Devices, Hit], str]
    """Changes the state; returns the line that the driver would write to the kernel log, or an empty string."""


def _set(name: str, at: int | None = None) -> Callable[[Devices, Hit], str]:
    """Sets a field of the GPU to the value of the hit, or to this one."""

    def apply(devices: Devices, hit: Hit) -> str:
        setattr(devices.gpu(hit.gpu), name, hit.value if at is None else at)
        return ""

    return apply


def _count(name: str) -> Callable[[Devices, Hit], str]:
    """Adds the value of the hit to a count of the GPU, or else of the link."""

    def apply(devices: Devices, hit: Hit) -> str:
        gpu = devices.gpu(hit.gpu)
        of = gpu if hasattr(gpu, name) else gpu.links[hit.link]
        setattr(of, name, getattr(of, name) + hit.value)
        return ""

    return apply


def _mode(mode: int) -> Callable[[Devices, Hit], str]:
    def apply(devices: Devices, hit: Hit) -> str:
        del hit
        devices.state.mode = mode
        return ""

    return apply


def ecc(devices: Devices, hit: Hit) -> str:
    """Uncorrectable memory errors; a row waits to be remapped."""
    gpu = devices.gpu(hit.gpu)
    _errors(gpu, 1, hit.value)
    gpu.remap_uncorrected += 1
    gpu.remap_pending = 1
    return ""


def ecc_corrected(devices: Devices, hit: Hit) -> str:
    """Corrected memory errors."""
    _errors(devices.gpu(hit.gpu), 0, hit.value)
    return ""


def _errors(gpu: Gpu, kind: int, count: int) -> None:
    for scope in (0, 1):
        gpu.ecc[kind][scope] += count


def xid(devices: Devices, hit: Hit) -> str:
    """An Xid, as NVML event and as kernel-log line."""
    gpu = devices.gpu(hit.gpu)
    layout.report_xid(gpu, hit.value)
    pci = f"{gpu.domain:04x}:{gpu.bus:02x}:{gpu.device:02x}"
    return f"NVRM: Xid (PCI:{pci}): {hit.value}, pid=4242, name=python, Ch 00000001"


def thermal(devices: Devices, hit: Hit) -> str:
    """The GPU is too hot and slows itself down."""
    gpu = devices.gpu(hit.gpu)
    gpu.temperature = hit.value if hit.value > 1 else gpu.slowdown_c + 2
    gpu.throttle = HW_THERMAL_SLOWDOWN | HW_SLOWDOWN
    return ""


def nvlink(devices: Devices, hit: Hit) -> str:
    """A link is down."""
    devices.gpu(hit.gpu).links[hit.link].active = 0
    return ""


def pcie(devices: Devices, hit: Hit) -> str:
    """The PCIe link runs on fewer lanes."""
    devices.gpu(hit.gpu).pcie_width = hit.value if hit.value > 1 else 8
    return ""


FAULTS: dict[str, Fault] = {
    "ecc": Fault("uncorrectable memory errors (`--value`: how many); a row waits to be remapped", ecc),
    "ecc_corrected": Fault("corrected memory errors (`--value`: how many)", ecc_corrected),
    "row_remap": Fault("a row could not be remapped: no spare is left", _set("remap_failed", 1)),
    "xid": Fault("an Xid (`--value`: its number), as NVML event and kernel-log line", xid),
    "thermal": Fault("above its slowdown temperature, throttling (`--value`: degrees C)", thermal),
    "temperature": Fault("a temperature without throttling (`--value`: degrees C)", _set("temperature")),
    "power_brake": Fault("slowed down by the power supply", _set("throttle", POWER_BRAKE | HW_SLOWDOWN)),
    "nvlink": Fault("an NVLink is down (`--link`)", nvlink),
    "nvlink_errors": Fault("errors on an NVLink that stays up (`--link`, `--value`: how many)", _count("crc_flit")),
    "gpu_lost": Fault("the GPU no longer answers", _set("lost", layout.GPU_LOST)),
    "pcie": Fault("the PCIe link runs on fewer lanes (`--value`: lanes)", pcie),
    "pcie_replay": Fault("PCIe transfers are repeated (`--value`: how many)", _count("pcie_replay")),
    "recovery": Fault(
        "the driver asks for a repair (`--value`: 1 reset, 2 reboot, 4 drain and reset)", _set("recovery_action")
    ),
    "driver_unloaded": Fault("NVML says that the driver is not loaded", _mode(layout.MODE_NO_DRIVER)),
    "driver_loading": Fault("the driver comes up: NVML counts no GPU yet", _mode(layout.MODE_LOADING)),
    "nvml_hang": Fault("calls into NVML do not return", _mode(layout.MODE_HANG)),
    "nvml_refused": Fault("NVML and the tools refuse for want of permission", _mode(layout.MODE_REFUSED)),
    "nvml_garbage": Fault("NVML gives absurd numbers", _mode(layout.MODE_GARBAGE)),
}
"""Every fault by its name in `holdfast drill inject`."""
