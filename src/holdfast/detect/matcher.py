"""From bytes to matches: one Hyperscan pass over each block, a precise regular expression only where it points.

Agents and launchers feed live streams, `holdfast explain` whole files; both get the same matches. A stream keeps
the unfinished last line between feeds and never more than `LINE_MAX` of it. Time comes in with each feed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

import hyperscan
from msgspec import Struct

from holdfast.detect import xid
from holdfast.detect.catalogue import Catalogue, Rule, StreamKind
from holdfast.detect.lines import ANSI, Line, take_apart, without_host, year_of
from holdfast.detect.records import RECORDS, Record
from holdfast.model.evidence import Role

LINE_MAX = 1 << 20
"""Bytes of one unfinished line that are kept; a longer line is judged in pieces."""
OVERLAP = 1024
"""Bytes of a piece that the next piece begins with, so that nothing is cut in two."""
WINDOW = 4096
"""Bytes on either side of a hit that are judged in a very long line."""
TEXT_MAX = 1000
"""Characters of a line that a match keeps."""
OPEN_RECORDS_MAX = 4096
_ROLE_ORDER = {
    Role.BENIGN: 5,
    Role.ROOT: 4,
    Role.CASCADE: 3,
    Role.CHECKPOINT: 2,
    Role.PROGRESS: 1,
    Role.CONTEXT: 0,
}


class StreamSource(Struct, frozen=True, omit_defaults=True):
    """Where a stream of lines comes from. `rank` and `node` hold when its lines do not say otherwise."""

    kind: StreamKind = StreamKind.OUTPUT
    name: str = ""
    node: str = ""
    rank: int | None = None


class ProgressReading(StrEnum):
    """Whether every progress line is read, or only those of sampled blocks (faults never are sampled)."""

    EVERY = "every"
    SAMPLED = "sampled"


class Match(Struct, frozen=True):
    """A line that a rule owns.

    `line_no` counts from 1 and `offset` from 0 in bytes, both over the whole stream. `at` is the line's own time
    read as UTC, when it carries one. `rank` and `node` come from captures, else prefixes, else the source.
    """

    rule: Rule
    line_no: int
    offset: int
    text: str
    captures: dict[str, str]
    rank: int | None = None
    node: str = ""
    at: float | None = None
    seen_at: float = 0.0


class Matcher:
    """The compiled catalogue. Immutable after construction; streams of one thread share it.

    Args:
        catalogue: the rules.
        database: what `compile_database(catalogue)` returned earlier; compiled here when it is None.

    Raises:
        ValueError: `database` is not of this catalogue, this library version or this processor.
    """

    def __init__(self, catalogue: Catalogue, database: bytes | None = None) -> None:
        self.catalogue = catalogue
        self.expressions, self.owners = _expressions(catalogue)
        data = database if database is not None else compile_database(catalogue)
        self.full, self.faults = _load(data, catalogue.digest)
        self.compiled: dict[str, tuple[tuple[re.Pattern[str], ...], tuple[re.Pattern[str], ...]]] = {}

    def stream(self, source: StreamSource, progress: ProgressReading = ProgressReading.EVERY) -> LineStream:
        """A new stream from this source."""
        return LineStream(self, source, progress)

    def patterns(self, rule: Rule) -> tuple[tuple[re.Pattern[str], ...], tuple[re.Pattern[str], ...]]:
        """The rule's patterns and exclusions, compiled on first use."""
        found = self.compiled.get(rule.id)
        if found is None:
            found = self.compiled[rule.id] = (
                tuple(re.compile(pattern, re.ASCII) for pattern in rule.patterns),
                tuple(re.compile(pattern, re.ASCII) for pattern in rule.unless),
            )
        return found

    def judge(self, line: Line, candidates: Iterable[Rule], kind: StreamKind) -> tuple[Rule, dict[str, str]] | None:
        """The rule that owns the line, with its captures; None when no candidate's pattern matches.

        A line that a benign rule matches is nothing else. Otherwise precedence decides, then the role.
        """
        best: tuple[tuple[int, int, int], Rule, dict[str, str]] | None = None
        for rule in candidates:
            if not rule.reads(kind):
                continue
            captures = self.captures(rule, line)
            if captures is None:
                continue
            length = sum(map(len, rule.patterns)) // max(1, len(rule.patterns))
            score = (rule.precedence, _ROLE_ORDER[rule.role], length)
            if best is None or score > best[0]:
                best = (score, rule, captures)
        if best is None:
            return None
        rule, captures = best[1], best[2]
        if rule.decode:
            rule = xid.decoded(self.catalogue, rule, captures)
        return rule, captures

    def captures(self, rule: Rule, line: Line) -> dict[str, str] | None:
        """What the rule's first fitting pattern captures in this line; None when it does not match."""
        patterns, unless = self.patterns(rule)
        for body, host in _readings(line):
            for pattern in patterns:
                if (found := pattern.search(body)) is None:
                    continue
                if any(no.search(body) for no in unless):
                    return None
                captures = {name: value.strip() for name, value in found.groupdict().items() if value}
                if host and "node" not in captures:
                    captures["node"] = host
                return captures
        return None


