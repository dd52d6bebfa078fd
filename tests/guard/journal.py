"""A recorded journal as the guard keeps it: a file of compressed JSON lines, written by `record` and `record_lab`.

A file may hold several, one after the other: a seed's controller and launchers. Each is a `Head`, then one `Line` per event,
oldest first, then, in the guard's cache only, the `Tail`: what the base's engine held at the end. A journal in `journals/` has
no tail, for its expected orders are the base's, not the recorder's.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Raw, Struct


class Head(Struct, frozen=True, kw_only=True):
    """Whose journal it is."""

    name: str
    """`simulated/12`, `slurm/xid_74_replace`; a job's launcher adds `/job-100`."""
    scope: str = "cluster"
    """`cluster` or `allocation`, as the engine takes it."""
    policy: str = ""
    """TOML that the engine begins with."""
    policies: Raw = Raw(b"null")
    """A whole `PolicySet` as JSON, in its place."""


class Line(Struct, frozen=True):
    """One event and the orders that it led to, as JSON."""

    event: Raw
    orders: Raw


class Tail(Struct, frozen=True, kw_only=True):
    """What the base's engine made of all events."""

    records: Raw
    """Kind of record -> its name -> the record as the journal would have projected it."""
    middle: int
    """The snapshot holds the first so many lines."""
    snapshot: bytes
    """The base's engine after them."""


class Recorded(Struct, kw_only=True):
    """A whole journal."""

    head: Head
    lines: list[Line]
    tail: Tail | None = None


def write(path: Path, journals: Sequence[Recorded], *, preset: int = 1) -> None:
    """Write them into one file, whole or not at all. `preset` is lzma's: 1 is quick, 9 is small."""
    parts = [part for one in journals for part in (one.head, *one.lines, *([one.tail] if one.tail is not None else []))]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(lzma.compress(b"\n".join(map(msgspec.json.encode, parts)), preset=preset))
    unfinished.rename(path)


def read(path: Path) -> list[Recorded]:
    """Read what `write` wrote."""
    found: list[Recorded] = []
    for part in lzma.decompress(path.read_bytes()).split(b"\n"):
        if part.startswith(b'{"name"'):
            found.append(Recorded(head=_head.decode(part), lines=[]))
        elif part.startswith(b'{"records"'):
            found[-1].tail = _tail.decode(part)
        else:
            found[-1].lines.append(_line.decode(part))
    return found


def seeds(count: int) -> Iterator[int]:
    """So many seeds of `holdfast.sim.options.draw`, a third of them of each of its three editions."""
    return ((0, 10_000, 20_000)[i % 3] + i for i in range(count))


def paths(folder: Path) -> list[Path]:
    """All journals below this folder."""
    return sorted(folder.rglob("*.xz"))


_head = msgspec.json.Decoder(Head)
_tail = msgspec.json.Decoder(Tail)
_line = msgspec.json.Decoder(Line)
