"""The parser: a process without rights that judges lines for the agent, and what becomes of them when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.agent import parser as parser_of
from holdfast.agent.parser import Outcome, ParsedStream, ParserProcess, ParserSettings
from holdfast.agent.parsing import Answer, Judge, Judged, Origin, told_of
from holdfast.agent.syslog_lines import CARRY_MAX, Reading
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.hyperpod_rules import LogRule, log_rules
from holdfast.detect.matcher import Match, Matcher, StreamSource
from holdfast.errors import WireError

XID = b"NVRM: Xid (PCI:0000:53:00): 79, pid=1234, GPU has fallen off the bus.\n"
TRACE = (
    b"[rank3]: Traceback (most recent call last):\n",
    b'[rank3]:   File "train.py", line 7, in step\n',
    b"[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n",
)
KERNEL = StreamSource(kind=StreamKind.KERNEL, node="node07")
OUTPUT = StreamSource(kind=StreamKind.OUTPUT, node="node07")


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return read_matcher(read_catalogue())


class Judging:
    """A parser at work, and what it has found."""

    def __init__(self, matcher: Matcher, settings: ParserSettings | None = None) -> None:
        self.parser = ParserProcess(matcher.catalogue, SystemClock(), settings)
        self.found: list[Match] = []
        self.hits: list[tuple[str, str]] = []
        self.judged = 0

    def stream(
        self, source: StreamSource = OUTPUT, rules: tuple[LogRule, ...] = (), syslog: Reading | None = None
    ) -> ParsedStream:
        def judged(came: Outcome) -> None:
            self.found += came.matches
            self.hits += [(hit.text, hit.metric) for hit in came.hits]
            self.judged += 1

        return self.parser.stream(Origin(source, rules, syslog), "job.log", judged)

    async def until(self, holds) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, (self.parser.why, self.found)
            await asyncio.sleep(0.002)

    async def caught_up(self, *streams: ParsedStream) -> None:
        await self.until(lambda: not any(stream.queue for stream in streams))

    async def kill(self) -> None:
        await self.until(lambda: not self.parser.why)
        deaths = self.parser.deaths
        os.kill(self.parser.program.process.pid, signal.SIGKILL)
        await self.until(lambda: self.parser.deaths > deaths)


def run(judging: Judging, body) -> None:
    async def whole() -> None:
        work = asyncio.create_task(judging.parser.run())
        try:
            await body()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    asyncio.run(whole())


def brief(matches: list[Match]) -> list[tuple]:
    return [(m.rule.id, m.rule.role, m.rule.remedy, m.line_no, m.offset, m.text, m.captures, m.rank) for m in matches]


def expected(matcher: Matcher, source: StreamSource, pieces: list[bytes]) -> list[tuple]:
    """What one reader that never dies finds."""
    stream = matcher.stream(source)
    return brief([match for piece in pieces for match in stream.feed(piece, 1.0)])


def test_the_parser_has_no_rights(matcher: Matcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user where the agent is root, no capability, no new privileges, few system calls, nothing of ours in it."""
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
    judging = Judging(matcher)

    async def body() -> None:
        await judging.until(lambda: not judging.parser.why)
        place = Path(f"/proc/{judging.parser.program.process.pid}")
        status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines() if ":\t" in line)
        uid = str(os.getuid() or 65534)
        assert status["Uid"].split() == [uid] * 4
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapInh"], 16) == 0
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        if os.geteuid() == 0:
            assert status["Groups"].split() == []
            assert b"secret" not in (place / "environ").read_bytes()
            limits = (place / "limits").read_text()
            assert "Max file size             0" in limits
            assert "Max processes             0" in limits
            opened = [os.readlink(one.path) for one in os.scandir(place / "fd")]
            assert all(one.startswith(("pipe:", "socket:")) for one in opened), opened

    run(judging, body)
    assert not Path(f"/proc/{judging.parser.program.process.pid}").exists()


