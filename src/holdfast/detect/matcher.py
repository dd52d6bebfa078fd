"""From bytes to matches: one Hyperscan pass over each block, a precise regular expression only where it points.

Agents and launchers feed live streams, `holdfast explain` whole files; both get the same matches. A stream keeps
the unfinished last line between feeds and never more than `LINE_MAX` of it. Time comes in with each feed.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.detect import database as database_of
from holdfast.detect import xid
from holdfast.detect.catalogue import UNNAMED, Catalogue, Rule, StreamKind
from holdfast.detect.colours import Uncoloured
from holdfast.detect.kernel_words import own_part
from holdfast.detect.lines import LearnedPrefixes, Line, place_number, readings, take_apart, year_of
from holdfast.detect.records import RECORDS, Record, joined
from holdfast.detect.search import Found, Search, numbers_of, plain
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
SLURM_STAMP = "CANCELLED AT "
"""Slurm's time of the end of a job stands inside the line."""
NEARBY_LINES = 60
"""How far back a time is looked for when a fault's own line has none."""
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
    node: str = ""
    rank: int | None = None


class Match(Struct, frozen=True):
    """A line that a rule owns.

    `line_no` counts from 1 (0 in a stream that is not numbered) and `offset` from 0 in bytes, both over the whole
    stream. `at` is the line's own time read as UTC, when it carries one; for faults else that of a line shortly before.
    `rank` and `node` come from captures, else prefixes, else the source. In a large block, many progress lines of one
    rule are folded into its last one: `count` tells how many, `numbers` their steps (or losses, where the line has no
    step), in order.
    """

    rule: Rule
    line_no: int
    offset: int
    text: str
    captures: dict[str, str]
    rank: int | None = None
    node: str = ""
    at: float | None = None
    count: int = 1
    numbers: tuple[float, ...] = ()


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
        self.expressions, self.owners = database_of.expressions(catalogue)
        data = database if database is not None else database_of.compile_database(catalogue)
        self.databases = database_of.load(data, catalogue.digest)
        self.quick = {
            number: rules[0] for number, rules in enumerate(self.owners) if len(rules) == 1 and rules[0].quick_after
        }
        finders = database_of.number_finders(self.expressions, self.owners)
        self.finders = {number: re.compile(text.encode("latin-1")) for number, text in finders.items()}
        self.compiled: dict[str, tuple[tuple[re.Pattern[str], ...], tuple[re.Pattern[str], ...]]] = {}

    def stream(self, source: StreamSource, *, sampled: bool = False, numbered: bool = True) -> LineStream:
        """A new stream from this source.

        Args:
            source: where the lines come from.
            sampled: progress is read only from samples of the blocks and from the end; faults always from all.
            numbered: False leaves out the counting of lines, which costs about as much as the search itself.
        """
        return LineStream(self, source, sampled=sampled, numbered=numbered)

    def unnamed(
        self, source: StreamSource, end: bytes, offset: int, at: float, *, lines_before: int | None = None
    ) -> list[Match]:
        """The errors that no rule names among the lines at the end of a log.

        Args:
            source: where the lines come from.
            end: the log's last bytes, from the begin of a line.
            offset: where they begin in the log.
            at: as for `LineStream.feed`.
            lines_before: how many lines stand before them; None leaves the matches without numbers.
        """
        stream = LineStream(self, source, sampled=False, numbered=lines_before is not None)
        stream.everything, stream.offset, stream.line_no = True, offset, lines_before or 0
        # A traceback that goes on to the end was the whole stream's to tell.
        return [m for m in stream.feed(end + b"\n", at) if m.rule.kind == UNNAMED]

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
        until = own_part(line.body) if kind is StreamKind.KERNEL else None
        for rule in candidates:
            if rule.remark or not rule.reads(kind):
                continue
            captures = self.captures(rule, line, until)
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

    def captures(self, rule: Rule, line: Line, until: int | None = None) -> dict[str, str] | None:
        """What the rule's first fitting pattern captures in this line; None when it does not match.

        Args:
            rule: the rule.
            line: the line.
            until: a match begins before this place in the line's body; None: anywhere.
        """
        for body, host in readings(line):
            last = len(body) + 1 if until is None else until - len(line.body) + len(body)
            if (found := self._search(rule, body, last)) is not None:
                return found if not host else {"node": host, **found}
        return None

    def _search(self, rule: Rule, body: str, last: int) -> dict[str, str] | None:
        patterns, unless = self.patterns(rule)
        for pattern in patterns:
            if (found := pattern.search(body)) is None or found.start() >= last:
                continue
            for no in unless:
                if no.search(body):
                    return None
            return {name: value.strip() for name, value in found.groupdict().items() if value}
        return None


