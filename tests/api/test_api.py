"""The API over a real server and a real controller: delivery, roles, errors, long polls, figures."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.adapters.journal_cases import run
from tests.controller.cases import KEY, House, finding, running, until

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.journal import open_journal
from holdfast.api import ApiServer, Role, TokenBook
from holdfast.api.auth import book_line, ensure_tokens, new_token
from holdfast.api.docs_page import document
from holdfast.client import AsyncClient, Client, Reporter, Spool
from holdfast.errors import ConfigError, JournalError, LinkError, NotFoundError, RefusedError, UsageError, WireError
from holdfast.model import events as e
from holdfast.model.wire import Beat, SamplePoint, encode

TOKENS = {role: new_token() for role in Role}


@asynccontextmanager
async def served(tmp_path: Path, *, tokens: bool = True, **settings):
    """A controller over SQLite with the machine's clock, served on a free port."""
    house = House(watch=False, **settings)
    house.clock = SystemClock()
    house.world._clock = house.clock
    journal = open_journal(f"sqlite:///{tmp_path}/journal.db")
    book = tmp_path / "tokens"
    book.write_text("# who\n" + "".join(book_line(token, role, f"the-{role}") for role, token in TOKENS.items()))
    book.chmod(0o600)
    try:
        controller = house.controller(journal=journal)
        server = ApiServer(controller, tokens=TokenBook.load(book) if tokens else None)
        async with running(controller), server:
            yield house, controller, server
    finally:
        await journal.close()


def client(server: ApiServer, role: Role = Role.OPERATOR) -> AsyncClient:
    return AsyncClient(server.url, TOKENS[role], timeout_s=120)


def event(event_id: str, rule: str = "x") -> e.FindingSeen:
    said, now = finding(rule, event_id), time.time()
    return msgspec.structs.replace(said, at=now, finding=msgspec.structs.replace(said.finding, at=now))


def test_ingested_events_are_on_disk_and_named_by_their_source(tmp_path: Path):
    """The answer comes after the commit; the same batch again stores nothing; the source is the batch's."""

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), client(server, Role.AGENT) as agent:
            answer = await agent.ingest("agent:n1", [event("a"), event("b")])
            assert answer.stored == 2
            stored = await controller.journal.events(kind="finding_seen")
            assert [(one.id, one.source) for one in stored] == [("agent:n1/a", "agent:n1"), ("agent:n1/b", "agent:n1")]
            again = await agent.ingest("agent:n1", [event("b"), event("a")])
            assert (again.stored, controller.figures.duplicates) == (2, 2)
            assert controller.seq == answer.seq == again.seq

    run(work)


def test_sources_may_not_speak_for_operators_or_the_controller(tmp_path: Path):
    """An agent's token cannot slip in a command, a timer or a scheduler's word, nor a source of another kind."""

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), client(server, Role.AGENT) as agent:
            await controller.watch.look_once()
            seq = controller.seq
            for bad in (
                e.OperatorCommand(id="c", at=time.time(), command=e.Command.DRAIN, who="me", node="n1"),
                e.TimerFired(id="t", at=time.time(), timer="t"),
                e.JobVanished(id="j", at=time.time(), job=KEY),
                e.ControllerStarted(id="s", at=time.time(), epoch=99),
            ):
                answer = await agent.ingest("agent:n1", [event(f"ok-{bad.id}"), bad])
                assert answer.stored == 1
                assert "may not send" in answer.refused[0]
            with pytest.raises(WireError, match="must begin with"):
                await agent.ingest("operator:mei", [event("a")])
            assert {type(one).__name__ for one in await controller.journal.events(after=seq)} == {"FindingSeen"}

    run(work)


