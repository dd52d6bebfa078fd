"""The reading of GPUs by NVML. Absurd numbers make the whole reading count as failed: half of it could be true."""

from __future__ import annotations

import msgspec

from holdfast.adapters.probes.check import Mode, Reading, Source
from holdfast.adapters.probes.facts import NvmlFacts, implausible
from holdfast.adapters.probes.reach import Reach, fitted, limit

LIMIT_S = 10.0
"""A node whose driver is busy answers within seconds; one that needs longer hangs."""


async def _read(reach: Reach) -> Reading:
    processes = reach.mode in {Mode.PROLOG, Mode.EPILOG}
    reading = fitted(await reach.gpus.ask("nvml", limit(LIMIT_S), processes=processes, job=reach.job), NvmlFacts)
    if isinstance(reading.facts, NvmlFacts) and (why := implausible(reading.facts)):
        return msgspec.structs.replace(reading, facts=None, failed=f"NVML gives nonsense: {why}")
    return reading


NVML = Source(
    name="nvml",
    about="NVIDIA's management library, through nvidia-ml-py, in a process of its own",
    needs="libnvidia-ml.so.1 and the driver",
    limit_s=LIMIT_S + 5,
    read=_read,
)