class LineStream:
    """One source's lines on their way through the matcher. Not for use from two threads.

    Attributes:
        line_no: lines completed so far.
        offset: bytes consumed so far, the unfinished line included.
        pending: bytes of the unfinished line.
        records: open multi-line records by writer; the block reader's, not the caller's.
    """

    def __init__(self, matcher: Matcher, source: StreamSource, progress: ProgressReading) -> None:
        self.matcher = matcher
        self.source = source
        self.line_no = 0
        self.offset = 0
        self._carry = b""
        self._overlap = 0
        self.records: dict[str, list[tuple[Record, Rule]]] = {}
        self._sampled = progress is ProgressReading.SAMPLED
        self._blocks = 0
        self._unread: tuple[bytes, int, int] | None = None
        self._long_line_rules: set[str] = set()

    @property
    def pending(self) -> int:
        """Bytes of the unfinished last line."""
        return len(self._carry)

    def feed(self, data: bytes, at: float) -> list[Match]:
        """Take the next bytes of the stream; matches of all lines that are now complete.

        Args:
            data: any number of bytes, cut anywhere.
            at: when they were seen, Unix seconds; also gives the year to stamps without one.
        """
        self.offset += len(data)
        buffer = self._carry + data if self._carry else data
        cut = max(buffer.rfind(b"\n"), buffer.rfind(b"\r")) + 1
        if not cut:
            if len(buffer) <= LINE_MAX:
                self._carry = buffer
                return []
            return self._piece(buffer, at)
        self._carry = buffer[cut:]
        block = buffer if cut == len(buffer) else buffer[:cut]
        base = self.offset - len(buffer)
        matches = self._scan(block, base, at)
        if len(self._carry) > LINE_MAX:
            matches += self._piece(self._carry, at)
        return matches

    def flush(self, at: float) -> list[Match]:
        """The stream has ended or rests: judge the unfinished line and close open records."""
        matches: list[Match] = []
        if self._carry:
            block, self._carry = self._carry, b""
            matches = self._scan(block, self.offset - len(block), at)
        if self._unread is not None:
            block, base, line_no = self._unread
            self._unread = None
            matches = self._progress_of(block, base, line_no, at) + matches
        self.records.clear()
        return matches

    def _piece(self, buffer: bytes, at: float) -> list[Match]:
        """A stretch of a line that is too long to keep: judged now, its end kept as overlap."""
        matches = self._scan(buffer, self.offset - len(buffer), at)
        self._carry = buffer[-OVERLAP:]
        self._overlap = OVERLAP
        return matches

    def _scan(self, block: bytes, base: int, at: float) -> list[Match]:
        overlap, self._overlap = self._overlap, 0
        self._blocks += 1
        sampled_out = self._sampled and self._blocks % SAMPLE_EVERY != 1
        database = self.matcher.faults if sampled_out else self.matcher.full
        if sampled_out:
            self._unread = (block, base, self.line_no)
        clean = ANSI.sub(b"", block) if b"\x1b" in block else block
        hits = _hits(database, clean, overlap if clean is block else 0)
        first_line = self.line_no
        self.line_no += clean.count(b"\n")
        if not hits and not self.records:
            return []
        matches = _BlockReader(self, clean, base, first_line, at).read(hits)
        if not block.endswith((b"\n", b"\r")):
            matches = [m for m in matches if m.rule.id not in self._long_line_rules]
            self._long_line_rules.update(m.rule.id for m in matches)
        elif self._long_line_rules:
            self._long_line_rules = set()
        return matches

    def _progress_of(self, block: bytes, base: int, line_no: int, at: float) -> list[Match]:
        """The progress lines at the end of a block that only faults were looked for in."""
        start = block.rfind(b"\n", 0, max(0, len(block) - TAIL)) + 1
        tail = block[start:]
        clean = ANSI.sub(b"", tail) if b"\x1b" in tail else tail
        hits = _hits(self.matcher.full, clean, 0)
        reader = _BlockReader(self, clean, base + start, line_no + block.count(b"\n", 0, start), at)
        return [match for match in reader.read(hits, records=False) if match.rule.role is Role.PROGRESS]


