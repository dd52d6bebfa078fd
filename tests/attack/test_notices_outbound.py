"""Notices as a way into the site's own network: by address, by name, by a name that changes, by a redirect.

Nothing here reaches a network: `reached` stands in the kernel's place and keeps the addresses that it is asked for.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest
from structlog.testing import capture_logs

from attack_fixture import Attempt
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.notice_settings import Destination, NotifyConfig
from holdfast.adapters.notify import routing, services
from holdfast.adapters.notify.outbox import Outbox
from holdfast.adapters.notify.routing import Facts, Message
from holdfast.adapters.notify.services import AppriseDeliverer
from holdfast.errors import ConfigError, TemporaryOrderError
from holdfast.model.evidence import Severity
from holdfast.os import outbound
from holdfast.wiring.notices import check_destinations

SERVICE = "A service that notices go to"
NETWORK = "the site's own network"
PUBLIC = "93.184.215.14"
ADDRESSES = (
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "localhost", "10.1.2.3", "172.16.0.9", "192.168.1.1", "100.64.1.1", "169.254.169.254",
    "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "[::127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]",
    "[fd00:ec2::254]", "[fe80::1]", "224.0.0.1", "192.0.2.1", "255.255.255.255", "2130706433", "0x7f000001",
)  # fmt: skip
HOOK = Message("i1", Severity.ERROR, "t", "x")


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Addresses that the kernel was asked to connect to; it refuses each."""
    asked: list[tuple] = []

    def connect(line: socket.socket, address: tuple) -> None:
        sys.audit("socket.connect", line, address)  # as the interpreter does before it asks the kernel
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", connect)
    return asked


