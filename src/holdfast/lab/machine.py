"""The first process of a lab's node: whatever runs on that node descends from it, and ends with it.

The keeper forks it (no exec: a fork of a small process costs a millisecond, and a lab may have hundreds of nodes).
With a network of its own the node also gets its own process tree, host name and mounts, and this is its process 1: the
kernel ends the whole node with it. Without, it is a child subreaper, and the keeper ends its descendants.

The keeper holds the other end of a stream socket, one JSON object per line each way. End of file there means that the
keeper is dead: the node then kills everything it has and exits.

Time: services that are kept running are started again after a pause; else it waits on its socket and on SIGCHLD.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from holdfast.adapters.local.node_init import (
    CLONE_NEWNS,
    MS_NODEV,
    MS_NOSUID,
    MS_REC,
    MS_SLAVE,
    Service,
    become_subreaper,
    die_with_parent,
    end_descendants,
    fill_tmp,
    free_tmp,
    mount_tmpfs,
    own_mounts,
    quieted,
    reaped,
    send_signal,
    woken_by_signals,
)
from holdfast.os.programs import Command, run_blocking

CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNET = 0x04000000, 0x20000000, 0x40000000
MNT_DETACH = 2
MS_NOEXEC, MS_BIND = 0x8, 0x1000
"""Constants of <linux/sched.h> and <linux/mount.h>."""

_libc = ctypes.CDLL(None, use_errno=True)


class MachinePlan(Struct, frozen=True, kw_only=True):
    """What a node's first process is told when it is made."""

    name: str
    folder: str
    log: str
    own_network: bool
    own_mounts: bool
    tmp_bytes: int
    resolv: str = ""
    """File that a node with a network of its own sees as /etc/resolv.conf."""


def bind(source: Path, target: str) -> bool:
    """Put `source` in place of `target`, in this process's own view."""
    return int(_libc.mount(os.fsencode(source), target.encode(), None, MS_BIND, None)) == 0


def go_back(namespace: int) -> None:
    """Return to the view that this descriptor of /proc/self/ns/mnt stands for."""
    _libc.setns(namespace, CLONE_NEWNS)


def unmount(folder: Path) -> None:
    """Take it away, also while it is used; nothing there is fine."""
    _libc.umount2(os.fsencode(folder), MNT_DETACH)


def run_forked(link: socket.socket, plan: MachinePlan) -> NoReturn:
    """Become the node's first process. Called in a freshly forked child; never returns."""
    code = 1
    try:
        _leave_keeper(link, plan.log)
        if plan.own_network:
            _enter_namespaces(link, plan)
        else:
            _say(link, say="hello", init=os.getpid())
        tmp = "tmpfs" if _mount_tmp(plan) else "folder"
        Machine(link, plan, tmp).run()
        code = 0
    except BaseException as error:  # noqa: BLE001 - a forked child must end here whatever happens, and says why
        with contextlib.suppress(OSError):
            _say(link, say="failed", error=f"{plan.name}: {type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _leave_keeper(link: socket.socket, log: str) -> None:
    """Drop what the keeper had open, and its signal handling."""
    parent = os.getppid()
    signal.set_wakeup_fd(-1)
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(sig, signal.SIG_DFL)
    os.setsid()
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the keeper died before the line above could arm
    null, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    kept = link.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, 1 << 20)


def _enter_namespaces(link: socket.socket, plan: MachinePlan) -> None:
    """Fork into the node's own world; this side waits for its end and exits with it."""
    if _libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWPID | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "the kernel gives no namespaces; --netns needs root with CAP_SYS_ADMIN")
    _libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None)
    socket.sethostname(plan.name)
    if plan.resolv:
        bind(Path(plan.resolv), "/etc/resolv.conf")
    inner = os.fork()
    if inner:
        _say(link, say="hello", init=inner)
        link.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(inner, 0)
        os._exit(0)
    die_with_parent(signal.SIGKILL)
    _libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)


def _mount_tmp(plan: MachinePlan) -> bool:
    if not plan.own_mounts or not plan.tmp_bytes:
        return False
    if not plan.own_network and not own_mounts():
        return False
    return mount_tmpfs(Path(plan.folder, "tmp"), plan.tmp_bytes, mode="1777")


