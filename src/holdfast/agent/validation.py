"""The checks that a node must pass before it takes work again, on the embedded cluster.

The agent runs them for a `ValidateNode` order, one after another; the first that fails is the reason. Checks of real
hardware (DCGM, NVML, links, bandwidth) are probes that come in through the same `Check` form. They are quick and block
the agent's loop for less than a few milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from holdfast.agent.node_facts import NodeIdentity, current_boot_id
from holdfast.errors import ConfigError
from holdfast.model.machine import other_machine
from holdfast.model.orders import ValidateNode

FRESH_S = 600.0
"""A root finding of the kernel log counts against the node for this long, unless a boot or reset came after it."""
PROBE_BYTES = 65_536


class Outcome(Struct, frozen=True):
    """What one check says."""

    name: str
    passed: bool
    detail: str = ""


Check = Callable[[ValidateNode], Outcome]


def run_checks(checks: Sequence[Check], order: ValidateNode) -> tuple[bool, str]:
    """Run the checks in order up to the first failure. Returns (passed, one sentence)."""
    for check in checks:
        outcome = check(order)
        if not outcome.passed:
            return False, f"{outcome.name}: {outcome.detail}"
    return True, f"{len(checks)} checks passed"


def same_machine(identity: NodeIdentity, node_dir: Path | None) -> Check:
    """The order is about this machine, and the agent runs under the node's present boot."""

    def check(order: ValidateNode) -> Outcome:
        if other_machine(order.instance_id, identity.instance_id):
            return Outcome("identity", False, f"asked about {order.instance_id}, this is {identity.instance_id}")
        try:
            boot_id = current_boot_id(node_dir)
        except ConfigError as error:
            return Outcome("identity", False, str(error))
        if boot_id != identity.boot_id:
            return Outcome("identity", False, f"the node was booted again ({boot_id}) under this agent")
        return Outcome("identity", True)

    return check


def scratch_writable(folder: Path) -> Check:
    """The node's scratch folder takes a file, and gives it back."""

    def check(order: ValidateNode) -> Outcome:  # noqa: ARG001 - all checks have one form
        if (folder.parent / "disk_full").exists():
            return Outcome("scratch", False, "no space left (emulated)")
        probe = folder / f".holdfast-probe-{os.getpid()}"
        try:
            folder.mkdir(exist_ok=True)
            probe.write_bytes(b"\xa5" * PROBE_BYTES)
            whole = probe.read_bytes() == b"\xa5" * PROBE_BYTES
        except OSError as error:
            return Outcome("scratch", False, f"{folder}: {error.strerror}")
        finally:
            probe.unlink(missing_ok=True)
        return Outcome("scratch", whole, "" if whole else f"{folder}: what was read is not what was written")

    return check


def kernel_log_readable(path: Path) -> Check:
    """The kernel log can be read: a node whose faults cannot be seen must not take work."""

    def check(order: ValidateNode) -> Outcome:  # noqa: ARG001 - all checks have one form
        try:
            with path.open("rb") as log:
                log.read(1)
        except OSError as error:
            return Outcome("kernel log", False, f"{path}: {error.strerror}")
        return Outcome("kernel log", True)

    return check


def no_fresh_root(fresh_root: Callable[[], str]) -> Check:
    """No root finding since the last boot or reset. `fresh_root` gives the newest one's rule, or an empty string."""

    def check(order: ValidateNode) -> Outcome:  # noqa: ARG001 - all checks have one form
        rule = fresh_root()
        return Outcome("findings", not rule, f"{rule} was seen and nothing has been repaired since" if rule else "")

    return check
