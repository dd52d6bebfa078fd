"""Reads NCCL flight-recorder dumps from disk: pickles, which must not be believed, and their JSON form.

A pickle can run any code when it is loaded as it is; this reader knows plain containers only and refuses the rest.
Called by `holdfast explain`.
"""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

from holdfast.detect.flight import Dump, dump_of

DUMP_MAX = 256 << 20
_NAME = re.compile(
    r"(?:nccl_trace|flight_?rec|nccl_dump|fr_trace)\w*?_?(?:rank_?)?(\d{1,6})(?:\.json|\.pkl|\.pickle)?$", re.IGNORECASE
)


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers and texts; anything with a class of its own is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a flight recorder's dump")


def read_dump(path: str) -> Dump | None:
    """The dump in this file; None when its name or content is not that of one."""
    place = Path(path)
    found = _NAME.search(place.name)
    if found is None:
        return None
    try:
        if place.stat().st_size > DUMP_MAX:
            return None
        with place.open("rb") as file:
            head = file.read(1)
            file.seek(0)
            raw = json.load(file) if head == b"{" else _PlainUnpickler(file).load() if head == b"\x80" else None
    except (OSError, ValueError, pickle.UnpicklingError, EOFError, IndexError, KeyError, AttributeError, TypeError):
        # Truncated or hostile bytes make the unpickler raise any of these; such a file is not a dump for us.
        return None
    if not isinstance(raw, dict) or "entries" not in raw:
        return None
    return dump_of(int(found[1]), raw)
