"""What `nvidia-smi --query-gpu=... --format=csv` prints, and how it fails. Pure.

What a GPU does not have reads `[N/A]`, `[Not Supported]` or `N/A`.
"""

from __future__ import annotations

import re

from msgspec import Struct

from holdfast.adapters.probes.facts import GpuFacts

ARGV = (
    "nvidia-smi",
    "--query-gpu=index,uuid,ecc.errors.uncorrected.volatile.total",
    "--format=csv,noheader,nounits",
)
_LOST = re.compile(
    r"Unable to determine the device handle for (?:gpu|GPU)\s*(?:\d+:\s+)?(?P<pci>[0-9A-Fa-f:.]+): (?P<why>.+)"
)
_NO_DRIVER = re.compile(r"couldn't communicate with the NVIDIA driver|Driver Not Loaded|No devices were found")
_MISMATCH = re.compile(r"Driver/library version mismatch")


class SmiFacts(Struct, frozen=True, kw_only=True):
    """GPUs that answered, GPUs that did not, and why there are none."""

    gpus: tuple[GpuFacts, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    """`(PCI address, reason)` each."""
    mismatch: bool = False
    unknown: str = ""
    """What it said, when none of this was understood."""


def parse_smi(out: str, err: str, code: int | None) -> SmiFacts:
    """Read the query's output."""
    said = f"{out}\n{err}"
    lost = tuple((found["pci"], found["why"].strip()[:120]) for found in _LOST.finditer(said))
    gpus = tuple(gpu for line in out.splitlines() if (gpu := _row(line)) is not None)
    no_driver = not gpus and _NO_DRIVER.search(said) is not None
    mismatch = _MISMATCH.search(said) is not None
    understood = gpus or lost or no_driver or mismatch
    unknown = "" if understood else said.strip()[:200] or f"it ended with code {code} and said nothing"
    return SmiFacts(gpus=gpus, lost=lost, mismatch=mismatch, unknown=unknown)


def _row(line: str) -> GpuFacts | None:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 3 or not cells[0].isdigit():
        return None
    return GpuFacts(index=int(cells[0]), uuid=cells[1], ecc_uncorrected=int(cells[2]) if cells[2].isdigit() else None)
