"""The API over TLS: real connections with an authority made here; who is served, who is refused, renewal in place."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import subprocess
import time
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs
from tests.adapters.journal_cases import run
from tests.api.test_api import TOKENS, event
from tests.certificates import DAY, Authority
from tests.controller.cases import House, running, until

from holdfast.adapters.certificates import Pair
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.journal import open_journal
from holdfast.api import ApiServer, Role, TokenBook, following
from holdfast.api import listener as listening
from holdfast.api.auth import book_line
from holdfast.api.standing_by import standing_by
from holdfast.client import AsyncClient, Reporter, Trust
from holdfast.errors import ConfigError, LinkError, RefusedError, WireError
from holdfast.model.events import FindingSeen
from holdfast.model.evidence import Place
from holdfast.model.wire import Beat
from holdfast.os import tls
from holdfast.os.tls import TlsFiles, checked

AGENT = TOKENS[Role.AGENT]


@asynccontextmanager
async def served(tmp_path: Path, tls: TlsFiles | None):
    """A controller over SQLite, served over TLS."""
    house = House(watch=False)
    house.clock = SystemClock()
    house.world._clock = house.clock
    journal = open_journal(f"sqlite:///{tmp_path}/journal.db")
    book = tmp_path / "tokens"
    book.write_text("".join(book_line(token, role, f"the-{role}") for role, token in TOKENS.items()))
    book.chmod(0o600)
    try:
        controller = house.controller(journal=journal)
        server = ApiServer(controller, tokens=TokenBook.load(book), tls=tls)
        async with running(controller), server:
            yield controller, server
    finally:
        await journal.close()


async def shown(port: int) -> str:
    """The certificate that is shown there, PEM."""
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))


async def lease_of(url: str, trust: Trust) -> int:
    async with AsyncClient(url, AGENT, trust=trust, timeout_s=20) as client:
        return (await client.beat(beat("n1"))).lease_s


def beat(node: str) -> Beat:
    return Beat(source=f"agent:{node}", node=node, boot_id="b", instance_id="i", at=time.time())


def seen_on(node: str, name: str) -> FindingSeen:
    said = event(name)
    return msgspec.structs.replace(said, finding=msgspec.structs.replace(said.finding, place=Place(node=node)))


def fingerprint(url: str, ca: Path) -> bytes:
    """The certificate that a new connection is shown; empty: it was cut off in the middle of a renewal."""
    host, port = url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(ca))
    try:
        with (
            socket.create_connection((host, int(port))) as bare,
            context.wrap_socket(bare, server_hostname=host) as line,
        ):
            return line.getpeercert(binary_form=True)
    except (ssl.SSLEOFError, ConnectionError):
        return b""


def test_who_trusts_the_authority_is_served_and_others_refuse(tmp_path: Path):
    """The authority's clients are answered; another authority, the system's and plain HTTP end in one sentence."""
    ours, other = Authority(tmp_path), Authority(tmp_path, "other")

    async def work() -> None:
        async with served(tmp_path, ours.files()) as (_, server):
            assert server.url.startswith("https://127.0.0.1:")
            assert await lease_of(server.url, ours.trust) > 0
            assert await lease_of(server.url.replace("127.0.0.1", "localhost"), ours.trust) > 0
            for trust, named in ((other.trust, str(other.ca)), (Trust(), "by HOLDFAST_CA_FILE")):
                with pytest.raises(LinkError, match=f"CERTIFICATE_VERIFY_FAILED.*{named}"):
                    await lease_of(server.url, trust)
            with pytest.raises(LinkError):
                await lease_of(server.url.replace("https", "http"), Trust())

    run(work)


def test_a_certificate_of_another_name_is_refused(tmp_path: Path):
    """A certificate for elsewhere.example does not stand for 127.0.0.1, whoever signed it."""
    ours = Authority(tmp_path)

    async def work() -> None:
        async with served(tmp_path, ours.files(ours.server(("elsewhere.example",)))) as (_, server):
            with pytest.raises(LinkError, match=r"IP address mismatch|not valid for"):
                await lease_of(server.url, ours.trust)

    run(work)


def test_with_a_client_authority_nobody_comes_in_without_a_certificate(tmp_path: Path):
    """mTLS: none, another authority's and an expired one are refused in the handshake; ours still needs its token."""
    ours, other = Authority(tmp_path), Authority(tmp_path, "other")
    stranger = Trust(ours.ca, other.client("agent:n1").cert_file)
    former = ours.client("agent:former", at=time.time() - 1000 * DAY)

    async def work() -> None:
        async with served(tmp_path, ours.files(client_ca=ours.ca)) as (_, server):
            for trust in (ours.trust, stranger, former):
                named = "name one by HOLDFAST_CERT_FILE" if trust.cert_file is None else str(trust.cert_file)
                with pytest.raises(LinkError, match=re.escape(named)):
                    await lease_of(server.url, trust)
            mine = ours.client("agent:n1")
            assert await lease_of(server.url, mine) > 0
            async with AsyncClient(server.url, "hft_wrong", trust=mine, timeout_s=20) as nobody:
                with pytest.raises(RefusedError):
                    await nobody.beat(beat("n1"))

    run(work)


