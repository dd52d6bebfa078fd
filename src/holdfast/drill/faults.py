"""Injects one fault and undoes it: command files in the job's folder, a node's breakers, damage to a checkpoint.

Called by the runner, one `Injection` per drill. Time is the clock's; waiting is for files that ranks, the launcher or
the training write. A target that is not marked as open to drills is refused before anything is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.checkpoint.store import CheckpointInfo, scan
from holdfast.drill.kinds import Reach
from holdfast.drill.ports import Site
from holdfast.drill.scenario import Scenario
from holdfast.drill.verdict import Fired
from holdfast.errors import HoldfastError, LinkError, RefusedError, UsageError
from holdfast.failpoint import command
from holdfast.model.records import JobRecord

_POLL_S = 0.02
DRILL_FOLDER = "drill"
CHECKPOINT_FOLDER = "checkpoints"
RECOVERY_NEEDED: dict[str, Any] = {"xid": 74, "line": "", "gpu": "0000:b9:00"}
"""A fault that only the scheduler can mend: the job must go to another node."""


class Break(Struct, frozen=True):
    """What of a `FaultPort` injects a kind, and what undoes it; empty: nothing does."""

    deed: str
    undo: str = ""
    of_node: bool = True
    """It is done to the node; else to what all nodes share."""
    needs_recovery: bool = False
    """A job has to be recovered while it lasts."""


BREAKS = {
    "node_loss": Break("power_off", "power_on"),
    "network_cut": Break("cut", "heal"),
    "disk_full": Break("fill_disk", "free_disk"),
    "slurmd_killed": Break("kill_slurmd", "start_slurmd"),
    "node_reboot": Break("reboot"),
    "slurmctld_restarted": Break("kill_scheduler", "start_scheduler", of_node=False, needs_recovery=True),
    "slurmdbd_away": Break("stop_accounting", "start_accounting", of_node=False, needs_recovery=True),
    "shared_full": Break("fill_shared", "free_shared", of_node=False),
}


class Aim(Struct, frozen=True, kw_only=True):
    """What exactly is hit."""

    rank: int | None = None
    node: str = ""
    attempt: int = 0
    at_step: int | None = None


class CannotInjectError(HoldfastError):
    """The fault did not happen; the message says why. The drill fails, Holdfast is not to blame."""


def aim(scenario: Scenario, job: JobRecord, base_step: int, seed: int) -> Aim:
    """Choose rank, node and step by the scenario and the seed.

    Raises:
        UsageError: the scenario names a rank or node that the job does not have.
    """
    attempt = job.attempt
    if attempt is None or not attempt.ranks or not attempt.nodes:
        raise UsageError(f"job {job.key} has no attempt with ranks that a drill could hit")
    # Drawn from the scenario's name as well, so that drills in a row do not all hit the same rank.
    draw = random.Random(f"{seed}/{scenario.name}")  # noqa: S311 - a choice that can be repeated, not a secret
    target = scenario.target
    rank = draw.randrange(attempt.ranks) if target.rank is None else target.rank
    node = target.node
    if node.startswith("of_rank:"):
        rank, node = int(node.partition(":")[2]), ""
    if rank >= attempt.ranks:
        raise UsageError(f"drill {scenario.name}: the job has ranks 0 to {attempt.ranks - 1}, not {rank}")
    at_step = scenario.when.at_step
    if scenario.when.steps_after is not None:
        at_step = base_step + scenario.when.steps_after
    where = attempt.nodes[rank * len(attempt.nodes) // attempt.ranks]
    return Aim(
        rank=None if scenario.definition.target == "node" else rank,
        node=node or where,
        attempt=attempt.number,
        at_step=at_step,
    )


class Injection:
    """One fault: `inject`, then `undo` in every case, also when `inject` failed or was cancelled."""

    def __init__(self, scenario: Scenario, drill_id: str, *, target: Aim, job: JobRecord, site: Site) -> None:
        if not job.view.drill_ok:
            raise RefusedError(
                f"job {job.key} is not open to drills: its owner must submit it with --drill-ok (drill_ok = true)"
            )
        self.scenario = scenario
        self.drill_id = drill_id
        self.target = target
        self.damaged_step: int | None = None
        # Slurm does not know the job's folder; who brought the job up does.
        self._job_dir = site.job_dir if site.job_dir is not None else Path(job.view.job_dir)
        self._folder = self._job_dir / DRILL_FOLDER
        self._port = site.breaker
        self._clock = site.clock
        self._undo: list[Callable[[], Awaitable[object]]] = []
        self._later: asyncio.Task[None] | None = None

    async def inject(self, limit_s: float) -> Fired:
        """Have the fault happen; returns when and where it did.

        Raises:
            CannotInjectError: it did not within `limit_s` seconds.
            RefusedError: the target is not open to drills.
        """
        reach = self.scenario.definition.reach
        if reach is Reach.NOTHING:
            return Fired(at=self._clock.now())
        if reach in {Reach.NODE, Reach.SCHEDULER}:
            return await self._break()
        kind = self.scenario.kind
        params = self.scenario.settings
        if reach is Reach.FILES:
            await self._damage(params, limit_s)
            kind, params = "kill9", {}
        self._write_command(kind, params)
        return await self._fired_mark(limit_s)

    async def undo(self) -> None:
        """Take back what can be taken back, and keep what has not happened yet from happening. Never raises halfway."""
        if self._later is not None:
            self._later.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._later
        problems: list[str] = []
        for undo in reversed(self._undo):
            try:
                await undo()
            except (HoldfastError, OSError) as error:
                problems.append(str(error))
        self._undo.clear()
        if problems:
            raise LinkError(f"drill {self.drill_id} could not be undone: {'; '.join(problems)}")

    # --- inside the job ---

    def _write_command(self, kind: str, params: dict[str, Any]) -> None:
        rank = self.target.rank if self.target.rank is not None else 0
        text = command.encode(
            command.FaultCommand(
                self.drill_id,
                kind,
                (rank,),
                at_step=None if self.scenario.definition.reach is Reach.FILES else self.target.at_step,
                attempt=self.target.attempt,
                params=params,
            )
        )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._undo.append(self._abort)
            draft = self._folder / f".{self.drill_id}.new"
            draft.write_text(text, encoding="utf-8")
            draft.replace(self._folder / command.command_name(self.drill_id))
        except OSError as error:
            raise CannotInjectError(f"{self._folder} cannot be written: {error.strerror}") from error

    async def _abort(self) -> None:
        (self._folder / command.abort_name(self.drill_id)).touch()

    async def _fired_mark(self, limit_s: float) -> Fired:
        rank = self.target.rank if self.target.rank is not None else 0
        fired = self._folder / command.fired_name(self.drill_id, rank)
        failed = self._folder / command.failed_name(self.drill_id, rank)
        deadline = self._clock.monotonic() + limit_s
        while self._clock.monotonic() < deadline:
            word = json.loads(fired.read_bytes()) if fired.exists() else None
            if failed.exists():
                raise CannotInjectError(str(json.loads(failed.read_bytes()).get("error", "the rank refused")))
            if word is not None:
                return Fired(
                    at=float(word["at"]),
                    node=self.target.node,
                    rank=self.target.rank,
                    step=word.get("step"),
                    detail=f"process {word.get('pid')}",
                )
            await self._clock.sleep(_POLL_S)
        raise CannotInjectError(
            f"rank {rank} did not obey within {limit_s:.0f} s: was the job launched by `holdfast run`, open to drills?"
        )

    # --- to a node, or to the scheduler ---

    async def _break(self) -> Fired:
        node, kind, params = self.target.node, self.scenario.kind, self.scenario.settings
        port = self._port
        if port is None:
            raise RefusedError(f"{kind} needs an orchestrator whose nodes are open to drills")
        at = self._clock.now()
        if kind == "xid":
            await port.do("kmsg", node, text=xid_line(params))
        else:
            broken = BREAKS[kind]
            if broken.deed not in port.deeds:
                raise RefusedError(f"{kind} needs a Slurm lab: holdfast drill run --on slurm")
            hit = node if broken.of_node else ""
            if broken.undo:
                self._undo.append(partial(port.do, broken.undo, hit))
            await port.do(broken.deed, hit)
            if broken.needs_recovery:
                at = self._clock.now()
                await port.do("kmsg", node, text=xid_line(RECOVERY_NEEDED))
            if broken.undo:
                self._after(params.get("for_s", 0.0), self._undo[-1])
        return Fired(at=at, node=node, rank=self.target.rank)

    def _after(self, seconds: float, deed: Callable[[], Awaitable[object]]) -> None:
        if seconds <= 0:
            return

        async def later() -> None:
            await self._clock.sleep(seconds)
            await deed()

        self._later = asyncio.create_task(later())

    # --- to a checkpoint ---

    async def _damage(self, params: dict[str, Any], limit_s: float) -> None:
        """Wait for the next checkpoint, so that no newer one comes between the damage and the restart."""
        folder = self._job_dir / (params["dir"] or CHECKPOINT_FOLDER)
        before = newest_checkpoint(folder)
        deadline = self._clock.monotonic() + limit_s
        while (newest := newest_checkpoint(folder)) is None or (before is not None and newest.step == before.step):
            if self._clock.monotonic() > deadline:
                raise CannotInjectError(f"no new checkpoint appeared in {folder} within {limit_s:.0f} s")
            await self._clock.sleep(_POLL_S)
        flip_bits(newest.path, params["bits"], self.drill_id)
        self.damaged_step = newest.step


def xid_line(params: dict[str, Any]) -> str:
    """The kernel-log line of an Xid, in the driver's own form (NVIDIA's Xid documentation)."""
    if params["line"]:
        return str(params["line"])
    words = {
        73: "pid=4242, NVENC2 Error",
        74: "pid=4242, name=python, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        79: "pid=4242, GPU has fallen off the bus.",
    }.get(params["xid"], "pid=4242, name=python, channel 0x00000001")
    return f"NVRM: Xid (PCI:{params['gpu']}): {params['xid']}, {words}"


def newest_checkpoint(folder: Path) -> CheckpointInfo | None:
    """The published checkpoint with the highest step, None when there is none."""
    if not folder.is_dir():
        return None
    return max((info for info in scan(folder) if info.ok), key=lambda info: info.step, default=None)


def flip_bits(checkpoint: Path, bits: int, seed: str) -> Path:
    """Flip bits of the largest data file, its times kept: only its content can tell.

    Raises:
        CannotInjectError: there is no file to damage.
    """
    files = [path for path in checkpoint.rglob("*") if path.is_file() and not path.is_symlink()]
    data = [path for path in files if "manifest" not in path.name and path.stat().st_size]
    if not data:
        raise CannotInjectError(f"{checkpoint} holds no data to damage")
    victim = max(data, key=lambda path: (path.stat().st_size, path.name))
    draw = random.Random(seed)  # noqa: S311 - damage that can be repeated
    before = victim.stat()
    with victim.open("r+b") as file:
        for at in draw.sample(range(before.st_size), min(bits, before.st_size)):
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ (1 << draw.randrange(8))]))
        file.flush()
        os.fsync(file.fileno())
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    return victim
