"""The agent's side of its parser: hands it bytes of streams, gives matches back, starts it again when it dies.

`KernelLog`, `LogWatch` and `SlurmOutput` open files and read them within bounds, as root where the agent is root; no
byte is looked into here. `agent.parsing`, a process without rights, judges them, and what it says is checked. One
question is on its way at a time, so it is known what a parser died of: the next one is asked the same line by line, and
a line that two more parsers die of is left out and told. What was judged is asked no more. Time comes from the clock
port; a parser that does not answer within `ANSWER_S` is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from holdfast.agent.parsing import Answer, Ask, Hello, Judged, Opening, Origin, Part, codec, match_of
from holdfast.detect.catalogue import Catalogue, StreamKind
from holdfast.detect.hyperpod_rules import RuleHit
from holdfast.detect.matcher import LINE_MAX, Match
from holdfast.detect.xid import is_of_a_code
from holdfast.errors import WireError
from holdfast.os.confined import NOBODY
from holdfast.os.frames import Frames
from holdfast.os.programs import APART, KILL_GRACE_S, Command, Program
from holdfast.ports import Clock

MEMORY_MIB = 128
"""What a parser may take beyond what it holds when it has loaded the catalogue."""
BATCH_MAX = 1 << 20
"""Bytes of one question; a single read may be more."""
FULL = 1 << 19
"""So many bytes of a stream wait at most, before its reader is asked to wait."""
HELD_MAX = 64 << 20
"""Bytes that wait in all. A reader that cannot wait loses what goes beyond, and that is told."""
START_S, ANSWER_S = 60.0, 30.0
"""A parser that takes longer hangs."""
DEATHS_QUICK, DEATHS_WITHIN_S, BRAKE_S = 4, 60.0, 5.0
"""After so many deaths within this time the next parser starts a moment later."""
DEATHS_OF_A_LINE = 2
SKIPS_MAX, DEAF_S = 3, 600.0
"""A log that had so many lines left out is not judged for so long: each costs some starts. A kernel log always is."""
WORDS_MAX = 300
"""Characters of a parser's last words in the log."""
_PATHS = ("PYTHONPATH", "HOME", "XDG_CACHE_HOME", "TZ")
"""All that a parser gets of the environment: where its own code and the compiled catalogue are, and the time zone."""

_log = structlog.get_logger("holdfast.agent")


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of the bytes of one `feed`."""

    matches: Sequence[Match] = ()
    hits: Sequence[RuleHit] = ()
    """Of the stream's log rules."""
    at: float
    """As it was fed."""
    place: int | None = None
    """As it was fed."""


OnJudged = Callable[[Outcome], None]


class _Fed(Struct):
    """Bytes that wait for judgement."""

    data: bytes
    at: float
    place: int | None
    offset: int
    """Of the first one, in the stream."""


class ParsedStream:
    """One source's bytes on their way through the parser. Made by `ParserProcess.stream`.

    Attributes:
        offset: bytes fed so far.
    """

    def __init__(
        self,
        parser: ParserProcess,
        number: int,
        origin: Origin,
        name: str,
        judged: OnJudged,
    ) -> None:
        self._parser = parser
        self.number = number
        self.origin = origin
        self.name = name
        self.on_judged = judged
        self.offset = 0
        self.queue: deque[_Fed] = deque()
        self.place = _Place()
        self.trouble = _Trouble()

    @property
    def pending(self) -> int:
        """Bytes at the end that no judgement covers: they wait, or are no whole line yet."""
        return self.offset - self.place.offset + self.place.pending

    @property
    def is_full(self) -> bool:
        """Its reader should wait."""
        return sum(len(fed.data) for fed in self.queue) > FULL

    @property
    def is_behind(self) -> bool:
        """There are lines that nobody has judged, so that what did not come may have come."""
        return bool(self.queue) or self._parser.is_deaf(self)

    def feed(self, data: bytes, at: float, place: int | None = None) -> None:
        """Have the next bytes judged; `on_judged` gets what comes of them, soon.

        Args:
            data: any number of bytes, cut anywhere.
            at: when they were seen, Unix seconds.
            place: given back with the matches.
        """
        fed = _Fed(data, at, place, self.offset)
        self.offset += len(data)
        self._parser.take(self, fed)

    def close(self) -> None:
        """Nothing more will come. What waits is judged still."""
        self._parser.forget(self)


