"""What drills do to an embedded node: power, network, kernel log, disk, signals.

The daemon calls `break_it` after it has checked that the cluster is open to drills. Each breaker has its undoing. Time
passes only while a node boots (`power_on`).
"""

from __future__ import annotations

import signal
from typing import Any

from holdfast.adapters.local.nodes import LocalNode, Power
from holdfast.adapters.local.protocol import (
    Breaker,
    Cut,
    FillDisk,
    FreeDisk,
    Heal,
    Kill,
    Kmsg,
    PowerOff,
    PowerOn,
    StopProcess,
)
from holdfast.errors import NotFoundError, RefusedError, UsageError
from holdfast.os.processes import strike


async def break_it(request: Breaker, node: LocalNode) -> Any:
    """Carry out one breaker. Returns one line, or for signals the pids that got it."""
    match request:
        case PowerOff():
            node.switch_off("powered off")
            return "powered off"
        case PowerOn():
            if node.power is Power.OFF:
                node.power_up("power on")
            await node.up.wait()
            return "powered on"
        case Cut():
            node.cut()
            return "cut off"
        case Heal():
            node.heal()
            return "healed"
        case Kmsg():
            node.append_kmsg(request.text)
            return "written"
        case FillDisk():
            return await node.disk(full=True)
        case FreeDisk():
            return await node.disk(full=False)
        case Kill():
            return _signal(node, request.signal, request.pid, request.target)
        case StopProcess():
            sig = signal.SIGCONT if request.resume else signal.SIGSTOP
            return _signal(node, sig, request.pid, request.target)
    raise UsageError(f"`{type(request).__name__}` is not handled")  # a breaker without a line above: a bug


def _signal(node: LocalNode, sig: int, pid: int, target: str) -> list[int]:
    if bool(pid) == bool(target):
        raise UsageError("give `pid` or `target` (agent, task, job, node)")
    if sig not in {int(known) for known in signal.Signals}:
        raise UsageError(f"there is no signal {sig}")
    pids = [pid] if pid else node.pids_of(target)
    if not pids:
        raise NotFoundError(f"nothing runs on {node.name} that is `{target}`")
    hit = strike(pids, sig, of=lambda: node.pids_of("node"))
    if pid and not hit:
        raise RefusedError(f"process {pid} does not run on {node.name}")
    return hit
