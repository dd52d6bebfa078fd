"""The `network` suite: a node's own interfaces, and the paired test of two nodes. Two steps.

The paired test runs on both nodes; the one without `peer` listens.

One TCP connection steers; beside it runs UDP. Measured: round trips, datagrams that never came back (a reply that is
late is not lost, so a starved processor costs no verdict), a large datagram that may not be fragmented, TCP both ways
with the kernel's own count of retransmissions (TCP_INFO), the offset of the clocks, and sums that both compute.

Time: about two seconds on a good link; every wait has a limit, and the partner's death ends it with a sentence.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.os.files import text_of
from holdfast.validate.cpu import computed
from holdfast.validate.registry import Options
from holdfast.validate.results import Item
from holdfast.validate.step import Tell

ACCEPT_S = 60.0
QUIET_S = 30.0
"""The partner says nothing for so long: it is dead or cut off."""
LONE, WINDOWS, WINDOW = 60, 30, 8
"""Datagrams one by one for the latency; then windows of several."""
REPLY_S, LATE_S = 0.25, 1.0
STREAM_BYTES = 24 << 20
STREAM_S = 1.5
CHUNK = 1 << 18
UDP_HEADERS = 28
"""Bytes of an IPv4 and a UDP header."""
SOCKET_BYTES = 1 << 20
NET = Path("/sys/class/net")


class Line:
    """Lines of JSON over the steering connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(QUIET_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._rest = b""

    def say(self, **facts: Any) -> None:
        """Send one line."""
        self.sock.sendall(msgspec.json.encode(facts) + b"\n")

    def hear(self) -> dict[str, Any]:
        """Take one line. Raises ConnectionError when the partner has gone."""
        while b"\n" not in self._rest:
            data = self.sock.recv(65_536)
            if not data:
                raise ConnectionError("the partner left in the middle")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(msgspec.json.decode(line))

    def take(self, count: int, until: float) -> int:
        """Read raw bytes of a stream up to `count` or a time; returns how many came."""
        got = len(self._rest)
        self._rest = b""
        while got < count and time.monotonic() < until:
            data = self.sock.recv(CHUNK)
            if not data:
                raise ConnectionError("the partner left in the middle")
            got += len(data)
        return got


def tcp_facts(sock: socket.socket) -> dict[str, int]:
    """Segments sent, segments sent again, path MTU: from the kernel's `struct tcp_info` (linux/tcp.h)."""
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    known = {"pmtu": 60, "again": 100, "sent": 136}
    return {name: struct.unpack_from("=I", raw, at)[0] for name, at in known.items() if len(raw) >= at + 4}


def run(options: Options, tell: Tell) -> list[Item]:
    """The step."""
    if options.peer:
        with contextlib.closing(socket.create_connection((options.peer, options.port), timeout=ACCEPT_S)) as sock:
            return _Client(Line(sock), options).run()
    family = socket.AF_INET6 if ":" in options.listen else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((options.listen, 0))
        listening.listen(1)
        tell({"port": float(listening.getsockname()[1])})
        listening.settimeout(ACCEPT_S)
        sock, _ = listening.accept()
        with contextlib.closing(sock):
            return _Server(Line(sock), options).run()


run.tells = True  # type: ignore[attr-defined]


def _udp(sock: socket.socket) -> socket.socket:
    udp = socket.socket(sock.family, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    return udp


class _Server:
    """The end that answers."""

    def __init__(self, line: Line, options: Options) -> None:
        self.line = line
        self.options = options

    def run(self) -> list[Item]:
        if self.line.hear().get("token") != self.options.token:
            raise PermissionError("a stranger spoke on the port of this paired test")
        with _udp(self.line.sock) as udp:
            udp.bind((self.line.sock.getsockname()[0], 0))
            self.line.say(udp=udp.getsockname()[1])
            self._echo(udp)
        while (asked := self.line.hear())["do"] != "end":
            match asked["do"]:
                case "clock":
                    self.line.say(at=time.time())
                case "take":
                    begin = time.monotonic()
                    got = self.line.take(asked["bytes"], begin + QUIET_S)
                    self.line.say(got=got, seconds=time.monotonic() - begin)
                case "give":
                    send(self.line.sock, asked["bytes"])
                case "facts":
                    self.line.say(**tcp_facts(self.line.sock))
                case "sums":
                    self.line.say(sums=[computed(asked["seed"]), computed(asked["seed"] + 1)])
        return []

    def _echo(self, udp: socket.socket) -> None:
        """Send back what comes until the other says, on the steering line, that it has done."""
        udp.settimeout(0.05)
        self.line.sock.setblocking(False)
        until = time.monotonic() + QUIET_S + LATE_S + (LONE + WINDOWS) * REPLY_S
        try:
            while time.monotonic() < until:
                with contextlib.suppress(TimeoutError, BlockingIOError):
                    while True:
                        data, who = udp.recvfrom(65_536)
                        udp.sendto(data, who)
                with contextlib.suppress(BlockingIOError):
                    if not self.line.sock.recv(1):
                        raise ConnectionError("the partner left in the middle")
                    return
            raise TimeoutError("the partner never ended the datagrams")
        finally:
            self.line.sock.settimeout(QUIET_S)


def send(sock: socket.socket, count: int) -> None:
    """Send so many bytes."""
    data = memoryview(bytes(CHUNK))
    while count > 0:
        part = data[: min(count, CHUNK)]
        sock.sendall(part)
        count -= len(part)


class _Client:
    """The end that asks and measures."""

    def __init__(self, line: Line, options: Options) -> None:
        self.line = line
        self.options = options

    def run(self) -> list[Item]:
        self.line.say(token=self.options.token)
        port = int(self.line.hear()["udp"])
        items = self._datagrams(port)
        items.append(self._clock())
        items += self._streams()
        items.append(self._sums())
        self.line.say(do="end")
        return items

    # --- datagrams ---

    def _datagrams(self, port: int) -> list[Item]:
        with _udp(self.line.sock) as udp:
            udp.connect((self.options.peer, port))
            seen: set[int] = set()
            trips = []
            for number in range(LONE):
                start = time.perf_counter()
                if self._exchange(udp, [number], seen):
                    trips.append(time.perf_counter() - start)
            for window in range(WINDOWS):
                first = LONE + window * WINDOW
                self._exchange(udp, list(range(first, first + WINDOW)), seen)
            total = LONE + WINDOWS * WINDOW
            # What is late is not lost: a partner without a processor answers in the end.
            deadline = time.monotonic() + LATE_S
            while len(seen) < total and time.monotonic() < deadline:
                if self._collect(udp, seen, 0.1):
                    deadline = time.monotonic() + LATE_S
            whole = self._large(udp, seen)
        self.line.sock.sendall(b".")
        trips.sort()
        items = [
            Item(name="network.loss", value=(total - len(seen - {-1})) / total, unit="of datagrams", better="lower"),
            Item(name="network.whole_mtu", value=whole, unit="largest datagram came back", better="higher"),
        ]
        if trips:
            items.append(
                Item(name="network.latency", value=trips[len(trips) // 2] * 1e6, unit="us round trip", better="lower")
            )
        return items

    def _exchange(self, udp: socket.socket, numbers: list[int], seen: set[int]) -> bool:
        for number in numbers:
            with contextlib.suppress(OSError):
                udp.send(struct.pack("=q56x", number))
        until = time.monotonic() + REPLY_S
        while not seen.issuperset(numbers):
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._collect(udp, seen, left)
        return True

    @staticmethod
    def _collect(udp: socket.socket, seen: set[int], limit_s: float) -> bool:
        udp.settimeout(max(limit_s, 0.001))
        try:
            data = udp.recv(65_536)
        except OSError:
            return False
        if len(data) >= 8:
            seen.add(struct.unpack_from("=q", data)[0])
        return True

    def _large(self, udp: socket.socket, seen: set[int]) -> float:
        """A datagram as large as the path is said to take, not to be fragmented: 1.0 when one of three came back."""
        mtu = tcp_facts(self.line.sock).get("pmtu", 0)
        if mtu < 576 or mtu > 65_535 or udp.family != socket.AF_INET:
            return 1.0
        ip_mtu_discover, do = 10, 2
        with contextlib.suppress(OSError):
            udp.setsockopt(socket.IPPROTO_IP, ip_mtu_discover, do)
        for _ in range(3 + 5):
            with contextlib.suppress(OSError):
                udp.send(struct.pack("=q", -1).ljust(mtu - UDP_HEADERS, b"\0"))
            until = time.monotonic() + REPLY_S
            while -1 not in seen and time.monotonic() < until:
                self._collect(udp, seen, REPLY_S)
            if -1 in seen:
                return 1.0
        return 0.0

    # --- clock, streams, sums ---

    def _clock(self) -> Item:
        """As NTP does it (RFC 5905): the exchange with the shortest round trip says most."""
        best = (1e9, 0.0)
        for _ in range(8):
            begin, start = time.time(), time.perf_counter()
            self.line.say(do="clock")
            there = float(self.line.hear()["at"])
            trip = time.perf_counter() - start
            best = min(best, (trip, there - (begin + trip / 2)))
        trip, offset = best
        doubt = max(0.0, abs(offset) - trip / 2)
        return Item(name="network.clock_offset", value=doubt, unit="s apart, at least", better="lower")

    def _streams(self) -> list[Item]:
        before, there = tcp_facts(self.line.sock), self._facts()
        rates = [self._rate(self._give), self._rate(self._take)]
        mine, theirs = tcp_facts(self.line.sock), self._facts()
        grown = {
            name: mine.get(name, 0) - before.get(name, 0) + theirs.get(name, 0) - there.get(name, 0)
            for name in ("again", "sent")
        }
        again = grown["again"] / max(grown["sent"], 1)
        return [
            Item(name="network.bandwidth", value=min(rates) / 1e6, unit="MB/s, the slower way", better="higher"),
            Item(name="network.retransmitted", value=again, unit="of TCP segments", better="lower"),
            Item(name="network.path_mtu", value=float(mine.get("pmtu", 0)), unit="bytes"),
        ]

    def _facts(self) -> dict[str, int]:
        self.line.say(do="facts")
        return {key: int(value) for key, value in self.line.hear().items()}

    @staticmethod
    def _rate(move: Callable[[int], float]) -> float:
        """Bytes per second of what `move` carries, in seconds. A slow link gets less: a first part says how much."""
        size = int(min(STREAM_BYTES, max(CHUNK, CHUNK / move(CHUNK) * STREAM_S)))
        return size / move(size)

    def _give(self, size: int) -> float:
        self.line.say(do="take", bytes=size)
        start = time.perf_counter()
        send(self.line.sock, size)
        said = self.line.hear()
        return max(time.perf_counter() - start, float(said["seconds"]), 1e-6)

    def _take(self, size: int) -> float:
        start = time.perf_counter()
        self.line.say(do="give", bytes=size)
        if self.line.take(size, time.monotonic() + QUIET_S) < size:
            raise TimeoutError(f"the partner did not send {size} bytes within {QUIET_S:g} s")
        return max(time.perf_counter() - start, 1e-6)

    def _sums(self) -> Item:
        """Both compute the same; 1.0 when the results are equal."""
        seed = int.from_bytes(self.options.token.encode()[:3].rjust(3, b"\0"), "big")
        mine = [computed(seed), computed(seed + 1)]
        self.line.say(do="sums", seed=seed)
        same = self.line.hear()["sums"] == mine
        return Item(name="network.sums", value=1.0 if same else 0.0, unit="equal sums", better="higher")


def interfaces(options: Options) -> list[Item]:
    """The step."""
    del options
    items = []
    for path in sorted(NET.glob("*")):
        state = text_of(path / "operstate")
        if path.name == "lo" or state == "down":
            continue
        mtu = text_of(path / "mtu")
        items.append(Item(name=f"network.mtu.{path.name}", text=mtu, unit="bytes", same=True))
        speed = text_of(path / "speed")
        if speed.isdigit() and (path / "device").exists():
            items.append(Item(name=f"network.speed.{path.name}", value=float(speed), unit="Mb/s", better="higher"))
    return items or [Item(name="network.interfaces", text="none but the loopback")]
