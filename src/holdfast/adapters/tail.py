"""Follows many growing files at once: a written byte reaches its callback in milliseconds, an idle file costs nothing.

Agents (kernel log, job output) and launchers (rank output) use one `Tailer` each, inside their asyncio loop: inotify's
descriptor is a reader of the loop, there is no thread. Files on network file systems, and all files when inotify has
no watches left, are looked at every `poll_s` seconds instead.

Rotation (renamed away, made anew), truncation and deletion are told by `on_reset`; what the old file still held is
delivered before it. Positions survive a restart: see `Position`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import inotify_simple
from inotify_simple import flags as inotify_flags
from msgspec import Struct

READ_SIZE = 1 << 18
READS_PER_TURN = 16
"""Reads of one file before the others get their turn."""
FULL_AGAIN_S = 0.05
"""Between two looks at a file whose receiver is full."""
HEAD_SIZE = 256
POLL_S = 0.5
_FILE_MASK = inotify_flags.MODIFY | inotify_flags.ATTRIB | inotify_flags.MOVE_SELF | inotify_flags.DELETE_SELF
_FOLDER_MASK = inotify_flags.CREATE | inotify_flags.MOVED_TO | inotify_flags.ONLYDIR
_NETWORK = (
    "nfs", "lustre", "gpfs", "beegfs", "cifs", "smb", "ceph", "9p", "afs", "wekafs", "fuse", "glusterfs", "panfs",
    "pvfs", "virtiofs", "efs",
)  # fmt: skip


class Position(Struct, frozen=True):
    """How far a file was read: enough to go on after a restart, also when it was rotated meanwhile."""

    path: str
    device: int
    inode: int
    offset: int
    head: str
    """Hash of the file's first bytes, to tell a truncated and rewritten file from the one that was read."""


