"""Notices against real servers on this machine: mail (aiosmtpd), webhooks, SNS (moto); routing, quiet hours, threads,
limits, and that nothing is lost when a service or the controller goes away."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import time
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest
from aiosmtpd.controller import Controller as MailServer
from typer.testing import CliRunner

from holdfast.adapters.clock import SystemClock, VirtualClock, run_virtual
from holdfast.adapters.notice_settings import Destination, NotifyConfig
from holdfast.adapters.notify.outbox import Outbox
from holdfast.adapters.notify.routing import (
    TEXT_MAX,
    Facts,
    Message,
    batches,
    check,
    joined,
    quiet_for_s,
    render,
    wants,
)
from holdfast.adapters.notify.services import AppriseDeliverer, service_of
from holdfast.cli.main import app
from holdfast.errors import ConfigError, TemporaryOrderError
from holdfast.model.evidence import Severity
from holdfast.model.orders import Notify
from holdfast.os.outbound import Allowed

pytestmark = pytest.mark.timeout(600)
LOOPBACK = ("127.0.0.0/8",)
INCIDENT = Facts(summary="GPU 3 fell off the bus", domain="hardware", partition="gpu", owner="mei", steps=("look",))


def notice(
    number: int = 1,
    *,
    topic: str = "i1",
    severity: Severity = Severity.WARNING,
    title: str = "",
    asks: bool = False,
) -> Notify:
    return Notify(
        id=f"o{number}", cause=number, incident=topic, topic=topic, severity=severity,
        title=title or f"7(0) is requeued, held ({number})", text=f"text {number}", asks=asks,
    )  # fmt: skip


class Web:
    """A webhook server that keeps what it was sent; the first `refuse` requests get a 503."""

    def __init__(self) -> None:
        self.got: list[dict] = []
        self.refuse = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.refuse > 0:
                    outer.refuse -= 1
                    self.send_response(503)
                else:
                    outer.got.append(json.loads(body))
                    self.send_response(200)
                self.end_headers()

            def log_message(self, *_words) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def web():
    made = Web()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(200)


class Mails:
    """Keeps every mail as it came."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    async def handle_DATA(self, _server, _session, envelope) -> str:  # noqa: N802 - aiosmtpd's name
        self.got.append(envelope.content)
        return "250 taken"


@contextmanager
def mail_server():
    mails = Mails()
    server = MailServer(mails, hostname="127.0.0.1", port=0)
    server.port = _free_port()
    server.start()
    try:
        yield mails, server.port
    finally:
        server.stop()


def _free_port() -> int:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


async def until(holds, limit_s: float = 400.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)


def outbox(config: NotifyConfig, path: Path, facts: Facts = INCIDENT) -> Outbox:
    return Outbox(config, path / "outbox.jsonl", AppriseDeliverer(LOOPBACK), lambda _notice: facts, SystemClock())


def test_a_webhook_gets_each_notice_in_order_with_steps_and_links(tmp_path: Path, web: Web):
    """Requeued, cause, released, recovered arrive in this order, each with its text, the step, incident and dashboard."""
    config = NotifyConfig(
        link="https://hold.example/", dashboard="https://graf.example/d/holdfast-recovery", group_s=0.0,
        to=(Destination(name="hook", url=web.url),),
    )  # fmt: skip

    async def work() -> None:
        async with outbox(config, tmp_path) as box:
            for number, title in enumerate(("requeued", "cause", "released", "recovered"), 1):
                await box.send(notice(number, title=title))
                await until(lambda number=number: len(web.got) == number)

    asyncio.run(work())
    assert [one["title"] for one in web.got] == ["requeued", "cause", "released", "recovered"]
    assert {one["topic"] for one in web.got} == {"i1"}
    text = web.got[0]["message"]
    for part in ("text 1", "GPU 3 fell off the bus", "- look", "https://hold.example/incidents/i1", "graf.example"):
        assert part in text