def test_each_role_may_do_its_own(tmp_path: Path):
    """No token, a wrong one, or one of another role is refused with the right status; the operator may do all."""

    async def work() -> None:
        async with served(tmp_path) as (_, _, server), httpx.AsyncClient(base_url=server.url) as http:

            async def status(role: Role | None, method: str, path: str, body: object = None) -> int:
                headers = {"Authorization": f"Bearer {TOKENS[role]}"} if role else {}
                answer = await http.request(method, path, content=encode(body) if body else None, headers=headers)
                if not answer.is_success:
                    assert answer.headers["content-type"].startswith("application/problem+json")
                    assert answer.json()["status"] == answer.status_code
                return answer.status_code

            beat = Beat(source="agent:n1", node="n1")
            command = {"command": "drain", "node": "n1"}
            for role, read, report, operate in (
                (None, 401, 401, 401),
                (Role.VIEWER, 200, 403, 403),
                (Role.AGENT, 403, 200, 403),
                (Role.OPERATOR, 200, 200, 200),
            ):
                assert await status(role, "GET", "/v1/state") == read
                assert await status(role, "GET", "/v1/events") == read
                assert await status(role, "POST", "/v1/beat", beat) == report
                assert await status(role, "POST", "/v1/commands", command) == operate
            assert await status(None, "GET", "/healthz") == 200
            assert await status(None, "GET", "/metrics") == 200
            wrong = await http.get("/v1/state", headers={"Authorization": f"Basic {TOKENS[Role.OPERATOR]}"})
            assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, "Bearer")

    run(work)


def test_a_token_for_one_source_reports_only_as_it(tmp_path: Path):
    """`only=agent:n1` keeps a node's stolen token from speaking for others."""
    token = new_token()
    book = tmp_path / "tokens"
    book.write_text(book_line(token, Role.AGENT, "n1", only="agent:n1"))
    book.chmod(0o600)

    async def work() -> None:
        house = House(watch=False)
        house.clock = SystemClock()
        controller = house.controller()
        server = ApiServer(controller, tokens=TokenBook.load(book))
        async with running(controller), server, AsyncClient(server.url, token) as agent:
            await agent.ingest("agent:n1", [event("a")])
            await agent.beat(Beat(source="agent:n1", node="n1"))
            for call in (
                agent.ingest("agent:n2", [event("b")]),
                agent.beat(Beat(source="agent:n2", node="n2")),
                agent.beat(Beat(source="agent:n1", node="n2")),
            ):
                with pytest.raises(RefusedError):
                    await call

    run(work)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("viewer me", "tokens:1: write: role name sha256"),
        ("\nroot me " + "0" * 64, "tokens:2: role 'root' is not known"),
        ("viewer me " + "Z" * 64, "64 hexadecimal digits"),
        ("viewer me " + "0" * 64 + " but=x", "write: role name"),
        ("# nothing\n", "holds no token"),
    ],
)
def test_a_bad_token_book_is_refused_with_its_line(tmp_path: Path, text: str, said: str):
    """Each mistake in a token book is named."""
    book = tmp_path / "tokens"
    book.write_text(text)
    book.chmod(0o600)
    with pytest.raises(ConfigError, match=said):
        TokenBook.load(book)


def test_own_tokens_are_made_once_private_and_stored_only_as_hashes(tmp_path: Path):
    """The controller's folder gets a book of hashes and 0600 token files that it accepts; a second start keeps them."""
    book = ensure_tokens(tmp_path)
    token = (tmp_path / "token").read_text().strip()
    assert ensure_tokens(tmp_path) == book
    assert (tmp_path / "token").read_text().strip() == token
    assert token not in book.read_text()
    assert {oct((tmp_path / name).stat().st_mode)[-3:] for name in ("tokens", "token", "agent-token")} == {"600"}
    loaded = TokenBook.load(book)
    assert loaded.identify(f"Bearer {token}").role is Role.OPERATOR
    assert loaded.identify(f"Bearer {(tmp_path / 'agent-token').read_text().strip()}").role is Role.AGENT
    assert loaded.identify("Bearer hft_x") is None
    book.chmod(0o666)
    with pytest.raises(ConfigError, match="others may write"):
        TokenBook.load(book)


