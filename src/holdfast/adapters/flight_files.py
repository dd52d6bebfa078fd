"""Reads NCCL flight-recorder dumps from disk: pickles, which must not be believed, and their JSON form.

A pickle can run any code when it is loaded as it is; this reader knows plain containers only and refuses the rest.
What a file is, is told by its content; only the rank is read from its name. Called by `holdfast explain`.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from holdfast.detect.flight import HEAD, Dump, dump_of, is_dump, rank_of

DUMP_MAX = 256 << 20
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
            raw = _PlainUnpickler(file).load() if head.startswith(b"\x80") else json.load(file)
    except _UNREADABLE:
        return None
    if not isinstance(raw, dict) or "entries" not in raw:
        return None
    return dump_of(rank, raw)
