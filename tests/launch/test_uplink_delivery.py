"""What a launcher does when the controller does not take an event: that one is named and left, its neighbours arrive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import LinkError, RefusedError, WireError
from holdfast.launch.uplink import ControllerLine, Uplink
from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.wire import Beat, BeatAnswer, IngestAnswer

KEY = JobKey("here", "31")


class Controller:
    """Stands for the client: refuses a whole batch for one bad event, as a controller does that cannot read it."""

    def __init__(self, bad: frozenset[str], away: int = 0) -> None:
        self.bad, self.away, self.taken = bad, away, list[str]()

    async def client(self) -> Controller:
        return self

    async def close(self) -> None:
        return

    async def ingest(self, source: str, events: Sequence[e.AnyEvent]) -> IngestAnswer:
        assert source == "launcher:31"
        if self.away:
            self.away -= 1
            raise LinkError("away")
        if any(event.id in self.bad for event in events):
            raise WireError("cannot be read")
        self.taken += [event.id for event in events]
        return IngestAnswer(seq=9, stored=len(events), refused=["may not send it"] if events[0].id == "e0" else [])


def deliver(line: Controller, count: int, folder: Path) -> list[str]:
    """What was said for people until all is sent."""
    said: list[str] = []

    def event(number: int) -> e.AnyEvent:
        return e.AttemptEnded(id=f"e{number}", at=1.0, source="launcher:31", seq=number + 1, job=KEY, attempt=0)

    async def events_after(seq: int, wait_s: float) -> Sequence[e.AnyEvent]:
        return [event(number) for number in range(seq, count)]

    async def body() -> None:
        uplink = Uplink(
            line,  # type: ignore[arg-type]
            source="launcher:31",
            events_after=events_after,
            is_ours=lambda _: True,
            beat=lambda: None,  # type: ignore[arg-type, return-value]
            on_order=lambda _: asyncio.sleep(0),
            on_answer=lambda _: None,
            on_unknown=lambda: None,
            job_dir=folder,
            is_cut=lambda: False,
            on_line=said.append,
        )
        sending = asyncio.create_task(uplink.forward())
        assert await uplink.flush(count, 60.0)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    asyncio.run(body())
    return said


def test_one_event_that_cannot_be_read_does_not_cost_its_neighbours(tmp_path: Path) -> None:
    """It is found by halves and named; all the others are delivered, in order, once each."""
    line = Controller(frozenset({"e3", "e8"}), away=1)
    said = deliver(line, 11, tmp_path)
    assert line.taken == [f"e{n}" for n in range(11) if n not in {3, 8}]
    assert said == [
        "the controller does not take an event of ours: may not send it",
        "the controller does not take an event of ours, `e3`: cannot be read",
        "the controller does not take an event of ours, `e8`: cannot be read",
    ]
    assert (tmp_path / "forwarded").read_text() == "11\n"


class Doorkeeper(Controller):
    """Answers beats with each of these in turn, and then lets the launcher in."""

    no_token = ""

    def __init__(self, *answers: Exception) -> None:
        super().__init__(frozenset())
        self.answers = list(answers)

    async def beat(self, beat: Beat, *, wait_s: float) -> BeatAnswer:
        assert beat.source == "launcher:31"
        if self.answers:
            raise self.answers.pop(0)
        return BeatAnswer(lease_s=1.0)


def test_a_controller_that_does_not_let_a_launcher_in_is_told_of_once(tmp_path: Path) -> None:
    """Also when it could not be reached before; the same words are not said again."""
    said: list[str] = []
    wrong, other = RefusedError("a valid bearer token is needed"), RefusedError("set HOLDFAST_CLUSTER=prod in its pods")
    line = Doorkeeper(LinkError("away"), wrong, wrong, other, wrong)
    heard = asyncio.Event()

    async def body() -> None:
        uplink = Uplink(
            line,  # type: ignore[arg-type]
            source="launcher:31",
            events_after=lambda seq, wait_s: asyncio.sleep(0, []),
            is_ours=lambda _: True,
            beat=lambda: Beat(source="launcher:31"),
            on_order=lambda _: asyncio.sleep(0),
            on_answer=lambda _: heard.set(),
            on_unknown=lambda: None,
            job_dir=tmp_path,
            is_cut=lambda: False,
            on_line=said.append,
        )
        beating = asyncio.create_task(uplink.beat(0.05))
        await asyncio.wait_for(heard.wait(), 60.0)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)

    asyncio.run(body())
    assert [line.partition("(")[2].partition(")")[0] for line in said] == [str(wrong), str(other), str(wrong)]


class Closed(ControllerLine):
    """A controller that lets nobody in: the token is read as ever, each beat is refused."""

    async def client(self) -> Any:
        await super().client()
        return self

    async def beat(self, beat: Beat, *, wait_s: float) -> BeatAnswer:
        raise RefusedError("a valid bearer token is needed")


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A launcher that is refused says once which file its token should have come from, and why it did not."""
    said: list[str] = []

    async def body() -> None:
        uplink = Uplink(
            Closed(url="http://127.0.0.1:9", token_file=tmp_path / "launcher-token"),
            source="launcher:31",
            events_after=lambda seq, wait_s: asyncio.sleep(0, []),
            is_ours=lambda _: True,
            beat=lambda: None,  # type: ignore[arg-type, return-value]
            on_order=lambda _: asyncio.sleep(0),
            on_answer=lambda _: None,
            on_unknown=lambda: None,
            job_dir=tmp_path,
            is_cut=lambda: False,
            on_line=said.append,
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(uplink.beat(0.02), 0.5)

    asyncio.run(body())
    why = f"the token file {tmp_path}/launcher-token cannot be read: No such file or directory"
    assert said == [f"the controller does not let this launcher in ({why}); going on without it"]