def test_beyond_loopback_only_with_tokens_and_never_on_a_taken_port(tmp_path: Path):
    """Without tokens the server refuses any address but loopback; a port that is listened on is an error."""

    async def work() -> None:
        async with served(tmp_path, tokens=False) as (_, controller, server):
            with pytest.raises(RefusedError, match="without tokens"):
                ApiServer(controller, host="0.0.0.0")
            port = int(server.url.rpartition(":")[2])
            with pytest.raises(UsageError, match="cannot listen"):
                async with ApiServer(controller, port=port):
                    pass
            async with AsyncClient(server.url) as anyone:
                assert (await anyone.state()).seq == controller.seq

    run(work)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/v1/ingest", b"{", 400, "truncated"),
        ("POST", "/v1/ingest", b'{"version":9,"source":"agent:n1"}', 400, "update holdfast"),
        ("POST", "/v1/ingest", b'{"source":"agent:n1","events":[' + b"1," * 1000 + b"1]}", 400, "at most 1000"),
        ("POST", "/v1/commands", b'{"command":"drain"}', 400, "needs a target"),
        ("POST", "/v1/commands", b'{"command":"drain","node":"a","group":"b"}', 400, "one target"),
        ("POST", "/v1/commands", b'{"command":"explode","node":"a"}', 400, "explode"),
        ("POST", "/v1/commands", b'{"command":"drain","node":"a","force":true}', 400, "force"),
        ("POST", "/v1/commands", b'{"command":"drain","node":"' + b"a" * 300 + b'"}', 400, "longer than 256"),
        ("GET", "/v1/events?after=x", None, 400, "after"),
        ("GET", "/v1/events?wait=1e9", None, 400, "wait"),
        ("GET", "/v1/events?limit=0", None, 400, "limit"),
        ("GET", "/v1/jobs/99", None, 404, "no job '99'"),
        ("GET", "/v1/nodes/n99", None, 404, "no node"),
        ("GET", "/v1/incidents/i99", None, 404, "no incident"),
        ("GET", "/v1/nothing", None, 404, ""),
        ("GET", "/v1/ingest", None, 405, ""),
    ],
)
def test_bad_requests_get_one_sentence(*, tmp_path: Path, method: str, path: str, body: bytes, status: int, said: str):
    """Each error is a problem document that names what was wrong; nothing is stored."""

    async def work() -> None:
        async with served(tmp_path, tokens=False) as (_, controller, server), httpx.AsyncClient() as http:
            seq = controller.seq
            answer = await http.request(method, server.url + path, content=body)
            assert answer.status_code == status, answer.text
            assert answer.headers["content-type"].startswith("application/problem+json")
            assert said in answer.json()["detail"]
            assert "Traceback" not in answer.text
            assert controller.seq == seq

    run(work)


def test_events_that_cannot_be_read_are_named_and_the_others_stored(tmp_path: Path):
    """An event of a newer version, or with a wrong type, does not keep its neighbours out."""

    async def work() -> None:
        async with served(tmp_path) as (_, _, server), client(server) as agent:
            bad = [b'{"event":"zzz","id":"z","at":1}', b'{"event":"node_gone","id":"a","at":"x","node":"n"}']
            answer = await agent.ingest_encoded("agent:n1", [bad[0], encode(event("a")), bad[1]])
            assert answer.stored == 1
            assert ["zzz" in answer.refused[0], "$.at" in answer.refused[1]] == [True, True]

    run(work)


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path):
    """The declared length alone is enough for the refusal."""

    async def work() -> None:
        async with served(tmp_path, tokens=False) as (_, _, server):
            port = int(server.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /v1/ingest HTTP/1.1\r\nHost: x\r\nContent-Length: 8388609\r\n\r\n{")
            assert b" 413 " in await reader.readline()
            writer.close()

    run(work)


def test_an_event_that_the_engine_refuses_is_reported_and_the_others_are_stored(tmp_path: Path):
    """A batch with one refused event still stores the rest, and says which reason was given."""

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), client(server, Role.AGENT) as agent:
            answer = await agent.ingest("agent:n1", [event("a"), event("b", "refuse"), event("c")])
            assert answer.stored == 2
            assert "no such line" in answer.refused[0]
            assert [one.id for one in await controller.journal.events(kind="finding_seen")] == [
                "agent:n1/a",
                "agent:n1/c",
            ]

    run(work)


def test_an_event_older_than_the_journals_memory_is_not_done_again(tmp_path: Path):
    """A replay of history that retention has dropped is ignored."""

    async def work() -> None:
        async with served(tmp_path, retain_s=100.0) as (_, _, server), client(server, Role.AGENT) as agent:
            old = msgspec.structs.replace(event("a"), at=time.time() - 101)
            assert (await agent.ingest("agent:n1", [old, event("b")])).stored == 1

    run(work)


def test_a_long_poll_answers_within_milliseconds_of_the_commit(tmp_path: Path):
    """A waiting reader hears of an event soon after it is on disk; one that waits in vain gets an empty page in time."""

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), client(server) as reader:
            late: list[float] = []
            for number in range(20):
                poll = asyncio.create_task(reader.events(after=controller.seq, wait_s=10))
                await asyncio.sleep(0.02)
                await controller.submit(event(f"e{number}"))
                stored = time.perf_counter()
                page = await poll
                late.append(time.perf_counter() - stored)
                assert [one.id for one in page.events] == [f"e{number}"]
            assert sorted(late)[10] < 0.1, late
            began = time.perf_counter()
            page = await reader.events(after=controller.seq, wait_s=0.3)
            assert (page.events, page.last) == ([], controller.seq)
            assert 0.25 < time.perf_counter() - began < 3
            assert [one.id for one in (await reader.events(kind="finding_seen", limit=2)).events] == ["e0", "e1"]

    run(work)