WRONG = {
    "missing certificate": ("tls.crt: there is no such file", lambda ours, files: files.cert.unlink()),
    "missing key": ("tls.key: there is no such file", lambda ours, files: files.key.unlink()),
    "folder": ("tls.key: cannot be read: it is no ordinary file", lambda ours, files: (files.key.unlink(), files.key.mkdir())),
    "no certificate": ("tls.crt: holds no certificate in PEM form", lambda ours, files: files.cert.write_text("hello")),
    "no key": ("tls.key: holds no private key in PEM form", lambda ours, files: files.key.write_text("hello")),
    "torn": ("certificate and key cannot be used", lambda ours, files: files.cert.write_bytes(files.cert.read_bytes()[:200] + b"\n-----END CERTIFICATE-----\n")),
    "another key": ("tls.key: is not the key of the certificate", lambda ours, files: files.key.write_bytes(ours.server().key)),
    "password": ("the key is protected by a password", lambda ours, files: files.key.write_bytes(locked(files.key))),
    "expired": ("the certificate has expired", lambda ours, files: ours.files(ours.server(at=time.time() - 100 * DAY))),
    "not yet": ("the certificate is not valid yet", lambda ours, files: ours.files(ours.server(at=time.time() + 100 * DAY))),
    "of a client": ("unsuitable certificate purpose", lambda ours, files: ours.files(client_pair(ours))),
}  # fmt: skip


def locked(key: Path) -> bytes:
    argv = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret"]
    return subprocess.run(argv, capture_output=True, check=True).stdout


def client_pair(ours: Authority) -> Pair:
    text = ours.client("agent:n9").cert_file.read_bytes()
    cut = text.index(b"-----BEGIN PRIVATE")
    return Pair(text[:cut], text[cut:])


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_served_with_is_one_sentence(case: str, tmp_path: Path):
    """Missing, torn, expired, of another key, under a password: the sentence names the file and what is wrong."""
    ours = Authority(tmp_path)
    files = ours.files()
    assert "GMT" in checked(files)
    sentence, spoil = WRONG[case]
    spoil(ours, files)
    with pytest.raises(ConfigError) as found:
        checked(files)
    assert sentence in str(found.value)
    assert str(ours.folder) in str(found.value)


