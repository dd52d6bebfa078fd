"""The bytes of the shared state of emulated GPUs, as `nvml.c` reads them, and the deeds that change it.

Written by `devices.prepare`, the emulated commands and drills; read by the library in every process that loaded it.
Imports nothing but the standard library: the emulated commands must start quickly. No time passes here.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from pathlib import Path
from types import TracebackType
from typing import Self

GPUS_MAX = 16
LINKS_MAX = 18
XIDS_MAX = 16
MAGIC = 0x3155504746444C48

MODE_WELL = 0
MODE_NO_DRIVER = 1
"""NVML says that the driver is not loaded."""
MODE_HANG = 2
"""Calls do not return."""
MODE_GARBAGE = 3
"""Numbers are absurd."""
MODE_LOADING = 4
"""The driver comes up: NVML counts no GPU yet."""

MODE_REFUSED = 5
"""Calls are refused for want of permission."""

GPU_LOST = 15
"""NVML_ERROR_GPU_IS_LOST."""
TEMPERATURE_C = 41
SLOWDOWN_C = 87
SHUTDOWN_C = 92
"""As an H100 SXM reports them."""
NAME = "NVIDIA H100 80GB HBM3 (emulated)"
DRIVER = "570.124.06-emulated"


_COUNTS = (
    *("domain", "bus", "device", "pci_device", "lost", "temperature", "slowdown_c", "shutdown_c", "memory_c"),
    *("power_mw", "power_limit_mw", "pcie_gen", "pcie_gen_max", "pcie_width", "pcie_width_max", "pcie_replay"),
    *("remap_corrected", "remap_uncorrected", "remap_pending", "remap_failed", "retired_pending", "recovery_action"),
    *("utilization", "memory_utilization", "link_count", "xid_count"),
)


class Link(ctypes.Structure):
    """One NVLink of a GPU."""

    _fields_ = (
        ("active", ctypes.c_uint32),
        ("spare", ctypes.c_uint32),
        ("crc_flit", ctypes.c_uint64),
        ("crc_data", ctypes.c_uint64),
        ("replay", ctypes.c_uint64),
        ("recovery", ctypes.c_uint64),
    )


class Gpu(ctypes.Structure):
    """One GPU. `ecc` is [corrected, uncorrected][volatile, aggregate]."""

    _fields_ = (
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_char * 96),
        ("serial", ctypes.c_char * 32),
        ("bus_id", ctypes.c_char * 32),
        *((name, ctypes.c_uint32) for name in _COUNTS),
        ("xids", ctypes.c_uint32 * XIDS_MAX),
        ("throttle", ctypes.c_uint64),
        ("ecc", ctypes.c_uint64 * 2 * 2),
        ("memory_total", ctypes.c_uint64),
        ("memory_used", ctypes.c_uint64),
        ("links", Link * LINKS_MAX),
    )


class State(ctypes.Structure):
    """The whole file."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("size", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("mode", ctypes.c_uint32),
        ("spare", ctypes.c_uint32),
        ("driver", ctypes.c_char * 80),
        ("gpus", Gpu * GPUS_MAX),
    )


def fresh(gpus: list[tuple[str, str]]) -> bytes:
    """The bytes of a state of healthy GPUs.

    Args:
        gpus: `(PCI address, UUID)` each, such as `("0000:53:00", "GPU-1b9d...")`.
    """
    state = State(magic=MAGIC, size=ctypes.sizeof(State), count=min(len(gpus), GPUS_MAX), driver=DRIVER.encode())
    for index, (pci, uuid) in enumerate(gpus[:GPUS_MAX]):
        one = state.gpus[index]
        domain, bus, device = (int(part, 16) for part in pci.partition(".")[0].split(":"))
        one.name, one.uuid, one.serial = NAME.encode(), uuid.encode(), f"emulated-{index}".encode()
        one.bus_id = f"{domain:08X}:{bus:02X}:{device:02X}.0".encode()
        one.domain, one.bus, one.device, one.pci_device = domain, bus, device, 0x233010DE
        one.slowdown_c, one.shutdown_c = SLOWDOWN_C, SHUTDOWN_C
        one.power_limit_mw = 700_000
        one.pcie_gen = one.pcie_gen_max = 5
        one.pcie_width = one.pcie_width_max = 16
        one.memory_total = 81_559 << 20
        one.link_count = LINKS_MAX
        settle(one)
    return bytes(state)


def settle(gpu: Gpu) -> None:
    """What a reset or a reboot of the GPU does: volatile counters and passing troubles are gone, history stays."""
    gpu.lost = 0
    gpu.temperature, gpu.memory_c, gpu.power_mw = TEMPERATURE_C, TEMPERATURE_C + 8, 120_000
    gpu.throttle = 1  # idle
    gpu.ecc[0][0] = gpu.ecc[1][0] = 0
    gpu.remap_pending = gpu.retired_pending = gpu.recovery_action = 0
    gpu.pcie_gen, gpu.pcie_width, gpu.pcie_replay = gpu.pcie_gen_max, gpu.pcie_width_max, 0
    gpu.utilization = gpu.memory_utilization = 0
    gpu.memory_used = 0
    for link in range(gpu.link_count):
        gpu.links[link] = Link(active=1)


class Devices:
    """The state, mapped. Use it as a context manager; changes are seen by others at once.

    Args:
        path: the file `state`.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is not a state of this version.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            size = ctypes.sizeof(State)
            if path.stat().st_size < size:
                raise ValueError(f"{path} is not a state of emulated GPUs")
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_WRITE)
        self.state = State.from_buffer(self._map)
        if self.state.magic != MAGIC or self.state.size != size:
            self.close()
            raise ValueError(f"{path} is not a state of emulated GPUs of this version")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the map."""
        del self.state
        # A GPU that a caller still holds keeps the map open; it closes with it.
        with contextlib.suppress(BufferError):
            self._map.close()

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs that are there."""
        return list(self.state.gpus[: self.state.count])

    def gpu(self, index: int) -> Gpu:
        """One GPU. Raises ValueError when there is none of that index."""
        if not 0 <= index < self.state.count:
            raise ValueError(f"there are GPUs 0 to {self.state.count - 1}, not {index}")
        return self.gpus[index]

    def reset(self, index: int | None = None) -> None:
        """Reset one GPU, or all."""
        for gpu in self.gpus if index is None else [self.gpu(index)]:
            settle(gpu)
        self.state.mode = MODE_WELL


def report_xid(gpu: Gpu, xid: int) -> None:
    """Have NVML tell of an Xid."""
    gpu.xids[gpu.xid_count % XIDS_MAX] = xid
    gpu.xid_count += 1
