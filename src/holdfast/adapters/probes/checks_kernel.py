"""The kernel log, looked through by hand: which errors of GPUs it tells of since the node was booted.

The agent follows the kernel log itself (`agent.kernel_log`); this check is for a person or a script that asks once.
What the catalogue calls a root cause is critical; what an application brings about is not. A GPU that was reset since
then still shows: only a boot makes the log begin anew. The log is read in the reading process, which can be killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.probes.check import Judging, Problem, Reading, check, problem, source
from holdfast.adapters.probes.reach import Reach
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.matcher import Match, StreamSource
from holdfast.model.evidence import Domain, Place, Role

LIMIT_S = 5.0


class GpuError(Struct, frozen=True, kw_only=True):
    """One Xid or SXid of the log, as the catalogue knows it."""

    rule: str
    title: str
    is_fault: bool
    """A root cause, and not the application's own doing."""
    gpu_id: str
    text: str


def _matched(lines: tuple[str, ...]) -> list[Match]:
    stream = read_matcher(read_catalogue()).stream(StreamSource(kind=StreamKind.KERNEL))
    return stream.feed("".join(f"{line}\n" for line in lines).encode(), 0.0)


@source("kernel-log", "the kernel's ring buffer (/dev/kmsg)", "/dev/kmsg", 2 * LIMIT_S)
async def _read(reach: Reach) -> Reading:
    reading = await reach.read("kernel", tuple[str, ...], LIMIT_S, path=str(reach.kernel_log))
    if reading.facts is None:
        return reading
    matches = await asyncio.to_thread(_matched, reading.facts)
    errors = [
        GpuError(
            rule=one.rule.id,
            title=one.rule.title,
            is_fault=one.rule.role is Role.ROOT and one.rule.domain is not Domain.APPLICATION,
            gpu_id=one.captures.get("gpu_id", ""),
            text=one.text,
        )
        for one in matches
    ]
    return replace(reading, facts=tuple(errors))


@check(
    "kernel-xid", "Xids and SXids of the kernel log since boot", "kernel-log", "nvidia.xid.*", "nvidia.sxid.*", modes=()
)
def xids(facts: tuple[GpuError, ...], _judging: Judging) -> Iterator[Problem]:
    """Faults, each kind once for each GPU."""
    for one in {(one.rule, one.gpu_id): one for one in facts if one.is_fault}.values():
        where = f" (GPU {one.gpu_id})" if one.gpu_id else ""
        yield problem(one.rule, f"{one.title}{where}", Place(gpu_id=one.gpu_id), text=one.text)