def test_a_service_that_is_down_gets_everything_once_it_is_back(tmp_path: Path, web: Web, monkeypatch):
    """Three refusals delay the notice and those behind it; nothing is lost, and another destination is not kept waiting."""
    monkeypatch.setattr("holdfast.adapters.notify.outbox.RETRY_FIRST_S", 0.05)
    web.refuse = 3
    with mail_server() as (mails, port):
        config = NotifyConfig(
            group_s=0.0,
            to=(
                Destination(name="hook", url=web.url),
                Destination(
                    name="mail", url=f"mailto://127.0.0.1:{port}?from=hold@x.example&to=ops@x.example&mode=insecure"
                ),
            ),
        )

        async def work() -> None:
            async with outbox(config, tmp_path) as box:
                await box.send(notice(1))
                await until(lambda: len(mails.got) == 1)
                await box.send(notice(2, topic="i2"))
                await until(lambda: sum(box.waiting().values()) == 0)
                assert box.outcomes["hook", "failed"] == 3
                assert box.outcomes["mail", "sent"] == 2

        asyncio.run(work())
    assert [one["topic"] for one in web.got] == ["i1", "i2"]


def test_what_waits_outlives_the_controller(tmp_path: Path, web: Web, monkeypatch):
    """A controller that is killed while a service refuses hands its notices on to the next one, each delivered; a torn
    last line harms nothing; what was taken is not sent again."""
    monkeypatch.setattr("holdfast.adapters.notify.outbox.RETRY_FIRST_S", 30.0)
    config = NotifyConfig(group_s=0.0, to=(Destination(name="hook", url=web.url),))

    async def first() -> None:
        async with outbox(config, tmp_path) as box:
            await box.send(notice(1))
            await until(lambda: len(web.got) == 1 and not box.waiting()["hook"])
            web.refuse = 1
            await box.send(notice(2))
            await until(lambda: box.outcomes["hook", "failed"] == 1)
            await box.send(notice(3, topic="i2"))

    async def second() -> None:
        async with outbox(config, tmp_path) as box:
            await until(lambda: len(web.got) == 3)
            await box.send(notice(4, topic="i3"))
            await until(lambda: len(web.got) == 4)

    asyncio.run(first())
    with (tmp_path / "outbox.jsonl").open("ab") as file:
        file.write(b'{"n":99,"to":"hook","mess')
    asyncio.run(second())
    assert [one["message"].splitlines()[0] for one in web.got] == [f"text {number}" for number in range(1, 5)]
    assert oct((tmp_path / "outbox.jsonl").stat().st_mode)[-3:] == "600"


