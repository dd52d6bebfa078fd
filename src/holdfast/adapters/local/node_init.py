"""The first process of an embedded node, and of a Slurm lab's: it starts, watches and ends everything that runs there.

A Slurm lab's keeper forks it (`lab.machine`). The cluster daemon runs this file as a script (`python -I -S
node_init.py ...`), one process per node; `-S` keeps its start under 30 ms, so it imports the standard library only.
`processes` imports its primitives for the daemon's own use.
It is a child subreaper: whatever a job or an agent forks stays a descendant of this process, also after `setsid`, a
double fork or a wiped environment. That is what makes "everything on this node" a set that can be killed.

The daemon holds the other end of a stream socket (descriptor `--fd`), one JSON object per line in each direction.
End of file there means that the daemon is dead: the node then kills everything it has and exits.

Time: it sends a beat every `--beat-s`, and waits on its socket and on SIGCHLD; nothing else passes time here.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_REC, MS_SLAVE = 0x2, 0x4, 0x4000, 0x80000
"""Constants of <linux/prctl.h>, <linux/sched.h> and <linux/mount.h>."""

FILLER = "tmp/.filled-by-drill"
"""The file of a node's folder that takes all space."""
END_LIMIT_S = 10.0
SHORT_LIFE_S = 5.0
PAUSE_MAX_S = 30.0
"""A service that ends within SHORT_LIFE_S is started again after a pause that doubles up to PAUSE_MAX_S."""

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(sig: int = signal.SIGKILL) -> None:
    """Have the kernel send `sig` to this process when the thread that forked it dies."""
    _libc.prctl(PR_SET_PDEATHSIG, int(sig), 0, 0, 0)


def become_subreaper() -> None:
    """Orphaned descendants become children of this process instead of the machine's init."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    out: str,
    keep_fds: Iterable[int] = (),
    parent_death: int = signal.SIGKILL,
) -> int:
    """Start a process in its own session, output appended to `out`; returns its pid.

    Written by hand rather than with `subprocess`, because the caller reaps every child itself (it is a subreaper).

    Raises:
        OSError: the program, the folder or the output file cannot be used.
    """
    log = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    told, tell = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _exec(argv, env, cwd, log, keep_fds, parent_death, parent, tell)
    os.close(log)
    os.close(tell)
    failed = os.read(told, 4096)  # end of file: the program runs, and its copy of the pipe closed itself
    os.close(told)
    if failed:
        os.waitpid(pid, 0)
        number, _, what = failed.decode().partition(" ")
        raise OSError(int(number), os.strerror(int(number)), what)
    return pid


def _exec(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    log: int,
    keep_fds: Iterable[int],
    parent_death: int,
    parent: int,
    tell: int,
) -> NoReturn:
    what = argv[0]
    try:
        signal.set_wakeup_fd(-1)
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(sig, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        die_with_parent(parent_death)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the line above could arm
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for fd in keep_fds:
            os.set_inheritable(fd, True)
        if cwd:
            what = cwd
            os.chdir(cwd)
            what = argv[0]
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 - argv as given, no shell
    except OSError as error:
        os.write(tell, f"{error.errno} {what}".encode())
    finally:
        os._exit(127)


def process_table() -> dict[int, int]:
    """Parent pid of every live process of this machine; zombies are left out."""
    table: dict[int, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - thousands of entries, no Path objects
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:  # noqa: PTH123 - as above
                text = stat.read()
        except OSError:
            continue  # it ended between the listing and the look
        # The command name stands in parentheses and may itself hold spaces and parentheses.
        state, parent = text[text.rindex(b")") + 2 :].split(b" ", 2)[:2]
        if state not in {b"Z", b"X"}:
            table[int(entry)] = int(parent)
    return table


def descendants(root: int, table: Mapping[int, int], *, skip: Iterable[int] = ()) -> list[int]:
    """All descendants of `root`, parents before their children; the trees under `skip` are left out."""
    children: dict[int, list[int]] = {}
    for pid, parent in table.items():
        children.setdefault(parent, []).append(pid)
    left_out = set(skip)
    found: list[int] = []
    todo = [root]
    while todo:
        for child in children.get(todo.pop(0), ()):
            if child not in left_out:
                found.append(child)
                todo.append(child)
    return found


def send_signal(pids: Iterable[int], sig: int) -> None:
    """Signal each process; one that is already gone is fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sig)


