"""The layout of `torch.distributed.checkpoint`: a `.metadata` pickle that says where each tensor lies in which file.

Called by `frameworks`. The pickle is read by an unpickler that builds nothing but plain records: every class it names
becomes an empty shell, every call gives one, so that nothing of the file is ever run. Nothing waits; no clock.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from holdfast.checkpoint.files import open_file
from holdfast.checkpoint.layouts.contents import check_torch
from holdfast.checkpoint.manifest import Problem, inside

METADATA_NAME = ".metadata"
METADATA_BYTES_MAX = 2 << 30


class _Shell:
    """Stands for an instance of any class: keeps what it was made of."""

    def __init__(self, *args: object) -> None:
        self.made_of = args
        self.state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def append(self, item: object) -> None:
        """A list of some class: its items do not matter here."""

    def extend(self, items: object) -> None:
        """As `append`."""

    def __setitem__(self, key: object, value: object) -> None:
        """A dict of some class: its items do not matter here."""


class _Reader(pickle.Unpickler):
    """Finds no class but shells."""

    def find_class(self, module: str, name: str) -> Any:
        return type(name, (_Shell,), {"__module__": module})

    def persistent_load(self, pid: Any) -> Any:
        return _Shell(pid)


def is_distributed(folder: Path) -> bool:
    """Does the folder hold files of a distributed checkpoint (also a torn one)?"""
    return (folder / METADATA_NAME).is_file() or next(folder.glob("*.distcp"), None) is not None


def check_distributed(folder: Path, *, full: bool) -> tuple[list[Problem], int]:
    """Compare the files with what `.metadata` says of them: (problems, bytes read).

    `.metadata` is written last, by the coordinator: without it the save was never finished.

    Args:
        folder: one checkpoint.
        full: also check the record of each tensor against the checksum that it carries.
    """
    path = folder / METADATA_NAME
    try:
        with open_file(path) as file:
            content = file.read(METADATA_BYTES_MAX)
    except FileNotFoundError:
        return [Problem("missing_manifest", METADATA_NAME, "missing, so the save was never finished")], 0
    except OSError as error:
        return [Problem("unreadable", METADATA_NAME, str(error))], 0
    try:
        extents = _extents(content)
    except Exception as error:  # noqa: BLE001 - a damaged pickle can fail in any way
        return [Problem("bad_manifest", METADATA_NAME, f"damaged ({type(error).__name__}: {error})")], len(content)
    problems: list[Problem] = []
    read = len(content)
    for name, places in sorted(extents.items()):
        problem, count = _file(folder / name, name, places, full=full)
        read += count
        if problem is not None:
            problems.append(problem)
    return problems, read


def _extents(content: bytes) -> dict[str, list[tuple[int, int]]]:
    """(offset, length) of every record, by file.

    Raises:
        ValueError: the pickle is not that of a distributed checkpoint.
    """
    top = _Reader(io.BytesIO(content)).load()
    state = getattr(top, "state", None)
    storage = state.get("storage_data") if isinstance(state, dict) else None
    if not isinstance(storage, dict):
        raise ValueError("it does not say where tensors lie")  # noqa: TRY004 - wrong content, whatever its type
    found: dict[str, list[tuple[int, int]]] = {}
    for info in storage.values():
        fields = info.state
        place = (int(fields["offset"]), int(fields["length"]))
        found.setdefault(inside(str(fields["relative_path"])), []).append(place)
    return found


def _file(path: Path, name: str, places: list[tuple[int, int]], *, full: bool) -> tuple[Problem | None, int]:
    end = max(offset + length for offset, length in places)
    try:
        size = path.stat().st_size
        if size < end:
            return Problem("wrong_size", name, f"{size} bytes, its records end at {end}"), 0
        return _records(path, name, places) if full else (None, 0)
    except FileNotFoundError:
        return Problem("missing_file", name, "missing"), 0
    except OSError as error:
        return Problem("unreadable", name, str(error)), 0


def _records(path: Path, name: str, places: list[tuple[int, int]]) -> tuple[Problem | None, int]:
    """Each record of a tensor is what `torch.save` writes; objects are records of bytes, in the same form."""
    read = 0
    foreign: list[int] = []
    with open_file(path) as file:
        for offset, length in sorted(places):
            file.seek(offset)
            record = file.read(length)
            read += length
            if not record.startswith(b"PK"):
                foreign.append(offset)
                continue
            problem = check_torch(io.BytesIO(record), name, full=True)[0]
            if problem is not None:
                return Problem(problem.kind, name, f"the record at byte {offset}: {problem.detail}"), read
    # Records of a compressed or custom format carry no checksum that is known here; then no record is an archive.
    if foreign and len(foreign) < len(places):
        return Problem("wrong_content", name, f"the record at byte {foreign[0]} does not begin as the others do"), read
    return None, read