def test_orders_for_a_launcher_come_with_its_beats_until_their_outcome(tmp_path: Path):
    """A waiting beat is answered as soon as there is an order; it is given again until OrderDone is stored."""

    async def work() -> None:
        async with served(tmp_path) as (house, _, server), client(server, Role.AGENT) as launcher:
            beat = Beat(source="launcher:7", node="n1", cluster="test", job="7")
            assert not (await launcher.beat(beat)).attached
            attach = e.LauncherAttached(id="l", at=time.time(), job=KEY, restart_count=0, lease_s=7.0)
            await launcher.ingest("launcher:7", [attach])
            first = await launcher.beat(beat)
            assert (first.attached, first.lease_s, first.requests) == (True, 7.0, [])
            waiting = asyncio.create_task(launcher.beat(beat, wait_s=10))
            await asyncio.sleep(0.1)
            began = time.perf_counter()
            await launcher.ingest("agent:n1", [event("f", "order:capture_stacks")])
            [order] = (await waiting).requests
            assert time.perf_counter() - began < 2
            assert (await launcher.beat(beat)).requests == [order]
            await launcher.ingest("launcher:7", [e.OrderDone(id="d", at=time.time(), order=order.id)])
            await until(lambda: not house.engines[-1].state.pending)
            assert (await launcher.beat(beat)).requests == []

    run(work)


def test_a_beat_gets_no_order_from_a_controller_that_may_have_been_superseded(tmp_path: Path, monkeypatch):
    """Another may have decided otherwise; the reporter is heard all the same, and keeps its lease."""

    async def refuse() -> None:
        raise JournalError("gone")

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), client(server, Role.AGENT) as launcher:
            beat = Beat(source="launcher:7", node="n1", cluster="test", job="7")
            await launcher.ingest("launcher:7", [e.LauncherAttached(id="l", at=time.time(), job=KEY, restart_count=0)])
            await launcher.ingest("agent:n1", [event("f", "order:capture_stacks")])
            assert (await launcher.beat(beat, wait_s=10)).requests != []
            with monkeypatch.context() as patched:
                patched.setattr(controller, "may_act", lambda: False)
                patched.setattr(controller.journal, "lease", refuse)
                answer = await launcher.beat(beat)
            assert (answer.attached, answer.requests) == (True, [])
            assert (await launcher.beat(beat)).requests != []

    run(work)


def test_samples_of_beats_can_be_read_back(tmp_path: Path):
    """Samples go to the series store within about a second; NaN stays NaN on the way."""

    async def work() -> None:
        async with served(tmp_path, samples_s=0.05) as (_, _, server), client(server) as both:
            points = [
                SamplePoint("loss", "job:7(0)/rank:0", 1.0, 0.5),
                SamplePoint("loss", "job:7(0)/rank:1", 2.0, None),
            ]
            await both.beat(Beat(source="agent:n1", node="n1", samples=points))
            async with asyncio.timeout(10):
                while len(found := await both.samples("loss", "job:7(0)/*")) < 2:
                    await asyncio.sleep(0.02)
            assert [found[0].value, math.isnan(found[1].value)] == [0.5, True]

    run(work)


