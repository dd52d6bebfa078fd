"""Drills done to a rank from outside by the launcher of its node: kill -9, another signal, SIGSTOP.

Used by the node runner of a job that is open to drills; the kinds that happen inside a rank are its own hook's. Reads
the same command files, obeys each once (the fired mark is on disk before the signal), and undoes a SIGSTOP on abort.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.failpoint.command import (
    LAUNCHER_KINDS,
    CommandError,
    FaultCommand,
    abort_name,
    decode,
    failed_name,
    fired_name,
)
from holdfast.failpoint.drill import write_once


class RankDrills:
    """The outside drills of this node's ranks.

    Args:
        folder: the job's drill folder.
        send: sends a signal to a rank of this node; False when it does not run here (now).
        on_line: takes one sentence for the launcher's log.
    """

    def __init__(self, folder: Path, send: Callable[[int, int], bool], on_line: Callable[[str], None]) -> None:
        self._folder = folder
        self._send = send
        self._on_line = on_line
        self._changed_ns = -1
        self._looks = 0
        self._known: set[str] = set()
        self._pending: list[FaultCommand] = []
        self._stopped: dict[str, list[int]] = {}

    @property
    def is_waiting(self) -> bool:
        """A drill waits for its step: look often."""
        return bool(self._pending)

    def look(self, attempt: int, pids: Mapping[int, int], begun: Mapping[int, int | None], at: float) -> None:
        """Read what is new and do what is due.

        Args:
            attempt: the attempt that runs.
            pids: this node's living ranks.
            begun: the newest step that each has begun; None before the first.
            at: Unix seconds.
        """
        self._read()
        for command in list(self._pending):
            if (self._folder / abort_name(command.id)).exists():
                self._pending.remove(command)
                continue
            if command.attempt not in {None, attempt}:
                continue
            for rank in command.ranks:
                if rank in pids and self._is_due(command, begun.get(rank)):
                    self._do(command, rank, pids[rank], begun.get(rank), at)
            if all((self._folder / fired_name(command.id, rank)).exists() for rank in command.ranks):
                self._pending.remove(command)
        for drill_id in list(self._stopped):
            if (self._folder / abort_name(drill_id)).exists():
                for rank in self._stopped.pop(drill_id):
                    self._send(rank, signal.SIGCONT)

    def _read(self) -> None:
        self._looks += 1
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:
            return
        # File times may tick in milliseconds: a folder that has just changed is read again a little later.
        if changed_ns == self._changed_ns and self._looks % 50:
            return
        self._changed_ns = changed_ns
        for path in sorted(self._folder.glob("*.json")):
            if path.stem not in self._known:
                self._known.add(path.stem)
                with contextlib.suppress(OSError):
                    self._admit(path)

    def _admit(self, path: Path) -> None:
        try:
            command = decode(path.read_bytes())
        except CommandError as error:
            self._on_line(f"drill {path}: {error}")
            return
        if command.id == path.stem and command.kind in LAUNCHER_KINDS:
            self._pending.append(command)

    @staticmethod
    def _is_due(command: FaultCommand, begun: int | None) -> bool:
        return command.at_step is None or (begun is not None and begun >= command.at_step)

    def _do(self, command: FaultCommand, rank: int, pid: int, step: int | None, at: float) -> None:
        fired = self._folder / fired_name(command.id, rank)
        if fired.exists():
            return
        signum = {"kill9": signal.SIGKILL, "sigstop": signal.SIGSTOP}.get(command.kind) or command.params["signal"]
        try:
            if not write_once(fired, {"at": at, "pid": os.getpid(), "step": step, "thread": "launcher"}):
                return
            if not self._send(rank, int(signum)):
                write_once(
                    self._folder / failed_name(command.id, rank),
                    {"at": at, "pid": os.getpid(), "error": f"rank {rank} (pid {pid}) had ended"},
                )
        except OSError as error:
            self._on_line(f"drill {command.id}: cannot write its mark: {error}")
            return
        if command.kind == "sigstop":
            self._stopped.setdefault(command.id, []).append(rank)
        self._on_line(f"drill {command.id}: sent signal {signum} to rank {rank}")
