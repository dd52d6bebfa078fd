"""Reading through the API: pages by cursor, filters, entity tags, the audit, the event stream and its resume."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.api.engine_house import engine_served, run
from tests.api.test_api import TOKENS, client, event, served

from holdfast.adapters.journal import open_journal
from holdfast.api import Role, reads, routes_watch
from holdfast.api.auth import LOCAL
from holdfast.api.reads import decode_cursor, encode_cursor
from holdfast.api.tenants import Scope
from holdfast.client import AsyncClient
from holdfast.errors import FencedError, JournalError, LinkError, UsageError
from holdfast.model import events as e
from holdfast.model.wire import Beat

pytestmark = pytest.mark.timeout(600)


def headers(role: Role = Role.VIEWER) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[role]}"}


@asynccontextmanager
async def web(server, role: Role = Role.VIEWER):
    async with httpx.AsyncClient(base_url=server.url, headers=headers(role), timeout=120) as http:
        yield http


async def pages(http: httpx.AsyncClient, path: str) -> list[list[dict]]:
    """All pages of a list, by its own links."""
    found = []
    while path:
        answer = await http.get(path)
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        path = answer.links["next"]["url"] if "next" in answer.links else ""
    return found


async def still(http: httpx.AsyncClient, path: str) -> tuple[list[dict], list[list[dict]]]:
    """The whole list and its pages of two, read while it stood still: a living engine writes what follows late."""
    while True:
        before = (await http.get(f"{path}?limit=1000")).json()
        small = await pages(http, f"{path}?limit=2")
        if (await http.get(f"{path}?limit=1000")).json() == before:
            return before, small


def test_a_controller_that_was_superseded_shows_nothing_old(tmp_path: Path):
    """It may have stood still meanwhile. One whose lease is over, and was taken by nobody, still shows what it has."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, web(house.server) as http:
            paths = ("/v1/state", "/v1/events?after=0", "/v1/stream?after=0", "/v1/audit", "/v1/nodes", "/metrics")
            paths += ("/healthz",)
            leading = house.controller._lease._leading
            until, leading.until = leading.until, float("-inf")
            codes = [(await http.get(path)).status_code for path in ("/v1/state", "/v1/audit", "/metrics", "/healthz")]
            assert codes == [200, 200, 200, 200], "its lease is over, and nobody has taken it"
            heir = open_journal(f"sqlite:///{tmp_path}/engine.db")
            await heir.acquire("heir", lease_s=10.0, now=time.time(), seen=await heir.lease())
            answers = [await http.get(path) for path in paths]
            assert [answer.status_code for answer in answers] == [503] * len(paths)
            assert "superseded" in answers[0].text
            assert "superseded" in answers[-1].json()["failing"]
            async with client(house.server, Role.AGENT) as agent:
                with pytest.raises(LinkError, match="superseded"):
                    await agent.beat(Beat(source="agent:n1", node="n1"))
            assert (await http.get("/livez")).status_code == 200
            leading.until = until
            await heir.close()

    with pytest.raises(FencedError):
        run(work)


