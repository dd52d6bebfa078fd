"""Starting processes, seeing their end at once, and proving that a whole tree of them is gone.

Used by the node runner for ranks, standbys and stack dumpers. Time passes in the asyncio loop: a process's end
is a readable pidfd, so it is seen within a millisecond and never polled for. Everything here must be called
from the launcher's main thread, because PR_SET_PDEATHSIG is bound to the thread that forked.

The launcher makes itself a child subreaper: whatever a rank leaves behind becomes the launcher's own child and
can be found, killed and reaped. The guard (`guard_main`) does the same when the launcher itself is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from holdfast.errors import PermanentOrderError
from holdfast.os.clock import steady_time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 8
_PIDFD_INFO = struct.Struct("=QQ11Ii")
"""linux/pidfd.h: the ioctl, a flag, and pidfd_info's first version (mask, cgroup, eleven ids, wait status)."""
TAG = "HOLDFAST_LAUNCHER_TAG"
"""Environment key that marks every process started below a launcher; the guard finds leftovers by it."""


class Exit(Struct, frozen=True, omit_defaults=True):
    """How a process ended; both None: it is gone, but nobody can say how (it was not ours to wait for)."""

    code: int | None = None
    signal: int | None = None

    @property
    def is_success(self) -> bool:
        """Ended with exit code 0."""
        return self.code == 0

    @property
    def is_known(self) -> bool:
        """Somebody can say how it ended."""
        return self.code is not None or self.signal is not None

    @property
    def shell_code(self) -> int:
        """The code by which a shell would tell it: the exit code, or 128 + signal; 1 when not known."""
        if self.signal is not None:
            return 128 + self.signal
        return 1 if self.code is None else self.code

    @property
    def words(self) -> str:
        """As people are told: `signal 9`, `exit code 1`."""
        return f"signal {self.signal}" if self.signal else f"exit code {self.code}"

    @classmethod
    def from_returncode(cls, returncode: int) -> Exit:
        """From `Popen.returncode`: negative for a signal."""
        return cls(signal=-returncode) if returncode < 0 else cls(code=returncode)

    @classmethod
    def from_wait_status(cls, status: int) -> Exit:
        """From the status word of wait(2), also found in /proc/PID/stat of a zombie."""
        return cls.from_returncode(os.waitstatus_to_exitcode(status))


def become_subreaper() -> None:
    """Have orphaned descendants become this process's children (Linux 3.4 and later)."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with(parent: int) -> Callable[[], None]:
    def in_child() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before prctl took effect
            os._exit(1)

    return in_child


_known: dict[int, Child] = {}
"""Children that somebody here waits for. Any other child of this process is an orphan that a rank left behind."""


class _Watched:
    """A process whose end is seen in the loop, by its pidfd."""

    _pidfd = -1

    def _watch(self, pid: int, ended: Callable[[], None]) -> None:
        self._pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._pidfd, ended)

    def send(self, signum: int) -> None:
        """Send a signal to the process alone; one that has ended is passed over."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signum)

    @property
    def is_running(self) -> bool:
        """It has not ended, so that its number is its own."""
        return self._pidfd >= 0 and not select.select([self._pidfd], [], [], 0)[0]

    def close(self) -> None:
        """Stop watching."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


@dataclass(eq=False)
class Child(_Watched):
    """A process that this launcher started and waits for.

    `on_exit` is called once, in the loop, with the child whose `exit` is then set. `exited` is set as well.
    """

    popen: subprocess.Popen[bytes]
    on_exit: Callable[[Child], None] | None = None
    exit: Exit | None = None
    ended_at: float = 0.0
    exited: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int:
        """Process id; the process leads its own session and process group of the same number."""
        return self.popen.pid

    def watch(self) -> None:
        """Begin to watch for the end. The pidfd is opened while the child cannot have been reaped yet."""
        _known[self.pid] = self
        self._watch(self.pid, self._ended)

    def _ended(self) -> None:
        returncode = self.popen.poll()
        if returncode is None:
            return
        self.close()
        _known.pop(self.pid, None)
        self.ended_at = steady_time()
        self.exit = Exit.from_returncode(returncode)
        self.exited.set()
        if self.on_exit is not None:
            self.on_exit(self)

    def send_group(self, signum: int) -> None:
        """Send a signal to its process group. The group's number stays taken while any member or the zombie lives."""
        if self.exit is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Collection[int] = (),
    on_exit: Callable[[Child], None] | None = None,
    own_session: bool = True,
) -> Child:
    """Start a process in its own session that dies with this launcher, and watch it.

    With `own_session=False` it stays in ours, so that it can read from the terminal; its group is then ours.

    Raises:
        PermanentOrderError: the program does not exist or cannot be executed.
    """
    try:
        popen = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(pass_fds),
            start_new_session=own_session,
            # Between fork and exec the child calls prctl only; no lock of ours is involved.
            preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509
        )
    except (OSError, ValueError) as error:
        raise PermanentOrderError(f"cannot start {argv[0]}: {error}") from error
    child = Child(popen=popen, on_exit=on_exit)
    child.watch()
    return child


# --- the tree below us ---


def _stat(pid: int) -> list[bytes]:
    """The fields of proc(5) from the state on, none when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def _table() -> Iterator[tuple[int, bytes, int]]:
    """Process id, state and parent's id, of everything in /proc."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            yield int(entry.name), fields[0], int(fields[1])


def parents() -> dict[int, int]:
    """Process id -> parent's id, of everything in /proc, zombies left out."""
    return {pid: parent for pid, state, parent in _table() if state not in {b"Z", b"X"}}


