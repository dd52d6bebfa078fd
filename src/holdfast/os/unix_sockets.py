"""Unix sockets: in folders of any depth, and the controller's own, whose two ends know each other's user by the kernel.

A socket's path may have at most 107 bytes. A longer one is reached through `/proc/self/fd/<folder>/<name>`, which is
always short. The controller's socket (`api/local_door.py`) lies in a folder that nobody but its owner can change:
`check_place` is asked by both sides, `check_peer` by the client, which learns there who listens. No time passes here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import LinkError, RefusedError

PATH_BYTES_MAX = 107
"""sizeof(sockaddr_un.sun_path) less its closing NUL, unix(7)."""
SCHEME = "unix:"
"""Begins the address of a controller's socket, `unix:/run/holdfast/controller.sock`."""
NAME = "controller.sock"
SITE_SOCKET = Path("/run/holdfast") / NAME
"""Of the controller that systemd runs (RuntimeDirectory=holdfast)."""
USERS_FROM = 1000
"""UID_MIN of login.defs: numbers below are root's and those of services, as the controller's own account is."""
_PEER = struct.Struct("iII")
"""struct ucred: pid, uid, gid."""


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """An address for `path` that is short enough; valid inside the block."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def socket_of(url: str) -> Path | None:
    """The socket that an address names; None: it is another kind of address."""
    return Path(url.removeprefix(SCHEME)) if url.startswith(SCHEME) else None


def address_of(path: Path) -> str:
    """The socket's address; empty where no process of this machine listens there.

    A folder that machines share shows the socket of another machine, too.

    Raises:
        RefusedError: who listens is not the controller.
    """
    try:
        listener(path)
    except LinkError:
        return ""
    return f"{SCHEME}{path}"


def address_beside(file: Path) -> str:
    """The address of the socket beside a `controller.json`. See `address_of`."""
    return address_of(file.absolute().with_name(NAME))


def listener(path: Path) -> int:
    """The user whose process listens at the socket.

    Raises:
        LinkError: nobody does, or nobody whom we may reach.
        RefusedError: see `check_peer`.
    """
    try:
        with socket_address(path) as address, socket.socket(socket.AF_UNIX) as tried:
            tried.setblocking(False)  # whoever does not accept keeps nobody waiting
            tried.connect(address)
            check_peer(tried, path)
            return uid_of(tried)
    except OSError as error:
        raise unanswered(path, error) from error


def unanswered(path: Path, error: OSError) -> LinkError:
    """What to say, and to do, where a connection to the socket fails so."""
    why = {
        errno.ENOENT: "there is no such socket: start the controller, or name another's address",
        errno.ENOTDIR: "a file stands where its folder should be: name the controller's socket",
        errno.ECONNREFUSED: "its controller has ended and left it behind: start the controller",
        errno.EACCES: "its folder is closed to you: ask its owner, or name the controller's https address and a token",
    }
    return LinkError(f"nobody answers at the socket {path}: {why.get(error.errno or 0, error.strerror or error)}")


def uid_of(peer: socket.socket) -> int:
    """The user at the other end: who connected, or who listens."""
    return int(_PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1])


def check_place(path: Path) -> int:
    """The user whose processes may listen at this socket: the owner of its folder.

    That is this user, root or a service, or somebody else to whom root has given a folder of root's own, such as /run.

    Raises:
        LinkError: there is no such folder.
        RefusedError: others could exchange the socket, or something else stands in its place.
    """
    named = path.parent.absolute()
    folder = Path(os.path.realpath(named))
    try:
        found = folder.stat()
        above = [one.stat() for one in folder.parents]
        there = path.lstat() if os.path.lexists(path) else None
    except OSError as error:
        raise unanswered(path, error) from error
    owner = found.st_uid
    if _others_write(found):
        # A folder for everybody, such as /tmp, has to stay one.
        advice = "name one in a folder of its own" if found.st_mode & stat.S_ISVTX else f"chmod go-w {folder}"
        raise RefusedError(f"the socket {path} could be exchanged by others: {advice}")
    is_given = folder == named and all(one.st_uid == 0 and not _others_write(one) for one in above)
    if owner >= USERS_FROM and owner != os.geteuid() and not is_given:
        raise RefusedError(f"the socket {path} lies in a folder of another user (uid {owner}): name a controller's own")
    if there is not None and not (stat.S_ISSOCK(there.st_mode) and there.st_uid in {0, owner}):
        kinds = {stat.S_IFSOCK: f"uid {there.st_uid}'s socket", stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder"}
        what = kinds.get(stat.S_IFMT(there.st_mode), "a file")
        raise RefusedError(
            f"{path} is {what}, not a controller's socket: name the socket, or remove what lies in its place"
        )
    return owner


def check_peer(peer: socket.socket, path: Path) -> None:
    """Return when the process that listens is of a user who may. Raises RefusedError, and what `check_place` does."""
    uid = uid_of(peer)
    if uid not in {0, check_place(path)}:
        raise RefusedError(f"a process of another user (uid {uid}) listens at {path}: remove it")


def _others_write(found: os.stat_result) -> bool:
    return bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