def test_a_scrape_in_doubt_shows_no_state_of_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The lease is over and the journal does not say whose it is: figures of this process alone, and that the journal fails."""

    async def refuse() -> None:
        raise JournalError("gone")

    async def hang() -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        async with engine_served(tmp_path) as house, web(house.server) as http:
            assert "holdfast_nodes{" in (await http.get("/metrics")).text
            for lease in (refuse, hang):
                with monkeypatch.context() as patched:
                    patched.setattr(house.controller, "may_act", lambda: False)
                    patched.setattr(routes_watch, "DOUBT_S", 0.01)
                    patched.setattr(house.controller.journal, "lease", lease)
                    answer = await http.get("/metrics")
                assert answer.status_code == 200
                assert "holdfast_journal_failing 1.0" in answer.text
                assert not re.findall("holdfast_(?:nodes|jobs|incidents_open|orders_proposed)", answer.text)

    run(work)


def test_lists_come_in_pages_that_neither_skip_nor_repeat(tmp_path: Path):
    """Every list, read by its links with a page of two, gives each record once, in its order; a filter holds on each."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, web(house.server) as http:
            await house.five_faults()
            for path, key in (
                ("/v1/nodes", lambda one: one["name"]),
                ("/v1/jobs", lambda one: one["key"]["id"]),
                ("/v1/incidents", lambda one: one["id"]),
                ("/v1/orders", lambda one: one["order"]["id"]),
                ("/v1/findings", lambda one: one["id"]),
                ("/v1/audit", lambda one: one["seq"]),
            ):
                whole, small = await still(http, path)
                assert [key(one) for page in small for one in page] == [key(one) for one in whole], path
                assert len(whole) >= 2, path
                assert len({key(one) for one in whole}) == len(whole)
            assert len((await http.get("/v1/incidents")).json()) >= 2
            sick = await pages(http, "/v1/nodes?state=healthy&limit=1")
            assert [len(page) for page in sick] == [1] * len(sick)
            assert {page[0].get("state", "healthy") for page in sick} == {"healthy"}
            assert (await http.get("/v1/jobs?user=nobody")).json() == []
            assert (await http.get("/v1/jobs?user=mei&partition=gpu")).json() != []

    run(work)


@pytest.mark.parametrize("cursor", ["x", "%00", encode_cursor(1.0, 2.0, "x"), encode_cursor("a"), "A" * 900])
def test_a_cursor_of_elsewhere_is_refused_with_one_sentence(tmp_path: Path, cursor: str):
    """A cursor that no list gave out, or another list did, is a 400, not a broken query."""

    async def work() -> None:
        async with served(tmp_path) as (_, _, server), web(server) as http:
            answer = await http.get(f"/v1/incidents?cursor={cursor}")
            assert (answer.status_code, answer.json()["status"]) == (400, 400)

    run(work)


def test_cursors_say_where_they_are():
    """What was put into a cursor comes out of it; anything else is refused."""
    assert decode_cursor(encode_cursor(12.5, "i7"), tuple[float, str]) == (12.5, "i7")
    with pytest.raises(UsageError, match="begin again"):
        decode_cursor("", tuple[float, str])


def test_an_unchanged_record_is_not_sent_twice_and_a_changed_one_has_another_tag(tmp_path: Path):
    """`If-None-Match` with the tag of the last answer gives 304 and no body until the record changes."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, web(house.server) as http:
            first = await http.get("/v1/nodes/n1")
            tag = first.headers["etag"]
            again = await http.get("/v1/nodes/n1", headers={"If-None-Match": f'"x", {tag}'})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            await house.fault("n1")
            changed = await http.get("/v1/nodes/n1", headers={"If-None-Match": tag})
            assert changed.status_code == 200
            assert changed.headers["etag"] != tag

    run(work)


def test_a_record_comes_with_its_newest_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A node with more events than one answer holds shows the last of them, in order."""
    monkeypatch.setattr("holdfast.api.routes_state.EVENTS_BESIDE", 5)

    async def work() -> None:
        async with engine_served(tmp_path) as house, web(house.server) as http:
            for number in range(8):
                await house.controller.submit(event(f"f{number}", "noise"))
            got = (await http.get("/v1/nodes/n1")).json()["events"]
            stored = await house.controller.journal.events(node="n1")
            assert [one["seq"] for one in got] == [one.seq for one in stored][-5:]

    run(work)