class LineStream:
    """One source's lines on their way through the matcher. Not for use from two threads.

    Attributes:
        line_no: lines completed so far (0 when not numbered).
        offset: bytes consumed so far, the unfinished line included.
        pending: bytes of the unfinished line.
        records: open multi-line records by writer; the block reader's, not the caller's.
        year: the last one that a stamp carried, for stamps without; 0 before the first.
        search: where the cores match in a block.
        coloured: whether colour codes were seen in it, so that they are taken out before a search.
        blocks: how many were judged so far.
        everything: whether rules are asked, too, that know an error by its severity word alone.
        sampled: whether only a sample of the blocks is read for progress.
        ending: whether what is fed from now on holds the end of the stream, which is read in full.
        allowance: how many more hits are judged before a flood is thinned.
        walks: how many more lines are offered to open records before these are given up.
        flooding: the expressions that the last thinned block held.
    """

    def __init__(self, matcher: Matcher, source: StreamSource, *, sampled: bool, numbered: bool) -> None:
        self.matcher = matcher
        self.source = source
        self.numbered = numbered
        self.line_no = 0
        self.offset = 0
        self.records: dict[str, list[tuple[Record, Rule, Match]]] = {}
        self.year = 0
        self.learned = LearnedPrefixes()
        self.search = Search(matcher.databases, matcher.finders)
        self.coloured = False
        self.everything = False
        self.sampled = sampled
        self.ending = False
        self.allowance = float(JUDGED_FIRST)
        self.walks = float(WALKED_FIRST)
        self.flooding: frozenset[int] = frozenset()
        self._given_up: list[Match] = []
        self._carry = b""
        self._overlap = 0
        self.blocks = 0
        self._unread: deque[_Unread] = deque()
        self._watched = 0
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
        base = self.offset
        self.offset += len(data)
        cut = data.rfind(b"\n") + 1
        cut = max(cut, data.rfind(b"\r", cut) + 1)
        if not cut:
            self._carry += data
            return self._piece(at) if len(self._carry) > LINE_MAX else []
        matches: list[Match] = []
        start = 0
        if self._carry:
            # Only the torn line is put together; the rest of the bytes is judged where it lies.
            start = _line_end(data)
            torn, self._carry = self._carry + data[:start], b""
            matches = self._scan(torn, 0, len(torn), self.offset - len(data) + start - len(torn), at)
        if start < cut:
            matches += self._scan(data, start, cut, base, at)
        self._carry = data[cut:]
        if len(self._carry) > LINE_MAX:
            matches += self._piece(at)
        return matches

    def flush(self, at: float) -> list[Match]:
        """The stream has ended or rests: judge the unfinished line and forget open records."""
        matches: list[Match] = []
        if self._carry:
            block, self._carry = self._carry, b""
            matches = self._scan(block, 0, len(block), self.offset - len(block), at)
        if self._unread:
            matches = sorted([*matches, *self._progress_unread(at)], key=_place)
        self.give_up()
        given_up, self._given_up = self._given_up, []
        return matches + given_up

    def give_up(self) -> None:
        """Offer no more lines to the open records; tracebacks that have no end are told when the stream ends."""
        opened = [(match, rule) for records in self.records.values() for _, rule, match in records]
        told = [match for match, opener in opened if match.rule.id == opener.unfinished]
        self._given_up += told[: OPEN_RECORDS_MAX - len(self._given_up)]
        self.records.clear()

    def _piece(self, at: float) -> list[Match]:
        """A stretch of a line that is too long to keep: judged now, its end kept as overlap."""
        buffer = self._carry
        matches = self._scan(buffer, 0, len(buffer), self.offset - len(buffer), at)
        self._carry = buffer[-OVERLAP:]
        self._overlap = OVERLAP
        return matches

    def _scan(self, block: bytes, start: int, stop: int, base: int, at: float) -> list[Match]:
        """Judge `block[start:stop]`; `base` is the offset in the stream of the block's first byte."""
        overlap, self._overlap = self._overlap, 0
        self.blocks += 1
        self.learned.show(block, start, stop)
        full = not self.sampled or self.ending or self._watched > 0 or self.blocks % SAMPLE_EVERY == 1
        here = _Unread(block, start, stop, base, self.line_no)
        reader = BlockReader(self, block, start, stop, base, at, full=full)
        self.line_no += reader.line_count
        matches = reader.read(after=overlap)
        if block[stop - 1 : stop] not in {b"\n", b"\r"}:
            matches = [m for m in matches if m.rule.id not in self._long_line_rules]
            self._long_line_rules.update(m.rule.id for m in matches)
        elif self._long_line_rules:
            self._long_line_rules = set()
        return self._beside_steps(matches, here, at, full=full) if self.sampled else matches

    def _beside_steps(self, matches: list[Match], here: _Unread, at: float, *, full: bool) -> list[Match]:
        """The matches of a block of which progress is sampled, with the steps that they are judged by.

        Steps before and after an error tell whether the job lived through it. So a block that holds more than steps and
        checkpoints is read for progress whatever the samples are, the end of the blocks before it too, and the blocks
        after it until `WATCHED_STEPS` lines of progress were seen.
        """
        if any(match.rule.role is not Role.PROGRESS and match.rule.kind != "checkpoint-saved" for match in matches):
            before = self._progress_unread(at)
            if not full:
                matches = sorted([*matches, *self._progress(here, here.start, at)], key=_place)
            self._watched = WATCHED_STEPS
            return before + matches
        if full:
            self._watched -= min(self._watched, sum(m.count for m in matches if m.rule.role is Role.PROGRESS))
            self._unread.clear()
        else:
            self._unread.append(here)
            while sum(block.size for block in self._unread) - self._unread[0].size >= TAIL:
                self._unread.popleft()
        return matches

    def _progress_unread(self, at: float) -> list[Match]:
        """The progress lines in the last `TAIL` bytes of the blocks that were not read for progress."""
        left, matches = TAIL, []
        for unread in reversed(self._unread):
            start = max(unread.start, unread.block.rfind(b"\n", 0, max(0, unread.stop - left)) + 1)
            matches.append(self._progress(unread, start, at))
            left -= unread.stop - start
        self._unread.clear()
        return [match for found in reversed(matches) for match in found]

    def _progress(self, unread: _Unread, start: int, at: float) -> list[Match]:
        """The progress lines of a block from this place on."""
        reader = BlockReader(self, unread.block, start, unread.stop, unread.base, at, full=True)
        reader.many = FOLD_MIN_UNREAD
        before = unread.block.count(b"\n", unread.start, start) if self.numbered else 0
        reader.line_no = reader.stream_line = unread.line_no + 1 + before
        return [match for match in reader.read(records=False) if match.rule.role is Role.PROGRESS]