def test_half_a_line_on_a_full_disk_takes_no_other_with_it(tmp_path: Path, monkeypatch):
    """The disk is full in the middle of a line: the notice is refused, and the one before and the next one are kept."""
    config = NotifyConfig(to=(Destination(name="hook", url="json://127.0.0.1:9"),))
    path, plain = tmp_path / "outbox.jsonl", os.write

    def full(descriptor: int, data: bytes) -> int:
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            return plain(descriptor, data)
        if not data.startswith(b"{"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(descriptor, data[:20])

    async def work() -> None:
        box = Outbox(config, path, AppriseDeliverer(LOOPBACK), lambda _n: INCIDENT, SystemClock())
        await box.send(notice(1))
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.os.files.os.write", full)
            with pytest.raises(TemporaryOrderError, match="No space left"):
                await box.send(notice(2))
        await box.send(notice(3))

    asyncio.run(work())
    assert [json.loads(line)["message"]["title"][-3:] for line in path.read_text().splitlines()] == ["(1)", "(3)"]


def test_a_full_disk_refuses_the_notice_so_that_the_journal_keeps_it(tmp_path: Path):
    """When the outbox cannot be written the order is not done: the executors try again."""
    config = NotifyConfig(to=(Destination(name="hook", url="json://127.0.0.1:9"),))

    async def work() -> None:
        box = Outbox(
            config, tmp_path / "none" / "outbox.jsonl", AppriseDeliverer(LOOPBACK), lambda _n: INCIDENT, SystemClock()
        )
        with pytest.raises(TemporaryOrderError, match="cannot be written"):
            await box.send(notice())

    asyncio.run(work())


def test_mails_of_one_matter_are_one_thread_and_hostile_text_makes_no_header(tmp_path: Path):
    """Mails of an incident refer to the same anchor, those of another to another; a title with line ends stays one."""
    with mail_server() as (mails, port):
        url = f"mailto://127.0.0.1:{port}?from=hold@x.example&to=ops@x.example&mode=insecure&format=text"
        config = NotifyConfig(group_s=0.0, to=(Destination(name="mail", url=url),))

        async def work() -> None:
            async with outbox(config, tmp_path) as box:
                for number, topic in enumerate(("i1", "i2", "i1"), 1):
                    await box.send(notice(number, topic=topic, title="bad\r\nBcc: evil@x.example\n\n<b>x"))
                    await until(lambda number=number: len(mails.got) == number)

        asyncio.run(work())
    parsed = [message_from_bytes(one) for one in mails.got]
    assert parsed[0]["References"] == parsed[2]["References"] != parsed[1]["References"]
    assert all(one["Bcc"] is None and one["To"] for one in parsed)
    assert "bad Bcc: evil@x.example" in str(parsed[0]["Subject"])


def test_sns_gets_the_notice(tmp_path: Path, monkeypatch):
    """Published to a topic of moto's SNS server, signed as AWS asks, and delivered to the queue that subscribes it."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=_free_port(), verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        made = {
            "region_name": "us-east-1", "endpoint_url": endpoint, "aws_access_key_id": "AKIAEXAMPLEEXAMPLE12",
            "aws_secret_access_key": "secretsecretsecretsecretsecretsecretsecr",
        }  # fmt: skip
        sns, sqs = boto3.client("sns", **made), boto3.client("sqs", **made)
        topic = sns.create_topic(Name="holdfast")["TopicArn"]
        queue = sqs.create_queue(QueueName="seen")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        to = Destination(
            name="sns", endpoint=f"{endpoint}/",
            url="sns://AKIAEXAMPLEEXAMPLE12/secretsecretsecretsecretsecretsecretsecr/us-east-1/#holdfast",
        )  # fmt: skip

        async def work() -> None:
            async with outbox(NotifyConfig(group_s=0.0, to=(to,)), tmp_path) as box:
                await box.send(notice(1, title="n7 needs a person"))
                await until(lambda: box.outcomes["sns", "sent"] == 1)

        asyncio.run(work())
        found = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
        assert "n7 needs a person" in found[0]["Body"]
    finally:
        server.stop()


class Kept:
    """A deliverer on virtual time that keeps what it was given and when."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.got: list[tuple[float, Message]] = []

    async def refused(self, _destination) -> str:
        return ""

    async def deliver(self, _destination, message: Message, _thread: str) -> str:
        self.got.append((self.clock.now(), message))
        return ""


def test_notices_of_one_matter_within_seconds_are_one_message_and_many_matters_a_digest(tmp_path: Path):
    """Three words on one incident become one message; twenty incidents at once become one digest, the gravest first."""
    clock = VirtualClock()
    kept = Kept(clock)
    config = NotifyConfig(group_s=3.0, to=(Destination(name="a", url="x"),))

    async def work() -> None:
        async with Outbox(config, tmp_path / "o", kept, lambda _n: Facts(), clock) as box:
            for number in range(3):
                await box.send(notice(number, title=f"t{number}"))
            await clock.sleep(10)
            for number in range(20):
                grave = Severity.FATAL if number == 7 else Severity.INFO
                await box.send(notice(number, topic=f"m{number}", severity=grave, title=f"m{number}"))
            await clock.sleep(10)

    run_virtual(work())
    assert [message.count for _, message in kept.got] == [3, 20]
    assert [part in kept.got[0][1].text for part in ("t0", "t1", "t2")] == [True] * 3
    assert kept.got[1][1].text.splitlines()[0] == "FATAL: m7"
    assert kept.got[1][1].title == "20 notices"


def test_above_the_limit_an_hour_the_rest_waits_and_comes_as_one(tmp_path: Path):
    """Five messages in an hour, then silence, then one digest with all the rest; nothing is dropped."""
    clock = VirtualClock()
    kept = Kept(clock)
    config = NotifyConfig(group_s=0.0, to=(Destination(name="a", url="x", per_hour=5),))

    async def work() -> None:
        async with Outbox(config, tmp_path / "o", kept, lambda _n: Facts(), clock) as box:
            for number in range(40):
                await box.send(notice(number, topic=f"m{number}", title=f"m{number}"))
                await clock.sleep(10)
            await clock.sleep(7200)
            assert box.waiting() == {"a": 0}

    run_virtual(work())
    assert sum(message.count for _, message in kept.got) == 40
    assert [message.count for _, message in kept.got[:5]] == [1] * 5
    assert len(kept.got) <= 8
    assert kept.got[5][0] - kept.got[0][0] >= 3600


def test_a_storm_of_long_titles_is_told_whole(tmp_path: Path):
    """200 notices that fit into no single message: each is found once over all digests, with its incident's link; the
    gravest come first, and what was taken is what was told."""
    clock = VirtualClock()
    kept = Kept(clock)
    config = NotifyConfig(link="https://h.example", to=(Destination(name="a", url="x", per_hour=4),))

    async def work() -> None:
        async with Outbox(config, tmp_path / "o", kept, lambda _n: INCIDENT, clock) as box:
            for number in range(200):
                grave = Severity.ERROR if number % 10 == 9 else Severity.WARNING
                title = f"m{number:03} " + "long " * 30
                await box.send(notice(number, topic=f"i{number:03}", severity=grave, title=title))
            await clock.sleep(24 * 3600)
            assert box.waiting() == {"a": 0}

    run_virtual(work())
    text = "\n".join(f"{message.title}\n{message.text}" for _, message in kept.got)
    assert {text.count(f": m{number:03} ") for number in range(200)} == {1}
    assert {text.count(f"https://h.example/incidents/i{number:03}") for number in range(200)} == {1}
    assert max(len(message.text) for _, message in kept.got) <= TEXT_MAX
    assert sum(message.count for _, message in kept.got) == 200
    first = kept.got[0][1]
    assert first.text.count("ERROR:") == min(20, first.count)
    assert first.title == f"{first.count} notices, {200 - first.count} more follow"


def test_long_texts_of_one_matter_are_told_whole(tmp_path: Path):
    """Notices of one matter whose texts do not fit into one message come as several, in order; a text that is too long
    by itself says that it was cut."""
    clock = VirtualClock()
    kept = Kept(clock)
    config = NotifyConfig(to=(Destination(name="a", url="x", template="{{ notice.title }}:" + "x" * 1500),))

    async def work() -> None:
        async with Outbox(config, tmp_path / "o", kept, lambda _n: Facts(), clock) as box:
            for number in range(7):
                await box.send(notice(number, title=f"t{number}"))
            await clock.sleep(600)

    run_virtual(work())
    assert [message.count for _, message in kept.got] == [2, 2, 2, 1]
    text = "\n".join(message.text for _, message in kept.got)
    assert [text.index(f"t{number}:") for number in range(7)] == sorted(text.index(f"t{n}:") for n in range(7))
    long = Destination(name="a", url="x", template="y" * 9000)
    cut = render(long, NotifyConfig(), notice(title="z" * 300), Facts())
    assert (len(cut.text), "cut here" in cut.text[-200:], cut.title[-3:], len(cut.title)) == (4000, True, "...", 200)


def test_what_is_grave_goes_at_once_above_the_limit(tmp_path: Path):
    """The hour's messages are used up: a fatal notice does not wait for the next one, and the rest does, for one digest."""
    clock = VirtualClock()
    kept = Kept(clock)
    config = NotifyConfig(group_s=0.0, to=(Destination(name="a", url="x", per_hour=2),))
    sent_at: dict[str, float] = {}

    async def work() -> None:
        async with Outbox(config, tmp_path / "o", kept, lambda _n: Facts(), clock) as box:
            for number in range(5):
                await box.send(notice(number, topic=f"m{number}", title=f"m{number}"))
                await clock.sleep(10)
            for name in ("f1", "f2"):
                sent_at[name] = clock.now()
                await box.send(notice(9, topic=name, severity=Severity.FATAL, title=name))
                await clock.sleep(10)
            assert box.waiting() == {"a": 3}
            await clock.sleep(7200)

    run_virtual(work())
    assert [message.title for _, message in kept.got] == ["m0", "m1", "f1", "f2", "3 notices"]
    assert {message.title: at for at, message in kept.got if message.title in sent_at} == sent_at
    assert kept.got[-1][0] >= kept.got[2][0] + 3600


def test_a_request_for_approval_is_not_held_back_by_lesser_notices(tmp_path: Path):
    """The hour's messages are used up by warnings: the request goes out at once, the other warnings wait."""
    clock = VirtualClock()
    kept = Kept(clock)
    config = NotifyConfig(group_s=0.0, to=(Destination(name="a", url="x", per_hour=2),))

    async def work() -> None:
        async with Outbox(config, tmp_path / "o", kept, lambda _n: Facts(), clock) as box:
            for number in range(4):
                await box.send(notice(number, topic=f"m{number}", title=f"m{number}"))
                await clock.sleep(10)
            await box.send(notice(9, topic="i9", title="Approve c9.1?", asks=True))
            await clock.sleep(10)
            assert box.waiting() == {"a": 2}

    run_virtual(work())
    assert [message.title for _, message in kept.got] == ["m0", "m1", "Approve c9.1?"]


@pytest.mark.parametrize("per_hour", [60, 2])
def test_what_was_told_by_itself_is_closed_by_itself(tmp_path: Path, per_hour: int):
    """Two matters are opened singly; one ends in a storm, after a restart: its end is a message of its own topic, also
    when the hour's messages are used up; the storm is a digest, and what ends in it was never told by itself."""
    clock = VirtualClock()
    kept = Kept(clock)
    config = NotifyConfig(to=(Destination(name="a", url="x", per_hour=per_hour),))
    over: set[str] = set()

    def box() -> Outbox:
        return Outbox(config, tmp_path / "o", kept, lambda n: Facts(is_over=n.topic in over), clock)

    async def first() -> None:
        async with box() as opened:
            for topic in ("kept", "ends"):
                await opened.send(notice(1, topic=topic, severity=Severity.ERROR, title=topic))
                await clock.sleep(10)

    async def second() -> None:
        async with box() as later:
            over.update({"ends", "m3"})
            for number in range(8):
                await later.send(notice(number, topic=f"m{number}", title=f"m{number}"))
            await later.send(notice(9, topic="ends", severity=Severity.INFO, title="released"))
            await later.send(notice(10, topic="ends", severity=Severity.INFO, title="recovered"))
            await clock.sleep(7200)
            assert later.waiting() == {"a": 0}

    run_virtual(first())
    run_virtual(second())
    told = [(message.topic, message.is_over) for _, message in kept.got]
    assert sorted(told) == sorted([("kept", False), ("ends", False), ("digest", False), ("ends", True)])
    assert next(message.count for _, message in kept.got if message.topic == "digest") == 8


def test_what_was_told_by_itself_is_remembered_within_bounds(tmp_path: Path, monkeypatch):
    """The file is written anew now and then: what is open and where threads are outlives that; the oldest is forgotten,
    and the file stays small."""
    monkeypatch.setattr("holdfast.adapters.notify.outbox.MATTERS_MAX", 20)
    monkeypatch.setattr("holdfast.adapters.notify.outbox.COMPACT_LINES", 10)
    clock = VirtualClock()
    kept = Kept(clock)
    config = NotifyConfig(group_s=0.0, to=(Destination(name="a", url="x", per_hour=1000),))

    async def work() -> None:
        async with Outbox(config, tmp_path / "o", kept, lambda _n: Facts(), clock) as box:
            for number in range(100):
                await box.send(notice(number, topic=f"m{number}"))
                await clock.sleep(1)
        async with Outbox(config, tmp_path / "o", kept, lambda _n: Facts(is_over=True), clock) as box:
            for number in (1, 2, 3, 4, 5, 95):
                await box.send(notice(number, topic=f"m{number}"))
            await clock.sleep(10)

    run_virtual(work())
    assert [message.topic for _, message in kept.got[100:]] == ["digest", "m95"]
    assert len((tmp_path / "o").read_text().splitlines()) < 80


def test_closing_and_telling_take_turns():
    """Many ends at once keep a fatal notice waiting for a few messages only; a fatal storm does not hold ends back."""
    waiting = [
        (n, Message(f"old{n}", Severity.INFO, "t", "", is_over=True)) for n in range(30)
    ] + [(99, Message("new", Severity.FATAL, "t", ""))]  # fmt: skip
    told = {f"old{n}" for n in range(30)}
    found = batches(waiting, told, only_from=Severity.FATAL)
    assert [batch[0][0] for batch in found] == [99, 0, 1, 2, 3, 4]
    assert batches(waiting[:30], set(), only_from=Severity.FATAL) == []


def test_in_quiet_hours_only_what_is_grave_is_said_and_the_rest_in_the_morning(tmp_path: Path):
    """A warning at night waits for seven o'clock in its zone; a fatal one goes at once; both arrive."""
    clock = VirtualClock()
    kept = Kept(clock)
    to = Destination(name="a", url="x", quiet="22:00-07:00", zone="Asia/Tokyo")
    config = NotifyConfig(group_s=0.0, to=(to,))
    seen: dict[str, float] = {}

    async def work() -> None:
        async with Outbox(config, tmp_path / "o", kept, lambda _n: Facts(), clock) as box:
            while quiet_for_s(to, Severity.INFO, clock.now()) == 0.0:
                await clock.sleep(600)
            seen["wait"] = quiet_for_s(to, Severity.WARNING, clock.now())
            seen["at"] = clock.now()
            await box.send(notice(1, topic="m1", title="quiet"))
            await clock.sleep(60)
            await box.send(notice(2, topic="m2", severity=Severity.FATAL, title="loud"))
            await clock.sleep(10 * 3600)

    run_virtual(work())
    assert [message.title for _, message in kept.got] == ["loud", "quiet"]
    assert kept.got[0][0] - seen["at"] < 200
    assert kept.got[1][0] == pytest.approx(seen["at"] + seen["wait"], abs=120)


@pytest.mark.parametrize(
    ("asked", "severity", "facts", "goes"),
    [
        ({}, Severity.INFO, Facts(), True),
        ({"severity": Severity.ERROR}, Severity.WARNING, INCIDENT, False),
        ({"severity": Severity.ERROR}, Severity.FATAL, INCIDENT, True),
        ({"severity": Severity.ERROR}, Severity.INFO, Facts(is_over=True), True),
        ({"severity": Severity.ERROR, "resolved": False}, Severity.INFO, Facts(is_over=True), False),
        ({"domains": ("network",)}, Severity.FATAL, INCIDENT, False),
        ({"domains": ("hardware", "network")}, Severity.INFO, INCIDENT, True),
        ({"partitions": ("gpu",)}, Severity.INFO, INCIDENT, True),
        ({"partitions": ("cpu",)}, Severity.INFO, INCIDENT, False),
        ({"owners": ("mei",)}, Severity.INFO, INCIDENT, True),
        ({"owners": ("mei",)}, Severity.INFO, Facts(), False),
    ],
)
def test_routing(asked: dict, severity: Severity, facts: Facts, goes: bool):
    """By severity, domain, partition and owner; what is over reaches whoever wants to know that it is."""
    assert wants(Destination(name="a", url="x", **asked), notice(severity=severity), facts) is goes


def test_a_drill_is_told_as_one():
    """In the title and in the text, so that nobody is woken for what was broken on purpose."""
    to = Destination(name="x", url="json://localhost")
    facts = Facts(summary="GPU 3 fell off the bus", domain="hardware", drill="3-xid_74_replace")
    message = render(to, NotifyConfig(), notice(1), facts)
    assert message.title.startswith("Drill: ")
    assert "This is a drill (3-xid_74_replace)" in message.text
    assert "drill" not in render(to, NotifyConfig(), notice(1), INCIDENT).text.lower()


def test_own_templates_and_those_that_break():
    """A site's template sees notice, facts and links; one that breaks gives the plain text; code in a log line does not
    run."""
    config = NotifyConfig(link="https://h.example")
    own = Destination(name="a", url="x", template="{{ facts.owner }}: {{ notice.title }} {{ links.incident }}")
    assert render(own, config, notice(title="t"), INCIDENT).text == "mei: t https://h.example/incidents/i1"
    broken = Destination(name="a", url="x", template="{{ facts.nothing.more }}")
    assert render(broken, config, notice(), INCIDENT).text.startswith("text 1\n(the template of a")
    divides = Destination(name="a", url="x", template="{{ 1 / (links.dashboard | length) }}")
    assert render(divides, config, notice(), INCIDENT).text.startswith("text 1\n(the template of a")
    hostile = Notify(id="o", cause=1, topic="i", title="{{ 7*7 }}", text="{{ ''.__class__.__mro__ }}")
    said = render(Destination(name="a", url="x"), config, hostile, INCIDENT)
    assert (said.title, "{{ ''.__class__" in said.text) == ("{{ 7*7 }}", True)
    over = render(Destination(name="a", url="x"), config, notice(title="t"), Facts(is_over=True))
    assert over.title == "Resolved: t"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"to": (Destination(name="a"),)}, "url or url_file"),
        ({"to": (Destination(name="a", url="x"), Destination(name="a", url="y"))}, "name of its own"),
        ({"to": (Destination(name="a", url="x", quiet="late"),)}, "22:00-07:00"),
        ({"to": (Destination(name="a", url="x", zone="Mars/Base"),)}, "no time zone"),
        ({"to": (Destination(name="a", url="x", template="{% if"),)}, "template"),
        (
            {"to": (Destination(name="a", url="x", template="{{ notice.titel }}"),)},
            "no attribute 'titel'; it has notice",
        ),
        ({"to": (Destination(name="a", url="x", template="{{ facts.nodes }}"),)}, r"facts \(summary, domain"),
        ({"to": (Destination(name="a", url="x", template="{{ links.board }}"),)}, r"links \(incident, dashboard\)"),
        ({"to": (Destination(name="a", url="x", template="{{ incident.id }}"),)}, "'incident' is undefined"),
        ({"to": (Destination(name="a", url="x", template="{{ notice.title + 1 }}"),)}, "template cannot be used"),
        ({"to": (Destination(name="a", url="x", per_hour=0),)}, "per_hour"),
    ],
)
def test_wrong_settings_are_named_at_the_start(config: dict, said: str):
    """The controller does not start with a destination that could not work, and never prints its URL."""
    with pytest.raises(ConfigError, match=said):
        check(NotifyConfig(**config))


