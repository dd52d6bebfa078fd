"""Compares what the base and the code under test say, and keeps the differences apart that are meant.

`__main__` and `mutants` use it. A difference that is meant stands in `differences.toml` with the decision that gives its
reason; every other one fails. Differences that look alike are told once, with their number and the first of them.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from .journal import Line, Recorded
from .replay import Replay

HERE = Path(__file__).parent
DECISIONS = HERE.parents[1] / "docs" / "decisions"
SHOWN = 12
WIDTH = 600
MISSING = "(missing)"


class Difference(Struct, frozen=True):
    """One place at which the two differ."""

    kind: str
    """What was compared: `orders`, `records`, `openapi`..."""
    where: str
    old: str
    new: str

    @property
    def alike(self) -> str:
        """The place without its numbers, by which differences are counted together."""
        return f"{self.kind}: " + re.sub(r"simulated/\S+|lab/\S+|\b[a-z]{1,6}\d+(\.\d+)?\b|\d+", "*", self.where)


class Meant(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `differences.toml`: regular expressions, each found somewhere in the difference's field."""

    decision: int
    kind: str
    where: str = ""
    old: str = ""
    new: str = ""

    def covers(self, one: Difference) -> bool:
        """Is this difference meant?"""
        pairs = ((self.where, one.where), (self.old, one.old), (self.new, one.new))
        return self.kind == one.kind and all(re.search(pattern, text) for pattern, text in pairs)


class _File(Struct, forbid_unknown_fields=True):
    difference: list[Meant] = field(default_factory=list)


def read_meant(path: Path = HERE / "differences.toml") -> list[Meant]:
    """The listed differences. Raises ValueError for one whose decision does not exist."""
    found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).difference
    for one in found:
        if not list(DECISIONS.glob(f"{one.decision:03d}-*.md")):
            raise ValueError(f"{path.name}: there is no decision {one.decision:03d} in {DECISIONS}")
    return found


class Tally:
    """How much was compared, and what differs."""

    def __init__(self, meant: list[Meant]) -> None:
        self.meant = meant
        self.compared: Counter[str] = Counter()
        self.listed: Counter[str] = Counter()
        self.different: Counter[str] = Counter()
        self.uses: Counter[Meant] = Counter()
        self.alike: Counter[str] = Counter()
        self.first: dict[str, Difference] = {}

    def equal(self, kind: str, number: int = 1) -> None:
        """So many places of this kind are the same."""
        self.compared[kind] += number

    def differs(self, one: Difference) -> bool:
        """Count a difference; says whether it is one that is meant."""
        self.compared[one.kind] += 1
        for entry in self.meant:
            if entry.covers(one):
                self.listed[one.kind] += 1
                self.uses[entry] += 1
                return True
        self.different[one.kind] += 1
        self.alike[one.alike] += 1
        self.first.setdefault(one.alike, one)
        return False

    def values(self, kind: str, where: str, old: Any, new: Any) -> None:
        """Compare two JSON values leaf by leaf."""
        for path, before, now in leaves(old, new, where):
            if before == now:
                self.equal(kind)
            else:
                self.differs(Difference(kind, path, _text(before), _text(now)))

    @property
    def ok(self) -> bool:
        """Nothing differs that is not meant."""
        return not self.different

    def report(self) -> str:
        """All of it, for a person."""
        width = max(map(len, self.compared), default=0)
        lines = [f"{'':{width}}  {'compared':>10} {'equal':>10} {'meant':>8} {'different':>10}"]
        for kind, compared in self.compared.items():
            listed, different = self.listed[kind], self.different[kind]
            lines.append(f"{kind:{width}}  {compared:10} {compared - listed - different:10} {listed:8} {different:10}")
        for alike, number in self.alike.most_common(SHOWN):
            one = self.first[alike]
            lines += ["", f"{number} x {alike}", f"  first: {one.where}"]
            lines += [f"  old: {one.old[:WIDTH]}", f"  new: {one.new[:WIDTH]}"]
        if len(self.alike) > SHOWN:
            lines += ["", f"and {len(self.alike) - SHOWN} other kinds of differences"]
        unused = [str(entry) for entry in self.meant if not self.uses[entry]]
        return "\n".join([*lines, "", "listed in differences.toml and not met:", *unused] if unused else lines)


def leaves(old: Any, new: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Every pair of values at the same path of two JSON values; a value on one side only is beside `MISSING`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from leaves(old.get(key, MISSING), new.get(key, MISSING), f"{where} {key}")
    elif isinstance(old, list) and isinstance(new, list) and (old or new):
        for number in range(max(len(old), len(new))):
            before = old[number] if number < len(old) else MISSING
            now = new[number] if number < len(new) else MISSING
            yield from leaves(before, now, f"{where} {number}")
    else:
        yield where, old, new


def journal(recorded: Recorded, tally: Tally, *, restore: bool = True) -> bool:
    """Replay one journal: orders event by event, the records at the end, and once more from the base's snapshot.

    The first difference that is not meant ends it, for what follows comes of that. Says whether all was equal or meant.
    """
    tail = recorded.tail
    if tail is None:
        raise ValueError(f"{recorded.head.name} has no expected end: record it with the base first")
    replay = Replay(recorded.head)
    if not _orders("orders", recorded, recorded.lines, replay, tally):
        return False
    if not _records(recorded, replay, bytes(tail.records), tally):
        return False
    if not restore:
        return True
    again = Replay(recorded.head, tail.snapshot)
    return _orders("orders after a restart", recorded, recorded.lines[tail.middle :], again, tally)


def _orders(kind: str, recorded: Recorded, lines: list[Line], replay: Replay, tally: Tally) -> bool:
    for number, (line, got) in enumerate(zip(lines, replay.all(lines), strict=True)):
        if got == bytes(line.orders):
            continue
        event = msgspec.json.decode(line.event)
        where = f"{recorded.head.name} event {number + 1} {event['event']}"
        old, new = _only(msgspec.json.decode(line.orders), msgspec.json.decode(got))
        if not tally.differs(Difference(kind, where, f"{old}  after {bytes(line.event).decode()}", new)):
            tally.equal(kind, number)
            return False
    tally.equal(kind, len(lines))
    return True


def _only(old: list[Any], new: list[Any]) -> tuple[str, str]:
    """The orders of each side that the other lacks, as text; all of them when only their sequence differs."""
    olds = [one for one in old if one not in new] or (old if not [one for one in new if one not in old] else [])
    news = [one for one in new if one not in old] or (new if olds is old else [])
    return _text(olds), _text(news)


def _records(recorded: Recorded, replay: Replay, expected: bytes, tally: Tally) -> bool:
    got = bytes(replay.record_lines())
    olds, news = msgspec.json.decode(expected), msgspec.json.decode(got)
    before = sum(tally.different.values())
    for kind, old in olds.items():
        new = news[kind]
        same = 0
        for name in {**old, **new}:
            if old.get(name) == new.get(name):
                same += 1
            else:
                tally.values(
                    "records", f"{recorded.head.name} {kind} {name}", old.get(name, MISSING), new.get(name, MISSING)
                )
        tally.equal("records", same)
    return sum(tally.different.values()) == before


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