def reaped() -> Iterator[tuple[int, int]]:
    """Collect children that have ended, one after another: pid and exit code (minus the signal that ended it)."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def end_descendants() -> None:
    """SIGKILL every descendant of this process until there is none, and collect them."""
    deadline = time.monotonic() + END_LIMIT_S
    while time.monotonic() < deadline:
        left = descendants(os.getpid(), process_table())
        send_signal(left, signal.SIGKILL)
        for _ in reaped():
            pass
        if not left:
            return
        time.sleep(0.002)


def own_mounts() -> bool:
    """Give this process a view of the file systems that follows the machine's but whose changes stay here.

    Returns False when the kernel refuses (no root).
    """
    if _libc.unshare(CLONE_NEWNS) != 0:
        return False
    return int(_libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None)) == 0


def mount_tmpfs(folder: Path, size_bytes: int, *, mode: str = "0700") -> bool:
    """Put a file system in memory at `folder`. Returns False when the kernel refuses (no root)."""
    options = f"size={size_bytes},mode={mode}".encode()
    return int(_libc.mount(b"holdfast", os.fsencode(folder), b"tmpfs", MS_NOSUID | MS_NODEV, options)) == 0


def fill_up(file: Path) -> int:
    """Have this file take all space of its file system; returns how many bytes that is."""
    written = 0
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:  # ENOSPC is the aim
        while True:
            written += filler.write(b"\0" * (1 << 20))
    return written


def woken_by_signals(on_end: Callable[..., None], *ends: signal.Signals) -> int:
    """A pipe that can be read as soon as a child has ended or a signal came; `ends`: those that call `on_end`."""
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for sig in ends:
        signal.signal(sig, on_end)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    return wake


def quieted(wake: int) -> None:
    """Take what stands in such a pipe."""
    with contextlib.suppress(BlockingIOError):
        os.read(wake, 4096)


class Service:
    """A process of a node, such as its agent, that is started again when it ends if its order's `again_s` says so."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.order = order
        self.pid = 0
        self.code: int | None = None
        self.start_at: float | None = 0.0
        """When it is to be started; None: not by itself."""
        self.started_at = 0.0
        self.pause_s = float(order.get("again_s") or 0.0)

    def start(self) -> None:
        """Start it now. Raises OSError when that cannot be."""
        order = self.order
        self.start_at, self.started_at = None, time.monotonic()
        try:
            self.pid = spawn(order["argv"], env=order["env"], cwd=order["cwd"], out=order["out"])
        except OSError:
            self.note_end(127)
            raise

    def note_end(self, code: int) -> None:
        """It has ended: start it again soon, and less soon each time when it keeps ending at once."""
        now = time.monotonic()
        self.pid, self.code = 0, code
        if self.pause_s:
            if now - self.started_at >= SHORT_LIFE_S:
                self.pause_s = float(self.order["again_s"])
            self.start_at = now + self.pause_s
            self.pause_s = min(self.pause_s * 2, PAUSE_MAX_S)