def test_an_unknown_service_is_named_without_its_secret(tmp_path: Path):
    """The message says which destination, not what the URL holds."""
    with pytest.raises(ConfigError) as error:
        service_of(Destination(name="chat", url="nosuch://secret-token@host"))
    assert "chat" in str(error.value)
    assert "secret-token" not in str(error.value)


def test_joining_keeps_what_is_gravest():
    """A digest is as grave as its gravest part, and over only when all of it is; one matter is over with its last word."""
    parts = [Message("a", Severity.INFO, "x", "", is_over=True), Message("b", Severity.ERROR, "y", "")]
    assert (joined(parts).severity, joined(parts).is_over, joined(parts[:1])) == (Severity.ERROR, False, parts[0])
    matter = [Message("a", Severity.ERROR, "opened", ""), Message("a", Severity.INFO, "recovered", "", is_over=True)]
    assert (joined(matter).severity, joined(matter).is_over) == (Severity.ERROR, True)


def test_the_test_command_says_what_each_destination_did(tmp_path: Path, web: Web):
    """`holdfast notify test` reaches the webhook, names the one that refuses, and exits with 1."""
    (tmp_path / "hook.url").write_text(f"{web.url}\n")
    toml = f"""
[notify]
allow = ["127.0.0.1"]
[[notify.to]]
name = "good"
url_file = "{tmp_path}/hook.url"
[[notify.to]]
name = "gone"
url = "json://127.0.0.1:{_free_port()}/"
"""
    (tmp_path / "holdfast.toml").write_text(toml)
    words = ["notify", "test", "--config", str(tmp_path / "holdfast.toml")]
    result = CliRunner().invoke(app, [*words, "--json"])
    found = {one["name"]: one["taken"] for one in json.loads(result.stdout)["destinations"]}
    assert (found, result.exit_code) == ({"good": True, "gone": False}, 1)
    assert CliRunner().invoke(app, [*words[:2], "good", *words[2:]]).exit_code == 0
    assert [one["title"] for one in web.got] == ["Test of Holdfast's notices"] * 2


