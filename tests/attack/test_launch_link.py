"""The line between a job's launchers, and somebody in the middle of it: replays, other nonces, changed frames, old leaders.

A real leader's port and real frames on this machine; the attacker has the network and no secret. What is removed is the
comparison of a frame's authentication, without which each attack must succeed.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from attack_fixture import Attempt
from holdfast.errors import WireError
from holdfast.launch import link
from holdfast.launch.frames import AnyAsk, Beat, EndRanks, Hello, RanksStarted, Welcome
from holdfast.launch.link import FollowerLink, LeaderPort, OpenNetwork, read_leader
from holdfast.launch.place import JobPlace
from holdfast.model.cluster import JobKey
from holdfast.os import frames
from holdfast.os.frames import FRAME_MAX, HEAD_BYTES, NONCE_BYTES, FrameCodec, Frames, meet

MIDDLE = "Somebody in the middle of a job's network"
LINE = "a job's line between its launchers"
CHECK = "os.frames.hmac.compare_digest"
Frame = bytes
Trick = Callable[[list[Frame]], list[Frame]]


def unchecked(attempt: Attempt) -> None:
    attempt.without(frames.hmac, "compare_digest", lambda _said, _made: True)


def place(folder: Path, node: str) -> JobPlace:
    nodes = ("n1", "n2")
    return JobPlace(job=JobKey("c", "7"), job_dir=folder, node=node, node_rank=nodes.index(node), nodes=nodes)


class House:
    """A leader's port and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.joined: list[str] = []
        self.told: list[int] = []
        """Attempts of the reports, in order."""
        self.changed = asyncio.Event()
        self.port = LeaderPort(
            place(folder, "n1"), network=OpenNetwork(), lease_s=10.0, may_grant=lambda: True,
            on_join=lambda follower: self._note(self.joined, follower.hello.node),
            on_report=lambda _node, report: self._note(self.told, getattr(report, "attempt", -1)),
            on_lost=lambda *_: self.changed.set(),
        )  # fmt: skip

    def _note(self, kept: list, what: object) -> None:
        kept.append(what)
        self.changed.set()


@asynccontextmanager
async def leading(folder: Path) -> AsyncIterator[tuple[House, link.LeaderFacts]]:
    house = House(folder)
    await house.port.open()
    try:
        yield house, read_leader(folder)
    finally:
        await house.port.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100):
            await work()

    asyncio.run(bounded())


async def until_over(house: House, reader: asyncio.StreamReader, told: int) -> None:
    """Wait until the leader has ended the line, or was told so many things."""
    over = asyncio.create_task(reader.read())
    while not over.done() and len(house.told) < told:
        house.changed.clear()
        note = asyncio.create_task(house.changed.wait())
        await asyncio.wait([over, note], return_when=asyncio.FIRST_COMPLETED)
        note.cancel()
    over.cancel()
    await asyncio.gather(over, return_exceptions=True)


async def frame_of(reader: asyncio.StreamReader) -> Frame:
    head = await reader.readexactly(HEAD_BYTES)
    return head + await reader.readexactly(int.from_bytes(head[:4], "big"))


def codec(secret: str, ours: bytes, theirs: bytes, *, leads: bool = False) -> FrameCodec:
    """An end's codec, as `meet` makes it."""
    return FrameCodec(bytes.fromhex(secret), ours + theirs if leads else theirs + ours, is_leader=leads)


def three_reports(made: FrameCodec) -> list[Frame]:
    """What an honest follower of n2 says: hello, and that attempts 1, 2 and 3 have started."""
    return [made.pack(Hello(node="n2", local_ranks=1)), *(made.pack(RanksStarted(attempt=one)) for one in (1, 2, 3))]


def altered(said: list[Frame]) -> list[Frame]:
    changed = bytearray(said[1])
    place = changed.rindex(b"attempt\x01") + len(b"attempt")
    changed[place] = 9
    return [said[0], bytes(changed)]


TRICKS: dict[str, tuple[Trick, list[int]]] = {
    "altered": (altered, [9]),
    "reordered": (lambda said: [said[0], said[2], said[1]], [2, 1]),
    "dropped": (lambda said: [said[0], said[1], said[3]], [1, 3]),
    "dropped first": (lambda said: [said[0], said[2]], [2]),
    "repeated": (lambda said: [said[0], said[1], said[1]], [1, 1]),
    "made up": (lambda said: [said[0], FrameCodec(b"", b"", is_leader=False).pack(RanksStarted(attempt=66))], [66]),
    "hello again": (lambda said: [said[0], said[3]], [3]),
}


@pytest.mark.attempt(actor=MIDDLE, asset=LINE, removed=CHECK)
@pytest.mark.parametrize("trick", TRICKS)
def test_a_changed_line_tells_the_leader_nothing(attempt: Attempt, tmp_path: Path, trick: str) -> None:
    """Alter, reorder, drop, repeat or make up frames of a follower that is joined."""
    unchecked(attempt)
    change, lie = TRICKS[trick]

    async def work() -> None:
        async with leading(tmp_path) as (house, facts):
            reader, writer = await asyncio.open_connection(facts.address, facts.port)
            theirs = await reader.readexactly(NONCE_BYTES)
            ours = bytes(NONCE_BYTES)
            writer.write(ours + b"".join(change(three_reports(codec(facts.secret, ours, theirs)))))
            await until_over(house, reader, len(lie))
            writer.close()
            attempt.judge(succeeded=house.told == lie)

    run(work)


