"""Storms: more of one thing than a cluster should have must not hide the rest, nor wake people for each piece of it.

`make test` runs a small form, `make soak` the measure that the evaluation names (`pytest -m soak -s` prints it). Numbers of incidents, notices and
streams are exact; a beat's time is judged in the soak test alone, where the machine is quiet.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import httpx
import pytest
from msgspec import structs
from tests.api.engine_house import EngineHouse, bad_gpu, engine_served, node_view, run, until
from tests.api.test_authority import ANY, Bound
from tests.api.test_safety import bearer

from attack_fixture import Removing
from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.api import limits, reports
from holdfast.api.auth import Role
from holdfast.api.limits import LimitGate, Limits
from holdfast.client import AsyncClient
from holdfast.cockpit import live
from holdfast.controller import intake
from holdfast.decide import findings
from holdfast.decide.engine import Engine
from holdfast.errors import JournalError, LinkError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.evidence import Domain, Remedy
from holdfast.model.wire import Beat

CODES = (79, 74, 48, 94, 95, 119, 13, 31, 63)
BEAT_P95_S = 0.5
NOTICES = INCIDENTS = 20


def xids(first: int, count: int) -> list[e.AnyEvent]:
    """Faults of every kind on every GPU of n1."""
    made: list[e.AnyEvent] = []
    for number in range(first, first + count):
        event = bad_gpu("n1", number)
        code, place = CODES[number % len(CODES)], structs.replace(event.finding.place, gpu=number % 8)
        rule = {"rule": f"nvidia.xid.{code}", "fingerprint": f"xid{code}", "place": place}
        made.append(structs.replace(event, finding=structs.replace(event.finding, **rule)))
    return made


async def beats(house: EngineHouse, node: str, over: asyncio.Event) -> list[float]:
    """Beat as this node until the storm is over; how long each beat took, in seconds."""
    took: list[float] = []
    async with AsyncClient(house.server.url, ANY, timeout_s=120) as agent:
        while not over.is_set():
            began = time.monotonic()
            await agent.beat(Beat(source=f"agent:{node}", node=node, at=time.time()))
            took.append(time.monotonic() - began)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 0.05)
    return took


@pytest.mark.parametrize("count", [1000, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_a_storm_of_one_node_is_one_trouble(tmp_path: Path, count: int) -> None:
    """At most 20 incidents and 20 notices come of it, and the beats of all other nodes get through meanwhile."""

    async def work() -> None:
        async with (
            engine_served(tmp_path, reviewer=Bound()) as house,
            AsyncClient(house.server.url, "of-n1", timeout_s=600) as sick,
        ):
            over = asyncio.Event()
            others = [asyncio.create_task(beats(house, node, over)) for node in ("n3", "n4", "n5", "n6")]
            for first in range(0, count, 1000):
                assert (await sick.ingest("agent:n1", xids(first, 1000))).stored == 1000
            over.set()
            took = sorted(second for each in await asyncio.gather(*others) for second in each)
            journal = house.controller.journal
            incidents, p95_s = len(await journal.incidents()), took[int(len(took) * 0.95)]
            notices = sum(isinstance(one.order, o.Notify) for one in await journal.orders())
            print(
                f"{count} Xids: {incidents} incidents, {notices} notices; {len(took)} beats, 95 % within {p95_s:.3f} s"
            )
            assert incidents <= INCIDENTS
            assert notices <= NOTICES
            assert len(took) >= len(others)
            assert count < 20_000 or p95_s <= BEAT_P95_S

    run(work)


@pytest.mark.attempt(
    actor="An agent that was taken over",
    asset="the controller's time",
    removed="controller.intake.TURN_EVENTS, api.reports.TURN_EVENTS",
)
def test_a_batch_lets_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch, removing: Removing, tmp_path: Path
) -> None:
    """Between the events of a batch of 200 the loop runs others, again and again; with the turns removed, hardly."""

    async def turns(folder: Path) -> int:
        folder.mkdir()
        async with engine_served(folder) as house, AsyncClient(house.server.url, ANY, timeout_s=120) as sick:
            steps = 0

            async def step() -> None:
                nonlocal steps
                while True:
                    steps += 1
                    await asyncio.sleep(0)

            judged: list[int] = []
            judge = house.controller._intake._judge

            def watched(event: e.AnyEvent, seq: int):
                judged.append(steps)
                return judge(event, seq)

            monkeypatch.setattr(house.controller._intake, "_judge", watched)
            task = asyncio.create_task(step())
            assert (await sick.ingest("agent:n1", xids(0, 200))).stored == 200
            task.cancel()
            return len(set(judged))

    async def work() -> None:
        assert await turns(tmp_path / "with") >= 200 // intake.TURN_EVENTS
        for module in (intake, reports):
            removing(module, "TURN_EVENTS", 10**9)
        assert await turns(tmp_path / "without") < 200 // 16

    run(work)


def test_a_full_journal_answers_503_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and commands that come then, and those that wait for the disk already; afterwards each is stored once.

    Without the look at the journal the report waits for the disk.
    """

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, ANY, timeout_s=120) as agent:
            append = house.controller.journal.append
            full = True

            async def refuse(entries):
                if full:
                    raise JournalError("database or disk is full")
                await append(entries)

            monkeypatch.setattr(house.controller.journal, "append", refuse)
            for _ in range(3):  # the first waits when the disk refuses, the others come later
                with pytest.raises(LinkError, match="disk is full"):
                    await agent.ingest("agent:n1", [bad_gpu("n1")])
            operator = {**bearer(Role.OPERATOR), "Content-Type": "application/json"}
            async with httpx.AsyncClient(base_url=house.server.url, timeout=120) as http:
                answer = await http.post("/v1/commands", json={"command": "drain", "node": "n2"}, headers=operator)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            monkeypatch.setattr("holdfast.api.stored.check_writable", lambda _controller: None)
            monkeypatch.setattr(reports, "check_writable", lambda _controller: None)
            waits = asyncio.create_task(agent.ingest("agent:n1", [bad_gpu("n1", 2)]))
            await until(lambda: house.controller._intake.waiting)
            assert not waits.done()
            full = False
            assert (await waits).stored == 1
            assert (await agent.ingest("agent:n1", [bad_gpu("n1")])).stored == 1
            found = await house.controller.journal.events(kind="finding_seen")
            assert [one.id.rpartition("-")[2] for one in found] == ["0", "2"]

    run(work)