SAMPLE_EVERY = 16
"""With sampled progress, every so-manieth block is read for progress too, and the stream's end always."""
TAIL = 1 << 16
"""Bytes at the end of a stream that are always read for progress."""


class _BlockReader:
    """Turns the hits of one block into matches, and walks the lines that belong to open records."""

    def __init__(self, stream: LineStream, block: bytes, base: int, line_no: int, at: float) -> None:
        self.stream = stream
        self.matcher = stream.matcher
        self.block = block
        self.base = base
        self.at = at
        self.year = year_of(at)
        self.has_cr = b"\r" in block
        self.counted = 0
        self.line_no = line_no + 1
        self.matches: list[Match] = []

    def read(self, hits: list[tuple[int, int]], *, records: bool = True) -> list[Match]:
        """All matches, in order. `hits` are (end, expression) in rising order."""
        owners = self.matcher.owners
        done = 0
        index = 0
        while index < len(hits):
            start, end = self.bounds(hits[index][0])
            candidates: dict[str, Rule] = {}
            while index < len(hits) and hits[index][0] <= end:
                for rule in owners[hits[index][1]]:
                    candidates[rule.id] = rule
                index += 1
            if records and self.stream.records:
                self.walk(done, start)
            self.line(start, end, hits[index - 1][0], candidates.values(), records=records)
            done = end
        if records and self.stream.records:
            self.walk(done, len(self.block))
        return self.matches

    def bounds(self, end_of_hit: int) -> tuple[int, int]:
        """Start and end (without its newline) of the line that holds the byte before this place."""
        block = self.block
        start = block.rfind(b"\n", 0, end_of_hit - 1) + 1
        end = block.find(b"\n", end_of_hit - 1)
        if end < 0:
            end = len(block)
        if self.has_cr:
            start = max(start, block.rfind(b"\r", start, end_of_hit - 1) + 1)
            cr = block.find(b"\r", end_of_hit - 1, end)
            end = cr if cr >= 0 else end
        return start, end

    def walk(self, start: int, stop: int) -> None:
        """Offer each line between two places to the open records."""
        position = start
        if position and self.block[position : position + 1] in {b"\n", b"\r"}:
            position += 1
        while position < stop and self.stream.records:
            _, end = self.bounds(position + 1)
            if end > position:
                self.line(position, end, end, (), records=True)
            position = end + 1

    def line(self, start: int, end: int, hit: int, candidates: Iterable[Rule], *, records: bool) -> None:
        """Judge one line: by the rules that Hyperscan pointed at, and as part of a record."""
        low, high = (start, end) if end - start <= 2 * WINDOW else (max(start, hit - WINDOW), min(end, hit + WINDOW))
        text = self.block[low:high].decode("utf-8", "replace")
        line = take_apart(text, self.year)
        judged = self.matcher.judge(line, candidates, self.stream.source.kind) if candidates else None
        if records and self.stream.records:
            ended = self.offer(line)
            if ended is not None:
                record, rule = ended
                judged = _joined(judged, record, rule, self.matcher.catalogue)
        if judged is None:
            return
        rule, captures = judged
        if rule.record:
            if records:
                self.open(rule, line, captures)
            return
        self.emit(rule, captures, line, text, start)

    def offer(self, line: Line) -> tuple[Record, Rule] | None:
        """Give the line to the newest record of its writer; the record when this line ends it."""
        opened = self.stream.records.get(line.key)
        if not opened:
            return None
        record, rule = opened[-1]
        ended = record.offer(line)
        if record.complete:
            opened.pop()
            if not opened:
                del self.stream.records[line.key]
        return (record, rule) if ended else None

    def open(self, rule: Rule, line: Line, captures: Mapping[str, str]) -> None:
        records = self.stream.records
        if len(records) >= OPEN_RECORDS_MAX:
            return
        record = RECORDS[rule.record](rule.id, line.key, line.rank)
        record.captures.update(captures)
        records.setdefault(line.key, []).append((record, rule))

    def emit(self, rule: Rule, captures: dict[str, str], line: Line, text: str, start: int) -> None:
        self.line_no += self.block.count(b"\n", self.counted, start)
        self.counted = start
        source = self.stream.source
        rank = line.rank if line.rank is not None else source.rank
        if (captured := captures.get("rank", "")).isdigit():
            rank = int(captured)
        node = captures.get("node") or line.node or source.node
        self.matches.append(
            Match(rule, self.line_no, self.base + start, text[:TEXT_MAX], captures, rank, node, line.at, self.at)
        )