def test_files_that_are_taken_away_as_they_are_looked_at_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A script removes the pair before it copies the new one: a sentence, which whoever follows renewals expects."""
    files = Authority(tmp_path).files()
    look = tls._pem

    def look_and_lose(path: Path, what: str) -> str:
        text = look(path, what)
        path.unlink()
        return text

    monkeypatch.setattr(tls, "_pem", look_and_lose)
    with pytest.raises(ConfigError, match="cannot be used: No such file"):
        checked(files)


def test_a_server_that_was_too_slow_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The new certificate's server does not listen in time, once: the next look begins another one."""
    monkeypatch.setattr(following, "LOOK_S", 0.01)
    ours = Authority(tmp_path)
    files = ours.files()
    listener = listening.Listener(None, "127.0.0.1", 0, files)
    begun: list[str] = []

    class Served:
        def stop(self) -> None:
            begun.append("stopped")

    async def serve() -> None:
        begun.append("begun")
        if len(begun) == 1:
            raise LinkError("the API does not listen")

    async def work() -> None:
        listener._serving = [(Served(), asyncio.create_task(asyncio.sleep(60)))]
        listener._serve = serve
        task = asyncio.create_task(following.follow(files, (), listener._renew))
        await until(lambda: "stopped" in begun)
        task.cancel()
        listener._serving[0][1].cancel()

    run(work)
    assert begun == ["begun", "begun", "stopped"]


def test_files_that_cannot_be_served_with_are_logged_once_and_then_the_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is renewed until they change again; both log lines name what they are about."""
    monkeypatch.setattr(following, "LOOK_S", 0.0)
    ours = Authority(tmp_path)
    files = ours.files()
    served = files.stamp()
    files.key.write_text("hello")
    looks, renewed = 0, asyncio.Event()
    stamp = TlsFiles.stamp

    def counted(self: TlsFiles):
        nonlocal looks
        looks += 1
        return stamp(self)

    async def renew() -> None:
        renewed.set()

    async def work() -> None:
        task = asyncio.create_task(following.follow(files, served, renew))
        await until(lambda: looks > 5)
        assert not renewed.is_set()
        ours.files()
        await until(lambda: len(said) > 1)
        task.cancel()

    monkeypatch.setattr(TlsFiles, "stamp", counted)
    with capture_logs() as said:
        run(work)
    assert [(one["log_level"], one["event"]) for one in said] == [
        ("error", "the certificate was not renewed; the former one is served"),
        ("info", "the certificate was renewed"),
    ]
    assert str(files.key) in said[0]["why"]
    assert said[1]["certificate"] == str(files.cert)
    assert renewed.is_set()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_key_that_may_not_be_read_is_said(tmp_path: Path):
    """The sentence names the file and the reason."""
    files = Authority(tmp_path).files()
    files.key.chmod(0)
    with pytest.raises(ConfigError, match=r"tls\.key: cannot be read: Permission denied"):
        checked(files)


def test_a_server_that_cannot_serve_gives_its_port_back(tmp_path: Path):
    """The error comes out of the start; nothing listens, and the next start works."""
    ours = Authority(tmp_path)

    async def work() -> None:
        files = ours.files()
        good = files.key.read_bytes()
        files.key.write_text("hello")
        with pytest.raises(ConfigError):
            async with served(tmp_path, files):
                raise AssertionError
        files.key.write_bytes(good)
        async with served(tmp_path, files) as (_, server):
            assert await lease_of(server.url, ours.trust) > 0

    run(work)


def test_a_renewed_certificate_is_served_while_clients_beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two clients beat and report through two renewals: every event is stored once, the lease stays, the new one is shown.

    A key without its certificate is in between, as certbot writes them: the former pair is served until both fit.
    """
    monkeypatch.setattr(following, "LOOK_S", 0.02)
    ours = Authority(tmp_path)

    async def work() -> None:
        async with served(tmp_path, ours.files()) as (controller, server):
            epoch, first = controller.epoch, fingerprint(server.url, ours.ca)
            clients = [AsyncClient(server.url, AGENT, trust=ours.trust, timeout_s=20) for _ in range(2)]
            ended, beats, failed = asyncio.Event(), 0, 0
            reporters = [Reporter(lambda c=c: asyncio.sleep(0, c), f"agent:n{n}") for n, c in enumerate(clients, 1)]
            tasks = [asyncio.create_task(reporter.run()) for reporter in reporters]

            async def go(number: int, client: AsyncClient) -> None:
                nonlocal beats, failed
                while not ended.is_set():
                    reporters[number - 1].report(seen_on(f"n{number}", f"e{beats}"))
                    try:
                        await client.beat(beat(f"n{number}"))
                        beats += 1
                    except LinkError:
                        failed += 1

            tasks += [asyncio.create_task(go(n, client)) for n, client in enumerate(clients, 1)]
            await until(lambda: beats > 10)
            shown = {first}
            for _ in range(2):
                fresh = ours.server()
                (ours.folder / "tls.crt").write_bytes(fresh.cert)  # alone, it fits no key: nothing changes
                seen = beats
                await until(lambda seen=seen: beats > seen + 10)
                assert await asyncio.to_thread(fingerprint, server.url, ours.ca) in shown
                ours.files(fresh)
                wanted = ssl.PEM_cert_to_DER_cert(fresh.cert.decode())
                async with asyncio.timeout(20):
                    while (seen := await asyncio.to_thread(fingerprint, server.url, ours.ca)) != wanted:
                        assert seen in shown | {b""}
                shown.add(wanted)
                seen = beats
                await until(lambda seen=seen: beats > seen + 10)
            ended.set()
            assert all([await reporter.flush(20) for reporter in reporters])
            for task in tasks:
                task.cancel()
            stored = [one.id for one in await controller.journal.events(kind="finding_seen", limit=100_000)]
            assert len(stored) == len(set(stored)) > 20
            assert len(shown) == 3
            assert (controller.epoch, [reporter.refused for reporter in reporters]) == (epoch, [0, 0])
            # A beat that was being written as its connection ended may fail; the next one is answered.
            assert failed <= 2 * len(clients)
            for client in clients:
                await client.close()

    run(work)