def test_a_match_comes_as_the_matcher_made_it(matcher: Matcher) -> None:
    """Rule, place, text and captures, and what a line's own text says of its rule."""
    pieces = [
        XID,
        *TRACE,
        b"NVRM: Xid (PCI:0000:53:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Reboot)\n",
    ]
    judging = Judging(matcher)

    async def body() -> None:
        streams = {source: judging.stream(source) for source in (KERNEL, OUTPUT)}
        for source, stream in streams.items():
            judging.found.clear()
            for piece in pieces:
                stream.feed(piece, 1.0)
            await judging.caught_up(stream)
            assert brief(judging.found) == expected(matcher, source, pieces)
            assert judging.found

    run(judging, body)


def test_a_killed_parser_loses_no_line_and_tells_none_twice(matcher: Matcher) -> None:
    """Killed between any two pieces, in the middle of a line and of a traceback too."""
    pieces = [*(line for _ in range(4) for line in TRACE), XID[:30], XID[30:], b"step 3 loss 2.5\n", *TRACE]
    judging = Judging(matcher)

    async def body() -> None:
        stream = judging.stream()
        for number, piece in enumerate(pieces):
            stream.feed(piece, 1.0)
            if number in {1, 13}:  # behind a traceback's begin, and in a torn line
                await judging.caught_up(stream)
            if number in {1, 7, 13}:
                await judging.kill()
        await judging.caught_up(stream)
        assert judging.parser.deaths == 3
        assert judging.parser.skipped == 0

    run(judging, body)
    assert brief(judging.found) == expected(matcher, OUTPUT, pieces)


def test_patterns_of_log_rules_are_looked_for_by_the_parser(matcher: Matcher) -> None:
    """A site's patterns meet users' lines there: each line once, torn ones whole, also when it is killed between."""
    rules = log_rules([{"name": "loss", "logPattern": r".*loss (\S+)", "metricThreshold": 9, "operator": "gt"}])
    pieces = [b"step 1 loss 2.5\n", b"a bar\rstep 2 lo", b"ss 3.5\nnothing\nstep 3 loss ", b"4.5\n"]
    judging = Judging(matcher)

    async def body() -> None:
        stream = judging.stream(rules=rules)
        for number, piece in enumerate(pieces):
            stream.feed(piece, 1.0)
            if number == 1:
                await judging.caught_up(stream)
                await judging.kill()
        await judging.caught_up(stream)

    run(judging, body)
    assert judging.hits == [("step 1 loss 2.5", "2.5"), ("a bar\rstep 2 loss 3.5", "3.5"), ("step 3 loss 4.5", "4.5")]