def _joined(
    judged: tuple[Rule, dict[str, str]] | None, record: Record, opener: Rule, catalogue: Catalogue
) -> tuple[Rule, dict[str, str]] | None:
    """A record's captures joined to what its last line is by itself."""
    if judged is not None:
        rule, captures = judged
        return rule, record.captures | captures
    whole = catalogue.find(f"{opener.id}.whole")
    return (whole, record.captures) if whole is not None else None


def _readings(line: Line) -> list[tuple[str, str]]:
    """The line's body, and its body without a pdsh host, with that host."""
    rest, host = without_host(line.body)
    return [(line.body, ""), (rest, host)] if host else [(line.body, "")]


# --- the compiled database --------------------------------------------------------------------------------------------


def _expressions(catalogue: Catalogue) -> tuple[list[str], list[tuple[Rule, ...]]]:
    """Distinct cores, and the rules that each one points at."""
    owners: dict[str, list[Rule]] = {}
    for rule in catalogue.scanned:
        for text in rule.cores:
            owners.setdefault(text, []).append(rule)
    return list(owners), [tuple(rules) for rules in owners.values()]


def compile_database(catalogue: Catalogue) -> bytes:
    """Both Hyperscan databases (everything; everything but progress) as bytes that `Matcher` takes.

    Raises:
        ValueError: Hyperscan refuses an expression; the rule's id, file and line are named.
    """
    expressions, owners = _expressions(catalogue)
    everything = list(range(len(expressions)))
    faults = [i for i in everything if any(rule.role is not Role.PROGRESS for rule in owners[i])]
    parts = [_compile(expressions, chosen, owners) for chosen in (everything, faults)]
    head = catalogue.digest.encode() + b"\n"
    return head + len(parts[0]).to_bytes(8, "little") + parts[0] + parts[1]


def _compile(expressions: list[str], chosen: list[int], owners: list[tuple[Rule, ...]]) -> bytes:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    texts = [expressions[i].encode() for i in chosen]
    if not texts:
        texts, chosen = [rb"\x00\x01\x02holdfast: no rules\x02\x01\x00"], [0]
    try:
        database.compile(expressions=texts, ids=chosen, flags=[0] * len(texts))
    except hyperscan.error as error:
        culprit = _culprit(expressions, chosen, owners)
        raise ValueError(f"{culprit}: Hyperscan refuses it: {error}") from error
    return bytes(hyperscan.dumpb(database))


def _culprit(expressions: list[str], chosen: list[int], owners: list[tuple[Rule, ...]]) -> str:
    for i in chosen:
        try:
            hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK).compile(
                expressions=[expressions[i].encode()], ids=[i], flags=[0]
            )
        except hyperscan.error:
            rule = owners[i][0]
            return f'{rule.file}:{rule.at_line}: rule "{rule.id}", core {expressions[i]}'
    return "the catalogue as a whole"


def _load(data: bytes, digest: str) -> tuple[hyperscan.Database, hyperscan.Database]:
    head = digest.encode() + b"\n"
    if not data.startswith(head):
        raise ValueError("the compiled database is of another catalogue")
    size = int.from_bytes(data[len(head) : len(head) + 8], "little")
    body = data[len(head) + 8 :]
    try:
        databases = tuple(hyperscan.loadb(part, mode=hyperscan.HS_MODE_BLOCK) for part in (body[:size], body[size:]))
        for database in databases:
            database.scratch = hyperscan.Scratch(database)
    except (hyperscan.error, ValueError) as error:
        raise ValueError(f"the compiled database does not fit this machine: {error}") from error
    return databases[0], databases[1]


def _hits(database: hyperscan.Database, block: bytes, overlap: int) -> list[tuple[int, int]]:
    """(end, expression) of everything that Hyperscan sees, in order of place."""
    hits: list[tuple[int, int]] = []
    append = hits.append

    def on_match(expression: int, _start: int, end: int, _flags: int, _context: object) -> None:
        append((end, expression))

    with contextlib.suppress(hyperscan.ScanTerminated):
        database.scan(block, match_event_handler=on_match)
    if overlap:
        hits = [hit for hit in hits if hit[0] > overlap]
    return hits
