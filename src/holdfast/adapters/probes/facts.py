"""What the sources read, as values. The reading process sends them as JSON; what does not fit is refused here.

A field that the device or driver does not have is None. Plausibility is checked where the values arrive: NVML has been
seen to answer with the largest number there is.
"""

from __future__ import annotations

from msgspec import Struct


class LinkFacts(Struct, frozen=True, kw_only=True):
    """One NVLink."""

    link: int
    active: bool
    errors: int | None = None
    """CRC and replay errors, together."""
    recoveries: int | None = None


class GpuFacts(Struct, frozen=True, kw_only=True):
    """One GPU. Temperatures in degrees C, power in W."""

    index: int
    pci: str = ""
    uuid: str = ""
    name: str = ""
    error: str = ""
    """NVML's word when the GPU does not answer, such as `GPU is lost`."""
    lost: bool = False
    temperature: int | None = None
    memory_temperature: int | None = None
    slowdown_c: int | None = None
    shutdown_c: int | None = None
    power: float | None = None
    throttle: int | None = None
    """Bits of nvmlClocksEventReasons."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Volatile: since the driver was loaded or the GPU reset."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pending: bool | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    recovery_action: int | None = None
    utilization: int | None = None
    links: tuple[LinkFacts, ...] = ()
    pids: tuple[int, ...] = ()
    """Processes that compute on it."""


class XidFacts(Struct, frozen=True, array_like=True):
    """An Xid that NVML told of."""

    gpu: int
    xid: int


class NvmlFacts(Struct, frozen=True, kw_only=True):
    """All GPUs of a node."""

    driver: str
    gpus: tuple[GpuFacts, ...]
    xids: tuple[XidFacts, ...] = ()


GPUS_MAX = 64
COUNT_MAX = (1 << 62) - 1
_PLAUSIBLE = (
    ("temperature", -50, 200),
    ("memory_temperature", -50, 200),
    ("ecc_corrected", 0, COUNT_MAX),
    ("ecc_uncorrected", 0, COUNT_MAX),
    ("pcie_replays", 0, COUNT_MAX),
    ("pcie_width", 0, 32),
)
"""Field of `GpuFacts`, least, most."""


def implausible(facts: NvmlFacts) -> str:
    """Why these numbers cannot be; empty: they can."""
    if len(facts.gpus) > GPUS_MAX:
        return f"it counts {len(facts.gpus)} GPUs"
    for gpu in facts.gpus:
        for name, least, most in _PLAUSIBLE:
            value = getattr(gpu, name)
            if value is not None and not least <= value <= most:
                return f"GPU {gpu.index}: {name.replace('pcie_width', 'PCIe width')} {value}"
    return ""


class PortFacts(Struct, frozen=True, kw_only=True):
    """One port of an InfiniBand, RoCE or EFA device."""

    device: str
    port: int
    driver: str = ""
    state: str = ""
    """`ACTIVE`, `DOWN`, `INIT`..."""
    physical: str = ""
    """`LinkUp`, `Polling`, `Disabled`..."""
    rate_gbps: float | None = None
    counters: dict[str, int] = {}
    """Files of `counters` and `hw_counters`."""

    @property
    def name(self) -> str:
        """Device and port."""
        return f"{self.device}/{self.port}"

    @property
    def is_efa(self) -> bool:
        """EFA has no link layer of its own and is driven by `efa`."""
        return self.driver == "efa" or self.device.startswith(("efa_", "rdmap"))


class NicFacts(Struct, frozen=True, kw_only=True):
    """One network interface that has a device behind it."""

    name: str
    carrier: bool | None = None
    speed_mbps: int | None = None
    carrier_downs: int | None = None
    errors: int | None = None
    """Receive and transmit errors, together."""


class NeuronFacts(Struct, frozen=True, kw_only=True):
    """One Neuron device."""

    index: int
    counters: dict[str, int] = {}
    """`mem_ecc_uncorrected`, `sram_ecc_uncorrected`, ... (total)."""


class MemoryControllerFacts(Struct, frozen=True, kw_only=True):
    """One memory controller of EDAC."""

    name: str
    corrected: int
    uncorrected: int


class MountFacts(Struct, frozen=True, kw_only=True):
    """One mounted file system."""

    point: str
    kind: str
    device: str = ""
    read_only: bool = False
    total: int = 0
    free: int = 0
    """Bytes; free to ordinary users."""
    error: str = ""
    """Why it could not be asked; `timed out` when it did not answer."""


class NodeFacts(Struct, frozen=True, kw_only=True):
    """Processors, memory, clock."""

    cpus: int
    numa_nodes: int
    memory_total: int
    memory_available: int
    clock_synced: bool | None = None


class ProcessFacts(Struct, frozen=True, kw_only=True):
    """A process that may have been left over."""

    pid: int
    name: str
    job: str = ""
    """SLURM_JOB_ID of its environment."""


class PciFacts(Struct, frozen=True, kw_only=True):
    """A PCI device of the kinds that matter: GPUs, network cards, NVMe."""

    address: str
    kind: str
    numa: int | None = None
    width: int | None = None
    width_max: int | None = None
    speed_max: float | None = None
    """GT/s."""
