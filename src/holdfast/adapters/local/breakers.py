"""What drills do to an embedded node: power, network, kernel log, disk, signals.

The daemon calls `break_it` after it has checked that the cluster is open to drills. Each breaker has its undoing. Time
passes only while a node boots (`power_on`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Collection, Sequence
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


def strike(pids: Sequence[int], sig: int, *, of: Callable[[], Collection[int]]) -> list[int]:
    """Signal those of these processes that belong to a node, and return them.

    The breaker must not reach beyond its node: it runs with the daemon's rights. A number may be another process's by
    the time of the signal, so each process is held by a descriptor first, and looked at then.

    Args:
        pids: as they were found.
        sig: the signal.
        of: tells the node's processes as they are now.
    """
    held: dict[int, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(OSError):
                held[pid] = os.pidfd_open(pid)
        theirs = set(of()) - {os.getpid()}
        hit = []
        for pid, fd in held.items():
            if pid in theirs and not select.select([fd], [], [], 0)[0]:  # alive, so that its number is its own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(fd, sig)
                    hit.append(pid)
        return hit
    finally:
        for fd in held.values():
            os.close(fd)