class _Place(Struct):
    """How far a stream was judged, and what a next parser needs to go on from there."""

    offset: int = 0
    line_no: int = 0
    pending: int = 0
    again: bytes = b""
    is_endless: bool = False

    def advance(self, fed: _Fed, judged: Judged) -> None:
        again = min(judged.again, LINE_MAX)
        self.again = (self.again + fed.data)[-again:] if again else b""
        self.pending = min(judged.pending, len(self.again))
        self.is_endless = judged.is_endless
        self.offset = fed.offset + len(fed.data)
        self.line_no += fed.data.count(b"\n")

    def pass_over(self, fed: _Fed) -> None:
        self.again, self.pending = b"", 0
        self.is_endless = not fed.data.endswith(b"\n")
        self.offset = fed.offset + len(fed.data)
        self.line_no += fed.data.count(b"\n")


class _Trouble(Struct):
    """What parsers died of in a stream."""

    careful: int = 0
    """So many bytes of it are asked of line by line, each alone."""
    deaths: int = 0
    """By the line that is asked of."""
    skips: int = 0
    deaf_until: float = 0.0


class ParserSettings(Struct, frozen=True, kw_only=True):
    """What a parser is started with."""

    rules: tuple[Path, ...] = ()
    """The site's folders, from which the parser reads the catalogue itself."""
    user: str = NOBODY
    """User that the process becomes where the agent is root."""
    memory_mib: int = MEMORY_MIB

    @property
    def words(self) -> tuple[str, ...]:
        """Arguments of `agent.parsing`."""
        return (self.user, str(self.memory_mib), *(str(one.absolute()) for one in self.rules))