@pytest.mark.attempt(
    actor="A viewer, an owner, an operator of another project", asset="streams", removed="api.limits.COMING_S"
)
def test_streams_that_come_at_once_are_counted_before_they_begin(removing: Removing) -> None:
    """900 requests for a stream are all answered before the first stream runs: 400 are let in, the others told to come
    back; a place whose reader has gone is free again after some seconds. A count of open streams alone lets in all."""
    clock = [0.0]
    gate = LimitGate(Limits(), now=lambda: clock[0])

    def let_in(count: int) -> list[object]:
        places = []
        for _ in range(count):
            with contextlib.suppress(Exception):
                places.append(gate.take_stream("a token at an address"))
        return places

    places = let_in(900)
    assert (len(places), gate.refused) == (400, 500)
    with contextlib.ExitStack() as open_now:
        for place in places[:300]:
            open_now.enter_context(place)
        assert (gate.open_streams, len(let_in(1))) == (300, 0)
        clock[0] = 10.0
        assert len(let_in(900)) == 100
    assert gate.open_streams == 0
    removing(limits, "COMING_S", 0.0)
    assert len(let_in(900)) == 900


def test_streams_at_once_of_a_real_server(tmp_path: Path) -> None:
    """The small form over HTTP: 30 at once against a limit of 10."""

    async def work() -> None:
        async with (
            engine_served(tmp_path, limits=Limits(streams_each=10)) as house,
            httpx.AsyncClient(base_url=house.server.url, timeout=120, limits=httpx.Limits(max_connections=60)) as http,
            contextlib.AsyncExitStack() as stack,
        ):
            asked = [
                stack.enter_async_context(http.stream("GET", "/v1/stream", headers=bearer(Role.VIEWER)))
                for _ in range(30)
            ]
            codes = [answer.status_code for answer in await asyncio.gather(*asked)]
            assert sorted(codes) == [200] * 10 + [429] * 20

    run(work)