def test_the_audit_names_who_did_what_why_and_what_came_of_it(tmp_path: Path):
    """A deed that was done, one that was refused and a policy stand in the audit, newest first, and can be filtered."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, client(house.server) as operator, web(house.server) as http:
            await operator.command("drain", node="n2", why="noisy fan", who="mei")
            refused = await operator.command("drain", node="n99", why="typo", who="ken")
            assert "no node n99" in refused.refused
            deeds = (await http.get("/v1/audit")).json()
            assert [one["what"] for one in deeds] == ["drain", "drain", "controller_started"]
            assert "no node n99" in deeds[0]["refused"]
            assert deeds[1]["who"] == "mei (token of the-operator)"
            assert (deeds[1]["target"], deeds[1]["why"]) == ("n2", "noisy fan")
            assert deeds[1]["orders"][0].startswith("quarantine_node ")
            assert [one["who"] for one in (await http.get("/v1/audit?who=mei")).json()] == [deeds[1]["who"]]
            page = await reads.audit(house.controller, Scope(LOCAL, house.server.app.state.fleet), limit=1, who="ken")
            assert (len(page.items), page.next) == (1, "")

    run(work)


def test_attempts_checkpoints_drills_and_policies_can_be_read(tmp_path: Path):
    """What a job's launcher told stands under the job; a drill is listed with its incident; an unknown job is a 404."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, web(house.server) as http:
            await house.run_job()
            assert [one["name"] for one in (await http.get("/v1/jobs/7/attempts")).json()] == ["7(0)"]
            saved = (await http.get("/v1/jobs/7/checkpoints?limit=1")).json()
            assert [(one["step"], one["durable"]) for one in saved] == [(10, True)]
            fired = e.DrillFired(id="d", at=time.time(), drill="xid74", kind="xid", node="n1")
            await house.controller.submit(fired)
            assert [one["drill"] for one in (await http.get("/v1/drills")).json()] == ["xid74"]
            assert (await http.get("/v1/policies")).json() == []
            assert (await http.get("/v1/jobs/99/attempts")).status_code == 404
            assert (await http.get("/v1/orders/o99")).status_code == 404

    run(work)


async def messages(http: httpx.AsyncClient, path: str, count: int, **more) -> list[tuple[int, str, dict]]:
    """So many messages of a stream: id, kind, data."""
    found: list[tuple[int, str, dict]] = []
    async with asyncio.timeout(300), http.stream("GET", path, **more) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line:
                key, _, value = line.partition(": ")
                fields[key] = value
            else:
                if "data" in fields:
                    found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
                if len(found) == count:
                    return found
                fields = {}
    return found


def test_the_stream_gives_every_event_once_and_resumes_where_it_broke(tmp_path: Path):
    """A reader that is cut off and comes back with the last id it has seen misses nothing and gets nothing twice."""

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), web(server) as http:
            begin = controller.seq
            for number in range(5):
                await controller.submit(event(f"a{number}"))
            first = await messages(http, f"/v1/stream?after={begin}", 3)
            for number in range(5):
                await controller.submit(event(f"b{number}"))
            rest = await messages(http, "/v1/stream", 7, headers={"Last-Event-ID": str(first[-1][0])})
            assert [one[0] for one in first + rest] == list(range(begin + 1, begin + 11))
            assert {kind for _, kind, _ in rest} == {"finding_seen"}
            assert [one[2]["id"] for one in rest] == ["a3", "a4", "b0", "b1", "b2", "b3", "b4"]

    run(work)


def test_the_stream_waits_for_what_comes_and_can_be_filtered(tmp_path: Path):
    """Without a place to begin it gives only what is stored from now on; a filter lets only its own through."""

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), web(server) as http:
            await controller.submit(event("old"))
            waiting = asyncio.create_task(messages(http, "/v1/stream?kind=node_silent", 1))
            while not server.app.state.limits.open_streams:
                await asyncio.sleep(0.01)
            await controller.submit(event("new"))
            await controller.submit(e.NodeSilent(id="s", at=time.time(), node="n1", for_s=30))
            assert [(kind, data["node"]) for _, kind, data in await waiting] == [("node_silent", "n1")]

    run(work)


def test_a_stream_that_was_left_gives_its_place_back(tmp_path: Path):
    """A reader that goes away without a word is noticed at the next message, and its place is free again."""

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), web(server) as http:
            limits = server.app.state.limits
            assert await messages(http, "/v1/stream?after=0", 1)
            async with asyncio.timeout(300):
                number = 0
                while limits.open_streams:
                    number += 1
                    await controller.submit(event(f"n{number}"))
                    await asyncio.sleep(0.05)

    run(work)