@pytest.mark.attempt(actor=MIDDLE, asset=LINE, removed=CHECK)
@pytest.mark.parametrize("nonce", ["recorded", "zeros", "reflected"])
def test_a_recorded_line_is_not_played_again(attempt: Attempt, tmp_path: Path, nonce: str) -> None:
    """Record a follower's whole line, and play it to the leader later, with its nonce, another or the leader's own."""
    unchecked(attempt)

    async def work() -> None:
        async with leading(tmp_path) as (house, facts):
            recorded = bytes(range(NONCE_BYTES))
            line = await asyncio.open_connection(facts.address, facts.port)
            theirs = await line[0].readexactly(NONCE_BYTES)
            said = three_reports(codec(facts.secret, recorded, theirs))
            line[1].write(recorded + b"".join(said))
            await until_over(house, line[0], 3)
            line[1].close()
            assert house.told == [1, 2, 3]
            reader, writer = await asyncio.open_connection(facts.address, facts.port)
            fresh = await reader.readexactly(NONCE_BYTES)
            first = {"recorded": recorded, "zeros": bytes(NONCE_BYTES), "reflected": fresh}[nonce]
            writer.write(first + b"".join(said))
            await until_over(house, reader, 6)
            writer.close()
            attempt.judge(succeeded=house.told == [1, 2, 3, 1, 2, 3])

    run(work)


@pytest.mark.attempt(actor=MIDDLE, asset=LINE, removed=CHECK)
@pytest.mark.parametrize("end", ["the leader's", "the follower's"])
def test_a_changed_nonce_joins_nobody(attempt: Attempt, tmp_path: Path, end: str) -> None:
    """Change the nonce of one end on its way, so that the connection's key is not the one that both ends chose."""
    unchecked(attempt)

    async def work() -> None:
        async with leading(tmp_path) as (house, facts):
            reader, writer = await asyncio.open_connection(facts.address, facts.port)
            theirs, ours = await reader.readexactly(NONCE_BYTES), bytes(NONCE_BYTES)
            seen = (ours, bytes(NONCE_BYTES)) if end == "the leader's" else (b"x" * NONCE_BYTES, theirs)
            writer.write(ours + three_reports(codec(facts.secret, *seen))[0])
            welcome = asyncio.create_task(reader.read(1))
            await welcome
            writer.close()
            while welcome.result() and not house.joined:
                house.changed.clear()
                await house.changed.wait()
            attempt.judge(succeeded=house.joined == ["n2"])

    run(work)


@pytest.mark.attempt(actor=MIDDLE, asset=LINE, removed=CHECK)
def test_a_frame_is_not_sent_back(attempt: Attempt, tmp_path: Path) -> None:
    """Send the follower's own frame back to it in the leader's name."""
    unchecked(attempt)
    leader, follower = FrameCodec(b"s", b"n", is_leader=True), FrameCodec(b"s", b"n", is_leader=False)
    said = follower.pack(Beat(beat=1))
    try:
        heard = follower.unpack(said[4:HEAD_BYTES], said[HEAD_BYTES:], Beat)
    except WireError:
        heard = None
    attempt.judge(succeeded=heard == Beat(beat=1))
    assert leader.unpack(said[4:HEAD_BYTES], said[HEAD_BYTES:], Beat) == Beat(beat=1)


class Side:
    """A follower that notes what its leader asks of it."""

    def __init__(self) -> None:
        self.asks: list[AnyAsk] = []
        self.changed = asyncio.Event()
        self.welcomes = 0

    def hello(self) -> Hello:
        return Hello(node="n2", local_ranks=1)

    def next_beat(self) -> tuple[Beat, float]:
        return Beat(beat=1), 3600.0

    def welcomed(self, _welcome: Welcome) -> None:
        self.welcomes += 1

    def refused(self, why: str) -> None:
        raise AssertionError(why)

    def asked(self, ask: AnyAsk) -> None:
        self.asks.append(ask)
        self.changed.set()

    def broken(self, _why: str) -> None:
        self.changed.set()


