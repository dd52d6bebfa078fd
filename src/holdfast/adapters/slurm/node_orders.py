"""Orders about nodes: quarantine, return, reboot, replace, retire. Each looks first and respects whose node it is.

A reason that begins with our prefix, or that is exactly `Action:Reboot` or `Action:Replace`, gives a node into our
hands. So does Slurm's own drain after a failed Prolog or Epilog, once the node is quarantined for it. Any other reason
is a person's (or Slurm's own) and is left standing. A node that is known to be gone is set
`down`, so that Slurm writes off what ran there and queues its jobs at once instead of after SlurmdTimeout.
Identical wishes that come together are one command for the whole node set. Time passes while a node boots.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from holdfast.adapters.slurm import commands
from holdfast.adapters.slurm.asks import ACTIONS, PREFIX
from holdfast.adapters.slurm.daemons import address_of, answers_not
from holdfast.adapters.slurm.looks import Looks
from holdfast.adapters.slurm.memory import Memory
from holdfast.adapters.slurm.node_output import SlurmNode, partition_nodes
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.adapters.slurm.tool import Tool
from holdfast.adapters.slurm.views import FAILED_CHECKS, is_drained, is_lost
from holdfast.adapters.tasks import end
from holdfast.errors import PermanentOrderError, TemporaryOrderError
from holdfast.model import orders as o
from holdfast.model.machine import MachineId

POLL_S = 0.3
GATHER_S = 0.01
BOOT_WAVERS_S = 2.5
SAME_SECOND_S = 1.1
REPLACE = "Action:Replace"
NO_REASON = "no reason given"
HEARD_S = 10.0
"""A node whose slurmd takes connections is given so long until slurmctld has heard of it again."""
REPAIR_S = 3600.0
"""The longest that a machine may be away for a reboot or a replacement."""
_REBOOTING = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED", "REBOOT"})
_SILENT = frozenset({"NOT_RESPONDING", "NO_RESPOND"})
_log = structlog.get_logger("holdfast.slurm")


def is_ours(node: SlurmNode) -> bool:
    """May we lift what keeps it out of service?"""
    return node.reason.startswith(PREFIX) or node.reason in ACTIONS


def is_up(node: SlurmNode) -> bool:
    """Does slurmd answer, whatever the node's state is otherwise?"""
    return not node.states & {"NOT_RESPONDING", "NO_RESPOND", "REBOOT_ISSUED", "REBOOT_REQUESTED", "POWERING_UP"}


