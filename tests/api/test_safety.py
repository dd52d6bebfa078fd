"""What strangers and broken clients can do to the API: nothing that others notice."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from pathlib import Path

import httpx
import pytest
import structlog
from tests.api.engine_house import engine_served, run
from tests.api.test_api import TOKENS, client, event, served

from holdfast.api import Role, TokenBook
from holdfast.api.limits import LimitGate, Limits
from holdfast.client import AsyncClient
from holdfast.errors import LinkError

pytestmark = pytest.mark.timeout(600)


def bearer(role: Role) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[role]}"}


async def raw(url: str, request: bytes, *, wait_s: float = 300.0) -> bytes:
    """Send bytes as they are, return all that comes back until the server closes or has answered."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(wait_s):
            return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/..%2f..%2f..%2fetc%2fpasswd",
        "/v1/nodes/....//....//etc/passwd",
        "/v1/../../etc/passwd",
        "/docs/../../../etc/passwd",
        "/docs/%2e%2e/%2e%2e/etc/passwd",
        "/v1/incidents/%00",
        "/v1/nodes/%ff%fe",
        "/static/..%2f..%2fapi/auth.py",
        "//etc/passwd",
    ],
)
def test_no_path_leads_out_of_the_api(tmp_path: Path, path: str):
    """Dots, encoded slashes, NULs and bytes that are no text give a 4xx problem and never a file."""

    async def work() -> None:
        async with served(tmp_path) as (_, _, server):
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS[Role.VIEWER]}\r\nConnection: close\r\n\r\n"
            host, _, port = server.url.removeprefix("http://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head.encode())
            async with asyncio.timeout(300):
                answer = await reader.read()
            writer.close()
            status = int(answer.split(b" ", 2)[1])
            assert 400 <= status < 500
            assert b"root:" not in answer
            assert b"Traceback" not in answer

    run(work)


def test_a_page_of_another_site_cannot_command(tmp_path: Path):
    """On a loopback server without tokens, a visitor's browser on a foreign page gets 403 or 415, and nothing is done."""

    async def work() -> None:
        async with served(tmp_path, tokens=False) as (_, controller, server), httpx.AsyncClient(timeout=120) as http:
            seq = controller.seq
            url, body = f"{server.url}/v1/commands", b'{"command":"drain","node":"n1"}'
            foreign = {"Origin": "https://evil.example", "Content-Type": "application/json"}
            assert (await http.post(url, content=body, headers=foreign)).status_code == 403
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
                assert (await http.post(url, content=body, headers={"Content-Type": kind})).status_code == 415
            assert controller.seq == seq
            own = {"Origin": server.url, "Content-Type": "application/json"}
            assert (await http.post(url, content=body, headers=own)).status_code == 200

    run(work)


class OnePerson:
    """A cockpit's sessions: a cookie is somebody, a header proves the page."""

    def identity(self, connection):
        return TokenBookOfAll.holder(connection.cookies.get("s", "")) if connection.cookies.get("s") else None

    def allows_write(self, connection) -> bool:
        return connection.headers.get("x-proof") == "yes"


class TokenBookOfAll:
    """Looks a token up in the book of the test."""

    book: TokenBook

    @classmethod
    def holder(cls, token: str):
        return cls.book.holder(token)


def test_a_session_reads_but_writes_only_with_proof_of_our_page(tmp_path: Path):
    """A cookie alone, as a foreign page could have it sent, reads and never commands; a wrong bearer does not fall back
    to the cookie."""

    async def work() -> None:
        async with engine_served(tmp_path, sessions=OnePerson()) as house, httpx.AsyncClient(timeout=120) as http:
            TokenBookOfAll.book = house.server.app.state.tokens
            cookie = {"Cookie": f"s={TOKENS[Role.OPERATOR]}"}
            url, body = f"{house.server.url}/v1/commands", {"command": "drain", "node": "n3"}
            assert (await http.get(f"{house.server.url}/v1/nodes", headers=cookie)).status_code == 200
            assert (await http.post(url, json=body, headers=cookie)).status_code == 403
            assert await house.controller.journal.events(kind="operator_command") == []
            assert (await http.post(url, json=body, headers={**cookie, "x-proof": "yes"})).status_code == 200
            wrong = {**cookie, "Authorization": "Bearer hft_wrong"}
            assert (await http.get(f"{house.server.url}/v1/nodes", headers=wrong)).status_code == 401
            viewer = {"Cookie": f"s={TOKENS[Role.VIEWER]}", "x-proof": "yes"}
            assert (await http.post(url, json=body, headers=viewer)).status_code == 403

    run(work)


def test_no_token_stands_in_a_log_an_answer_or_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Right and wrong tokens, in header and address, leave no trace in logs, answers, metrics or the journal; a token in
    the address opens nothing."""
    said = io.StringIO()

    async def work() -> None:
        async with engine_served(tmp_path) as house, httpx.AsyncClient(timeout=120) as http:
            url = house.server.url
            answers = []
            for headers in (bearer(Role.OPERATOR), {"Authorization": "Bearer hft_guessed-by-a-stranger"}, {}):
                for path in ("/v1/state", "/v1/nodes/zz", "/v1/events?after=x", "/metrics", "/healthz", "/docs"):
                    answers.append(await http.get(url + path, headers=headers))
                answers.append(await http.post(f"{url}/v1/commands", content=b"{", headers=headers))
            by_address = await http.get(
                f"{url}/v1/state?token={TOKENS[Role.OPERATOR]}&access_token={TOKENS[Role.OPERATOR]}"
            )
            assert by_address.status_code == 401
            async with client(house.server) as operator:
                await operator.command("drain", node="n1")
            text = "".join(one.text + str(one.headers) for one in answers)
            for secret in (*TOKENS.values(), "hft_guessed"):
                assert secret not in text

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(said))
    try:
        run(work)
    finally:
        structlog.reset_defaults()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("engine.db*"))
    everything = said.getvalue() + "".join(capfd.readouterr())
    for secret in (*TOKENS.values(), "hft_guessed"):
        assert secret not in everything
        assert secret.encode() not in stored


@pytest.mark.parametrize(
    ("path", "size", "role"),
    [("/v1/commands", 65 * 1024, Role.OPERATOR), ("/v1/ingest", 9 * 1024 * 1024, Role.AGENT)],
)
def test_bodies_beyond_their_limit_are_refused(*, tmp_path: Path, path: str, size: int, role: Role):
    """A body that is too large gets 413, whether it says its length or comes in chunks, and the server goes on."""

    async def work() -> None:
        async with served(tmp_path) as (_, _, server), httpx.AsyncClient(timeout=120) as http:

            async def chunks():
                for _ in range(size // 4096 + 1):
                    yield b" " * 4096

            headers = {**bearer(role), "Content-Type": "application/json"}
            for body in (b" " * size, chunks()):
                with contextlib.suppress(httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
                    answer = await http.post(server.url + path, content=body, headers=headers)
                    assert answer.status_code == 413
            async with client(server) as operator:
                assert await operator.healthy()

    run(work)


def test_long_addresses_and_deep_json_are_refused(tmp_path: Path):
    """A query of 20 kB gets 414; JSON nested a hundred thousand deep gets a 400, not a dead controller."""

    async def work() -> None:
        async with served(tmp_path) as (_, _, server), httpx.AsyncClient(timeout=120) as http:
            long = await http.get(f"{server.url}/v1/events?kind={'x' * 20000}", headers=bearer(Role.VIEWER))
            assert long.status_code == 414
            for path in ("/v1/commands", "/v1/ingest", "/v1/beat"):
                deep = b"[" * 30_000 + b"]" * 30_000
                answer = await http.post(server.url + path, content=deep, headers=bearer(Role.OPERATOR))
                assert answer.status_code == 400, path
                in_field = b'{"source":"agent:n1","events":[{"event":' + deep[:20_000] + b"}]}"
                answer = await http.post(server.url + path, content=in_field, headers=bearer(Role.OPERATOR))
                assert answer.status_code == 400, path

    run(work)


def test_slow_clients_hold_up_nobody_and_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two hundred connections that send their request a byte at a time leave others' answers as quick as before; heads
    and bodies that do not come in time are ended."""
    monkeypatch.setattr("holdfast.api.listener.HEADER_WAIT_MS", 1500)
    monkeypatch.setattr("holdfast.api.routes_ingest.BODY_WAIT_S", 1.5)

    async def work() -> None:
        async with served(tmp_path) as (_, _, server), client(server) as operator:
            host, _, port = server.url.removeprefix("http://").rpartition(":")
            slow = []
            try:
                for number in range(200):
                    reader, writer = await asyncio.open_connection(host, int(port))
                    head = f"POST /v1/ingest HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS[Role.AGENT]}\r\n"
                    writer.write((head + "Content-Length: 100\r\n\r\n{" if number % 2 else head).encode())
                    slow.append((reader, writer, number % 2))
                took = []
                for _ in range(20):
                    began = time.perf_counter()
                    await operator.state()
                    took.append(time.perf_counter() - began)
                assert sorted(took)[10] < 20.0, took
                async with asyncio.timeout(300):
                    bodies = [await reader.readline() for reader, _, has_head in slow if has_head]
                    assert {line.split(b" ")[1] for line in bodies} == {b"408"}
                    for reader, _, has_head in slow:
                        if not has_head:
                            await reader.read()
            finally:
                for _, writer, _ in slow:
                    writer.close()
            assert await operator.healthy()

    run(work)


def test_too_many_requests_are_told_when_to_come_back(tmp_path: Path):
    """One token's flood gets 429 with Retry-After; another token and the agents go on."""

    async def work() -> None:
        limits = Limits(requests_per_s=0.001, requests_burst=5)
        async with (
            engine_served(tmp_path, limits=limits) as house,
            httpx.AsyncClient(base_url=house.server.url, timeout=120) as http,
        ):
            codes = [(await http.get("/v1/brakes", headers=bearer(Role.VIEWER))).status_code for _ in range(8)]
            assert codes[:5] == [200] * 5
            assert codes[-1] == 429
            refused = await http.get("/v1/brakes", headers=bearer(Role.VIEWER))
            assert (refused.json()["status"], int(refused.headers["retry-after"]) >= 1) == (429, True)
            assert (await http.get("/v1/brakes", headers=bearer(Role.OPERATOR))).status_code == 200
            gate = house.server.app.state.limits
            assert gate.refused == 4
            async with client(house.server, Role.AGENT) as agent:
                for number in range(20):
                    await agent.ingest("agent:n1", [event(f"f{number}", "noise")])
            async with AsyncClient(house.server.url, TOKENS[Role.VIEWER]) as viewer:
                with pytest.raises(LinkError, match="too many requests"):
                    await viewer.brakes()

    run(work)


def test_guessing_tokens_is_slowed_down(tmp_path: Path):
    """After some refused tokens from one address the answer is 429 whatever the token, until time has passed."""

    async def work() -> None:
        limits = Limits(refusals_per_s=0.001, refusals_burst=5)
        async with (
            engine_served(tmp_path, limits=limits) as house,
            httpx.AsyncClient(base_url=house.server.url, timeout=120) as http,
        ):
            codes = [
                (await http.get("/v1/brakes", headers={"Authorization": f"Bearer hft_{n}"})).status_code
                for n in range(9)
            ]
            assert codes[:5] == [401] * 5
            assert codes[-1] == 429

    run(work)


@pytest.mark.parametrize(
    ("header", "is_guess"),
    [("Basic cHJvbWV0aGV1czp4", False), ("Bearer eyJhbGciOiJSUzI1NiJ9.e30.c2ln", False), ("Bearer hft_{}", True)],
)
def test_a_scrape_with_a_foreign_header_is_no_guess(tmp_path: Path, header: str, is_guess: bool):
    """Prometheus may send each target the header of its proxy, or its pod's token: the figures come, without jobs' names.
    What looks like one of our tokens is counted as everywhere else."""

    async def work() -> None:
        limits = Limits(refusals_per_s=0.001, refusals_burst=3)
        async with (
            engine_served(tmp_path, limits=limits) as house,
            httpx.AsyncClient(base_url=house.server.url, timeout=120) as http,
        ):
            codes = [
                (await http.get("/metrics", headers={"Authorization": header.format(n)})).status_code for n in range(6)
            ]
            assert codes == ([200] * 3 + [429] * 3 if is_guess else [200] * 6)

    run(work)


def test_buckets_drain_with_time_and_forget_the_oldest_client():
    """A client gets its burst, then one request for each step of time; ten thousand addresses take bounded memory."""
    clock = [0.0]
    gate = LimitGate(Limits(requests_per_s=2, requests_burst=4), now=lambda: clock[0])
    taken = [gate._people.take("a", clock[0]) for _ in range(6)]
    assert taken[:4] == [0.0] * 4
    assert taken[4] == pytest.approx(0.5)
    clock[0] = 0.5
    assert [gate._people.take("a", clock[0]) > 0 for _ in range(2)] == [False, True]
    for number in range(10_000):
        gate._people.take(f"c{number}", clock[0])
    assert len(gate._people._levels) <= 4096


def test_streams_are_counted_and_refused_beyond_their_number(tmp_path: Path):
    """The third stream of a token that may hold two open is refused; a viewer of another token gets one."""

    async def work() -> None:
        limits = Limits(streams_each=2)
        async with (
            engine_served(tmp_path, limits=limits) as house,
            httpx.AsyncClient(base_url=house.server.url, timeout=120) as http,
            contextlib.AsyncExitStack() as stack,
        ):
            kept = []
            for _ in range(2):
                opened = http.stream("GET", "/v1/stream?after=0", headers=bearer(Role.VIEWER))
                kept.append((await stack.enter_async_context(opened)).aiter_bytes())
                await anext(kept[-1])
            refused = await http.get("/v1/stream", headers=bearer(Role.VIEWER))
            assert refused.status_code == 429
            other = http.stream("GET", "/v1/stream?after=0", headers=bearer(Role.OPERATOR))
            assert (await stack.enter_async_context(other)).status_code == 200

    run(work)


def test_hostile_text_stays_text(tmp_path: Path):
    """Names and log lines with markup, line ends and odd Unicode come back as they were, in JSON, and cannot break the
    stream's framing."""

    async def work() -> None:
        async with served(tmp_path) as (_, controller, server), httpx.AsyncClient(timeout=120) as http:
            begin = controller.seq
            nasty = 'x\n\nid: 99999\nevent: evil\ndata: {}\n\n<script>alert(1)</script>\u2028"\\\u0000'
            await controller.submit(event("nasty", nasty))
            async with asyncio.timeout(300):
                url = f"{server.url}/v1/stream?after={begin}"
                async with http.stream("GET", url, headers=bearer(Role.VIEWER)) as answer:
                    text = ""
                    async for part in answer.aiter_text():
                        text += part
                        if "data: " in text and text.endswith("\n\n"):
                            break
            blocks = [block for block in text.split("\n\n") if "data: " in block]
            assert len(blocks) == 1
            fields = dict(line.partition(": ")[::2] for line in blocks[0].split("\n"))
            assert (fields["id"], fields["event"]) == (str(begin + 1), "finding_seen")
            assert json.loads(fields["data"])["finding"]["rule"] == nasty

    run(work)


def test_answers_are_not_kept_nor_framed_nor_guessed(tmp_path: Path):
    """API answers carry no-store, nosniff and a policy that lets nothing run; the docs page loads nothing and runs none."""

    async def work() -> None:
        async with served(tmp_path) as (_, _, server), httpx.AsyncClient(base_url=server.url, timeout=120) as http:
            answer = await http.get("/v1/brakes", headers=bearer(Role.VIEWER))
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            page = (await http.get("/docs")).text
            assert "<script" not in page
            assert "//cdn" not in page
            assert "POST" in page
            assert "/v1/commands" in page
            schema = (await http.get("/docs/openapi.json")).json()
            assert set(schema["paths"]) >= {"/v1/jobs", "/v1/stream", "/v1/commands", "/v1/audit", "/metrics"}

    run(work)


def test_every_route_but_probes_and_docs_needs_a_token(tmp_path: Path):
    """What the API's own document lists answers 401 without a token, except health, figures, the login by munge and the document."""

    async def work() -> None:
        async with served(tmp_path) as (_, _, server), httpx.AsyncClient(base_url=server.url, timeout=120) as http:
            document = (await http.get("/docs/openapi.json")).json()
            open_to_all = set()
            for path, item in document["paths"].items():
                for method in item:
                    answer = await http.request(method, path.replace("{", "").replace("}", ""), content=b"{}")
                    if answer.status_code != 401:
                        open_to_all.add(path)
            assert open_to_all - {"/livez"} == {"/healthz", "/metrics", "/v1/token"}
            assert len(document["paths"]) > 20

    run(work)
