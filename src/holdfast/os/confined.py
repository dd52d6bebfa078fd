"""Takes from this process every right that reading bytes and answering does not need. It cannot have one back.

Called by a child that parses what others wrote, once it has loaded what it needs and before it reads the first of it.
Root becomes a user without rights; whoever is not root gives up what can be given up. What is left: the open
descriptors, memory within a bound, and the system calls of `_CALLS`; every other one fails with EPERM, so no file can
be opened, no socket made, no program started. No time passes here.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import pwd
import resource
import struct
from pathlib import Path

from msgspec import Struct

NOBODY = "nobody"
_NOBODY_ID = 65534
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _AMBIENT_CLEAR = 38, 22, 24, 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_NEWNET = 0x40000000
_CAPABILITIES_MAX = 64
_LOAD, _IS_EQUAL, _RETURN = 0x20, 0x15, 0x06
"""BPF: load a word, jump if it equals, return."""
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of `_CALLS`, and the kernel's number of the architecture."""
_CALLS = {
    "read": (0, 63), "write": (1, 64), "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216),
    "mprotect": (10, 226), "madvise": (28, 233), "futex": (202, 98), "clock_gettime": (228, 113),
    "getrandom": (318, 278), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
"""What Python, its allocator and Hyperscan call while they compute, and what reads a request and writes an answer."""


class Confined(Struct, frozen=True, kw_only=True):
    """What was taken from this process."""

    uid: int
    has_rights: bool
    """Some capability could not be given up."""
    no_new_privileges: bool
    system_calls: bool
    """Only those of `_CALLS` are left."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def confine(user: str, memory_bytes: int) -> Confined:
    """Give up all rights, and take no more than so much memory beyond what is held now.

    Args:
        user: whom root becomes, by name or number; others stay who they are.
        memory_bytes: of address space.

    Raises:
        KeyError: there is no such user.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    machine = _MACHINES.get(platform.machine())
    with contextlib.suppress(AttributeError):
        libc.unshare(_CLONE_NEWNET)  # refused in a sandbox that allows no namespaces: the filter below holds there too
    _limit(_held_bytes() + memory_bytes)
    for capability in range(_CAPABILITIES_MAX):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    become(user)
    libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)
    libc.capset(struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24))
    no_new = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    uid, has_rights = os.getuid(), _has_rights()
    # The last step: afterwards nothing can be opened.
    calls = machine is not None and _filter(libc, *machine)
    return Confined(uid=uid, has_rights=has_rights, no_new_privileges=no_new, system_calls=calls)


def become(user: str) -> None:
    """Be this user alone, without any group besides, where this process is root and may.

    Raises:
        KeyError: there is no user of this name. (`nobody` needs no entry.)
    """
    if os.geteuid() != 0:
        return
    uid, gid = user_ids(user)
    with contextlib.suppress(PermissionError):  # root of a container without CAP_SETUID: the rest still goes
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def user_ids(user: str) -> tuple[int, int]:
    """The ids of a user and of their group. Raises KeyError as `become` does."""
    try:
        found = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        if not user.isdecimal() and user != NOBODY:
            raise
        number = int(user) if user.isdecimal() else _NOBODY_ID
        return number, number
    return found.pw_uid, found.pw_gid


def _limit(memory_bytes: int) -> None:
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for what, most in limits.items():
        with contextlib.suppress(ValueError, OSError):  # a lower hard limit is in force already
            resource.setrlimit(what, (most, most))


def _held_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()


def _has_rights() -> bool:
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    held = dict(line.split(":\t", 1) for line in status.splitlines() if line.startswith("Cap"))
    return any(int(held.get(name, "0"), 16) for name in ("CapEff", "CapPrm", "CapInh"))


def _filter(libc: ctypes.CDLL, column: int, architecture: int) -> bool:
    """Leave the system calls of `_CALLS`. False: this kernel has no filters."""
    numbers = [call[column] for call in _CALLS.values()]
    steps = [(_LOAD, 0, 0, 4), (_IS_EQUAL, 0, len(numbers) + 1, architecture), (_LOAD, 0, 0, 0)]
    steps += [(_IS_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_Program(len(steps), code)), 0, 0) == 0)
