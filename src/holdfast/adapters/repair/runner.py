"""Runs one command to its end and writes down how it ended, also when the controller that asked for it is gone.

`command.py` starts it as `python -I runner.py --record FILE --limit-s S -- argv`, in a session of its own. It claims
`FILE.begun` first (its pid and when it began, which tell a live runner from a stale claim), and writes FILE last, as a
whole. Standard library only: it must start quickly and stand alone. Time: at most the limit and a grace.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL for a command that is over its limit."""
TAIL_MAX = 4000


def born(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty when there is none. Pids are reused, this is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *rest = stat[stat.rindex(")") + 2 :].split()
    return "" if state in {"Z", "X"} else rest[18]


def claim(path: Path) -> bool:
    """Take the claim; False when another runner that lives has it."""
    mine = f"{os.getpid()} {born(os.getpid())}"
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(mine, encoding="ascii")
    try:
        while True:
            try:
                os.link(fresh, path)  # whole, and only where none is
            except FileExistsError:
                if alive(path):
                    return False
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                continue
            return True
    finally:
        fresh.unlink()


def alive(path: Path) -> bool:
    """Does the runner that has this claim live?"""
    try:
        pid, _, since = path.read_text(encoding="ascii").partition(" ")
    except OSError:
        return False
    return bool(since) and pid.isdecimal() and born(int(pid)) == since


def run(argv: Sequence[str], limit_s: float, log: Path) -> dict[str, object]:
    """Run it; its output goes to a file, of which the end is kept."""
    start = time.monotonic()
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            return {"code": 127, "said": f"{argv[0]} cannot be run: {error.strerror}", "late": False, "seconds": 0.0}
        late = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            late = True
            _end(process)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind
    with log.open("rb") as said:
        size = said.seek(0, os.SEEK_END)
        said.seek(max(0, size - TAIL_MAX))
        tail = said.read().decode("utf-8", "replace").strip()
    log.unlink(missing_ok=True)
    return {"code": process.returncode, "said": tail, "late": late, "seconds": time.monotonic() - start}


def _end(process: subprocess.Popen[bytes]) -> None:
    for sig in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sig)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            return


def main(argv: Sequence[str]) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="runner", description="Runs one command and writes down how it ended.")
    parser.add_argument("--record", required=True, type=Path)
    parser.add_argument("--limit-s", required=True, type=float)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(argv)
    record: Path = args.record
    if record.exists() or not claim(record.with_suffix(".begun")):
        return 0
    ended = run(args.command, args.limit_s, record.with_suffix(".log"))
    fresh = record.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(ended, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
