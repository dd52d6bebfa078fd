"""The TCP link between the leader's launcher and those of the other nodes.

`LeaderPort` listens and knows its followers; `FollowerLink` finds the leader through `<job_dir>/leader.json` and keeps
coming back. It sends several beats in a lease's time. What a follower's silence and a reset mean is told apart here:
a connection that the other kernel ended is evidence that the launcher there is gone, silence is not. The network is
handed in: the embedded cluster's holds everything back in both directions while a node is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from holdfast.errors import LinkError, WireError
from holdfast.launch.core.clocks import FollowerClocks
from holdfast.launch.core.presence import Connected, Heard, Presence, SendGrant
from holdfast.launch.frames import AnyAsk, AnyReport, Beat, Bye, Hello, Welcome
from holdfast.launch.place import JobPlace
from holdfast.model.evidence import Domain
from holdfast.os.clock import steady_time
from holdfast.os.doorway import Doorway
from holdfast.os.frames import Frames, meet

LEADER_FILE = "leader.json"
_TWIN_S = 2.0
"""Two beats: a launcher that was heard within them is alive, and its node needs no other."""
_CUT_POLL_S = 0.05
_HANDSHAKE_S = 10.0
_RETRY_FIRST_S, _RETRY_MAX_S = 0.02, 0.2
"""A follower of a job that starts anew comes up with its leader: it looks often at first, then seldom."""
_QUEUE_MAX = 10_000


class Network(Protocol):
    """What may hold back the messages of this node."""

    @property
    def is_cut(self) -> bool:
        """Nothing reaches this node, and it reaches nobody."""

    def is_cut_from(self, node: str) -> bool:
        """Nothing passes between this node and that one ("": one that has not said who it is)."""


class OpenNetwork:
    """A real one: what breaks it is noticed by silence."""

    is_cut = False

    def is_cut_from(self, node: str) -> bool:
        """Never."""
        del node
        return False


class Wire:
    """One authenticated connection, either end, which says and hears nothing while the network to `peer` is cut."""

    def __init__(self, frames: Frames, network: Network, peer: str = "") -> None:
        self._frames = frames
        self.peer = peer
        self._network = network
        self.close = frames.close

    async def until_whole(self) -> None:
        """Wait while the network is cut."""
        while self._network.is_cut_from(self.peer):  # noqa: ASYNC110 - a file is all there is to wait on
            await asyncio.sleep(_CUT_POLL_S)

    async def send(self, message: Struct) -> None:
        """Write one frame. Raises OSError when the connection is broken."""
        await self.until_whole()
        await self._frames.send(message)

    async def receive(self, form: Any) -> Any:
        """Read one frame. Raises what `Frames.receive` raises."""
        message = await self._frames.receive(form)
        await self.until_whole()
        return message


class Follower(Struct):
    """A node that has joined, as the leader knows it."""

    hello: Hello
    wire: Wire
    outbox: asyncio.Queue[AnyAsk]
    has_left: bool = False


class LeaderPort:
    """Listens for followers.

    Args:
        place: the leader's.
        network: to the followers.
        lease_s: attempt lease that beats are answered with.
        may_grant: whether the leader itself still holds its lease.
        on_join: a follower has (again) joined.
        on_report: a follower says something.
        on_lost: (node, evidence, what that speaks of) its connection was ended by the other side without a word.
    """

    def __init__(
        self,
        place: JobPlace,
        *,
        network: Network,
        lease_s: float,
        may_grant: Callable[[], bool],
        on_join: Callable[[Follower], None],
        on_report: Callable[[str, AnyReport], None],
        on_lost: Callable[[str, str, Domain], None],
    ) -> None:
        self.followers: dict[str, Follower] = {}
        self.presence = Presence(lease_s)
        self._clocks = FollowerClocks()
        self._place = place
        self._network = network
        self._may_grant = may_grant
        self._on_join = on_join
        self._on_report = on_report
        self._on_lost = on_lost
        self._secret = secrets.token_bytes(32)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._doorway = Doorway(expected=len(place.nodes))
        self._facts = ""

    async def open(self) -> None:
        """Listen, and write `leader.json` (0600) for the followers.

        Raises:
            LinkError: no port could be opened.
        """
        try:
            try:
                self._server = await asyncio.start_server(self._accept, self._place.address, 0)
            except OSError:
                # The address by which others reach us need not be one of our own interfaces (NAT, name of the host).
                self._server = await asyncio.start_server(self._accept, None, 0)
        except OSError as error:
            raise LinkError(f"the leader cannot listen for its followers: {error}") from error
        port = self._server.sockets[0].getsockname()[1]
        facts = {
            "version": 1,
            "node": self._place.node,
            "address": self._place.address,
            "port": port,
            "pid": os.getpid(),
            "secret": self._secret.hex(),
        }
        self._facts = json.dumps(facts) + "\n"
        write_private(self._place.job_dir / LEADER_FILE, self._facts)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            with self._doorway.enter(writer):
                async with asyncio.timeout(_HANDSHAKE_S):
                    follower = await self._greet(reader, writer)
            await self._serve(follower)
        except (TimeoutError, WireError, OSError, EOFError):
            writer.close()
        except asyncio.CancelledError:
            writer.close()
            if not self._is_closing:
                raise
            # The stream's own callback would print this as an error of the connection.

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Follower:
        wire = Wire(await meet(reader, writer, self._secret, is_leader=True), self._network)
        hello: Hello = await wire.receive(Hello)
        if hello.node not in self._place.nodes:
            raise WireError(f"{hello.node} is not a node of this job")
        wire.peer = hello.node
        now, known = asyncio.get_running_loop().time(), self.followers.get(hello.node)
        is_twin = known is not None and known.hello.process != hello.process
        if is_twin and self.presence.is_heard_within(hello.node, _TWIN_S, now):
            why = f"another launcher of {hello.node} leads its ranks; this one waits until that one is gone"
            await wire.send(Welcome(lease_s=self.presence.lease_s, refused=why))
            raise WireError(why)
        await wire.send(Welcome(lease_s=self.presence.lease_s))
        self.presence.handle(Connected(hello.node, now))
        self._clocks.connected(hello.node)
        return Follower(hello, wire, asyncio.Queue(_QUEUE_MAX))

    async def _serve(self, follower: Follower) -> None:
        node = follower.hello.node
        before = self.followers.get(node)
        if before is not None:
            before.wire.close()
        self.followers[node] = follower
        sender = asyncio.create_task(self._send_all(follower))
        evidence, domain = "", Domain.NETWORK
        try:
            self._on_join(follower)
            while True:
                report: AnyReport = await follower.wire.receive(AnyReport)
                self._heard(follower, report)
        except (EOFError, ConnectionResetError, BrokenPipeError) as error:
            await follower.wire.until_whole()
            is_reset = isinstance(error, ConnectionResetError)
            # A process that was killed leaves an end; a link that breaks, and now and then a process, a reset.
            how, domain = ("reset", Domain.NETWORK) if is_reset else ("closed", Domain.PLATFORM)
            evidence = f"the launcher's connection was {how} by its end"
        except (WireError, OSError):
            evidence = ""
        finally:
            sender.cancel()
            follower.wire.close()
            _drop_all(follower.outbox)
        if self.followers.get(node) is follower:
            del self.followers[node]
            if evidence and not follower.has_left:
                self._on_lost(node, evidence, domain)

    def heard_within(self, seconds: float) -> set[str]:
        """Followers that were heard so lately."""
        now = asyncio.get_running_loop().time()
        return {node for node in self.followers if self.presence.is_heard_within(node, seconds, now)}

    def _heard(self, follower: Follower, report: AnyReport) -> None:
        node, now = follower.hello.node, asyncio.get_running_loop().time()
        heard = Heard(node=node, now=now)
        if isinstance(report, Beat):
            heard = Heard(node=node, now=now, beat=report.beat, may_grant=self._may_grant())
            self._clocks.heard(node, report, steady_time())
        for ask in self.presence.handle(heard):
            if isinstance(ask, SendGrant):
                self.send(ask.node, ask.grant)
        if isinstance(report, Bye):
            follower.has_left = True
        self._on_report(node, self._clocks.on_ours(node, report))

    async def _send_all(self, follower: Follower) -> None:
        with contextlib.suppress(OSError):
            while True:
                ask = await follower.outbox.get()
                try:
                    await follower.wire.send(ask)
                finally:
                    follower.outbox.task_done()
        follower.wire.close()  # which ends the reading side too

    def send(self, node: str, ask: AnyAsk) -> bool:
        """Queue something for a follower; False when it is not joined or does not take anything any more."""
        follower = self.followers.get(node)
        if follower is None:
            return False
        try:
            follower.outbox.put_nowait(ask)
        except asyncio.QueueFull:
            return False
        return True

    async def flush(self, limit_s: float) -> None:
        """Wait until what was queued is on its way or its follower is gone, at most this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for follower in list(self.followers.values()):
                    await follower.outbox.join()

    async def close(self) -> None:
        """Stop listening and end all connections."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        for task in list(self._tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await task
        path = self._place.job_dir / LEADER_FILE
        with contextlib.suppress(OSError):
            # A leader that was cut off may end after its successor has begun: the file is the successor's then.
            if path.read_text(encoding="ascii") == self._facts:
                path.unlink()


def _drop_all(outbox: asyncio.Queue[AnyAsk]) -> None:
    """Nobody will send these: who waits for them must not wait on."""
    while not outbox.empty():
        outbox.get_nowait()
        outbox.task_done()


class FollowerSide(Protocol):
    """What a follower's link wants of the follower."""

    def hello(self) -> Hello:
        """Made anew for each connection."""

    def next_beat(self) -> tuple[Beat, float]:
        """The beat to send now, and the seconds until the next."""

    def welcomed(self, welcome: Welcome) -> None:
        """The leader has taken the connection."""

    def refused(self, why: str) -> None:
        """The leader has not taken it; it will be tried again."""

    def asked(self, ask: AnyAsk) -> None:
        """The leader wants something, or grants a lease."""

    def broken(self, why: str) -> None:
        """The connection has ended; it will be tried again."""


