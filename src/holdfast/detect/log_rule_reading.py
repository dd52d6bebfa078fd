"""HyperPod's log rules over a whole log: in which state each of them was when the log ended.

`holdfast explain --log-rules` feeds every file through one `RuleReading`. Time is what the lines say; in a log without
times only FAULTED and SLOW can be told. Pure; memory does not grow with the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from holdfast.detect.hyperpod_rules import LINE_MAX, LogRule, LogRuleMonitor, RuleChange, finding_rule, searched
from holdfast.detect.lines import take_apart

STAMP_CHARS = 160
LOOK_BACK_LINES = 40
"""How far back a time is looked for when a line has none."""
CARRY_MAX = 1 << 20


class RuleOutcome(Struct, frozen=True):
    """A rule that called for action when the log ended."""

    change: RuleChange
    offset: int
    """Bytes before the line that changed it, or after which nothing came; -1: none matched."""


class RuleReading:
    """All rules over one log.

    Args:
        rules: checked ones.
        year: for stamps that carry none.

    Attributes:
        matched: whether a line was any rule's.
    """

    def __init__(self, rules: Sequence[LogRule], year: int) -> None:
        self.matched = False
        self._rules = rules
        self._year = year
        self._finders = [_lines_of(pattern) for rule in rules for pattern in (rule.pattern, rule.stop) if pattern]
        self._monitor: LogRuleMonitor | None = None
        self._last: dict[str, RuleOutcome] = {}
        self._offset = 0
        self._carry = b""
        self._at: float | None = None
        self._line_at = -1

    def feed(self, data: bytes) -> None:
        """The next bytes of the log, cut anywhere."""
        block = self._carry + data
        cut = block.rfind(b"\n") + 1
        if not cut and len(block) < CARRY_MAX:
            self._carry = block
            return
        cut = cut or len(block)
        self._judge(block[:cut])
        self._offset += cut
        self._carry = block[cut:]

    def end(self) -> list[RuleOutcome]:
        """The log is over: rules that are not well, with what made them so."""
        self._judge(self._carry)
        if self._at is not None and self._monitor is not None:
            self._note(self._monitor.tick(self._at))
        return [outcome for outcome in self._last.values() if finding_rule(outcome.change.after)]

    def _judge(self, block: bytes) -> None:
        if self._monitor is None and block:
            self._at = self._first_time(block)
            self._monitor = LogRuleMonitor(self._rules, self._at if self._at is not None else 0.0)
        for start in sorted({start for finder in self._finders for start in finder(block)}):
            self.matched = True
            end = block.find(b"\n", start)
            line = block[start : min(end if end >= 0 else len(block), start + LINE_MAX)]
            at = self._time_at(block, start)
            if self._monitor is not None:
                if at is not None:
                    self._at = at if self._at is None else max(at, self._at)
                    self._note(self._monitor.tick(self._at))
                self._line_at = self._offset + start
                self._note(self._monitor.line(line.decode("utf-8", "replace").rstrip("\r"), self._at or 0.0))
        if block and (at := self._time_at(block, len(block) - 1)) is not None:
            self._at = at if self._at is None else max(at, self._at)

    def _note(self, changes: Sequence[RuleChange]) -> None:
        for change in changes:
            self._last[change.rule] = RuleOutcome(change, self._line_at)

    def _first_time(self, block: bytes) -> float | None:
        for line in block.split(b"\n", LOOK_BACK_LINES)[:LOOK_BACK_LINES]:
            if (at := self._time(line)) is not None:
                return at
        return None

    def _time_at(self, block: bytes, place: int) -> float | None:
        """The time on the line at this place, else on one shortly before."""
        stop = block.find(b"\n", place)
        stop = len(block) if stop < 0 else stop
        for _ in range(LOOK_BACK_LINES):
            start = block.rfind(b"\n", 0, max(stop, 0)) + 1
            if (at := self._time(block[start : min(stop, start + STAMP_CHARS)])) is not None:
                return at
            if start <= 0:
                return None
            stop = start - 1
        return None

    def _time(self, line: bytes) -> float | None:
        return take_apart(line[:STAMP_CHARS].decode("utf-8", "replace"), self._year).at


def _lines_of(pattern: str) -> Callable[[bytes], Iterator[int]]:
    """Starts of lines that may match; the monitor decides."""
    if middle := searched(pattern):
        found = re.compile(middle.encode()).finditer
        return lambda block: (block.rfind(b"\n", 0, hit.start()) + 1 for hit in found(block))
    whole = re.compile(pattern)
    return lambda block: (start for start, line in _lines(block) if whole.match(line.decode("utf-8", "replace")))


def _lines(block: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    for line in block.split(b"\n"):
        yield start, line[:LINE_MAX]
        start += len(line) + 1
