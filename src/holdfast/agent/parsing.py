"""The parser: a process without rights that judges what others wrote, for the agent, which may be root.

`agent.parser` starts it (`python -m holdfast.agent.parsing USER MEMORY_MIB [RULES...]`) and talks with it over its
standard input and output: one `Ask`, one `Answer`, in the frames of `os.frames`. It loads the catalogue, gives up every
right (`os.confined`), says so in a `Hello`, and judges. The forms here bound what it can say, and the agent checks
them: whoever takes a parser over can lie about this node's lines, and do nothing else. No clock is read here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.agent.syslog_lines import KernelLines, Reading
from holdfast.detect.catalogue import Rule
from holdfast.detect.hyperpod_rules import LINE_MAX as LINE_CHARS
from holdfast.detect.hyperpod_rules import LogRule, RuleFinder, RuleHit
from holdfast.detect.matcher import LINE_MAX, TEXT_MAX, Match, Matcher, StreamSource
from holdfast.errors import HoldfastError
from holdfast.model.evidence import Domain, Remedy, Role, Severity
from holdfast.os.confined import Confined, confine
from holdfast.os.frames import FRAME_MAX, HEAD_BYTES, FrameCodec

CAPTURE_MAX = 4096
"""Characters of a capture: the longest path of Linux."""
TELLS_MAX = 10_000
"""Matches in one answer; what goes beyond is left out, as a flood is."""
NUMBERS_MAX = 65_536
RULE_LINE_MAX = 1 << 16
"""Bytes of an unfinished line that are kept for log rules."""
_Number = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Text = Annotated[str, Meta(max_length=TEXT_MAX)]


class Origin(Struct, frozen=True):
    """Where a stream's lines come from, and which of them are judged by what."""

    source: StreamSource
    rules: tuple[LogRule, ...] = ()
    """Whose patterns are looked for in each line."""
    syslog: Reading | None = None
    """The kernel's fresh lines alone are judged: syslog writes the file."""


class Opening(Struct, frozen=True, kw_only=True):
    """A stream that this parser does not have yet."""

    origin: Origin
    is_endless: bool = False
    """As `Judged`, where nothing is to be read again."""
    offset: int
    """Bytes of the stream before `again`."""
    line_no: int
    """Lines before `again`."""
    again: bytes
    """What a parser before has judged, and what its judgement of the next bytes depends on."""


class Part(Struct, frozen=True, kw_only=True):
    """The next bytes of one stream."""

    stream: int
    data: bytes
    at: float
    opening: Opening | None = None


class Ask(Struct, frozen=True, kw_only=True):
    """What is to be judged, in this order."""

    parts: tuple[Part, ...]
    forget: tuple[int, ...] = ()
    """Streams that have ended."""


class Told(Struct, frozen=True, kw_only=True):
    """A `Match`, with of its rule what a line's own text may have changed."""

    rule: _Text
    title: _Text
    domain: Domain
    role: Role
    severity: Severity
    remedy: Remedy
    line_no: _Number
    offset: _Number
    text: _Text
    captures: Annotated[dict[_Text, Annotated[str, Meta(max_length=CAPTURE_MAX)]], Meta(max_length=64)]
    rank: _Number | None = None
    node: _Text = ""
    at: float | None = None
    count: Annotated[int, Meta(ge=1, lt=1 << 53)] = 1
    numbers: Annotated[tuple[float, ...], Meta(max_length=NUMBERS_MAX)] = ()


class Judged(Struct, frozen=True, kw_only=True):
    """What came of a `Part`."""

    told: Annotated[tuple[Told, ...], Meta(max_length=TELLS_MAX)]
    hits: Annotated[tuple[RuleHit, ...], Meta(max_length=TELLS_MAX)] = ()
    """Of `Origin.rules`."""
    pending: _Number
    """Bytes at the end that are no whole line yet."""
    again: _Number
    """Bytes at the end that the next ones are judged with: the unfinished line, and records that have begun."""
    is_endless: bool = False
    """Of a file of syslog: its last line is not over, and was let go."""


class Answer(Struct, frozen=True, kw_only=True):
    """What came of an `Ask`, part by part."""

    parts: tuple[Judged, ...]


class Hello(Struct, frozen=True, kw_only=True):
    """The parser is ready."""

    digest: _Text
    """Of its catalogue."""
    confined: Confined


def codec(*, is_agent: bool) -> FrameCodec:
    """Frames of a pipe that nobody else holds: there is no secret to share."""
    return FrameCodec(b"", b"", is_leader=is_agent)


def told_of(match: Match) -> Told:
    """The match, cut to what an answer may hold."""
    rule = match.rule
    return Told(
        rule=rule.id,
        title=rule.title[:TEXT_MAX],
        domain=rule.domain,
        role=rule.role,
        severity=rule.severity,
        remedy=rule.remedy,
        line_no=match.line_no,
        offset=match.offset,
        text=match.text,
        captures={name: value[:CAPTURE_MAX] for name, value in match.captures.items()},
        rank=match.rank,
        node=match.node[:TEXT_MAX],
        at=match.at,
        count=match.count,
        numbers=match.numbers[-NUMBERS_MAX:],
    )


