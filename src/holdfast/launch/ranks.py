"""The processes of one attempt on one node: ranks that we start, or a command and the ranks found below it.

Used by the node runner, which owns what happens when one ends. Everything runs in the asyncio loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.errors import TemporaryOrderError
from holdfast.launch.environment import AttemptSpec, attempt_environment, command_environment, rank_environment
from holdfast.launch.options import RunOptions
from holdfast.launch.output import RankLog
from holdfast.launch.process import Child, Exit, Foreign, descendants, environ_of, parents, spawn
from holdfast.launch.standby import Activation, StandbyPool

RankEnd = Callable[["int | None", Exit, float], None]


class RankSet:
    """Starts and holds the processes of one attempt on this node.

    Args:
        spec: the attempt.
        node: this node's name.
        options: of the run.
        base: the environment that ranks inherit.
        job_dir: the job's folder.
        job_id: for TORCHELASTIC_RUN_ID.
        telemetry_dir: this attempt's slots on this node.
        logs: log per rank; key None for a command.
        on_end: called with (rank, exit, Unix seconds of the end); rank None for a command.
    """

    def __init__(
        self,
        spec: AttemptSpec,
        *,
        node: str,
        options: RunOptions,
        base: Mapping[str, str],
        job_dir: Path,
        job_id: str,
        telemetry_dir: Path,
        logs: Mapping[int | None, RankLog],
        on_end: RankEnd,
    ) -> None:
        self.spec = spec
        self.node = node
        self.children: dict[int | None, Child] = {}
        self.found: dict[int, Foreign] = {}
        self.standbys_used = 0
        self._ended_foreign: set[int] = set()
        self._options = options
        self._common = attempt_environment(base, spec, job_dir=str(job_dir), telemetry_dir=str(telemetry_dir))
        self._job_id = job_id
        self._logs = logs
        self._on_end = on_end

    def error_file(self, rank: int) -> Path:
        """Where torch's `record` writes why the rank failed."""
        return self._logs[rank].path.with_suffix(".error.json")

    def start(self, pool: StandbyPool) -> None:
        """Start all; raises PermanentOrderError when one cannot be started (the others then run)."""
        if self._options.is_command:
            nproc = self._options.nproc_per_node
            env = command_environment(self._common, self.spec, node=self.node, nproc=nproc)
            self._spawn(None, self._options.rank_argv(), env)
            return
        for rank in self.spec.ranks_of(self.node):
            env = rank_environment(self._common, self.spec, node=self.node, rank=rank, job_id=self._job_id)
            env["TORCHELASTIC_ERROR_FILE"] = str(self.error_file(rank))
            if not self._activate(rank, env, pool):
                self._spawn(rank, self._options.rank_argv(), env)

    def _activate(self, rank: int, env: dict[str, str], pool: StandbyPool) -> bool:
        argv = list(self._options.argv)
        activation = Activation(
            env=env,
            # `python -m module` shows "-m" as argv[0] until the module is found; runpy puts its file there.
            argv=["-m", *argv[1:]] if self._options.is_module else argv,
            cwd=os.getcwd(),  # noqa: PTH109 - as a string
            script="" if self._options.is_module else argv[0],
            module=argv[0] if self._options.is_module else "",
        )
        while (standby := pool.take()) is not None:
            log = self._logs[rank].descriptor
            try:
                child = standby.activate(activation, log, log)
            except TemporaryOrderError:
                standby.dismiss()
                continue
            self._adopt(rank, child)
            self.standbys_used += 1
            return True
        return False

    def _spawn(self, rank: int | None, argv: list[str], env: dict[str, str]) -> None:
        log = self._logs[rank].descriptor
        self._adopt(rank, spawn(argv, env=env, stdout=log, stderr=log))

    def _adopt(self, rank: int | None, child: Child) -> None:
        self.children[rank] = child
        child.on_exit = lambda ended: self._on_end(rank, ended.exit or Exit(), ended.ended_at)
        if child.exit is not None:  # it died between activation and here
            child.on_exit(child)

    @property
    def living(self) -> list[Child]:
        """Children that still run."""
        return [child for child in self.children.values() if child.exit is None]

    def pids(self) -> dict[int, int]:
        """Living ranks, also those found below a command."""
        ours = {rank: child.pid for rank, child in self.children.items() if rank is not None and child.exit is None}
        return ours | {rank: foreign.pid for rank, foreign in self.found.items()}

    def owns(self, pid: int) -> bool:
        """It is one of the processes started here."""
        return any(child.pid == pid for child in self.children.values())

    def send(self, rank: int, signum: int) -> bool:
        """Signal one rank's process; False when it does not run here."""
        child = self.children.get(rank)
        if child is not None and child.exit is None:
            child.send(signum)
            return True
        foreign = self.found.get(rank)
        if foreign is None:
            return False
        foreign.send(signum)
        return True

    def send_all(self, signum: int, *, groups: bool = False) -> None:
        """Signal every rank, or the command; `groups`: all of their process groups."""
        for child in self.living:
            (child.send_group if groups else child.send)(signum)

    def discover(self, slot_pids: Mapping[int, int], at: Callable[[], float]) -> None:
        """Find ranks below the command, by slot or by RANK in their environment, and watch them by pidfd."""
        command = self.children.get(None)
        if command is None or command.exit is not None:
            return
        table = parents()
        below = descendants([command.pid], table)
        candidates = {rank: pid for rank, pid in slot_pids.items() if pid in below}
        for pid in sorted(below - {foreign.pid for foreign in self.found.values()} - self._ended_foreign):
            rank = _rank_of(pid)
            # Workers of a rank inherit its RANK; the rank is the topmost process that has it.
            if rank is not None and rank not in candidates and _rank_of(table.get(pid, 0)) != rank:
                candidates[rank] = pid
        for rank, pid in candidates.items():
            known = self.found.get(rank)
            if (known is None or known.pid != pid) and pid not in self._ended_foreign:
                self._watch(rank, pid, at)

    def _watch(self, rank: int, pid: int, at: Callable[[], float]) -> None:
        def ended(gone: int, how: Exit) -> None:
            self._ended_foreign.add(gone)
            self.found.pop(rank, None)
            self._on_end(rank, how, at())

        known = self.found.pop(rank, None)
        if known is not None:
            known.close()
        try:
            foreign = Foreign(pid, ended)
        except ProcessLookupError:
            return
        if self._is_below(foreign):
            self.found[rank] = foreign
        else:
            foreign.close()

    def _is_below(self, foreign: Foreign) -> bool:
        """The process that is held runs below the command: its number may have been given anew since it was found."""
        command = self.children.get(None)
        return command is not None and foreign.pid in descendants([command.pid]) and foreign.is_running

    def close(self) -> None:
        """Stop watching ranks that are not ours."""
        for foreign in self.found.values():
            foreign.close()
        self.found.clear()


def _rank_of(pid: int) -> int | None:
    environ = environ_of(pid) if pid > 1 else {}
    text = environ.get("RANK", "")
    return int(text) if text.isdecimal() and "LOCAL_RANK" in environ else None