def resolves(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
    """What a name resolves to, at each question; the last answer stays."""
    left = list(answers)

    def getaddrinfo(_host, port, *_more, **_named):
        found = left.pop(0) if len(left) > 1 else left[0]
        kinds = [socket.AF_INET6 if ":" in one else socket.AF_INET for one in found]
        return [(kind, socket.SOCK_STREAM, 6, "", (one, port)) for kind, one in zip(kinds, found, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def send(url: str, allow: tuple[str, ...] = (), **more: str) -> str:
    """Deliver one message; why it was not taken."""
    try:
        asyncio.run(AppriseDeliverer(allow).deliver(Destination(name="hook", url=url, **more), HOOK, ""))
    except TemporaryOrderError as error:
        return str(error)
    return ""


@pytest.mark.attempt(actor=SERVICE, asset=NETWORK, removed="os.outbound.refusal")
@pytest.mark.parametrize("host", ADDRESSES)
def test_a_webhook_reaches_no_address_that_is_not_public(attempt: Attempt, reached: list[tuple], host: str) -> None:
    """Name an address of this machine, of a private network, link-local or of the cloud's metadata, in any form."""
    attempt.without(outbound, "refusal", lambda _host, _networks: "")
    why = send(f"json://{host}/hook")
    assert attempt.is_open or "name the host or its network in [notify] allow" in why
    attempt.judge(succeeded=bool(reached))


@pytest.mark.attempt(actor=SERVICE, asset=NETWORK, removed="os.outbound.refusal")
@pytest.mark.parametrize("scheme", ["json", "jsons", "xml", "form", "mailto", "mailtos", "syslog", "mmost", "ntfy"])
def test_every_kind_of_service_is_checked(attempt: Attempt, reached: list[tuple], monkeypatch, scheme: str) -> None:
    """Use another protocol: by HTTP, by mail, by datagrams."""
    attempt.without(outbound, "refusal", lambda _host, _networks: "")
    monkeypatch.setattr(socket.socket, "sendto", lambda line, _data, address: socket.socket.connect(line, address))
    urls = {
        "mailto": "mailto://10.0.0.5:25?from=a@x.example&to=b@x.example&mode=insecure",
        "mailtos": "mailtos://10.0.0.5?from=a@x.example&to=b@x.example",
        "syslog": "rsyslog://10.0.0.5",
        "mmost": f"mmost://10.0.0.5/{'a' * 24}",
        "ntfy": "ntfy://10.0.0.5/topic",
    }
    send(urls.get(scheme, f"{scheme}://10.0.0.5/"))
    attempt.judge(succeeded=bool(reached))


@pytest.mark.attempt(actor=SERVICE, asset=NETWORK, removed="os.outbound.refusal")
@pytest.mark.parametrize("host", ["0177.0.0.1", "127.1", "0x7f.1", "[::ffff:7f00:1]"])
def test_an_endpoint_is_checked(attempt: Attempt, reached: list[tuple], host: str) -> None:
    """Give the address as the endpoint of a service that has one of its own."""
    attempt.without(outbound, "refusal", lambda _host, _networks: "")
    send(f"sns://AHIAJGNT76XIMXDBIJYA/{'b' * 40}/us-east-2/12223334444", endpoint=f"http://{host}/")
    attempt.judge(succeeded=bool(reached))


@pytest.mark.attempt(actor=SERVICE, asset=NETWORK, removed="os.outbound.refusal")
@pytest.mark.parametrize("found", ["10.0.0.5", "169.254.169.254", "fd00:ec2::254", "::1"])
def test_a_name_that_resolves_there_is_refused(attempt: Attempt, reached: list[tuple], monkeypatch, found: str) -> None:
    """Name a host whose name resolves to an address that is not public."""
    attempt.without(outbound, "refusal", lambda _host, _networks: "")
    resolves(monkeypatch, [found])
    send("json://hook.example/")
    attempt.judge(succeeded=bool(reached))


@pytest.mark.attempt(actor=SERVICE, asset=NETWORK, removed="os.outbound.refusal")
def test_a_name_that_resolves_differently_the_second_time(attempt: Attempt, reached: list[tuple], monkeypatch) -> None:
    """Have the name resolve to a public address while it is looked at, and to this machine when it is connected to."""
    resolves(monkeypatch, [PUBLIC], ["127.0.0.1"])
    looked = asyncio.run(AppriseDeliverer().refused(Destination(name="hook", url="json://hook.example/")))
    assert looked == ""
    attempt.without(outbound, "refusal", lambda _host, _networks: "")
    send("json://hook.example/")
    attempt.judge(succeeded=bool(reached))


@pytest.mark.attempt(actor=SERVICE, asset=NETWORK, removed="os.outbound.refusal")
def test_an_allowed_network_allows_no_other(attempt: Attempt, reached: list[tuple]) -> None:
    """Use the permission that another destination needs."""
    attempt.without(outbound, "refusal", lambda _host, _networks: "")
    send("json://10.1.0.5/", allow=("10.0.0.0/16", "relay.example.org"))
    attempt.judge(succeeded=bool(reached))


class Server:
    """A real server on this machine; with `to`, every request is sent on."""

    def __init__(self, to: str = "") -> None:
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.asked += 1
                self.send_response(307 if to else 200)  # 307: the same method again
                if to:
                    self.send_header("Location", to)
                self.end_headers()

            def log_message(self, *_words) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_raised) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(60)


@pytest.mark.attempt(actor=SERVICE, asset=NETWORK, removed="adapters.notify.services.FOLLOWS_REDIRECTS")
def test_a_redirect_is_not_followed(attempt: Attempt) -> None:
    """Answer with a redirect to an address that may be reached, so that the notice goes to another reader."""
    attempt.without(services, "FOLLOWS_REDIRECTS", True)
    with Server() as other, Server(to=f"http://{other.address}/") as hook:
        send(f"json://{hook.address}/", allow=("127.0.0.1",))
        assert hook.asked == 1
        attempt.judge(succeeded=other.asked > 0)


@pytest.mark.attempt(actor=SERVICE, asset=NETWORK, removed="os.outbound.refusal")
def test_a_redirect_leads_to_no_private_address(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer with a redirect to the site's network, where redirects are followed: the second check by itself."""
    monkeypatch.setattr(services, "FOLLOWS_REDIRECTS", True)
    plain = outbound.refusal
    with Server() as other, Server(to=f"http://{other.address}/") as hook:

        def only_hook(host, networks=()):
            return plain(host, networks) if hook.asked == 0 else f"{host} is a private address"

        monkeypatch.setattr(outbound, "refusal", only_hook)
        attempt.without(outbound, "refusal", lambda _host, _networks: "")
        send(f"json://{hook.address}/", allow=("127.0.0.1",))
        attempt.judge(succeeded=other.asked > 0)


@pytest.mark.parametrize("url", ["json://10.0.0.5/", "json://localhost/", "json://[::1]/", "json://2130706433/"])
def test_the_controller_does_not_start_with_such_an_address(url: str) -> None:
    """One sentence names the destination, the address and the option; with the option it starts."""
    config = NotifyConfig(to=(Destination(name="hook", url=url),))
    with pytest.raises(
        ConfigError, match=r"'hook': \S+ is .* address; name the host or its network in \[notify\] allow"
    ):
        check_destinations(config)
    check_destinations(NotifyConfig(to=config.to, allow=("10.0.0.0/8", "127.0.0.0/8", "::1")))


def test_a_name_that_resolves_there_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning says so before the first notice: names are looked up beside the start, which waits for no resolver."""
    resolves(monkeypatch, ["10.0.0.5"])
    config = NotifyConfig(to=(Destination(name="hook", url="json://hook.example/"),))

    async def work(logs: list) -> None:
        async with Outbox(config, tmp_path / "o", AppriseDeliverer(), lambda _: Facts(), SystemClock()):
            while not logs:
                await asyncio.sleep(0.005)

    with capture_logs() as logs:
        asyncio.run(asyncio.wait_for(work(logs), 60))
    assert logs[0]["why"].startswith("[[notify.to]] 'hook': 10.0.0.5 is a private address; name the host")


@pytest.mark.parametrize("allow", [("127.0.0.1",), ("127.0.0.0/8",), ("localhost",), ("LOCALHOST",)])
def test_what_is_allowed_is_reached(allow: tuple[str, ...]) -> None:
    """By address, by network and by name."""
    with Server() as hook:
        assert send(f"json://localhost:{hook.server.server_port}/", allow) == ""
        assert hook.asked == 1


@pytest.mark.parametrize("entry", ["10.0.0.0/33", "", "a b", "1.2.3", "http://x", "-x"])
def test_what_is_neither_host_nor_network_is_named(entry: str) -> None:
    """A mistyped network allows nothing, and the controller does not start with it."""
    with pytest.raises(ConfigError, match=r"\[notify\] allow"):
        routing.check(NotifyConfig(allow=(entry,)))


def test_other_threads_connect_as_before(reached: list[tuple]) -> None:
    """Only the sending of notices is held to the rule."""

    def other() -> None:
        with pytest.raises(ConnectionRefusedError), socket.socket() as line:
            line.connect(("10.0.0.5", 80))

    with outbound.only_to(outbound.Allowed()):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)
    assert reached == [("10.0.0.5", 80)]