class _Tail:
    """One followed file."""

    def __init__(self, path: str, *, poll: bool) -> None:
        self.path = path
        self.place = Path(path)
        self.poll = poll
        self.fd = -1
        self.offset = 0
        self.identity = (0, 0)
        self.watch = -1
        self.more = False
        self.waits = False

    def wait(self, loop: asyncio.AbstractEventLoop, look: Callable[[_Tail], None]) -> None:
        """Have it looked at again a moment later, once."""
        if not self.waits:
            self.waits = True
            loop.call_later(FULL_AGAIN_S, look, self)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def open_plainly(path: str) -> int:
    """A descriptor to read with. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


class Tailer:
    """Follows files; not for use from two threads.

    Args:
        on_data: called with (path, bytes) in file order; never with empty bytes.
        on_reset: called with (path, why) when what follows is of another file or begins anew; why is `rotated`,
            `truncated` or `deleted`.
        poll_s: how often files are looked at that cannot be watched.
        force_poll: watch nothing, look at every file.
        open_file: opens a file to read it, or raises OSError: for a reader with more rights than who places the files.
        is_full: whether the receiver of a file's bytes asks to wait: it is looked at again a moment later.
    """

    def __init__(
        self,
        on_data: Callable[[str, bytes], None],
        on_reset: Callable[[str, str], None] | None = None,
        *,
        poll_s: float = POLL_S,
        force_poll: bool = False,
        open_file: Callable[[str], int] = open_plainly,
        is_full: Callable[[str], bool] = lambda _path: False,
    ) -> None:
        self._open_file = open_file
        self._is_full = is_full
        self._on_data = on_data
        self._on_reset = on_reset or (lambda _path, _why: None)
        self._poll_s = poll_s
        self._tails: dict[str, _Tail] = {}
        self._by_watch: dict[int, _Tail] = {}
        self._folders: dict[str, int] = {}
        self._folder_of: dict[int, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._inotify: inotify_simple.INotify | None = None
        if not force_poll:
            # No instance left (fs.inotify.max_user_instances): every file is polled.
            with contextlib.suppress(OSError):
                self._inotify = inotify_simple.INotify(nonblocking=True)

    # --- life ---

    def start(self) -> None:
        """Begin to follow, inside the running loop."""
        self._loop = asyncio.get_running_loop()
        if self._inotify is not None:
            self._loop.add_reader(self._inotify.fileno(), self._on_readable)
        for tail in list(self._tails.values()):
            self._advance(tail)
        self._schedule_poll()

    def close(self) -> None:
        """Stop following; positions can still be asked for. Calling it twice is harmless."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._inotify is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None
        for tail in self._tails.values():
            tail.close()
        self._loop = None

    # --- which files ---

    def add(self, path: str | Path, *, position: Position | None = None, from_end: bool = False) -> None:
        """Follow this file, which need not exist yet.

        Args:
            path: the file.
            position: go on from here when the file is still the one that was read.
            from_end: without a position, skip what the file holds now.
        """
        name = str(path)
        if name in self._tails:
            return
        tail = _Tail(name, poll=self._inotify is None or on_network(name))
        self._tails[name] = tail
        self._open(tail)
        if position is not None:
            self._resume(tail, position)
        elif from_end and tail.fd >= 0:
            tail.offset = os.fstat(tail.fd).st_size
        if not tail.poll:
            self._watch(tail)
        if self._loop is not None:
            self._advance(tail)
            self._schedule_poll()

    def remove(self, path: str | Path) -> None:
        """Stop following this file, after delivering what it holds now."""
        tail = self._tails.get(str(path))
        if tail is None:
            return
        self._advance(tail, to_end=True)
        del self._tails[tail.path]
        self._unwatch(tail)
        tail.close()

    def drain(self) -> None:
        """Deliver all that the files hold now, at once (a process has ended: its last words must not wait)."""
        for tail in list(self._tails.values()):
            self._look(tail, to_end=True)

    def position(self, path: str | Path, pending: int = 0) -> Position | None:
        """How far the file was delivered, less `pending` bytes that the receiver has not used (a torn line)."""
        tail = self._tails.get(str(path))
        if tail is None or tail.identity == (0, 0):
            return None
        offset = max(0, tail.offset - pending)
        head = _head(tail.fd, min(offset, HEAD_SIZE)) if tail.fd >= 0 else ""
        return Position(tail.path, *tail.identity, offset, head)

    # --- inside ---

    def _open(self, tail: _Tail) -> bool:
        try:
            tail.fd = self._open_file(tail.path)
        except OSError:
            tail.fd = -1
            return False
        stat = os.fstat(tail.fd)
        tail.identity = (stat.st_dev, stat.st_ino)
        tail.offset = 0
        return True

    def _resume(self, tail: _Tail, position: Position) -> None:
        """Go on where `position` says; a rotated file's rest is delivered first, from beside its successor."""
        if tail.fd >= 0 and tail.identity == (position.device, position.inode):
            size = os.fstat(tail.fd).st_size
            if size >= position.offset and _head(tail.fd, min(position.offset, HEAD_SIZE)) == position.head:
                tail.offset = position.offset
            return
        folder = Path(tail.path).parent
        with contextlib.suppress(OSError):
            for sibling in folder.glob(Path(tail.path).name + "*"):
                stat = sibling.stat()
                if (stat.st_dev, stat.st_ino) == (position.device, position.inode) and stat.st_size >= position.offset:
                    self._deliver_rest(tail.path, sibling, position)
                    self._on_reset(tail.path, "rotated")
                    return

    def _deliver_rest(self, path: str, rotated: Path, position: Position) -> None:
        fd = self._open_file(str(rotated))
        try:
            for data in _rest(fd, position):
                self._on_data(path, data)
        finally:
            os.close(fd)

    def _watch(self, tail: _Tail) -> None:
        if self._inotify is None:
            return
        folder = str(Path(tail.path).parent)
        try:
            if folder not in self._folders:
                watch = self._inotify.add_watch(folder, _FOLDER_MASK)
                self._folders[folder] = watch
                self._folder_of[watch] = folder
            if tail.fd >= 0:
                tail.watch = self._inotify.add_watch(tail.path, _FILE_MASK)
                self._by_watch[tail.watch] = tail
        except OSError as error:
            # ENOSPC: no watches left for this user. ENOENT: the folder is not there yet. Both: look instead.
            if error.errno not in {errno.ENOSPC, errno.EMFILE, errno.ENOENT, errno.EACCES, errno.ENOTDIR}:
                raise
            tail.poll = True

    def _unwatch(self, tail: _Tail) -> None:
        if tail.watch >= 0:
            self._by_watch.pop(tail.watch, None)
            if self._inotify is not None:
                # The kernel drops the watch by itself when the file is gone; asking again fails with EINVAL.
                with contextlib.suppress(OSError):
                    self._inotify.rm_watch(tail.watch)
            tail.watch = -1

    def _on_readable(self) -> None:
        if self._inotify is None:
            return
        touched: dict[str, _Tail] = {}
        for event in self._inotify.read(timeout=0):
            if event.mask & inotify_flags.Q_OVERFLOW:
                touched.update(self._tails)
                continue
            folder = self._folder_of.get(event.wd)
            if folder is not None and event.name:
                tail = self._tails.get(str(Path(folder) / event.name)) or self._tails.get(event.name)
            else:
                tail = self._by_watch.get(event.wd)
            if tail is not None:
                touched[tail.path] = tail
                if event.mask & (inotify_flags.MODIFY) and not event.mask & ~inotify_flags.MODIFY:
                    continue
                tail.more = True
        for tail in touched.values():
            if tail.more:
                self._look(tail)
            else:
                self._advance(tail)

    def _look(self, tail: _Tail, *, to_end: bool = False) -> None:
        """Deliver what is new, then see whether the path is another file by now."""
        tail.more = False
        self._advance(tail, to_end=to_end)
        if not to_end and self._is_full(tail.path):
            return  # what it was renamed to, or cut to, is seen once its bytes are read
        try:
            stat = tail.place.stat()
        except OSError:
            return
        if (stat.st_dev, stat.st_ino) == tail.identity and tail.fd >= 0:
            return
        had_one = tail.fd >= 0
        if had_one:
            self._advance(tail, to_end=True)
            tail.close()
            self._unwatch(tail)
        if self._open(tail):
            if had_one:
                self._on_reset(tail.path, "rotated")
            if not tail.poll:
                self._watch(tail)
            self._advance(tail)

    def _advance(self, tail: _Tail, *, to_end: bool = False) -> None:
        if tail.fd < 0:
            return
        turns = 0
        while True:
            if not to_end and self._loop is not None and self._is_full(tail.path):
                tail.wait(self._loop, self._look_if_followed)
                return
            try:
                data = os.pread(tail.fd, READ_SIZE, tail.offset)
            except OSError:
                # A stale NFS handle or a failing disk: the next look opens the path again.
                tail.close()
                return
            if not data:
                break
            tail.offset += len(data)
            self._on_data(tail.path, data)
            turns += 1
            if turns >= READS_PER_TURN and not to_end and self._loop is not None:
                self._loop.call_soon(self._look_if_followed, tail)
                return
            if tail.fd < 0:
                return
        if not turns and os.fstat(tail.fd).st_size < tail.offset:
            tail.offset = 0
            self._on_reset(tail.path, "truncated")
            self._advance(tail, to_end=to_end)

    def _look_if_followed(self, tail: _Tail) -> None:
        tail.waits = False
        if self._tails.get(tail.path) is tail:
            self._look(tail)

    def _schedule_poll(self) -> None:
        if self._loop is None or self._timer is not None:
            return
        if any(tail.poll for tail in self._tails.values()):
            self._timer = self._loop.call_later(self._poll_s, self._poll)

    def _poll(self) -> None:
        self._timer = None
        for tail in list(self._tails.values()):
            if tail.poll:
                self._poll_one(tail)
        self._schedule_poll()

    def _poll_one(self, tail: _Tail) -> None:
        """One `stat` for a file that rests; network file systems refresh attributes on it."""
        try:
            stat = tail.place.stat()
        except OSError:
            self._advance(tail)
            return
        if (stat.st_dev, stat.st_ino) != tail.identity or stat.st_size != tail.offset or tail.fd < 0:
            self._look(tail)


def _rest(fd: int, position: Position) -> Iterator[bytes]:
    """What stands behind this place, if it is that file."""
    offset = position.offset
    if _head(fd, min(offset, HEAD_SIZE)) == position.head:
        while data := os.pread(fd, READ_SIZE, offset):
            offset += len(data)
            yield data


def _head(fd: int, size: int) -> str:
    return hashlib.blake2b(os.pread(fd, size, 0), digest_size=8).hexdigest()


def on_network(path: str) -> bool:
    """Whether the path lies on a file system that inotify cannot see others write to."""
    real = os.path.realpath(path)
    best, kind = "", ""
    try:
        with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                fields, _, rest = line.partition(" - ")
                point = fields.split()[4].replace("\\040", " ")
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, rest.split(" ", 1)[0]
    except (OSError, IndexError):
        return False
    return kind.startswith(_NETWORK)