class NodeOrders:
    """See the module. `until_killed` is awaited before a node that is gone is set down."""

    def __init__(
        self,
        tool: Tool,
        looks: Looks,
        memory: Memory,
        config: SlurmConfig,
        *,
        until_killed: Callable[[str], Awaitable[None]],
    ) -> None:
        self._tool = tool
        self._until_killed = until_killed
        self._looks = looks
        self._memory = memory
        self._config = config
        self._waiting: dict[tuple[str, str, str | None], tuple[list[str], asyncio.Task[None]]] = {}
        self._setting: set[asyncio.Task[None]] = set()
        self._rejoining = asyncio.Lock()
        self._does: dict[type[o.Order], Callable[[Any, SlurmNode], Awaitable[str]]] = {
            o.QuarantineNode: self._quarantine,
            o.ReturnNode: self._return,
            o.RetireNode: self._retire,
            o.RebootNode: self._reboot,
        }

    def can(self, order: o.AnyOrder) -> bool:
        """Is it one of ours? Replacing needs a site's way to do it; rebooting, RebootProgram or such a way."""
        if isinstance(order, o.ReplaceNode):
            return bool(self._config.replace_program) or self._config.replace_by_reason
        return type(order) in self._does

    def machine_of(self, node: SlurmNode) -> MachineId:
        """Names the machine behind the name: the cloud's id, and how often we had it replaced."""
        return MachineId(f"{node.machine or node.name}/{self._memory.node(node.name).machine}", "slurm")

    def boot_of(self, node: SlurmNode) -> str:
        """Names the boot by its time. Slurm reckons that from the uptime, so it wavers; for a moment it is not told."""
        entry = self._memory.node(node.name)
        if node.boot_at and abs(node.boot_at - entry.boot_at) > BOOT_WAVERS_S:
            entry.boot_at = node.boot_at
            self._memory.keep(entry)
        return f"slurm:{entry.machine}@{entry.boot_at:.0f}" if entry.boot_at else ""

    async def execute(self, order: o.NodeOrder) -> str:
        """See ports.Orchestrator."""
        node = await self._look(order.node)
        asked = MachineId.parse(order.instance_id)
        stale = bool(asked) and asked != self.machine_of(node)
        if isinstance(order, o.ReplaceNode):
            return "it is another machine already" if stale else await self._replace(node)
        if stale:
            raise PermanentOrderError(f"{order.node} is another machine now")
        return await self._does[type(order)](order, node)

    async def _look(self, name: str) -> SlurmNode:
        commands.node_ref([name])
        node = (await self._looks.fresh()).nodes.get(name)
        if node is None:
            raise PermanentOrderError(f"Slurm knows no node {name}")
        return node

    async def _until(self, name: str, holds: Callable[[SlurmNode], bool], limit_s: float, what: str) -> SlurmNode:
        deadline = time.monotonic() + limit_s
        while True:
            node = await self._look(name)
            if holds(node):
                return node
            if time.monotonic() > deadline:
                raise TemporaryOrderError(f"{name} {what} within {limit_s:g} s (state {node.state_text})")
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """End the tools under way."""
        await end(self._setting)

    async def _set(self, node: str, state: str, reason: str = "", comment: str | None = None) -> None:
        """Set the state, together with others who want the same within the next moment."""
        key = (state, commands.one_line(reason), comment)
        if key not in self._waiting:
            names: list[str] = []
            task = asyncio.create_task(self._set_together(key, names))
            self._setting.add(task)
            task.add_done_callback(self._setting.discard)
            self._waiting[key] = (names, task)
        names, task = self._waiting[key]
        names.append(node)
        await asyncio.shield(task)

    async def _set_together(self, key: tuple[str, str, str | None], names: list[str]) -> None:
        await asyncio.sleep(GATHER_S)
        del self._waiting[key]
        await self._tool.run(commands.set_nodes(names, *key))

    # --- in and out of service ---

    @staticmethod
    def _mark(order: o.QuarantineNode) -> tuple[str, str, str | None]:
        """State, reason and comment of a node that is fenced; the reason may be HyperPod's, by which others act."""
        reason = commands.one_line(f"{PREFIX} {order.why}")
        action = next((words for words, repair in ACTIONS.items() if repair == order.repair), "")
        return ("FAIL", action, reason) if action and order.action_reason else ("DRAIN", reason, None)

    async def _quarantine(self, order: o.QuarantineNode, node: SlurmNode) -> str:
        state, reason, comment = self._mark(order)
        self._note(node, is_marked=comment is not None and not is_drained(node))
        if order.gone:
            return await self._write_off(node, reason, comment)
        if is_drained(node):
            if is_ours(node):
                return "out of service already"
            if order.takes_prolog_drain and node.reason in FAILED_CHECKS:
                await self._set(node.name, state, reason, comment)
                return f"drained by Slurm already ({node.reason}); the reason is ours now"
            return f"drained already by somebody else ({node.reason or NO_REASON})"
        if "DOWN" in node.states:
            # Slurm lost it: it takes no work as it is, and a drain on it would outlive its coming back.
            await self._tool.run(commands.set_nodes([node.name], reason=reason, comment=comment))
            return "down already, and kept out"
        await self._set(node.name, state, reason, comment)
        return "drained" if comment is None else f"set to fail, {reason}"

    def _note(self, node: SlurmNode, *, is_marked: bool) -> None:
        """Remember what a repair may lose, unless we have fenced it already."""
        entry = self._memory.node(node.name)
        if not (entry.partitions and node.reason.startswith(PREFIX)):
            entry.partitions = node.partitions
            entry.comment = "" if node.comment.startswith(PREFIX) else node.comment
            entry.stale_comment = "" if is_marked else entry.stale_comment
            self._memory.keep(entry)

    async def _write_off(self, node: SlurmNode, reason: str, comment: str | None) -> str:
        """It is known not to run: Slurm need not wait for its word."""
        theirs = is_drained(node) and not is_ours(node)
        if "DOWN" not in node.states:
            await self._until_killed(node.name)
            words = (node.reason or NO_REASON, None) if theirs else (reason, comment)
            await self._set(node.name, "DOWN", *words)
            return "set down: what ran there is written off"
        if not theirs and not is_ours(node):
            await self._tool.run(commands.set_nodes([node.name], reason=reason, comment=comment))
        return "down already"

    async def _return(self, _: o.ReturnNode, node: SlurmNode) -> str:
        if not is_drained(node):
            return "in service already"
        if not is_ours(node):
            raise PermanentOrderError(f"{node.name} was drained by someone else: {node.reason or NO_REASON}")
        rejoined = await self._rejoin(node)
        await self._set(node.name, "RESUME", comment=self._own_comment_over(node))
        entry = self._memory.node(node.name)
        entry.partitions, entry.comment = (), ""
        self._memory.keep(entry)
        return f"in service{rejoined}"

    def _own_comment_over(self, node: SlurmNode) -> str | None:
        """What its comment was before ours; None where it has none of ours."""
        return self._memory.node(node.name).comment if node.comment.startswith(PREFIX) else None

    async def _rejoin(self, node: SlurmNode) -> str:
        """Put it back into the partitions that it lost since it was fenced; says which."""
        lost = [name for name in self._memory.node(node.name).partitions if name not in node.partitions]
        if not lost:
            return ""
        async with self._rejoining:  # each gives the whole list
            now = partition_nodes(await self._tool.text(commands.PARTITIONS))
            back = [name for name in lost if name in now and node.name not in now[name]]
            for name in back:
                await self._tool.run(commands.set_partition(name, [*now[name], node.name]))
        return f", and back in {', '.join(back)}" if back else ""

    async def _retire(self, order: o.RetireNode, node: SlurmNode) -> str:
        reason = f"{PREFIX} retired: {order.why}"
        if is_drained(node) and not is_ours(node):
            return f"out of service by somebody else ({node.reason})"
        if is_drained(node):
            comment = self._own_comment_over(node)
            await self._tool.run(commands.set_nodes([node.name], reason=reason, comment=comment))
        else:
            await self._set(node.name, "DRAIN", reason)
        return "out of service for a person"

    # --- repair ---

    async def _reboot(self, order: o.RebootNode, node: SlurmNode) -> str:
        before, entry = self.boot_of(node), self._memory.node(node.name)
        if order.boot_id.startswith("slurm:") and before not in {"", order.boot_id} and is_up(node):
            return "it has booted anew already"
        was_out, reason = is_drained(node), node.reason or NO_REASON
        if not node.states & _REBOOTING:
            if not self._config.reboot_program:
                await self._check_reboots_itself(node)
            await self._begin_reboot(order, node, was_out=was_out)

        def has_booted(seen: SlurmNode) -> bool:
            # A boot that follows another within a few seconds is hidden by how far Slurm's boot times waver. Then it
            # shows by its slurmd, which is another one, and by a later time of boot.
            is_another = seen.slurmd_at > node.slurmd_at and seen.boot_at > node.boot_at
            return is_up(seen) and seen.boot_at > 0 and (self.boot_of(seen) != before or is_another)

        seen = await self._until(node.name, has_booted, REPAIR_S, "did not come back")
        if entry.boot_at != seen.boot_at:
            entry.boot_at = seen.boot_at
            self._memory.keep(entry)
        await self._settle(node.name, was_out=was_out, reason=reason)
        return "rebooted"

    async def _check_reboots_itself(self, node: SlurmNode) -> None:
        """Raise PermanentOrderError where `scontrol reboot` cannot work: the node's own slurmd would carry it out."""
        hint = "name a reboot_program under [slurm], such as a BMC's power cycle"
        if not self._looks.facts.reboots:
            raise PermanentOrderError(f"slurm.conf has no RebootProgram; {hint}")
        silent = f"{node.name}'s slurmd, which would carry out the reboot, does not answer; {hint}"
        if await answers_not(address_of(node, self._looks.facts.slurmd_port)):
            raise PermanentOrderError(silent)
        try:
            await self._until(node.name, lambda seen: not seen.states & _SILENT, HEARD_S, "was not heard")
        except TemporaryOrderError as error:
            raise PermanentOrderError(f"{silent} ({error})") from error

    async def _begin_reboot(self, order: o.RebootNode, node: SlurmNode, *, was_out: bool) -> None:
        await self._until_another_second(node)
        if was_out and not node.states & {"DRAIN", "FAIL"}:
            await self._set(
                node.name, "DRAIN", node.reason or NO_REASON
            )  # a node that is only down would come back into service
        if self._config.reboot_program:
            await self._tool.run((*self._config.reboot_program, node.name), limit_s=REPAIR_S)
        else:
            reason = (node.reason or NO_REASON) if was_out else f"{PREFIX} reboot: {order.why}"
            await self._tool.run(commands.reboot([node.name], reason, drained=was_out))

    async def _settle(self, name: str, *, was_out: bool, reason: str) -> None:
        """Out of service or in it as before: Slurm appends to the reason, and may have left it down or resumed it."""
        now = await self._look(name)
        entry = self._memory.node(name)
        entry.answered_at = now.slurmd_at
        self._memory.keep(entry)
        if not was_out:
            if "DOWN" in now.states and (is_ours(now) or is_lost(now)):
                await self._set(name, "RESUME")
        elif not now.states & {"DRAIN", "FAIL"}:
            await self._set(name, "DRAIN", reason)
        elif now.reason != reason:
            await self._tool.run(commands.set_nodes([name], reason=reason))

    @staticmethod
    async def _until_another_second(node: SlurmNode) -> None:
        """Slurm tells whole seconds: only after the one in which the old slurmd began can a new one be told from it."""
        await asyncio.sleep(min(SAME_SECOND_S, max(0.0, node.slurmd_at + SAME_SECOND_S - time.time())))

    async def _replace(self, node: SlurmNode) -> str:
        entry = self._memory.node(node.name)
        was_out, reason = is_drained(node), node.reason or NO_REASON
        await self._until_another_second(node)

        def is_another(seen: SlurmNode) -> bool:
            return is_up(seen) and seen.slurmd_at > node.slurmd_at

        def waits(seen: SlurmNode) -> bool:
            """Is it still marked? Where we marked it, its reason is read from its comment."""
            return seen.reason == REPLACE or (bool(seen.reason) and seen.reason == seen.comment)

        if self._config.replace_program:
            await self._tool.run((*self._config.replace_program, node.name), limit_s=REPAIR_S)
            await self._until(node.name, is_another, REPAIR_S, "did not come back as another machine")
        else:
            await self._tool.run(commands.set_nodes([node.name], "FAIL", REPLACE))
            await self._until(
                node.name,
                lambda seen: is_another(seen) or (is_up(seen) and not waits(seen)),
                REPAIR_S,
                "was not replaced",
            )
        entry.machine += 1
        await self._settle(node.name, was_out=was_out, reason=reason)
        return f"another machine (number {entry.machine} under this name)"