@pytest.mark.attempt(
    actor="A viewer, an owner, an operator of another project", asset="streams", removed="cockpit.live.Hub.is_full"
)
def test_pages_that_open_at_once_are_counted_as_they_begin(monkeypatch: pytest.MonkeyPatch, removing: Removing) -> None:
    """30 pages that were all let in while there was room for 10: the others end at once; uncounted, all stay open."""

    async def make(_page: str, _since: int) -> tuple[live.Parts, live.Cells]:
        return {}, {}

    async def opened() -> int:
        hub = live.Hub(make, lambda _page, _since: {}, lambda: 1)
        asked = [hub.follow("overview", 0) for _ in range(30)]
        await asyncio.gather(*(anext(one, None) for one in asked))
        count = hub.viewers
        await asyncio.gather(*(one.aclose() for one in asked))
        return count

    monkeypatch.setattr(live, "VIEWERS_MAX", 10)
    assert run(opened) == 10
    removing(live.Hub, "is_full", False)
    assert run(opened) == 30


SHARED = {
    "an Xid": ("nvidia.xid.79", Domain.HARDWARE),
    "a link": ("ib.link_down", Domain.NETWORK),
    "a mount": ("check.mount", Domain.STORAGE),
}
TOPOLOGIES = {"rows": lambda number: f"row1/rack{number // 20}", "none": lambda _number: ""}


def of_one_cause(nodes: int, rule: str, domain: Domain, place: str) -> tuple[int, int]:
    """Incidents and notices of an engine that sees one fault on so many nodes, one each 0.2 s."""
    presets = packaged_presets()
    engine = Engine(read_policy(None, presets)[0], scope="cluster", presets=presets)
    views = [structs.replace(node_view(f"n{one}"), topology=TOPOLOGIES[place](one)) for one in range(nodes)]
    for number, view in enumerate(views):
        engine.handle(e.NodeObserved(id=f"o{number}", at=1e9, node=view))
    notices = 0
    for number, view in enumerate(views):
        event = bad_gpu(view.name)
        at = 1e9 + 0.2 * number
        found = structs.replace(event.finding, rule=rule, fingerprint=rule, domain=domain, at=at, remedy=Remedy.REPLACE)
        given = engine.handle(structs.replace(event, finding=found, at=at, received_at=at))
        notices += sum(isinstance(one, o.Notify) for one in given)
    return len(engine.state.incidents), notices


@pytest.mark.attempt(
    actor="An agent that was taken over",
    asset="the controller's time",
    removed="decide.findings._held_back_with, decide.findings._by_domain",
)
@pytest.mark.parametrize("place", TOPOLOGIES)
@pytest.mark.parametrize("cause", SHARED)
def test_one_cause_behind_300_nodes_is_one_incident(removing: Removing, cause: str, place: str) -> None:
    """Where nothing tells what the nodes share, each is a case of its own until the brake holds, and the rest is one."""
    incidents, notices = of_one_cause(300, *SHARED[cause], place)
    assert incidents == (1 if place == "rows" else 5)
    assert notices <= 12
    removing(findings, "_held_back_with", lambda _turn, _node, _finding: [])
    removing(findings, "_by_domain", lambda _turn, _keys: None)
    assert of_one_cause(300, *SHARED[cause], place)[0] == 300
