"""The guard: a small process beside a launcher that leaves nothing behind when the launcher is killed.

Started by `process.start_guard` as `python -I -S guard_main.py LAUNCHER_PID TAG [PATH...]` in its own session, so
that a kill of the launcher's process group does not reach it. It sleeps on the launcher's pidfd. When that ends it
kills every process that carries the tag in its environment, until a look finds none, deletes the given folders and
ends. Ranks die with the launcher by themselves (PDEATHSIG); this is for what they started.
Imports nothing but the standard library's smallest, because one of these runs beside every launcher.
"""

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # typing costs more than the rest of this program
if TYPE_CHECKING:
    from collections.abc import Callable

_TAG_KEY = b"HOLDFAST_LAUNCHER_TAG="
_LOOKS = 400
_PAUSE_S = 0.01


def _tagged(tag: bytes) -> list[int]:
    wanted = _TAG_KEY + tag
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs more than this program
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123 - as above
                if wanted in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return


def _remove(path: str) -> None:
    for folder, names, files in os.walk(path, topdown=False):
        for name in files:
            _quietly(os.unlink, os.path.join(folder, name))  # noqa: PTH118 - as above
        for name in names:
            _quietly(os.rmdir, os.path.join(folder, name))  # noqa: PTH118 - as above
    _quietly(os.rmdir, path)


def _quietly(action: "Callable[[str], None]", path: str) -> None:
    try:
        action(path)
    except OSError:
        return


def main() -> None:
    """Wait for the launcher's end, then clean up."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    launcher, tag, paths = int(sys.argv[1]), sys.argv[2].encode(), sys.argv[3:]
    try:
        pidfd = os.pidfd_open(launcher)
        select.select([pidfd], [], [])
    except ProcessLookupError:
        pass
    quiet = 0
    for _ in range(_LOOKS):
        found = _tagged(tag)
        for pid in found:
            _kill(pid)
        quiet = 0 if found else quiet + 1
        if quiet == 2:
            break
        time.sleep(_PAUSE_S)
    for path in paths:
        _remove(path)


if __name__ == "__main__":
    main()