def test_commands_are_journalled_with_who_and_why(tmp_path: Path):
    """An operator's word is stored with the token's name; a name given beside it does not hide the token's."""

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), client(server) as operator:
            await operator.command("drain", node="n1", why="memory is noisy")
            await operator.command(e.Command.GIVE_UP, job=KEY, who="mei")
            stored = await controller.journal.events(kind="operator_command")
            assert [(one.command, one.who, one.node, one.job, one.why) for one in stored] == [
                ("drain", "the-operator", "n1", None, "memory is noisy"),
                ("give_up", "mei (token of the-operator)", "", KEY, ""),
            ]

    run(work)


def test_health_and_figures_say_how_the_controller_is(tmp_path: Path):
    """/healthz turns 503 with the reason while the journal refuses; /metrics counts what was stored."""

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), httpx.AsyncClient(base_url=server.url) as http:
            await controller.submit(event("a"))
            assert (await http.get("/healthz")).json()["ok"]
            text = (await http.get("/metrics")).text
            assert 'holdfast_events_total{kind="finding_seen"} 1.0' in text
            assert "holdfast_lease_epoch 1.0" in text
            assert 'holdfast_journal_append_seconds_bucket{le="+Inf"}' in text
            controller._intake.patience.failing = "disk is full"
            answer = await http.get("/healthz")
            assert (answer.status_code, answer.json()["failing"]) == (503, "disk is full")
            controller._intake.patience.failing = ""
            said = {"ok": True, "standby": False, "blind": False, "unseen": []}
            assert (await http.get("/livez")).json() == said
            blind = {"at": controller.clock.now(), "source": "x", "blind": True}
            await controller.submit(e.WatchBlind(id="k", kind="jobset", why="404", **blind))
            assert (await http.get("/livez")).json() == {**said, "unseen": ["jobset"]}
            assert (await http.get("/healthz")).json()["unseen"] == ["jobset"]
            assert 'holdfast_watch_unseen{kind="jobset"} 1.0' in (await http.get("/metrics")).text
            await controller.submit(e.WatchBlind(id="b", why="away", **blind))
            assert (await http.get("/livez")).json() == {**said, "blind": True, "unseen": ["jobset"]}

    run(work)


def test_state_and_single_records(tmp_path: Path):
    """Every record can be read through the client, one by one and all at once; what is not there is an empty list."""

    async def work() -> None:
        async with served(tmp_path) as (house, controller, server), client(server) as reader:
            await controller.submit(event("a", "order:quarantine_node"))
            await until(lambda: not house.engines[-1].state.pending)
            assert [one.status.value for one in await reader.orders()] == ["done"]
            state = await reader.state()
            assert (state.seq, state.health["ok"], state.jobs) == (controller.seq, True, [])
            assert await reader.jobs(job="7#2") == []
            assert await reader.nodes(node="a/b") == []
            assert await reader.incidents(incident="x") == []
            assert await reader.incidents() == await reader.nodes() == await reader.brakes() == []
            assert await reader.healthy()

    run(work)


def test_the_client_names_what_is_wrong_with_the_link(tmp_path: Path):
    """No controller, a wrong token and a missing thing are told apart."""

    async def work() -> None:
        async with served(tmp_path) as (_, _, server):
            async with AsyncClient(server.url, "hft_wrong") as nobody:
                with pytest.raises(RefusedError, match="token"):
                    await nobody.state()
            async with client(server) as reader:
                with pytest.raises(NotFoundError):
                    await reader._call("GET", "/v1/incidents/x", dict)
        async with AsyncClient(server.url) as late:
            assert not await late.healthy()
            with pytest.raises(LinkError, match="cannot be reached"):
                await late.state()

    run(work)