def descendants(roots: Collection[int], table: Mapping[int, int] | None = None) -> set[int]:
    """All processes below `roots`, without the roots themselves."""
    children: dict[int, list[int]] = {}
    for pid, parent in (parents() if table is None else table).items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid not in found:
                found.add(pid)
                queue.append(pid)
    return found


def environ_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty when it cannot be read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (part.partition(b"=") for part in raw.split(b"\0") if part)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def state_of(pid: int) -> str:
    """The state letter of proc(5) (R S D T t Z...), empty when the process is gone."""
    return b"".join(_stat(pid)[:1]).decode()


NOT_RUNNING = frozenset({"", "Z", "X"})
"""States of a process that has ended, whether or not its parent has taken leave of it."""


def zombie_exit(pid: int) -> Exit:
    """How a process that is not our child ended, from its zombie; unknown once its parent has reaped it."""
    fields = _stat(pid)
    return Exit.from_wait_status(int(fields[49])) if fields[:1] == [b"Z"] else Exit()


def reaped_exit(pidfd: int) -> Exit:
    """How the process of a pidfd ended, once its parent has reaped it (Linux 6.15 and later); else unknown."""
    info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *(0 for _ in range(13))))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return Exit()
    mask, *_, status = _PIDFD_INFO.unpack(info)
    return Exit.from_wait_status(status) if mask & _PIDFD_INFO_EXIT else Exit()


class Foreign(_Watched):
    """A process that we did not start (a rank below torchrun), watched by pidfd.

    `on_exit(pid, exit)` is called once in the loop. Raises ProcessLookupError when it is gone already.
    """

    def __init__(self, pid: int, on_exit: Callable[[int, Exit], None]) -> None:
        self.pid = pid
        self._on_exit = on_exit
        self._watch(pid, self._ended)

    def _ended(self) -> None:
        ended = zombie_exit(self.pid)
        if not ended.is_known:
            ended = reaped_exit(self._pidfd)
        self.close()
        self._on_exit(self.pid, ended)


def strangers() -> set[int]:
    """Orphans that ranks left behind: children of this process that nobody here started, and what is below them."""
    table = parents()
    me = os.getpid()
    orphans = {pid for pid, parent in table.items() if parent == me and pid not in _known}
    return orphans | descendants(orphans, table)


async def end_trees(children: Collection[Child], *, grace_s: float) -> None:
    """End these processes, everything below them and all strangers; return when the kernel says that all are gone.

    Args:
        children: the processes at the top.
        grace_s: seconds between SIGTERM and SIGKILL; 0: SIGKILL at once.
    """
    if grace_s > 0:
        for child in children:
            child.send_group(signal.SIGTERM)
            child.send_group(signal.SIGCONT)  # a stopped process takes no SIGTERM
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_all_exited(children), grace_s)
    # Taken before the kill: afterwards they no longer hang below their rank.
    roots = [child.pid for child in children if child.exit is None]
    below = descendants(roots) if roots else set()
    for child in children:
        child.send_group(signal.SIGKILL)
    await _kill_all(below)
    await _all_exited(children)
    while left := strangers():
        await _kill_all(left)


async def _all_exited(children: Collection[Child]) -> None:
    for child in children:
        await child.exited.wait()


async def _kill_all(pids: Collection[int]) -> None:
    """SIGKILL by pidfd, so that a reused number is never hit, then wait until each has ended."""
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                await _readable(pidfd)
        finally:
            os.close(pidfd)
        reap(pid)


async def _readable(pidfd: int) -> None:
    if select.select([pidfd], [], [], 0)[0]:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)


def reap(pid: int) -> None:
    """Collect the zombie of an orphan that became our child; any other process is passed over."""
    with contextlib.suppress(ChildProcessError, OSError):
        os.waitpid(pid, os.WNOHANG)


def reap_strangers() -> None:
    """Collect zombies of orphans, leaving those that a `Child` waits for."""
    with contextlib.suppress(ChildProcessError):
        # WNOWAIT leaves the zombie; it shows one at a time, so /proc is read only when there is any.
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
    for pid, state, parent in _table():
        if state == b"Z" and parent == os.getpid() and pid not in _known:
            reap(pid)


# --- the guard ---


def start_guard(tag: str, *, remove: Sequence[str] = ()) -> Child:
    """Start the small process that kills everything marked with `tag` when this launcher dies, and deletes `remove`.

    It outlives the launcher, so that it is not tied to it by PR_SET_PDEATHSIG as all others are.
    """
    script = str(Path(__file__).with_name("guard_main.py"))
    popen = subprocess.Popen(
        [sys.executable, "-I", "-S", script, str(os.getpid()), tag, *remove],
        env={key: value for key, value in os.environ.items() if key != TAG},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    child = Child(popen=popen)
    child.watch()
    return child


def may_restore_priority() -> bool:
    """Whether a process of this user may take back a lower priority (root, CAP_SYS_NICE or RLIMIT_NICE).

    Tried in a throw-away thread: Linux keeps the nice value per thread.
    """
    import threading  # noqa: PLC0415 - asked once per launcher

    answer: list[bool] = []

    def attempt() -> None:
        thread = threading.get_native_id()
        before = os.getpriority(os.PRIO_PROCESS, thread)
        try:
            os.setpriority(os.PRIO_PROCESS, thread, min(19, before + 1))
            os.setpriority(os.PRIO_PROCESS, thread, before)
        except OSError:
            answer.append(False)
        else:
            answer.append(True)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return answer == [True]