def test_the_client_reads_all_pages_and_follows_the_stream(tmp_path: Path):
    """`nodes()` gives more nodes than one page; `stream` gives typed events from a number on."""

    async def work() -> None:
        async with (
            engine_served(tmp_path, nodes=7) as house,
            AsyncClient(house.server.url, TOKENS[Role.VIEWER], page=3) as reader,
        ):
            assert [one.name for one in await reader.nodes()] == [f"n{n}" for n in range(1, 8)]
            async with asyncio.timeout(300):
                async for one in reader.stream(after=0):
                    assert isinstance(one, e.ControllerStarted)
                    break
            assert [deed.what for deed in await reader.audit()] == ["controller_started"]

    run(work)


def test_the_whole_state_follows_every_commit(tmp_path: Path):
    """What is kept between two questions is renewed: each answer equals the journal's records at that time."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, web(house.server) as http:
            journal = house.controller.journal
            for round_ in range(3):
                if round_:
                    await house.controller.submit(
                        e.NodeSilent(id=f"silent{round_}", at=time.time(), source="controller", node="n1", for_s=30.0)
                        if round_ == 1
                        else e.NodeHeard(id="heard", at=time.time(), source="controller", node="n1")
                    )
                seq = house.controller.seq
                said = (await http.get("/v1/state")).json()
                assert said["seq"] >= seq
                assert said["health"]["ready"]
                for name, records in (
                    ("jobs", await journal.jobs()),
                    ("nodes", await journal.nodes()),
                    ("incidents", await journal.incidents(limit=100)),
                    ("brakes", await journal.brakes()),
                ):
                    assert said[name] == msgspec.json.decode(msgspec.json.encode(records)), name
                silent = {one["name"]: one.get("silent", False) for one in said["nodes"]}
                assert silent["n1"] is (round_ == 1)

    run(work)


def test_a_state_that_could_not_be_read_to_its_end_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A failure between jobs and nodes loses no record's change."""

    async def work() -> None:
        async with engine_served(tmp_path) as house:
            whole = house.server.app.state.whole
            await whole.json()
            silent = e.NodeSilent(id="silent", at=time.time(), source="controller", node="n1", for_s=30.0)
            await house.controller.submit(silent)

            async def broken(**_: object):
                raise JournalError("torn cable")

            with monkeypatch.context() as patch:
                patch.setattr(house.controller.journal, "nodes", broken)
                with pytest.raises(JournalError):
                    await whole.json()
            said = msgspec.json.decode(await whole.json())
            assert [one["name"] for one in said["nodes"] if one.get("silent")] == ["n1"]

    run(work)


def test_what_nobody_asks_for_is_not_kept_and_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """More was touched than a question names: nothing is kept until somebody asks; what is dropped while it is read
    is read once more."""
    monkeypatch.setattr("holdfast.api.whole.NAMED_MAX", 2)

    async def work() -> None:
        async with engine_served(tmp_path) as house:
            whole, journal = house.server.app.state.whole, house.controller.journal
            everything = len(msgspec.json.decode(await whole.json())["nodes"])
            silent = [
                e.NodeSilent(id=f"s{n}", at=time.time(), source="controller", node=f"n{n}", for_s=30.0)
                for n in range(1, 5)
            ]
            for event in silent[:3]:
                await house.controller.submit(event)
            assert not whole._nodes
            assert not whole._jobs
            said = msgspec.json.decode(await whole.json())
            assert [one["name"] for one in said["nodes"] if one.get("silent")] == ["n1", "n2", "n3"]
            assert len(said["nodes"]) == everything
            await house.controller.submit(silent[3])
            read = journal.nodes

            async def dropped(**which: object):
                found = await read(**which)
                if which:
                    whole._drop()
                return found

            monkeypatch.setattr(journal, "nodes", dropped)
            said = msgspec.json.decode(await whole.json())
            assert len(said["nodes"]) == everything
            assert sum(1 for one in said["nodes"] if one.get("silent")) == 4
            assert len(said["jobs"]) == 1

    run(work)