def test_the_client_without_a_loop(tmp_path: Path):
    """`Client` does the same from plain code."""

    def plain(url: str) -> tuple[int, str]:
        with Client(url, TOKENS[Role.OPERATOR]) as plain_client:
            plain_client.ingest("agent:n1", [event("a")])
            plain_client.command("drain", node="n1")
            return plain_client.state().seq, plain_client.events(kind="finding_seen").events[0].id

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server):
            assert await asyncio.to_thread(plain, server.url) == (controller.seq, "agent:n1/a")

    run(work)


def test_the_client_in_a_notebook(tmp_path: Path):
    """`Client` works where a loop runs already, as it does in a notebook's cells, and follows events without end."""

    async def cell(url: str) -> list[str]:
        with Client(url, TOKENS[Role.OPERATOR]) as plain_client:
            plain_client.ingest("agent:n1", [event("a"), event("b"), event("c")])
            found = plain_client.follow(wait_s=0.1, kind="finding_seen")
            return [next(found).id for _ in range(3)]

    async def work() -> None:
        async with served(tmp_path) as (_, _controller, server):
            said = await asyncio.to_thread(asyncio.run, cell(server.url))
            assert said == ["agent:n1/a", "agent:n1/b", "agent:n1/c"]

    run(work)


def test_the_reporter_delivers_through_an_absence_in_order_and_once(tmp_path: Path):
    """Events reported while there is no controller wait in the spool, also over the reporter's death."""

    async def work() -> None:
        spool = tmp_path / "spool"
        (tmp_path / "c").mkdir()

        async def no_controller() -> AsyncClient:
            raise LinkError("no controller is known yet")

        first = Reporter(no_controller, "agent:n1", Spool(spool))
        task = asyncio.create_task(first.run())
        for number in range(5):
            first.report(event(f"e{number}"))
        assert not await first.flush(0.1)
        assert "known yet" in first.last_error
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with spool.open("ab") as torn:
            torn.write(b'{"event":"node_go')
        async with served(tmp_path / "c") as (_, controller, server), client(server) as there:

            async def known() -> AsyncClient:
                return there

            second = Reporter(known, "agent:n1", Spool(spool))
            task = asyncio.create_task(second.run())
            second.report(event("e5"))
            assert await second.flush(10)
            stored = await controller.journal.events(kind="finding_seen")
            assert [one.id for one in stored] == [f"agent:n1/e{n}" for n in range(6)]
            assert spool.read_bytes() == b""
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(work)


def test_one_poisoned_event_does_not_keep_others_from_delivery(tmp_path: Path):
    """What the controller can never take is found, dropped and counted; its neighbours arrive."""

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), client(server) as there:

            async def known() -> AsyncClient:
                return there

            reporter = Reporter(known, "agent:n1")
            for number in range(9):
                reporter.report(event(f"e{number}"))
            reporter.spool.add(b'{"event":"of_a_newer_version","id":"x","at":1}')
            reporter.report(event("e9"))
            task = asyncio.create_task(reporter.run())
            assert await reporter.flush(10)
            stored = await controller.journal.events(kind="finding_seen")
            assert [one.id for one in stored] == [f"agent:n1/e{n}" for n in range(10)]
            assert reporter.refused == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(work)


def test_a_full_spool_drops_the_oldest_and_counts_them(tmp_path: Path):
    """The spool is bounded in bytes, in memory and, after a while, on disk."""
    spool = Spool(tmp_path / "spool", bytes_max=1000)
    for number in range(3000):
        spool.add(b"%099d" % number)
    assert (len(spool), spool.dropped) == (10, 2990)
    assert spool.first(1) == [b"%099d" % 2990]
    assert (tmp_path / "spool").stat().st_size < 200_000
    assert Spool(tmp_path / "spool").first(2000)[-1] == b"%099d" % 2999


def test_the_document_says_what_reports_hold():
    """`/v1/ingest` and `/v1/beat` read their bodies themselves: their forms stand in the document all the same."""
    paths, schemas = document()["paths"], document()["components"]["schemas"]
    for path, form in (("/v1/ingest", "Batch"), ("/v1/beat", "Beat")):
        body = paths[path]["post"]["requestBody"]
        assert body["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{form}"}
        assert "source" in schemas[form]["required"]
    tags = schemas["Batch"]["properties"]["events"]["items"]["properties"]["event"]["enum"]
    assert {"finding_seen", "order_done"} <= set(tags)