@pytest.mark.attempt(actor=MIDDLE, asset=LINE, removed=CHECK)
@pytest.mark.parametrize("how", ["an old leader played again", "a leader without the secret", "another job's leader"])
def test_a_follower_obeys_its_own_leader_alone(attempt: Attempt, tmp_path: Path, how: str) -> None:
    """Stand at the leader's address and ask the follower to end its ranks: with recorded frames, or with made-up ones."""
    unchecked(attempt)
    secret, nonce = bytes(32), bytes(range(NONCE_BYTES))
    key = {"an old leader played again": secret, "another job's leader": b"j" * 32}.get(how, b"")
    old = FrameCodec(key, nonce + b"o" * NONCE_BYTES, is_leader=True)  # the follower's nonce of that time: o
    played = old.pack(Welcome(lease_s=10.0)) + old.pack(EndRanks(attempt=1))
    tries = asyncio.Semaphore(0)

    async def stand(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(nonce + played)
        try:
            while await reader.read(1000):
                pass
        except OSError:
            pass
        writer.close()
        tries.release()

    async def work() -> None:
        server = await asyncio.start_server(stand, "127.0.0.1", 0)
        address, port = server.sockets[0].getsockname()
        facts = f'{{"version":1,"node":"n1","address":"{address}","port":{port},"pid":1,"secret":"{secret.hex()}"}}'
        link.write_private(tmp_path / link.LEADER_FILE, facts)
        side = Side()
        following = asyncio.create_task(FollowerLink(place(tmp_path, "n2"), OpenNetwork(), side).run())
        note, tried = asyncio.create_task(side.changed.wait()), asyncio.create_task(tries.acquire())
        await asyncio.wait([note, tried], return_when=asyncio.FIRST_COMPLETED)
        attempt.judge(succeeded=side.asks == [EndRanks(attempt=1)])
        for task in (following, note, tried):
            task.cancel()
        await asyncio.gather(following, note, tried, return_exceptions=True)
        server.close()

    run(work)


@pytest.mark.attempt(actor="A user of the same machine, at a launcher's port", asset=LINE, removed=CHECK)
@pytest.mark.parametrize("secret", ["", "00" * 32, "6a" * 32], ids=["no secret", "zeros", "of another job"])
@pytest.mark.parametrize("node", ["n2", "n1"], ids=["as a follower", "as the leader's own node"])
def test_a_process_without_the_secret_does_not_join(attempt: Attempt, tmp_path: Path, secret: str, node: str) -> None:
    """Connect from another process of the node, of the same or another user, and say that this is the job's launcher."""
    unchecked(attempt)

    async def work() -> None:
        async with leading(tmp_path) as (house, facts):
            line = await asyncio.open_connection(facts.address, facts.port)
            stranger = await meet(*line, bytes.fromhex(secret), is_leader=False)
            stranger.post(Hello(node=node, local_ranks=1))
            stranger.post(RanksStarted(attempt=5))
            await until_over(house, line[0], 1)
            line[1].close()
            attempt.judge(succeeded=(house.joined, house.told) == ([node], [5]))

    run(work)


@pytest.mark.attempt(
    actor="A user of the same machine, at a launcher's port", asset=LINE, removed="launch.link.write_private"
)
@pytest.mark.parametrize("before", ["nothing", "an open file"])
def test_the_secret_is_read_by_its_user_alone(attempt: Attempt, tmp_path: Path, before: str) -> None:
    """Read leader.json, also where a file that all may read was there before it."""
    attempt.without(link, "write_private", lambda path, text: path.write_text(text))
    if before == "an open file":
        (tmp_path / link.LEADER_FILE).touch(0o644)

    async def work() -> None:
        async with leading(tmp_path):
            mode = (tmp_path / link.LEADER_FILE).stat().st_mode
            attempt.judge(succeeded=bool(stat.S_IMODE(mode) & 0o077))

    run(work)


@pytest.mark.attempt(
    actor="A user of the same machine, at a launcher's port", asset=LINE, removed="os.frames.FIRST_FRAME_MAX"
)
@pytest.mark.parametrize("size", [frames.FIRST_FRAME_MAX + 1, 1 << 20, FRAME_MAX])
def test_a_stranger_has_no_megabytes_kept(attempt: Attempt, size: int) -> None:
    """Announce a frame of megabytes before the secret is proved, on many lines at once."""
    attempt.without(frames, "FIRST_FRAME_MAX", FRAME_MAX)

    async def work() -> None:
        reader = asyncio.StreamReader()
        line = Frames(reader, None, FrameCodec(b"s", b"n", is_leader=True))  # type: ignore[arg-type]
        reader.feed_data(size.to_bytes(4, "big") + bytes(32))
        hearing = asyncio.create_task(line.receive(Hello))
        for _ in range(5):
            await asyncio.sleep(0)
        attempt.judge(succeeded=not hearing.done())
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)

    run(work)


@pytest.mark.parametrize("keep", [1, 3, HEAD_BYTES - 1, HEAD_BYTES, -1])
def test_a_truncated_frame_is_not_taken(tmp_path: Path, keep: int) -> None:
    """A line that is cut in the middle of a frame has told what came whole before it, and nothing else."""

    async def work() -> None:
        async with leading(tmp_path) as (house, facts):
            reader, writer = await asyncio.open_connection(facts.address, facts.port)
            theirs = await reader.readexactly(NONCE_BYTES)
            said = three_reports(codec(facts.secret, bytes(NONCE_BYTES), theirs))
            writer.write(bytes(NONCE_BYTES) + said[0] + said[1] + said[2][:keep])
            writer.write_eof()
            await until_over(house, reader, 9)
            writer.close()
            assert house.told == [1]

    run(work)