class ParserProcess:
    """The parser that lives, and those after it.

    Args:
        catalogue: the rules, as this agent read them.
        clock: the time.
        settings: of the process.

    Attributes:
        why: why nothing is judged at the moment; empty: it is.
        deaths: of parsers.
        skipped: bytes that were not judged.
    """

    def __init__(self, catalogue: Catalogue, clock: Clock, settings: ParserSettings | None = None) -> None:
        self.catalogue = catalogue
        self.settings = settings or ParserSettings()
        self.why = "the parser has not started yet"
        self.deaths = self.skipped = 0
        self.program: Program | None = None
        self._clock = clock
        self._streams: dict[int, ParsedStream] = {}
        self._made = self._held = 0
        self._closed: list[int] = []
        self._opened: set[int] = set()
        self._asked: list[tuple[ParsedStream, _Fed]] = []
        self._recent: deque[float] = deque(maxlen=DEATHS_QUICK)
        self._wake = asyncio.Event()

    # --- streams ---

    def stream(self, origin: Origin, name: str, judged: OnJudged) -> ParsedStream:
        """A new stream.

        Args:
            origin: of its lines.
            name: of its file, for people.
            judged: called with what comes of each feed, in order.
        """
        self._made += 1
        made = self._streams[self._made] = ParsedStream(self, self._made, origin, name, judged)
        return made

    def take(self, stream: ParsedStream, fed: _Fed) -> None:
        """Called by a stream: keep what it was fed, and have it judged."""
        if self.is_deaf(stream):
            self.skipped += len(fed.data)
        elif self._held + len(fed.data) > HELD_MAX:
            self.skipped += len(fed.data)
            _log.warning("lines are not judged: too many wait", file=stream.name, bytes=len(fed.data))
        else:
            stream.queue.append(fed)
            self._held += len(fed.data)
            self._wake.set()

    def is_deaf(self, stream: ParsedStream) -> bool:
        """Parsers have died of too many of its lines: none is judged for a while."""
        return stream.trouble.deaf_until > self._clock.monotonic()

    def forget(self, stream: ParsedStream) -> None:
        """Called by a stream that has ended."""
        if stream.number not in self._closed:
            self._closed.append(stream.number)

    # --- the process ---

    async def run(self) -> None:
        """Have a parser, until cancelled; it ends with this."""
        while True:
            why = "it ended"
            try:
                await self._live()
            except (OSError, EOFError, WireError, TimeoutError) as error:
                why = str(error) or type(error).__name__
            self._died(why)
            if len(self._recent) == DEATHS_QUICK and self._clock.monotonic() - self._recent[0] < DEATHS_WITHIN_S:
                await self._clock.sleep(BRAKE_S)

    async def _live(self) -> None:
        """One parser, from its start to its end. Raises what ended it."""
        argv = (sys.executable, "-P", "-m", "holdfast.agent.parsing", *self.settings.words)
        env = {name: os.environ[name] for name in _PATHS if name in os.environ}
        program = await Program.start(Command(argv=argv, env=env, cwd="/", stderr=APART), asks=True)
        self.program = program
        ended = asyncio.ensure_future(program.process.wait())
        try:
            await self._ask_on(program, ended)
        finally:
            ended.cancel()
            await program.end()
            await _log_last_words(program)

    async def _ask_on(self, program: Program, ended: asyncio.Future[int]) -> None:
        """Ask whenever there is something to ask. Raises what ends this parser."""
        reader, writer = program.process.stdout, program.process.stdin
        if reader is None or writer is None:
            raise OSError("it has no pipes")
        frames = Frames(reader, writer, codec(is_agent=True))
        async with asyncio.timeout(START_S):
            self._welcome(await frames.receive(Hello))
        while True:
            ask = self._next()
            if not ask.parts:
                self._wake.clear()
                await self._woken(ended)
                if ended.done():
                    raise EOFError(f"it ended by itself ({ended.result()})")
                continue
            async with asyncio.timeout(ANSWER_S):
                await frames.send(ask)
                answer = await frames.receive(Answer)
            self._answered(answer)

    async def _woken(self, ended: asyncio.Future[int]) -> None:
        """Wait for something to ask, or for the parser's end."""
        waiting = asyncio.ensure_future(self._wake.wait())
        try:
            either: list[asyncio.Future[Any]] = [waiting, ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    def _welcome(self, hello: Hello) -> None:
        self._opened.clear()
        held = hello.confined
        _log.info("the parser has started", uid=held.uid, system_calls="a few" if held.system_calls else "all")
        if held.has_rights or held.uid == 0:
            _log.warning("the parser keeps rights of root: this agent may not give them up")
        if hello.digest != self.catalogue.digest and self.why:
            _log.warning("the rules on disk are not those that this agent has read: restart it")
        self.why = ""

    def _died(self, why: str) -> None:
        """What was asked of it is asked again with care; a line that has killed often enough is left out."""
        self.why = f"the parser died: {why}"
        self.deaths += 1
        self._recent.append(self._clock.monotonic())
        asked, self._asked = self._asked, []
        _log.warning("the parser died: it is started again", why=why, asked=[s.name for s, _ in asked][:3])
        for stream in {stream.number: stream for stream, _ in asked}.values():
            trouble = stream.trouble
            if not trouble.careful:
                trouble.careful = sum(len(fed.data) for other, fed in asked if other is stream)
                continue
            trouble.deaths += 1
            if trouble.deaths >= DEATHS_OF_A_LINE:
                self._leave_out(stream)

    def _leave_out(self, stream: ParsedStream) -> None:
        """Pass over the line that the parsers died of; over all of a log that has many such lines, for a while."""
        trouble = stream.trouble
        is_deaf = trouble.skips + 1 >= SKIPS_MAX and stream.origin.source.kind is not StreamKind.KERNEL
        lost = list(stream.queue) if is_deaf else [stream.queue[0]]
        for fed in lost:
            self._done(stream)
            stream.place.pass_over(fed)
            self.skipped += len(fed.data)
            stream.on_judged(Outcome(at=fed.at, place=fed.place))
        left = 0 if is_deaf else trouble.careful - len(lost[0].data)
        until = self._clock.monotonic() + DEAF_S if is_deaf else 0.0
        stream.trouble = _Trouble(max(0, left), 0, 0 if is_deaf else trouble.skips + 1, until)
        size = sum(len(fed.data) for fed in lost)
        _log.warning("lines are not judged: parsers die of them", file=stream.name, bytes=size, set_aside=is_deaf)

    # --- questions and answers ---

    def _next(self) -> Ask:
        """The next question: what waits of all streams, the kernel's first; else one line of a stream in trouble."""
        waiting = [stream for stream in self._streams.values() if stream.queue]
        waiting.sort(key=lambda stream: stream.origin.source.kind is not StreamKind.KERNEL)
        self._asked, size = [], 0
        for stream in waiting:
            for fed in () if stream.trouble.careful else stream.queue:
                if size and size + len(fed.data) > BATCH_MAX:
                    break
                size += len(fed.data)
                self._asked.append((stream, fed))
        if not self._asked and waiting:
            self._asked = [(waiting[0], _first_line(waiting[0].queue))]
        if not self._asked:
            return Ask(parts=())
        ended = tuple(number for number in self._closed if not self._streams[number].queue)
        self._closed = [number for number in self._closed if number not in ended]
        for number in ended:
            del self._streams[number]
        reached: dict[int, int] = {}
        return Ask(parts=tuple(self._part(stream, fed, reached) for stream, fed in self._asked), forget=ended)

    def _done(self, stream: ParsedStream) -> None:
        self._held -= len(stream.queue.popleft().data)

    def _part(self, stream: ParsedStream, fed: _Fed, reached: dict[int, int]) -> Part:
        place, opening = stream.place, None
        if stream.number not in self._opened or reached.get(stream.number, place.offset) != fed.offset:
            again = place.again if place.offset == fed.offset else b""
            opening = Opening(
                origin=stream.origin,
                is_endless=place.is_endless and not again,
                offset=fed.offset - len(again),
                line_no=place.line_no - again.count(b"\n"),
                again=again,
            )
            self._opened.add(stream.number)
        reached[stream.number] = fed.offset + len(fed.data)
        return Part(stream=stream.number, data=fed.data, at=fed.at, opening=opening)

    def _answered(self, answer: Answer) -> None:
        """Check the answer as a whole, then take it.

        Raises:
            WireError: it is not one to what was asked.
        """
        if len(answer.parts) != len(self._asked):
            raise WireError("its answer is not to what it was asked")
        asked = list(zip(self._asked, answer.parts, strict=True))
        found = [self._matches(fed, judged) for (_, fed), judged in asked]
        hits = ((stream, hit) for (stream, _), judged in asked for hit in judged.hits)
        if any(not 0 <= hit.rule < len(stream.origin.rules) for stream, hit in hits):
            raise WireError("it tells of a log rule that it was not given")
        self._asked = []
        for ((stream, fed), judged), matches in zip(asked, found, strict=True):
            self._done(stream)
            stream.place.advance(fed, judged)
            stream.trouble.careful = max(0, stream.trouble.careful - len(fed.data))
            stream.trouble.deaths = 0
            stream.on_judged(Outcome(matches=matches, hits=judged.hits, at=fed.at, place=fed.place))

    def _matches(self, fed: _Fed, judged: Judged) -> list[Match]:
        found = []
        for told in judged.told:
            known = self.catalogue.find(told.rule)
            if known is None and not is_of_a_code(told.rule):
                raise WireError("it names a rule that the catalogue does not have")
            if told.offset > fed.offset + len(fed.data):
                raise WireError("it tells of a line that it was not given")
            found.append(match_of(told, known or self.catalogue.get(told.rule)))
        return found


async def _log_last_words(program: Program) -> None:
    """Why it ended, as it says itself: in ASCII, since others may have written it."""
    if program.process.stderr is None:
        return
    with contextlib.suppress(TimeoutError):  # one that hangs in the kernel holds its end of the pipe
        async with asyncio.timeout(KILL_GRACE_S):
            if words := (await program.process.stderr.read(4096)).decode(errors="replace").strip():
                _log.warning("the parser's last words", said=ascii(words[-WORDS_MAX:]))


def _first_line(queue: deque[_Fed]) -> _Fed:
    """The first line that waits, cut off from what follows it."""
    first = queue[0]
    end = first.data.find(b"\n") + 1
    if 0 < end < len(first.data):
        queue[0] = _Fed(first.data[:end], first.at, first.place, first.offset)
        queue.insert(1, _Fed(first.data[end:], first.at, first.place, first.offset + end))
    return queue[0]
