"""The first process of a lab's node: whatever runs on that node descends from it, and ends with it.

The keeper forks it (no exec: a fork of a small process costs a millisecond, and a lab may have hundreds of nodes).
With a network of its own the node also gets its own process tree, host name and mounts, and this is its process 1: the
kernel ends the whole node with it. Without, it is a child subreaper, and the keeper ends its descendants.

Then it is the first process of an embedded node (`node_init`), which the keeper asks over a socket. No time passes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from holdfast.adapters.local.node_init import (
    CLONE_NEWNS,
    MS_NODEV,
    MS_NOSUID,
    MS_REC,
    MS_SLAVE,
    NodeInit,
    become_subreaper,
    die_with_parent,
    mount_tmpfs,
    own_mounts,
)

CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNET = 0x04000000, 0x20000000, 0x40000000
MNT_DETACH = 2
MS_NOEXEC, MS_BIND = 0x8, 0x1000
"""Constants of <linux/sched.h> and <linux/mount.h>."""
BEAT_S = 3600.0
"""The keeper asks, and needs no beats."""

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
            become_subreaper()
            _say(link, say="forked", init=os.getpid())
        tmp = "tmpfs" if _mount_tmp(plan) else "folder"
        NodeInit(link, folder=plan.folder, beat_s=BEAT_S, tmp=tmp).run()
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
        _say(link, say="forked", init=inner)
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