class NodeInit:
    """State and loop of a node's first process."""

    def __init__(self, link: socket.socket, *, folder: str, beat_s: float, tmp: str) -> None:
        self.shared = False
        """Tasks of several jobs run here, each under a first process of its own (`run_pod`)."""
        self.link = link
        self.folder = folder
        self.beat_s = beat_s
        self.tmp = tmp
        self.tasks: dict[int, str] = {}
        self.kill_at: dict[str, float] = {}
        self.leaving: list[str] = []
        """Tasks whose main process has ended and whose leftovers are being killed."""
        self.services: dict[str, Service] = {}
        self.unsent = b""
        self.unread = b""
        self.ended = False
        self.next_beat = 0.0

    # --- messages ---

    def say(self, what: str, **facts: Any) -> None:
        """Queue one message for the daemon and send what the socket takes."""
        self.unsent += json.dumps({"say": what, "at": time.time(), **facts}).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send queued bytes without ever blocking: a daemon that does not read must not stop this node."""
        while self.unsent:
            try:
                sent = self.link.send(self.unsent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                self.ended = True
                return
            self.unsent = self.unsent[sent:]

    def hear(self) -> None:
        """Read orders from the daemon; its end of file ends the node."""
        try:
            data = self.link.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            self.does[order["do"]](self, order)

    # --- what the daemon can ask for ---

    def start(self, order: dict[str, Any]) -> None:
        """Start a job's task."""
        task = order["id"]
        self.shared = self.shared or order["argv"][:4] == [sys.executable, "-I", "-S", __file__]
        try:
            pid = spawn(order["argv"], env=order["env"], cwd=order["cwd"], out=order["out"])
        except OSError as error:
            with Path(order["out"]).open("ab") as log:
                log.write(f"holdfast cluster: cannot start {order['argv'][0]}: {error}\n".encode())
            self.say("ended", id=task, code=127 if isinstance(error, FileNotFoundError) else 126, signal=None)
            self.say("gone", id=task)
            return
        self.tasks[pid] = task
        self.say("started", id=task, pid=pid)

    def end(self, order: dict[str, Any]) -> None:
        """End a task: SIGTERM to its main process, SIGKILL to all that is left after the grace."""
        task = order["id"]
        pids = [pid for pid, name in self.tasks.items() if name == task]
        if not pids and task not in self.leaving:
            self.say("gone", id=task)
            return
        send_signal(pids, signal.SIGTERM)
        self.kill_at[task] = min(self.kill_at.get(task, float("inf")), time.monotonic() + order["grace_s"])

    def serve(self, order: dict[str, Any]) -> None:
        """Start a service unless it runs; `again_s` above zero keeps it running."""
        known = self.services.get(order["id"])
        if known is None or not known.pid:
            self.services[order["id"]] = Service(order)
            self.keep_services()

    def signal(self, order: dict[str, Any]) -> None:
        """Signal a service's own process, not its children, and do not start it again; say whether it ran."""
        service = self.services.get(order["id"])
        pid = service.pid if service is not None else 0
        if service is not None:
            service.pause_s, service.start_at = 0.0, None
        if pid:
            send_signal([pid], order["sig"])
        self.say("signalled", nonce=order["nonce"], ran=bool(pid))

    def look(self, order: dict[str, Any]) -> None:
        """Say which services run, and how the others ended."""
        found = {name: {"running": bool(s.pid), "code": s.code} for name, s in self.services.items()}
        found["tmp"] = {"running": self.tmp == "tmpfs", "code": None}
        self.say("services", nonce=order["nonce"], services=found)

    def fill(self, order: dict[str, Any]) -> None:
        """Fill the node's scratch file system until it has no space left, or leave a marker that stands for that."""
        if self.tmp == "tmpfs":
            tmp = Path(self.folder, "tmp")
            how = f"{fill_up(Path(self.folder, FILLER))} bytes written to the node's own tmpfs at {tmp}"
        else:
            Path(self.folder, "disk_full").touch()
            how = f"emulated by the marker {self.folder}/disk_full, because this user may not mount a tmpfs"
        self.say("filled", nonce=order["nonce"], how=how)

    def free(self, order: dict[str, Any]) -> None:
        """Undo `fill`."""
        Path(self.folder, FILLER).unlink(missing_ok=True)
        Path(self.folder, "disk_full").unlink(missing_ok=True)
        self.say("filled", nonce=order["nonce"], how="freed")

    def off(self, order: dict[str, Any]) -> None:  # noqa: ARG002 - all orders have one shape
        """Shut the node down."""
        self.ended = True

    does: Mapping[str, Callable[[NodeInit, dict[str, Any]], None]] = {
        "start": start,
        "end": end,
        "serve": serve,
        "signal": signal,
        "look": look,
        "fill": fill,
        "free": free,
        "off": off,
    }

    # --- the loop ---

    def reap(self) -> None:
        """Collect ended children and report tasks among them."""
        for pid, code in reaped():
            task = self.tasks.pop(pid, None)
            if task is not None:
                self.say("ended", id=task, code=code if code >= 0 else None, signal=-code if code < 0 else None)
                self.leaving.append(task)
                continue
            for service in self.services.values():
                if service.pid == pid:
                    service.note_end(code)

    def strangers(self, tasks: Iterable[int] = ()) -> list[int]:
        """Every process of this node that belongs neither to a service nor to these tasks (by their main processes)."""
        services = [service.pid for service in self.services.values() if service.pid]
        return descendants(os.getpid(), process_table(), skip=[*services, *tasks])

    def sweep(self) -> None:
        """Kill what ended tasks left behind and what outlived its grace; say when the task is wholly gone."""
        now = time.monotonic()
        staying = [pid for pid, task in self.tasks.items() if self.kill_at.get(task, now + 1) > now]
        if len(staying) < len(self.tasks):
            send_signal(self.strangers(staying), signal.SIGKILL)
        if self.leaving and (not self.tasks or self.shared):
            left = self.strangers(self.tasks)
            send_signal(left, signal.SIGKILL)
            if not left:
                for task in self.leaving:
                    self.kill_at.pop(task, None)
                    self.say("gone", id=task)
                self.leaving = []

    def keep_services(self) -> None:
        """Start services that are due."""
        now = time.monotonic()
        for service in self.services.values():
            if service.start_at is not None and service.start_at <= now:
                try:
                    service.start()
                except OSError as error:
                    with Path(service.order["out"]).open("a", encoding="utf-8") as log:
                        log.write(f"cannot start {service.order['argv'][0]}: {error}\n")
                else:
                    self.say("started", id=service.order["id"], pid=service.pid)

    def wait(self, wake: int) -> None:
        """Sleep until an order, a child's end, a beat or a deadline."""
        now = time.monotonic()
        due = [self.next_beat, *self.kill_at.values()]
        due += [service.start_at for service in self.services.values() if service.start_at is not None]
        if self.leaving or any(at <= now for at in self.kill_at.values()):
            due.append(now + 0.005)  # killed processes need a moment to vanish from the table
        timeout = max(
            0.0 if not self.leaving else 0.002, min(at for at in due if at > now or at == self.next_beat) - now
        )
        link = self.link.fileno()
        readable, writable, _ = select.select([link, wake], [link] if self.unsent else [], [], timeout)
        if writable:
            self.flush()
        if wake in readable:
            quieted(wake)
        if link in readable:
            self.hear()

    def run(self) -> None:
        """Serve until the daemon goes away, says `off`, or this process is told to end; then kill everything."""
        wake = woken_by_signals(self._told_to_end, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self.say("hello", pid=os.getpid(), tmp=self.tmp)
        while not self.ended:
            if time.monotonic() >= self.next_beat:
                self.next_beat = time.monotonic() + self.beat_s
                if not self.unsent:  # a beat that cannot go out now is worth nothing later
                    self.say("beat")
            self.reap()
            self.sweep()
            self.keep_services()
            self.wait(wake)
        end_descendants()

    def _told_to_end(self, *_: object) -> None:
        self.ended = True


def run_pod(argv: Sequence[str]) -> int:
    """Be the first process of a pod's container: all that its command forks stays below, and ends with the command.

    SIGTERM is passed on to the command. Ends as the command did: with its exit code, or by the same signal.
    """
    become_subreaper()
    environment = dict(os.environ)
    try:
        command = os.posix_spawnp(argv[0], list(argv), environment, setsigmask=())
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(sig, lambda number, _: send_signal([command], number))
    status = 0
    pid = 0
    while pid != command:
        with contextlib.suppress(InterruptedError):
            pid, status = os.wait()
    end_descendants()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in {signal.SIGKILL, signal.SIGSTOP} else None
        os.kill(os.getpid(), -code)
    return code


def main(argv: Sequence[str]) -> int:
    """Run one node, or with `--pod COMMAND...` one container of it."""
    if argv[:1] == ["--pod"]:
        return run_pod(argv[1:])
    parser = argparse.ArgumentParser(prog="node_init", description="First process of an embedded node.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--beat-s", type=float, default=1.0)
    parser.add_argument("--tmp-bytes", type=int, default=0)
    args = parser.parse_args(argv)
    link = socket.socket(fileno=args.fd)
    os.set_inheritable(args.fd, False)
    become_subreaper()
    has_tmpfs = args.tmp_bytes and own_mounts() and mount_tmpfs(Path(args.folder, "tmp"), args.tmp_bytes)
    NodeInit(link, folder=args.folder, beat_s=args.beat_s, tmp="tmpfs" if has_tmpfs else "folder").run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