def match_of(told: Told, rule: Rule) -> Match:
    """The match that the parser tells of, under the agent's own rule as far as lines do not change it."""
    said = Rule(
        **{name: getattr(rule, name) for name in rule.__struct_fields__}
        | {name: getattr(told, name) for name in ("title", "domain", "role", "severity", "remedy")}
    )
    return Match(
        said, told.line_no, told.offset, told.text, dict(told.captures), told.rank, told.node, told.at, told.count,
        told.numbers,
    )  # fmt: skip


class _RuleLines:
    """Cuts bytes into lines and looks for the patterns of log rules in each."""

    def __init__(self, rules: Sequence[LogRule]) -> None:
        self._finders = [RuleFinder(rule, number) for number, rule in enumerate(rules)]
        self._carry = b""

    @property
    def pending(self) -> int:
        return len(self._carry)

    def feed(self, data: bytes) -> list[RuleHit]:
        if not self._finders:
            return []
        *lines, carry = (self._carry + data).split(b"\n")
        self._carry = carry[-RULE_LINE_MAX:]
        texts = [line[:LINE_CHARS].decode(errors="replace").rstrip("\r") for line in lines]
        return [hit for text in texts for finder in self._finders if (hit := finder.read(text)) is not None]


class _Stream:
    """One source's bytes, judged as they come."""

    def __init__(self, matcher: Matcher, opening: Opening, at: float) -> None:
        origin = opening.origin
        self._lines = matcher.stream(origin.source)
        self._lines.offset, self._lines.line_no = opening.offset, opening.line_no
        self._rules = _RuleLines(origin.rules)
        self._syslog = KernelLines(origin.syslog, is_endless=opening.is_endless) if origin.syslog else None
        self.judge(opening.again, at)  # told by the parser before

    def judge(self, data: bytes, at: float) -> Judged:
        syslog, lines = self._syslog, self._lines
        data = syslog.sieve(data, at) if syslog is not None else data
        hits, found = self._rules.feed(data), lines.feed(data, at)
        waiting = syslog.pending if syslog is not None else 0
        began = [match.offset for records in lines.records.values() for _, _, match in records]
        again = max(lines.offset - min([lines.offset - lines.pending, *began]), self._rules.pending) + waiting
        return Judged(
            told=tuple(map(told_of, found[:TELLS_MAX])),
            hits=tuple(hits[:TELLS_MAX]),
            pending=lines.pending + waiting,
            again=again if again <= LINE_MAX else lines.pending + waiting,
            is_endless=syslog is not None and syslog.is_endless,
        )


class Judge:
    """Judges parts. A stream lives from its `Opening` on until it is forgotten.

    Args:
        matcher: the compiled catalogue.
    """

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._streams: dict[int, _Stream] = {}

    def answer(self, ask: Ask) -> Answer:
        """Judge all parts."""
        for number in ask.forget:
            self._streams.pop(number, None)
        return Answer(parts=tuple(map(self._judge, ask.parts)))

    def _judge(self, part: Part) -> Judged:
        if part.opening is not None:
            self._streams[part.stream] = _Stream(self._matcher, part.opening, part.at)
        return self._streams[part.stream].judge(part.data, part.at)


def serve(judge: Judge, hello: Hello, given: int, taken: int) -> None:
    """Answer until the other end closes.

    Args:
        judge: gives the answers.
        hello: the first frame.
        given: descriptor that questions are read from.
        taken: descriptor that answers are written to.

    Raises:
        WireError: what came is no question.
    """
    frames = codec(is_agent=False)
    _write(taken, frames.pack(hello))
    while head := _read(given, HEAD_BYTES):
        payload = _read(given, min(int.from_bytes(head[:4], "big"), FRAME_MAX))
        _write(taken, frames.pack(judge.answer(frames.unpack(head[4:], payload, Ask))))


def _read(descriptor: int, size: int) -> bytes:
    """So many bytes; fewer when the other end has closed."""
    held = bytearray()
    while len(held) < size and (data := os.read(descriptor, size - len(held))):
        held += data
    return bytes(held)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def main(argv: Sequence[str]) -> int:
    """Be the parser. Returns the exit code."""
    user, memory_mib, *rules = argv
    try:
        matcher = read_matcher(read_catalogue([Path(one) for one in rules]))
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    zone = os.environ.get("TZ")
    os.environ.clear()
    if zone is not None:
        os.environ["TZ"] = zone
    time.tzset()  # its file cannot be opened later
    confined = confine(user, int(memory_mib) << 20)
    serve(Judge(matcher), Hello(digest=matcher.catalogue.digest, confined=confined), 0, 1)
    return 0


if __name__ == "__main__":
    # Nothing is left to clean up, and what an interpreter does at its end is not allowed any more.
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