def test_stamps_of_syslog_are_read_by_the_parser(matcher: Matcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the agent's time zone; what is old, or a program's, is none of the kernel's lines, also behind a torn line and
    in the midst of an endless one at which the parser is killed."""
    monkeypatch.setenv("TZ", "America/New_York")
    now = datetime.fromisoformat("2026-11-25T12:00:00-05:00").timestamp()
    fresh, old = b"Nov 25 11:59:58 n1 kernel: " + XID, b"Nov 25 06:59:58 n1 kernel: " + XID.replace(b"79", b"48")
    endless = b"Nov 25 11:59:58 n1 logger: " + b"x" * CARRY_MAX
    pieces = [old, fresh[:40], fresh[40:], endless, old.replace(b"06:", b"11:"), fresh.replace(b"79", b"74")]
    judging = Judging(matcher)

    async def body() -> None:
        stream = judging.stream(KERNEL, syslog=Reading(started=now))
        for number, piece in enumerate(pieces):
            stream.feed(piece, now)
            if number in {1, 3}:
                await judging.caught_up(stream)
                assert stream.pending == (40 if number == 1 else 0)
                await judging.kill()
        await judging.caught_up(stream)
        assert judging.parser.skipped == 0

    run(judging, body)
    assert [match.rule.id for match in judging.found] == ["nvidia.xid.79", "nvidia.xid.74"]
    assert [match.offset for match in judging.found] == [len(old), sum(map(len, pieces[:5]))]


def test_a_line_that_parsers_die_of_is_left_out_alone(matcher: Matcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes more memory than a parser may have: the agent lives, and the lines around it and of others are judged."""
    monkeypatch.setattr(parser_of, "BRAKE_S", 0.0)
    bomb = b"x" * (9 << 20) + b"\n"
    judging = Judging(matcher, ParserSettings(memory_mib=12))

    async def body() -> None:
        job, kernel = judging.stream(), judging.stream(KERNEL)
        job.feed(b"".join((*TRACE, bomb, *TRACE)), 1.0)
        kernel.feed(XID, 1.0)
        await judging.caught_up(job, kernel)

    run(judging, body)
    ids = [match.rule.id for match in judging.found]
    assert ids.count("nvidia.xid.79") == 1
    lines = [match.line_no for match in judging.found if match.rule.id != "nvidia.xid.79"]
    without = expected(matcher, OUTPUT, [b"".join((*TRACE, b"\n", *TRACE))])
    assert lines == [number for _, _, _, number, *_ in without]
    assert judging.parser.skipped == len(bomb)
    assert judging.parser.deaths == 1 + parser_of.DEATHS_OF_A_LINE


def test_a_parser_that_never_answers_is_killed(matcher: Matcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line on which a site's pattern takes for ever holds up neither the agent nor the kernel's lines."""
    monkeypatch.setattr(parser_of, "ANSWER_S", 1.0)
    rules = log_rules([{"name": "slow", "logPattern": "a*" * 9 + "b"}])
    judging = Judging(matcher)

    async def body() -> None:
        judging.stream(rules=rules).feed(b"a" * 4000 + b"\n", 1.0)
        await judging.until(lambda: judging.parser.deaths)
        judging.stream(KERNEL).feed(XID, 1.0)
        await judging.until(lambda: judging.found)

    run(judging, body)
    assert [match.rule.id for match in judging.found] == ["nvidia.xid.79"]


def refused(matcher: Matcher, answer: Answer) -> None:
    judging = Judging(matcher)
    stream = judging.stream()
    stream.feed(XID, 1.0)
    judging.parser._next()
    with pytest.raises(WireError):
        judging.parser._answered(answer)
    assert judging.judged == 0
    assert stream.queue


def test_an_answer_that_cannot_be_true_is_not_taken(matcher: Matcher) -> None:
    """Too few parts, a rule that nobody wrote, a place beyond what was given."""
    stream = matcher.stream(KERNEL)
    (match,) = stream.feed(XID, 1.0)
    told = told_of(match)
    refused(matcher, Answer(parts=()))
    for wrong in ({"rule": "made.up"}, {"offset": 10_000}):
        lie = msgspec.structs.replace(told, **wrong)
        refused(matcher, Answer(parts=(Judged(told=(lie,), pending=0, again=0),)))


def test_a_log_with_many_such_lines_is_set_aside(matcher: Matcher) -> None:
    """Each costs some starts of the parser: others' logs must not wait for them. The kernel's is judged whatever it holds."""
    for source, is_judged in ((OUTPUT, False), (KERNEL, True)):
        judging = Judging(matcher)
        stream = judging.stream(source)
        for _ in range(parser_of.SKIPS_MAX):
            stream.feed(b"bomb\n", 1.0)
            for _ in range(1 + parser_of.DEATHS_OF_A_LINE):
                judging.parser._next()
                judging.parser._died("killed")
            assert not stream.queue
        stream.feed(XID, 1.0)
        assert bool(stream.queue) == is_judged
        assert stream.pending == len(XID)


def test_what_waits_is_bounded(matcher: Matcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader is asked to wait; what one cannot keep back is left out and counted, and what follows keeps its place."""
    monkeypatch.setattr(parser_of, "HELD_MAX", 100)
    monkeypatch.setattr(parser_of, "FULL", 60)
    judging = Judging(matcher)
    stream = judging.stream(KERNEL)
    stream.feed(XID, 1.0)
    assert stream.is_full
    stream.feed(XID, 1.0)
    assert judging.parser.skipped == len(XID)
    judge = Judge(matcher)
    judging.parser._answered(judge.answer(judging.parser._next()))
    stream.feed(XID, 1.0)
    judging.parser._answered(judge.answer(judging.parser._next()))
    assert [match.offset for match in judging.found] == [0, 2 * len(XID)]
    assert stream.pending == 0