class _Unread(Struct, frozen=True):
    """A block whose progress was not read: `block[start:stop]`, after `line_no` lines of the stream."""

    block: bytes
    start: int
    stop: int
    base: int
    line_no: int

    @property
    def size(self) -> int:
        return self.stop - self.start


def _place(match: Match) -> int:
    return match.offset


WATCHED_STEPS = 1000
"""Lines of progress that are read after anything that they may prove to be survived: several times of what is asked."""
SAMPLE_EVERY = 32
"""With sampled progress, every so-manieth block is read for progress too, and the stream's end always."""
TAIL = 1 << 16
"""Bytes at the end of a stream that are always read for progress."""
JUDGED_FIRST = 8192
"""Of a stream so many hits are judged one by one, whatever they are."""
JUDGED_PER_MIB = 64
"""After these, hits are thinned that come more often, each expression's to its first and last ones in the block."""
ROTATED_MAX = 16
"""Of a flood of many expressions, each is judged in one of so many blocks at the least."""
ROTATED_MIN = 1 << 14
"""Bytes of a block below which nothing is left to other blocks."""
WALKED_FIRST = 1 << 16
"""Of a stream so many lines are offered to open records, whatever they are."""
WALKED_PER_MIB = 512
"""After these, so many lines of each MiB."""
FOLD_MIN = 64
"""So many progress lines of one rule in one block are folded into one match."""
FOLD_MIN_UNREAD = 16
"""The same where the end of an unread block is read for progress."""


