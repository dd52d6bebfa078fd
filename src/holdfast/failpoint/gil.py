"""Holding the interpreter lock, as a C extension with a bug does.

Called by the `gil_lock` fault. Time passes in one poll(2) after another, called without releasing the lock, so
that no other Python thread runs; yet the abort file ends it, from another process, at once (inotify) or
within `SLICE_MS` where the file system tells nothing.
"""

import ctypes
import os
from struct import pack
from time import monotonic

SLICE_MS = 1000
_IN_CREATE_OR_MOVED_TO = 0x180  # inotify(7)
_IN_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK
_POLLIN = 1  # poll(2)


def hold(seconds: float, folder: str, abort_path: str) -> None:
    """Keep every other Python thread of this process from running until the time is over or `abort_path` exists."""
    # PyDLL calls keep the lock, unlike CDLL's. Everything is prepared before the first of them, because each
    # instruction of Python in between is a chance for another thread to ask for the lock and get it.
    libc = ctypes.PyDLL(None)
    watch = libc.inotify_init1(_IN_CLOEXEC_NONBLOCK)
    try:
        if watch >= 0:
            libc.inotify_add_watch(watch, os.fsencode(folder), _IN_CREATE_OR_MOVED_TO)
        request = ctypes.create_string_buffer(pack("=ihh", watch, _POLLIN, 0))
        events = ctypes.create_string_buffer(4096)
        abort = os.fsencode(abort_path)
        end = monotonic() + seconds
        while (left_ms := (end - monotonic()) * 1000) > 0 and libc.access(abort, 0) != 0:
            libc.poll(request, 1, min(SLICE_MS, int(left_ms) + 1))
            libc.read(watch, events, 4096)
    finally:
        if watch >= 0:
            os.close(watch)