class FollowerLink:
    """The follower's end: finds the leader, says hello, beats, and comes back when the connection breaks."""

    def __init__(self, place: JobPlace, network: Network, side: FollowerSide) -> None:
        self.connected = asyncio.Event()
        self._broken = asyncio.Event()
        self._place = place
        self._network = network
        self._side = side
        self._outbox: asyncio.Queue[AnyReport] = asyncio.Queue(_QUEUE_MAX)

    def send(self, report: AnyReport) -> None:
        """Queue a report; the oldest are lost when the leader is away for too long, the slots say all that matters."""
        while True:
            try:
                self._outbox.put_nowait(report)
            except asyncio.QueueFull:
                self._outbox.get_nowait()
                self._outbox.task_done()
            else:
                return

    async def run(self) -> None:
        """Connect, serve, and again, until cancelled."""
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                wire = await self._connect()
            except (LinkError, WireError, OSError, EOFError, TimeoutError):
                await asyncio.sleep(pause_s)
                pause_s = min(_RETRY_MAX_S, pause_s * 1.5)
                continue
            pause_s = _RETRY_FIRST_S
            why = await self._serve(wire)
            self._side.broken(why)

    async def _connect(self) -> Wire:
        facts = read_leader(self._place.job_dir)
        if self._network.is_cut_from(facts.node):
            # Not waited for: by the next try the file may name another leader, on a node that can be reached.
            raise LinkError(f"no way from {self._place.node} to {facts.node}: one of them is cut off")
        async with asyncio.timeout(_HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(facts.address, facts.port)
            try:
                frames = await meet(reader, writer, bytes.fromhex(facts.secret), is_leader=False)
                wire = Wire(frames, self._network, facts.node)
                await wire.send(self._side.hello())
                welcome: Welcome = await wire.receive(Welcome)
            except BaseException:  # whatever ends it, cancellation too: the socket is closed
                writer.close()
                raise
        if welcome.refused:
            wire.close()
            self._side.refused(welcome.refused)
            raise LinkError(welcome.refused)
        self._side.welcomed(welcome)
        return wire

    async def _serve(self, wire: Wire) -> str:
        self.connected.set()
        self._broken.clear()
        work = [asyncio.create_task(part) for part in (self._send_all(wire), self._beat(wire), self._hear(wire))]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            return next((str(task.exception() or "") for task in done), "") or "closed by the leader"
        finally:
            self.connected.clear()
            self._broken.set()
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            wire.close()

    async def _send_all(self, wire: Wire) -> None:
        while True:
            report = await self._outbox.get()
            try:
                await wire.send(report)
            finally:
                self._outbox.task_done()

    async def _beat(self, wire: Wire) -> None:
        while True:
            beat, pause_s = self._side.next_beat()
            await wire.send(beat)
            await asyncio.sleep(pause_s)

    async def _hear(self, wire: Wire) -> None:
        while True:
            ask: AnyAsk = await wire.receive(AnyAsk)
            self._side.asked(ask)

    async def flush(self, limit_s: float) -> None:
        """Wait until what was queued is on its way, at most this long; without a connection there is no way."""
        if not self.connected.is_set():
            return
        ends = [asyncio.create_task(self._outbox.join()), asyncio.create_task(self._broken.wait())]
        try:
            await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()


class LeaderFacts(Struct, frozen=True):
    """What `leader.json` holds."""

    node: str
    address: str
    port: int
    secret: str


def read_leader(job_dir: Path) -> LeaderFacts:
    """Where the leader listens.

    Raises:
        LinkError: it has not said so (yet), or the file is not readable.
    """
    path = job_dir / LEADER_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=LeaderFacts)
    except (OSError, msgspec.MsgspecError) as error:
        raise LinkError(f"{path}: {error}") from error


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically by one that only this user can read."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