def _share(counts: list[int], allowed: int) -> int:
    """The most that each may keep of these rising numbers so that no more than `allowed` are kept; 2 at the least."""
    for index, count in enumerate(counts):
        each = allowed // (len(counts) - index)
        if count > each:
            return max(2, each)
        allowed -= count
    return max(2, allowed)


def _line_end(data: bytes) -> int:
    """Where the first line ends, its newline or carriage return included."""
    newline = data.find(b"\n")
    carriage = data.find(b"\r", 0, newline if newline >= 0 else len(data))
    return (carriage if carriage >= 0 else newline) + 1


class BlockReader:
    """Turns what Hyperscan sees in one block into matches, and walks the lines that belong to open records."""

    def __init__(
        self, stream: LineStream, block: bytes, start: int, stop: int, base: int, at: float, *, full: bool
    ) -> None:
        self.stream = stream
        self.matcher = stream.matcher
        self.full = full
        self.many = FOLD_MIN
        self.uncoloured: Uncoloured | None = None
        self.block = block
        self.start = start
        self.stop = stop
        self.base = base
        # Counted once: it takes as long as a third of the search.
        self.line_count = block.count(b"\n", start, stop) if stream.numbered else 0
        if stream.coloured:
            self.without_colours()
        self.year = stream.year or year_of(at)
        self.has_cr = False
        self.counted = self.start
        self.line_no = self.stream_line = stream.line_no + 1
        self.matches: list[Match] = []
        self.nearby_place = -1
        self.nearby_at: float | None = None

    def without_colours(self) -> bool:
        """Take colour codes out; whether there are any."""
        if self.uncoloured is not None or self.block.find(b"\x1b", self.start, self.stop) < 0:
            return False
        self.stream.coloured = True
        self.uncoloured = Uncoloured(self.block[self.start : self.stop])
        self.block, self.base = self.uncoloured.text, self.base + self.start
        self.start, self.stop = 0, len(self.block)
        self.counted = 0
        return True

    def sought(self, after: int) -> Found:
        """What the search finds."""
        block, start, stop = self.block, self.start, self.stop
        search, databases = self.stream.search, self.matcher.databases
        if self.stream.everything:
            return Found(database_of.all_hits(databases, memoryview(block)[start:stop]), {})
        if after:
            return Found(plain(databases, block, start, stop, progress=self.full), {})
        tail = TAIL if self.stream.ending else 0
        return search.read(block, start, stop, progress=self.full, many=self.many, tail=tail)

    def read(self, *, records: bool = True, after: int = 0) -> list[Match]:
        """All matches, in order of place.

        Args:
            records: whether multi-line records are opened and continued.
            after: hits that end before this many bytes were seen already.
        """
        sought = self.sought(after)
        if self.without_colours():
            sought = self.sought(after)
        first, found = self.start, sought.ends
        stream, size = self.stream, self.stop - self.start
        stream.allowance = min(JUDGED_FIRST, stream.allowance + JUDGED_PER_MIB * size / (1 << 20))
        stream.walks = min(WALKED_FIRST, stream.walks + WALKED_PER_MIB * size / (1 << 20))
        if not found and not sought.numbers and not (records and self.stream.records):
            return []
        self.has_cr = self.block.find(b"\r", first, self.stop) >= 0
        self.calm(found)
        quick = self.matcher.quick
        self.thin(found, [number for number in found if number not in quick], rotate=size >= ROTATED_MIN)
        folded = self.fold(sought) if not after else []
        self.thin(found, [number for number in found if number in quick], rotate=False)
        places = sorted((end + first, number) for number, ends in found.items() for end in ends if end > after)
        self.lines(places, records=records)
        return sorted(self.matches + folded, key=_place) if folded else self.matches

    def fold(self, sought: Found) -> list[Match]:
        """Take progress rules with very many lines out of what was found: their numbers are read in one go.

        A fold ends where a line of another kind stands: which steps came before an error is never lost.
        """
        folded: list[Match] = []
        many = [n for n in self.matcher.quick if n in sought.numbers or len(sought.ends.get(n, ())) >= self.many]
        cuts = self.cuts(sought.ends) if many else []
        for number in many:
            rule = self.matcher.quick[number]
            if not rule.reads(self.stream.source.kind):
                sought.numbers.pop(number, None)
                continue
            pieces, left = self.pieces(sought, number, rule, cuts)
            for texts, ends in pieces:
                match = self.folded(rule, numbers_of(texts), ends[-1])
                if match is None:
                    left += ends if len(ends) == len(texts) else self.ends_of(number)
                else:
                    folded.append(match)
            if left:
                sought.ends[number] = sorted(left)
        return folded

    def ends_of(self, number: int) -> list[int]:
        """Where the matches of a progress rule's expression end in the block."""
        places = self.matcher.finders[number].finditer(self.block, self.start, self.stop)
        return [found.end() - self.start for found in places]

    def cuts(self, found: Mapping[int, list[int]]) -> list[tuple[int, int]]:
        """Begin and end of each line of the block that another rule than one of progress may own, in order."""
        owners = self.matcher.owners
        others = {end for n, ends in found.items() if owners[n][0].role is not Role.PROGRESS for end in ends}
        lines = {self.bounds(end + self.start) for end in others}
        return sorted((start - self.start, stop - self.start) for start, stop in lines)

    def pieces(
        self, sought: Found, number: int, rule: Rule, cuts: list[tuple[int, int]]
    ) -> tuple[list[tuple[list[bytes], list[int]]], list[int]]:
        """A progress rule's lines, taken out of what was found: numbers and ends of each fold, and ends left over.

        Where nothing cuts the fold in two, the end of its last hit may stand for all of them.
        """
        numbers = sought.numbers.pop(number, None)
        if numbers is not None and not cuts:
            return [(numbers[0], [numbers[1]])], []
        if numbers is not None:
            found = list(self.matcher.finders[number].finditer(self.block, self.start, self.stop))
            texts, ends = [hit[1] for hit in found], [hit.end() - self.start for hit in found]
        else:
            ends = sought.ends.pop(number)
            texts = self.texts_before(ends, rule.quick_after.encode())
        pieces: list[tuple[list[bytes], list[int]]] = []
        left: list[int] = []
        done = 0
        for start, stop in [*cuts, (len(self.block), len(self.block))]:
            # A core may end with the newline itself, which still belongs to its line.
            begin, end = bisect_right(ends, start + 1, done), bisect_right(ends, stop + 1, done)
            if begin > done:
                pieces.append((texts[done:begin], ends[done:begin]))
            left += ends[begin:end]
            done = end
        return pieces, left

    def texts_before(self, ends: list[int], after: bytes) -> list[bytes]:
        """What stands between the last `after` and the byte before each end."""
        block, first, rfind = self.block, self.start, self.block.rfind
        return [block[rfind(after, 0, end + first - 1) + 1 : end + first - 1] for end in ends]

    def folded(self, rule: Rule, numbers: tuple[float, ...], last: int) -> Match | None:
        """One match for many lines, of which the last ends its hit there; None when the rule does not own that one."""
        if not numbers:
            return None
        block = self.block
        start, stop = self.bounds(last + self.start)
        line = take_apart(block[start:stop][: 2 * WINDOW].decode("utf-8", "replace"), self.year)
        if line.year is not None:
            self.year = self.stream.year = line.year
        captures = self.matcher.captures(rule, line)
        if captures is None:
            return None
        line_no = 0
        if self.stream.numbered:
            line_no = self.line_no + self.line_count - block.count(b"\n", start, self.stop)
        return Match(
            rule,
            line_no,
            self.base + start,
            line.body[:TEXT_MAX],
            captures,
            line.rank if line.rank is not None else self.stream.source.rank,
            line.node or self.stream.source.node,
            line.at,
            len(numbers),
            numbers,
        )

    def calm(self, found: dict[int, list[int]]) -> None:
        """Take out of `found` what says nothing when it comes dozens of times: benign lines, errors without a name."""
        for number in [number for number, ends in found.items() if len(ends) >= FOLD_MIN]:
            ends = found[number]
            owners = self.matcher.owners[number]
            if all(rule.role is Role.BENIGN and rule.kind not in {"completed", UNNAMED} for rule in owners):
                del found[number]
            elif all(rule.kind == UNNAMED for rule in owners):
                found[number] = ends[-FOLD_MIN:]

    def thin(self, found: dict[int, list[int]], numbers: list[int], *, rotate: bool) -> None:
        """Bound the lines that are judged for these expressions: a flood says no more than its first and last lines do.

        Rare expressions keep all their hits, the others the same number each, half of it from either end of the block.
        Where that is too many still, each expression that the last thinned block held, too, is judged in some of the
        blocks, in turns. Where the log ends, its last `TAIL` bytes are judged in full.
        """
        stream, size = self.stream, self.stop - self.start
        counts = sorted(len(found[number]) for number in numbers)
        if sum(counts) <= stream.allowance:
            stream.allowance -= sum(counts)
            return
        share = _share(counts, int(stream.allowance))
        exact = size - TAIL if stream.ending else size
        late = self.rotated(numbers) if rotate and not stream.ending else set()
        for number in numbers:
            ends = found[number]
            if number in late:
                del found[number]
            elif len(ends) > share:
                last = min(bisect_left(ends, exact), len(ends) - share // 2)
                found[number] = ends[: min(share - share // 2, last)] + ends[last:]
        stream.allowance = max(0.0, stream.allowance - share * (len(numbers) - len(late)))

    def rotated(self, numbers: list[int]) -> set[int]:
        """The expressions of a lasting flood that this block is not judged for; others are in the next one."""
        stream = self.stream
        known, stream.flooding = stream.flooding & set(numbers), frozenset(numbers)
        turns = min(ROTATED_MAX, 2 * len(known) // JUDGED_PER_MIB)
        return {number for number in known if (number + stream.blocks) % turns} if turns > 1 else set()

    def lines(self, places: list[tuple[int, int]], *, records: bool) -> None:
        """Judge each line that was pointed at once, with all rules that point at it."""
        owners = self.matcher.owners
        done = self.start
        index = 0
        while index < len(places):
            start, end = self.bounds(places[index][0])
            candidates: dict[str, Rule] = {}
            # A core may end with the newline itself, which still belongs to its line.
            while index < len(places) and places[index][0] <= end + 1:
                for rule in owners[places[index][1]]:
                    candidates[rule.id] = rule
                index += 1
            if records and self.stream.records:
                self.walk(done, start)
            self.line(start, end, places[index - 1][0], candidates.values(), records=records)
            done = end
        if records and self.stream.records:
            self.walk(done, self.stop)

    def bounds(self, end_of_hit: int) -> tuple[int, int]:
        """Start and end (without its newline) of the line that holds the byte before this place."""
        block = self.block
        start = max(block.rfind(b"\n", self.start, end_of_hit - 1) + 1, self.start)
        end = block.find(b"\n", end_of_hit - 1, self.stop)
        if end < 0:
            end = self.stop
        if self.has_cr:
            start = max(start, block.rfind(b"\r", start, end_of_hit - 1) + 1)
            cr = block.find(b"\r", end_of_hit - 1, end)
            end = cr if cr >= 0 else end
        return start, end

    def walk(self, start: int, stop: int) -> None:
        """Offer each line between two places to the open records."""
        position = start
        if position > self.start and self.block[position : position + 1] in {b"\n", b"\r"}:
            position += 1
        while position < stop and self.stream.records:
            if self.stream.walks <= 0 and not self.stream.ending:
                self.stream.give_up()
                return
            self.stream.walks -= 1
            _, end = self.bounds(position + 1)
            if end > position:
                self.line(position, end, end, (), records=True)
            position = end + 1

    def line(self, start: int, end: int, hit: int, candidates: Iterable[Rule], *, records: bool) -> None:
        """Judge one line: by the rules that Hyperscan pointed at, and as part of a record."""
        low, high = (start, end) if end - start <= 2 * WINDOW else (max(start, hit - WINDOW), min(end, hit + WINDOW))
        text = self.block[low:high].decode("utf-8", "replace")
        line = take_apart(text, self.year, self.stream.learned)
        if line.year is not None:
            self.year = self.stream.year = line.year
        judged = self.matcher.judge(line, candidates, self.stream.source.kind) if candidates else None
        for remark in candidates:
            if remark.remark and (said := self.matcher.captures(remark, line)) is not None:
                self.emit(remark, said, line, text, start)
        if records and self.stream.records:
            ended = self.offer(line)
            if ended is not None:
                record, rule = ended
                judged = joined(judged, record, rule, self.matcher.catalogue)
        if judged is None:
            return
        rule, captures = judged
        if rule.record:
            if records:
                # Should its end be missing, its first line is all that tells of it.
                begun = self.matcher.catalogue.get(rule.unfinished) if rule.unfinished else rule
                self.emit(begun, {}, line, text, start)
                self.open(rule, line, captures, self.matches.pop())
            return
        self.emit(rule, captures, line, text, start)

    def offer(self, line: Line) -> tuple[Record, Rule] | None:
        """Give the line to the newest record of its writer; the record when this line ends it."""
        key = line.key
        opened = self.stream.records.get(key)
        if not opened and line.body.lstrip().startswith("NVRM:"):
            # journalctl prints the later lines of a kernel message without host and time.
            key, opened = next(reversed(self.stream.records.items()), ("", None))
        if not opened:
            return None
        record, rule, _ = opened[-1]
        ended = record.offer(line)
        if record.complete:
            opened.pop()
            if not opened:
                del self.stream.records[key]
        return (record, rule) if ended else None

    def open(self, rule: Rule, line: Line, captures: Mapping[str, str], began: Match) -> None:
        """Begin the record whose first line this is."""
        records = self.stream.records
        if len(records) >= OPEN_RECORDS_MAX:
            return
        record = RECORDS[rule.record]()
        record.captures.update(captures)
        if rule.record == "nvrm" and line.node:
            # The lines that follow come without the host's name (journalctl).
            record.captures["node"] = line.node
        records.setdefault(line.key, []).append((record, rule, began))

    def emit(self, rule: Rule, captures: dict[str, str], line: Line, text: str, start: int) -> None:
        """Keep the match."""
        if self.stream.numbered or self.uncoloured is not None:
            self.line_no += self.block.count(b"\n", self.counted, start)
            self.counted = start
        source = self.stream.source
        rank = line.rank if line.rank is not None else source.rank
        if (captured := place_number(captures.get("rank", ""))) is not None:
            rank = captured
        node = captures.get("node") or line.node or source.node
        line_no = self.line_no if self.stream.numbered else 0
        plain_text = self.uncoloured
        offset = self.base + (plain_text.place(self.line_no - self.stream_line) if plain_text else start)
        at = line.at
        if at is None and (stamp := text.find(SLURM_STAMP)) >= 0:
            at = take_apart(text[stamp + len(SLURM_STAMP) :], self.year).at
        if at is None and rule.role in {Role.ROOT, Role.CASCADE}:
            at = self.time_before(start)
        self.matches.append(Match(rule, line_no, offset, text[:TEXT_MAX], captures, rank, node, at))

    def time_before(self, place: int) -> float | None:
        """The time on one of the lines shortly before this place; tracebacks and their like carry none."""
        at: float | None = None
        stop = place
        for _ in range(NEARBY_LINES):
            if stop <= self.start:
                break
            if stop <= self.nearby_place:
                # What was found from there holds here too, also that there is none.
                at = self.nearby_at
                break
            start = max(self.block.rfind(b"\n", self.start, stop - 1) + 1, self.start)
            at = take_apart(self.block[start : min(stop, start + 160)].decode("utf-8", "replace"), self.year).at
            if at is not None:
                break
            stop = start
        self.nearby_place, self.nearby_at = place, at
        return at
