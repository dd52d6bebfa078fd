"""Where in a block of text the catalogue's cores match: the lines a sieve lets pass are searched, not every byte.

Called by the matcher for each block. What comes out is what one search of the whole block with all cores gives, apart
from cores that would match across the end of a line, which no rule's pattern does. A block that the sieve hardly thins
out is searched whole, and the next ones without asking the sieve first.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping

import hyperscan
import msgspec
from msgspec import Struct

from holdfast.detect.database import SIEVED, Databases, hits

SIEVE_MIN = 1 << 14
"""Bytes of a block below which one search is quicker than two."""
PASSED_MAX = 256
"""A block of a megabyte in which the sieve points at more places than this is searched whole."""
REST_MAX = 64
"""Blocks that are searched without the sieve after it was of no use: twice as many each time, at most so many."""
NUMBERED_TAIL = 1 << 12
FLOOD_MIN = 512
"""A block with more matches than this is flooded,"""
FLOOD_EACH = 8
"""by the expressions that match more often than this."""
FLOOD_EDGE = 1 << 14
"""Bytes at either end of a block that are searched in full where it holds nothing but a known flood."""
FLOOD_TAIL = 1 << 17
"""Bytes at its end where an expression does not match in so few."""
FLOOD_DENSE = 16
"""Matches in those bytes without which the flood is over."""
_NUMBERS = msgspec.json.Decoder(tuple[float, ...])
"""Reads many numbers in a third of the time that `float` takes for each."""


class Found(Struct):
    """What was found in one block."""

    ends: dict[int, list[int]]
    """Expression number -> ends of its matches in rising order, counted from the block's first byte."""
    numbers: dict[int, tuple[list[bytes], int]]
    """Expression number -> (the numbers that stand in its matches, the end of the last match), where that was asked."""


