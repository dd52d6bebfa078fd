"""Reads NCCL flight-recorder dumps from disk: pickles, which must not be believed, and their JSON form.

A pickle can run any code when it is loaded as it is; this reader knows plain containers only and refuses the rest.
What a file is, is told by its content; only the rank is read from its name. Called by `holdfast explain`.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

from holdfast.detect.flight import HEAD, Dump, dump_of, is_dump, rank_of

DUMP_MAX = 64 << 20
OBJECTS_MAX = 4 << 20
"""Bytes of a pickle that may each begin a container or a long number; one takes up to 64 bytes of memory."""
_PLAIN = re.compile(
    rb"(?:[\x85-\x89\x94N()\[\]{}aestuld01]|[Kqh].|M..|[Jj].{4}|G.{8}|r..[\x00-\x0f]\x00|\x95.{4}\x00{4}|"
    + b"|".join(rb"\x8a%b.{%d}" % (re.escape(bytes((size,))), size) for size in range(9))
    + rb"){1,4096}+",
    re.DOTALL,
)
"""Containers, numbers and references. A place in the memo is at most a million: memory is taken for all before it."""
_SIZED = {0x8C: 1, ord("U"): 1, ord("C"): 1, ord("X"): 4, ord("T"): 4, ord("B"): 4}
"""Opcodes of texts -> bytes of the length that follows."""
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


def is_plain(data: bytes) -> bool:
    """Whether a pickle holds nothing but containers, numbers and texts, and says no size that it does not have."""
    if sum(map(data.count, (b"]", b"}", b"\x85", b"\x86", b"\x87", b"t", b"l", b"d", b"\x8a"))) > OBJECTS_MAX:
        return False
    place = 2
    while place < len(data):
        if (run := _PLAIN.match(data, place)) is not None:
            place = run.end()
        elif data[place] == ord("."):
            return True
        elif (width := _SIZED.get(data[place], 0)) == 0:
            return False
        else:
            place += 1 + width
            place += int.from_bytes(data[place - width : place], "little")
    return False


def _unpickled(data: bytes) -> Any:
    return _PlainUnpickler(io.BytesIO(data)).load() if is_plain(data) else None


def read_dump(path: str) -> Dump | None:
    """The dump in this file; None when its content is not that of one, or its name does not tell the rank."""
    place = Path(path)
    rank = rank_of(place.name)
    try:
        with place.open("rb") as file:
            head = file.read(HEAD)
            if rank is None or not is_dump(head) or place.stat().st_size > DUMP_MAX:
                return None
            file.seek(0)
            raw = _unpickled(file.read()) if head.startswith(b"\x80") else json.load(file)
    except _UNREADABLE:
        return None
    if not isinstance(raw, dict) or "entries" not in raw:
        return None
    return dump_of(rank, raw)
