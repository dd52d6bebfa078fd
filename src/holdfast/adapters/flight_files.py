"""Reads NCCL flight-recorder dumps from disk: pickles, which must not be believed, and their JSON form.

A pickle can run any code when it is loaded as it is; this reader knows plain containers only and refuses the rest.
Even those can be made to take memory and time without end, so files are read in a process of their own that has little
of both: `python -m holdfast.adapters.flight_files FILE...` prints one line for each file. What a file is, is told by
its content; only the rank is read from its name. Called by `holdfast explain`.
"""

from __future__ import annotations

import json
import pickle
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.detect.flight import HEAD, Dump, dump_of, is_dump, rank_of
from holdfast.os.programs import DROPPED, Command, run_blocking

DUMP_MAX = 256 << 20
BATCH = 512
"""So many files are read by one process, unless one of them ends it."""
ENDED_MAX = 3
"""So many files that end the process are tried; the others are not read."""
MEMORY = 512 << 20
MEMORY_FOR_BYTE = 24
"""Bytes of memory that a byte of a dump may take, as small numbers and short texts do."""
LIMIT_S = 10.0
BYTES_A_SECOND = 2 << 20
BATCH_LIMIT_S = BATCH * (LIMIT_S + DUMP_MAX / BYTES_A_SECOND)
"""For the process as a whole, which sets a limit for each file on itself."""
_UNREADABLE = (
    OSError,
    ValueError,
    pickle.UnpicklingError,
    EOFError,
    LookupError,
    AttributeError,
    TypeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)
"""Truncated or hostile bytes make the readers raise any of these; such a file is not a dump for us."""


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers and texts; anything with a class of its own is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a flight recorder's dump")


def read_dumps(paths: Sequence[str]) -> Mapping[str, Dump]:
    """The dumps among these files, which are at rest on a disk. One that cannot be read in its limits is none."""
    left = [path for path in paths if _may_be_dump(path)]
    found: dict[str, Dump] = {}
    ended = 0
    while left:
        # -P: the working folder is no place to import from.
        argv = (sys.executable, "-P", "-m", __spec__.name, *left[:BATCH])
        ran = run_blocking(Command(argv=argv, stderr=DROPPED, kept_max=DUMP_MAX), BATCH_LIMIT_S)
        lines = [line for line in ran.stdout.split(b"\n") if line]
        for path, line in zip(left, lines, strict=False):
            if (dump := msgspec.json.decode(line, type=Dump | None)) is not None:
                found[path] = dump
        # The file after the last line is the one that it ended of.
        ended += ran.code != 0
        del left[: len(lines) + (ran.code != 0)]
        if ended == ENDED_MAX or not (lines or ran.code):
            break
    return found


def _may_be_dump(path: str) -> bool:
    place = Path(path)
    try:
        if rank_of(place.name) is None or place.stat().st_size > DUMP_MAX:
            return False
        with place.open("rb") as file:
            return is_dump(file.read(HEAD))
    except OSError:
        return False


def read_dump(path: str) -> Dump | None:
    """The dump in this file; None when its content is not that of one, or its name does not tell the rank.

    Takes whatever a hostile file makes it take: see `read_dumps`.
    """
    place = Path(path)
    rank = rank_of(place.name)
    try:
        with place.open("rb") as file:
            head = file.read(HEAD)
            if rank is None or not is_dump(head) or place.stat().st_size > DUMP_MAX:
                return None
            file.seek(0)
            raw = _PlainUnpickler(file).load() if head.startswith(b"\x80") else json.load(file)
        return dump_of(rank, raw) if isinstance(raw, dict) and "entries" in raw else None
    except _UNREADABLE:
        return None


def _limit(size: int) -> None:
    """The memory of this process, and its time from now on, to what a dump of so many bytes may need."""
    memory = MEMORY + MEMORY_FOR_BYTE * size
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.RLIM_INFINITY))
    signal.alarm(int(LIMIT_S + size / BYTES_A_SECOND))


def _main() -> None:
    for path in sys.argv[1:]:
        _limit(min(Path(path).stat().st_size, DUMP_MAX))
        sys.stdout.buffer.write(msgspec.json.encode(read_dump(path)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _main()