def _say(link: socket.socket, **message: Any) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


class Machine:
    """State and loop of a node's first process."""

    def __init__(self, link: socket.socket, plan: MachinePlan, tmp: str) -> None:
        self.link = link
        self.plan = plan
        self.tmp = tmp
        self.services: dict[str, Service] = {}
        self.unread = b""
        self.ended = False

    # --- what the keeper can ask for; each returns what is answered ---

    def network(self, order: Mapping[str, Any]) -> object:
        """Set up the node's side of its wire."""
        return run_blocking(Command(argv=("ip", "-batch", "-"), given=order["lines"].encode()), 10.0).err.strip()

    def start(self, order: Mapping[str, Any]) -> object:
        """Start a service that does not run; `again_s` above zero keeps it running."""
        service = self.services.get(order["id"])
        if service is None or not service.pid:
            service = self.services[order["id"]] = Service(order)
            self._start(service)
        return service.pid

    def signal(self, order: Mapping[str, Any]) -> object:
        """Signal one service's own process (not its children); says whether it ran."""
        service = self.services.get(order["id"])
        if service is None:
            return False
        if order.get("stop"):
            service.pause_s, service.start_at = 0.0, None
        if not service.pid:
            return False
        send_signal([service.pid], order["sig"])
        return True

    def look(self, order: Mapping[str, Any]) -> object:  # noqa: ARG002 - all orders have one shape
        """Which services run, and how the others ended."""
        return {name: {"running": bool(s.pid), "code": s.code} for name, s in self.services.items()} | {
            "tmp": {"running": self.tmp == "tmpfs", "code": None}
        }

    def fill(self, order: Mapping[str, Any]) -> object:  # noqa: ARG002 - as above
        """Fill the node's scratch file system until it has no space left."""
        written = fill_tmp(self.plan.folder, self.tmp)
        if self.tmp == "tmpfs":
            return f"{written} bytes written to the node's own tmpfs at {Path(self.plan.folder, 'tmp')}"
        return f"emulated by the marker {self.plan.folder}/disk_full, because this user may not mount a tmpfs"

    def free(self, order: Mapping[str, Any]) -> object:  # noqa: ARG002 - as above
        """Undo `fill`."""
        free_tmp(self.plan.folder)
        return "freed"

    does: Mapping[str, Callable[[Machine, Mapping[str, Any]], object]] = {
        "network": network,
        "start": start,
        "signal": signal,
        "look": look,
        "fill": fill,
        "free": free,
    }

    # --- the loop ---

    def run(self) -> None:
        """Serve until the keeper's end closes, then kill everything."""
        if os.getpid() != 1:
            become_subreaper()
        wake = woken_by_signals(self._told_to_end, signal.SIGTERM)
        while not self.ended:
            self._reap()
            pause = self._keep_running()
            watched: list[Any] = [self.link, wake]
            readable, _, _ = select.select(watched, [], [], pause)
            if wake in readable:
                quieted(wake)
            if self.link in readable:
                self._hear()
        end_descendants()

    def _told_to_end(self, *_: object) -> None:
        self.ended = True

    def _hear(self) -> None:
        try:
            data = self.link.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            self._reap()
            answer = self.does[order["do"]](self, order)
            _say(self.link, say="answer", nonce=order["nonce"], result=answer)

    def _start(self, service: Service) -> None:
        try:
            service.start()
        except OSError as error:
            with Path(service.order["out"]).open("a", encoding="utf-8") as log:
                log.write(f"cannot start {service.order['argv'][0]}: {error}\n")

    def _keep_running(self) -> float | None:
        """Start what is due; seconds until the next one is."""
        now = time.monotonic()
        for service in self.services.values():
            if service.start_at is not None and service.start_at <= now:
                self._start(service)
        due = [service.start_at for service in self.services.values() if service.start_at is not None]
        return max(0.0, min(due) - now) if due else None

    def _reap(self) -> None:
        for pid, code in reaped():
            for service in self.services.values():
                if service.pid == pid:
                    service.note_end(code)
