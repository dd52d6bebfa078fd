"""Warm standbys of one node: a restart then pays no imports, which are most of it.

Used by the node runner. Standbys are started one at a time once the attempt has done its first step, at a lower
priority where this user may raise it again, and never while a restart is under way. One that dies is replaced; three
deaths in a row without a single success end the attempts to keep any, with one line that says so.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, structs

from holdfast.errors import TemporaryOrderError
from holdfast.launch.process import Child, spawn

_SCRIPT = Path(__file__).with_name("standby_main.py")
_NICE = 5
_FAILURES_IN_A_ROW_MAX = 3


class Activation(Struct, frozen=True):
    """What a standby becomes. Exactly one of `script` and `module` is set."""

    env: dict[str, str]
    argv: list[str]
    cwd: str
    script: str = ""
    module: str = ""

    def pack(self) -> bytes:
        """For `standby_main`, which reads it with the same interpreter's marshal."""
        orig = [sys.executable, "-u", *(["-m", self.module, *self.argv[1:]] if self.module else self.argv)]
        return marshal.dumps({**structs.asdict(self), "orig_argv": orig})


class Standby:
    """One waiting interpreter."""

    def __init__(self, child: Child, link: socket.socket) -> None:
        self.child = child
        self._link = link

    @property
    def is_ready(self) -> bool:
        """It has imported its modules (and lives)."""
        if self.child.exit is not None:
            return False
        with contextlib.suppress(BlockingIOError, OSError):
            return self._link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"W"
        return False

    def activate(self, activation: Activation, stdout: int, stderr: int) -> Child:
        """Make it the rank. One that is still importing finishes that first.

        Raises:
            TemporaryOrderError: it has died meanwhile; start a cold process instead.
        """
        _set_nice(self.child.pid, os.getpriority(os.PRIO_PROCESS, 0))
        memory = os.memfd_create("activation", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(memory), "wb") as file:
                file.write(activation.pack())
            files = array("i", [stdout, stderr, memory])
            self._link.sendmsg([b"A"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        except OSError as error:
            raise TemporaryOrderError(f"standby {self.child.pid} did not take its activation: {error}") from error
        finally:
            os.close(memory)
            self._link.close()
        return self.child

    def dismiss(self) -> None:
        """End it: it sees the socket's end when it waits, and is killed if it still imports."""
        self.child.on_exit = None
        self._link.close()
        self.child.send_group(9)


class StandbyPool:
    """Keeps `size` standbys. `on_line` takes one sentence for people."""

    def __init__(
        self,
        *,
        size: int,
        modules: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        log: Path,
        may_renice: bool,
        on_line: Callable[[str], None],
    ) -> None:
        self._size = size
        self._modules = ",".join(modules)
        self._env = dict(env)
        self._cwd = cwd
        self._log = log
        self._may_renice = may_renice
        self._on_line = on_line
        self._standbys: list[Standby] = []
        self._failures = 0
        self._is_closed = False

    @property
    def ready(self) -> int:
        """How many could become a rank at once."""
        return sum(standby.is_ready for standby in self._standbys)

    @property
    def pids(self) -> list[int]:
        """Process ids of all, ready or not."""
        return [standby.child.pid for standby in self._standbys]

    def tend(self) -> None:
        """Start the next one if one is missing and none is warming. Called about every tenth of a second."""
        if self._is_closed or len(self._standbys) >= self._size or self._failures >= _FAILURES_IN_A_ROW_MAX:
            return
        if all(standby.is_ready for standby in self._standbys):
            if self._standbys:
                self._failures = 0
            self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        log = self._open_log()
        try:
            child = spawn(
                [sys.executable, "-u", str(_SCRIPT), str(theirs.fileno()), self._modules],
                env=self._env,
                cwd=self._cwd,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                on_exit=self._died,
            )
        finally:
            os.close(log)
            theirs.close()
        if self._may_renice:
            _set_nice(child.pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICE))
        self._standbys.append(Standby(child, ours))

    def _open_log(self) -> int:
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError:  # a folder that is full or gone must not end the job
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def _died(self, child: Child) -> None:
        for standby in self._standbys:
            if standby.child is child:
                self._standbys.remove(standby)
                standby.dismiss()
                break
        self._failures += 1
        if self._failures == _FAILURES_IN_A_ROW_MAX:
            self._on_line(f"warm standbys keep dying ({child.exit}); restarts will start cold. See {self._log}")

    def take(self) -> Standby | None:
        """The best one there is, out of the pool: a ready one, else one that warms up; None when there is none."""
        living = [standby for standby in self._standbys if standby.child.exit is None]
        if not living:
            return None
        best = max(living, key=lambda standby: standby.is_ready)
        self._standbys.remove(best)
        best.child.on_exit = None
        return best

    def close(self) -> list[Child]:
        """Dismiss all; returns their processes, whose ends the caller waits for."""
        self._is_closed = True
        children = [standby.child for standby in self._standbys]
        for standby in self._standbys:
            standby.dismiss()
        self._standbys.clear()
        return children


def _set_nice(pid: int, nice: int) -> None:
    """Set the nice value of all threads of a process; Linux keeps it per thread."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are all that is wanted
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(thread), nice)
