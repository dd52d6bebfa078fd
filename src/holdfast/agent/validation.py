"""The quick checks that a node must pass before it takes work again; the health checks come after them.

The agent runs them for a `ValidateNode` order, one after another; the first that fails is the reason. They block the
agent's loop for less than a few milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.node_facts import NodeIdentity, current_boot_id
from holdfast.errors import ConfigError
from holdfast.model.machine import other_machine
from holdfast.model.orders import ValidateNode

FRESH_S = 600.0
"""A root finding of the kernel log counts against the node for this long, unless a boot or reset came after it."""
PROBE_BYTES = 65_536


def quick_checks(
    order: ValidateNode,
    identity: NodeIdentity,
    *,
    node_dir: Path | None,
    scratch: Path,
    kernel_log: Path | None,
    root: str,
) -> tuple[bool, str]:
    """Run the checks up to the first failure. Returns (passed, one sentence).

    Args:
        order: what the controller asks.
        identity: the node, as the agent was started under it.
        node_dir: the embedded node's folder; None on a real node.
        scratch: the folder that must take a file.
        kernel_log: the file that must be readable; None: the log is no file.
        root: the newest root finding that nothing has repaired; empty: none.
    """
    checks: dict[str, Callable[[], str]] = {
        "identity": lambda: _other(order, identity, node_dir),
        "scratch": lambda: _unwritable(scratch),
        "kernel log": lambda: _unreadable(kernel_log),
        "findings": lambda: f"{root} was seen and nothing has been repaired since" if root else "",
    }
    if kernel_log is None:
        del checks["kernel log"]
    for name, fault in checks.items():
        if why := fault():
            return False, f"{name}: {why}"
    return True, f"{len(checks)} checks passed"


def _other(order: ValidateNode, identity: NodeIdentity, node_dir: Path | None) -> str:
    """The order is about another machine, or the agent runs under an earlier boot."""
    if other_machine(order.instance_id, identity.instance_id):
        return f"asked about {order.instance_id}, this is {identity.instance_id}"
    try:
        boot_id = current_boot_id(node_dir)
    except ConfigError as error:
        return str(error)
    return "" if boot_id == identity.boot_id else f"the node was booted again ({boot_id}) under this agent"


def _unwritable(folder: Path) -> str:
    """The node's scratch folder does not take a file and give it back."""
    if (folder.parent / "disk_full").exists():
        return "no space left (emulated)"
    probe = folder / f".holdfast-probe-{os.getpid()}"
    try:
        folder.mkdir(exist_ok=True)
        probe.write_bytes(b"\xa5" * PROBE_BYTES)
        whole = probe.read_bytes() == b"\xa5" * PROBE_BYTES
    except OSError as error:
        return f"{folder}: {error.strerror}"
    finally:
        probe.unlink(missing_ok=True)
    return "" if whole else f"{folder}: what was read is not what was written"


def _unreadable(path: Path | None) -> str:
    """The kernel log cannot be read: a node whose faults cannot be seen must not take work."""
    try:
        if path is not None:
            with path.open("rb") as log:
                log.read(1)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""