def test_pagerduty_and_slack_share_a_key_for_one_matter(monkeypatch):
    """PagerDuty's events of an incident carry one key and the last resolves it; Slack's second message names the thread
    that the first one opened."""
    from holdfast.adapters.notify import services

    sent: list[dict] = []

    class Answer:
        status_code = 200
        content = b'{"ok": true, "ts": "1573686.0037", "channel": "C1"}'
        headers = MappingProxyType({})
        text = content.decode()

    def post(_url, data=None, **_more):
        sent.append(json.loads(data))
        return Answer()

    monkeypatch.setattr("requests.post", post)
    monkeypatch.setattr("requests.request", lambda _method, url, **more: post(url, **more))
    pager = Destination(name="p", url="pagerduty://" + "a" * 32 + "@" + "b" * 20)
    for over in (False, True):
        services._send(pager, Message("i1", Severity.ERROR, "t", "x", is_over=over), "", Allowed())
    assert [one["event_action"] for one in sent] == ["trigger", "resolve"]
    assert sent[0]["dedup_key"] == sent[1]["dedup_key"]
    sent.clear()
    slack = Destination(name="s", url="slack://xoxb-1234-1234-abc124/#ops")
    thread = services._send(slack, Message("i1", Severity.ERROR, "t", "x"), "", Allowed())
    services._send(slack, Message("i1", Severity.INFO, "t2", "x"), thread, Allowed())
    said = [one for one in sent if "channel" in one]
    assert (thread, said[-1].get("thread_ts"), "thread_ts" in said[0]) == ("1573686.0037", "1573686.0037", False)