def test_a_stand_by_answers_over_tls_too(tmp_path: Path):
    """/livez of a standby is asked with the same address as that of a leader."""
    ours = Authority(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def work() -> None:
        async with (
            standing_by("127.0.0.1", port, ours.files()),
            httpx.AsyncClient(trust_env=False, verify=ours.trust.context()) as http,
        ):
            assert (await http.get(f"https://127.0.0.1:{port}/livez")).status_code == 200
            former = await shown(port)
            ours.files()
            async with asyncio.timeout(60):
                while await shown(port) == former:
                    await asyncio.sleep(0.02)
            assert (await http.get(f"https://127.0.0.1:{port}/livez")).status_code == 200

    run(work)


@pytest.mark.parametrize(
    "url", ["http://10.0.0.5:8470", "http://controller:8470", "http://0.0.0.0:1", "http://[2001:db8::1]:1"]
)
def test_a_token_does_not_cross_a_network_unencrypted(url: str):
    """Plain HTTP to another machine is refused before anything is sent, unless the site allows it, or there is no token."""
    with pytest.raises(RefusedError, match="HOLDFAST_PLAIN_HTTP=1"):
        AsyncClient(url, "hft_x")
    AsyncClient(url, "hft_x", trust=Trust(plain_http=True))
    AsyncClient(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://controller:1"])
def test_this_machine_and_https_need_no_leave(url: str):
    """Loopback and https take tokens."""
    AsyncClient(url, "hft_x")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_token_is_never_sent_on(status: int):
    """A redirect, to another host or the same, is an error: the token stays where it was given for."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(status, headers={"Location": "http://evil.example/v1/state"})

    async def work() -> None:
        async with AsyncClient("http://127.0.0.1:1", "hft_x", transport=httpx.MockTransport(answer)) as client:
            with pytest.raises(WireError, match="no token was sent there"):
                await client.state()
        assert asked == ["http://127.0.0.1:1/v1/state"]

    run(work)


def test_what_a_client_is_given_is_said_when_it_cannot_be_read(tmp_path: Path):
    """A missing authority, and a client's file without a key, name the file."""
    ours = Authority(tmp_path)
    for trust in (Trust(tmp_path / "none.pem"), Trust(ours.ca, ours.ca), Trust(ours.ca, tmp_path / "none.pem")):
        with pytest.raises(ConfigError, match=r"\.pem"):
            AsyncClient("https://127.0.0.1:1", trust=trust)
