"""Faults of one history: drawn from its seed before anything runs, then injected while the clients ask."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

from .servers import LEASE_S, Server, Servers

KINDS = {
    "sqlite": ("kill", "stop", "cut", "slow", "deaf", "mute", "clock", "full"),
    "postgres": ("kill", "stop", "stop", "cut", "slow", "deaf", "mute", "clock", "full", "sessions", "crash"),
}
CLOCK_MAX_S = 1800.0


@dataclass(frozen=True)
class Fault:
    kind: str
    at_s: float
    """After the history's start."""
    for_s: float
    on_leader: bool
    """Else the one that stands by, where there is one."""
    ahead_s: float
    """Of `clock`."""

    def __str__(self) -> str:
        where = "leader" if self.on_leader else "standby"
        ahead = f" by {self.ahead_s:+.0f} s" if self.kind == "clock" else ""
        return f"{self.kind}{ahead} of the {where} at {self.at_s:.2f} s for {self.for_s:.2f} s"


def plan(rng: random.Random, store: str) -> list[Fault]:
    """One to three faults."""
    chosen = [rng.choice(KINDS[store]) for _ in range(rng.choice((1, 1, 2, 3)))]
    return [
        Fault(
            kind,
            round(rng.uniform(0.0, 0.5), 3),
            round(rng.uniform(0.1, 2.5 * LEASE_S if kind == "stop" and store == "postgres" else 0.8), 3),
            rng.random() < 0.8,
            round(rng.uniform(-CLOCK_MAX_S, CLOCK_MAX_S), 1),
        )
        for kind in chosen
    ]


class Nemesis:
    """Injects a plan and ends each fault at its time."""

    def __init__(self, servers: Servers, note: Callable[[str], None]) -> None:
        self._servers, self._note = servers, note

    async def run(self, faults: list[Fault]) -> None:
        """All faults, each at its time; those that overlap do."""
        await asyncio.gather(*(self._one(fault) for fault in faults))

    async def _one(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        leader = self._servers.leader()
        others = [server for server in self._servers.servers if server is not leader]
        server = leader if fault.on_leader or not others else others[0]
        self._note(f"{fault} ({server.name})")
        begin, end = self._ways(fault, server)
        begin()
        await asyncio.sleep(fault.for_s)
        end()
        self._note(f"end of {fault.kind}")

    def _ways(self, fault: Fault, server: Server) -> tuple[Callable[[], object], Callable[[], object]]:
        proxy, servers = server.proxy, self._servers

        def stop() -> None:
            server.is_stopped = True
            server.signal(signal.SIGSTOP)

        def go_on() -> None:
            server.is_stopped = False
            server.signal(signal.SIGCONT)

        def crash() -> None:
            assert servers.postgres is not None
            servers.disk.free()  # it starts on no full disk, and who frees the disk waits for its start
            servers.postgres.stop()
            servers.postgres.start()

        def nothing() -> None:
            pass

        return {
            "kill": (lambda: server.signal(signal.SIGKILL), nothing),
            "stop": (stop, go_on),
            "cut": (proxy.cut, proxy.heal),
            "slow": (lambda: setattr(proxy, "delay_s", fault.for_s / 4), proxy.heal),
            "deaf": (lambda: setattr(proxy, "deaf", True), proxy.heal),
            "mute": (lambda: setattr(proxy, "mute", True), proxy.heal),
            "clock": (lambda: server.ahead(fault.ahead_s), nothing),
            "full": (self._fill, self._free),
            "sessions": (lambda: servers.postgres and servers.postgres.kill_backends(str(servers.journal)), nothing),
            "crash": (crash, nothing),
        }[fault.kind]

    def _fill(self) -> None:
        self._servers.disk.fill()
        self._limit(on=True)

    def _free(self) -> None:
        self._servers.disk.free()
        self._limit(on=False)

    def _limit(self, *, on: bool) -> None:
        if self._servers.store == "sqlite" and not self._servers.disk.is_own:
            self._servers.servers[0].limit_files(on=on)
