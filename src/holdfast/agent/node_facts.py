"""What an agent knows of its own node: name, boot id, machine, and which GPU sits at which PCI address.

Read once when the agent starts; a reboot or a replacement starts it anew. On an embedded node the facts stand in
`node.json`, on a real one in `/proc` and `/etc/machine-id`. No time passes here.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

from holdfast.detect.xid import pci_address
from holdfast.errors import ConfigError
from holdfast.model.evidence import Place
from holdfast.os.files import BOOT_ID, text_of

DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
"""One folder per GPU, named by its PCI address, while NVIDIA's driver is loaded."""


class _EmbeddedGpu(Struct):
    index: int
    pci: str
    uuid: str = ""


class NodeIdentity(Struct, frozen=True, kw_only=True):
    """Which node this is."""

    name: str
    boot_id: str
    instance_id: str = ""
    booted_at: float = 0.0
    """When this boot began, Unix seconds; 0.0: not known."""
    drill_ok: bool = False


class _EmbeddedFacts(NodeIdentity, frozen=True, kw_only=True):
    """What the agent reads of `node.json`."""

    gpus: list[_EmbeddedGpu] = []


class GpuTable:
    """GPU index by PCI address."""

    def __init__(self, index_of: Mapping[str, int]) -> None:
        self._index_of = {pci_address(pci): index for pci, index in index_of.items()}

    def __len__(self) -> int:
        return len(self._index_of)

    def located(self, place: Place) -> Place:
        """The place with the index of the GPU whose PCI address it holds; unchanged when that is unknown."""
        if place.gpu is not None or not place.gpu_id:
            return place
        index = self._index_of.get(pci_address(place.gpu_id))
        return place if index is None else msgspec.structs.replace(place, gpu=index)


def embedded_gpus(node_dir: Path) -> list[tuple[str, str]]:
    """PCI address and UUID of each GPU of an embedded node. Raises ConfigError when `node.json` cannot be read."""
    return [(gpu.pci, gpu.uuid) for gpu in _embedded(node_dir).gpus]


def read_embedded(node_dir: Path) -> tuple[NodeIdentity, GpuTable]:
    """The facts of an embedded node. Raises ConfigError when `node.json` cannot be read."""
    facts = _embedded(node_dir)
    return facts, GpuTable({gpu.pci: gpu.index for gpu in facts.gpus})


def _embedded(node_dir: Path) -> _EmbeddedFacts:
    path = node_dir / "node.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=_EmbeddedFacts)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from error
    except msgspec.MsgspecError as error:
        raise ConfigError(str(error), file=str(path)) from error


def read_machine(name: str = "", *, drill_ok: bool = False) -> tuple[NodeIdentity, GpuTable]:
    """The facts of the machine that this process runs on."""
    identity = NodeIdentity(
        name=name or socket.gethostname().partition(".")[0],
        boot_id=text_of(BOOT_ID),
        instance_id=text_of(Path("/etc/machine-id")),
        booted_at=psutil.boot_time(),
        drill_ok=drill_ok,
    )
    return identity, GpuTable(driver_gpus())


def driver_gpus(folder: Path = DRIVER_GPUS) -> dict[str, int]:
    """PCI address -> index. NVML numbers GPUs in ascending order of their PCI addresses."""
    try:
        found = sorted(filter(None, (pci_address(entry.name) for entry in folder.iterdir())))
    except OSError:
        return {}
    return {address: index for index, address in enumerate(found)}


def current_boot_id(node_dir: Path | None) -> str:
    """The boot id that the node has now, to compare with the one that the agent was started under."""
    return read_embedded(node_dir)[0].boot_id if node_dir is not None else text_of(BOOT_ID)