class Search:
    """Searches the blocks of one stream. Not for use from two threads.

    Args:
        databases: of the catalogue.
        finders: expression number -> the same expression with a group around the number it holds.
    """

    def __init__(self, databases: Databases, finders: Mapping[int, re.Pattern[bytes]]) -> None:
        self.databases = databases
        self.finders = finders
        self._resting = 0
        self._rest = 1
        self._floods: frozenset[int] = frozenset()

    def read(self, block: bytes, start: int, stop: int, *, progress: bool, many: int, tail: int = 0) -> Found:
        """Everything in `block[start:stop]` that a rule with a name may own.

        Args:
            block: the bytes.
            start: the begin of a line.
            stop: the end of a line, or of the stream.
            progress: whether progress is wanted, too.
            many: so many matches of an expression with a finder are given by their numbers, fewer by their ends.
            tail: so many bytes at the end are searched in full, whatever floods the block.
        """
        databases = self.databases
        if stop - start >= SIEVE_MIN and not self._rests():
            points, present = self._sift(block, start, stop, progress=progress)
            if points is not None:
                ends = self._passed(block, start, stop, points)
                return self._with_progress(Found(ends, {}), block, start, stop, present, many)
        flood = self._flood(block, start, stop, max(tail, FLOOD_EDGE)) if self._floods else None
        if flood is None:
            found = plain(databases, block, start, stop, progress=progress)
            flooded = sum(map(len, found.values())) > FLOOD_MIN
            self._floods = frozenset(number for number, ends in found.items() if flooded and len(ends) > FLOOD_EACH)
            return Found(found, {})
        if progress:
            flood |= hits(databases.progress, _view(block, start, stop))
        return Found(flood, {})

    def _flood(self, block: bytes, start: int, stop: int, edge: int) -> dict[int, list[int]] | None:
        """The matches at both ends of a block that holds no other expressions than the last one was flooded with.

        None where that is not so; then every match is wanted.
        """
        first = block.find(b"\n", start + FLOOD_EDGE, stop) + 1
        if not start < first < stop - max(edge, FLOOD_TAIL):
            return None
        line = block[start : block.find(b"\n", start, stop) + 1]
        same = block.count(line, start, stop) * len(line) == stop - start
        present = hits(self.databases.once, line if same else _view(block, start, stop))
        if not present.keys() <= self._floods:
            return None
        last, tail = self._tail(block, start, stop, edge)
        if edge < FLOOD_TAIL and present.keys() != tail.keys():
            last, tail = self._tail(block, start, stop, FLOOD_TAIL)
        if present.keys() != tail.keys() or sum(map(len, tail.values())) < FLOOD_DENSE:
            return None
        head = hits(self.databases.faults, _view(block, start, first))
        return {n: (head.get(n) or present[n]) + [end + last - start for end in tail[n]] for n in present}

    def _tail(self, block: bytes, start: int, stop: int, size: int) -> tuple[int, dict[int, list[int]]]:
        """Where the lines at the end begin, and the matches in them."""
        last = block.rfind(b"\n", start, stop - size) + 1
        return last, hits(self.databases.faults, _view(block, last, stop)) if last > start else {}

    def _rests(self) -> bool:
        self._resting = max(0, self._resting - 1)
        return self._resting > 0

    def _sift(self, block: bytes, start: int, stop: int, *, progress: bool) -> tuple[list[int] | None, set[int]]:
        """Where the sieve points, None when at too many places; and the expressions of progress that are there."""
        points: list[int] = []
        present: set[int] = set()
        most = max(16, PASSED_MAX * (stop - start) >> 20)

        def on_match(number: int, _start: int, end: int, _flags: int, _context: object) -> bool:
            if number < SIEVED:
                present.add(number)
                return False
            points.append(end)
            return len(points) > most

        database = self.databases.sieve_progress if progress else self.databases.sieve
        try:
            database.scan(_view(block, start, stop), match_event_handler=on_match)  # type: ignore[type-var]
        except hyperscan.ScanTerminated:
            self._rest = min(REST_MAX, 2 * self._rest)
            self._resting = self._rest
            return None, present
        self._rest = max(1, self._rest // 2)
        return points, present

    def _passed(self, block: bytes, start: int, stop: int, points: list[int]) -> dict[int, list[int]]:
        """The matches in the lines that the sieve points at."""
        lines: list[bytes] = []
        begins: list[int] = []
        places: list[int] = []
        size = 0
        done = start
        for point in points:
            place = start + point
            if place <= done:
                continue
            first = max(done, block.rfind(b"\n", done, place - 1) + 1)
            done = block.find(b"\n", place - 1, stop) + 1 or stop
            lines.append(block[first:done])
            begins.append(size)
            places.append(first - start)
            size += done - first
        if not lines:
            return {}
        found = hits(self.databases.faults, b"".join(lines))
        for ends in found.values():
            for i, end in enumerate(ends):
                line = bisect_left(begins, end) - 1
                ends[i] = places[line] + end - begins[line]
        return found

    def _with_progress(self, found: Found, block: bytes, start: int, stop: int, present: set[int], many: int) -> Found:
        """Add where the expressions of progress match that the sieve saw."""
        if not present <= self.finders.keys():
            found.ends.update(hits(self.databases.progress, _view(block, start, stop)))
            return found
        for number in present:
            finder = self.finders[number]
            values = finder.findall(block, start, stop)
            if len(values) >= many:
                found.numbers[number] = (values, _last_end(finder, block, start, stop))
            elif values:
                found.ends[number] = [match.end() - start for match in finder.finditer(block, start, stop)]
        return found


def plain(databases: Databases, block: bytes, start: int, stop: int, *, progress: bool) -> dict[int, list[int]]:
    """What a search of the whole `block[start:stop]` finds; ends are counted from `start`."""
    view = _view(block, start, stop)
    found = hits(databases.faults, view)
    return found | hits(databases.progress, view) if progress else found


def _view(block: bytes, start: int, stop: int) -> bytes | memoryview:
    return block if start == 0 and stop == len(block) else memoryview(block)[start:stop]


def _last_end(finder: re.Pattern[bytes], block: bytes, start: int, stop: int) -> int:
    """Where the last match ends, which is near the block's end as a rule."""
    size = NUMBERED_TAIL
    while True:
        begin = max(start, block.rfind(b"\n", start, max(start, stop - size)) + 1)
        end = max((match.end() for match in finder.finditer(block, begin, stop)), default=-1)
        if end >= 0 or begin == start:
            return end - start
        size *= 8


def numbers_of(texts: list[bytes]) -> tuple[float, ...]:
    """What these say, in order; empty when any of them is no number."""
    try:
        numbers = _NUMBERS.decode(b"[%b]" % b",".join(texts))
        if len(numbers) == len(texts):
            return numbers
    except msgspec.DecodeError:
        pass
    try:
        # Digits that JSON has no numbers for: "007", "1.".
        return tuple(map(float, texts))
    except ValueError:
        return ()
