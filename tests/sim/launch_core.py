"""The launcher's core under virtual time: messages lost, late and doubled, cut links, paused processes, a second leader.

`complaints(seed)` drives one follower's core and one leader's lease, and judges them by what the words of
`launch.core.lease` promise, without its code. `BUGS` are changes of its text that must not go unseen.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

from holdfast.launch.core import follower as follower_core
from holdfast.launch.core import lease as lease_core
from holdfast.launch.frames import Grant

TICK_S = 0.1
RUN_S = 300.0
MARGIN_S = 0.5
"""Between the end of a lease and the moment at which ranks are taken for dead."""


class Network:
    """What is sent arrives late, twice or not at all; nothing passes while it is cut."""

    def __init__(self, dice: random.Random, *, calm: bool) -> None:
        self.now = 0.0
        self._dice = dice
        self._loss = 0.0 if calm else dice.choice((0.0, 0.2, 0.6))
        self._delay_s = 0.05 if calm else dice.choice((0.05, 1.0, 8.0))
        self._double = 0.0 if calm else dice.choice((0.0, 0.3))
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.is_cut = False

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Do it then."""
        heapq.heappush(self._due, (when, next(self._numbers), do))

    def send(self, arrive: Callable[[], None]) -> None:
        """Carry a message."""
        for _ in range(1 + (self._dice.random() < self._double)):
            if not self.is_cut and self._dice.random() >= self._loss:
                self.at(self.now + self._dice.random() * self._delay_s, arrive)

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._due and self._due[0][0] <= until:
            self.now, _, do = heapq.heappop(self._due)
            do()


def follower(seed: int, core: ModuleType = follower_core, *, calm: bool = False) -> list[str]:
    """Ranks of a follower live no longer than what its leader has granted, and leave when nobody leads."""
    dice = random.Random(f"follower/{seed}")
    net = Network(dice, calm=calm)
    lease_s, wait_s = dice.choice((3.0, 10.0)), dice.choice((30.0, 60.0))
    one = core.FollowerCore("n2", nodes=dice.choice((2, 500)), lease_s=lease_s, wait_s=wait_s, now=0.0)
    state: dict[str, Any] = {"alive": True, "granted": 0.0, "away": None, "left": False, "paused": 0.0}
    said: list[str] = []

    def take(asks: list[Any]) -> None:
        for ask in asks:
            if isinstance(ask, core.KillRanks):
                state["alive"] = False
            state["left"] = state["left"] or isinstance(ask, core.Finish)

    def answer(beat: int) -> None:
        if net.now < state["paused"]:
            net.at(state["paused"], lambda: answer(beat))  # the leader's process stands still
            return
        state["granted"] = max(state["granted"], net.now)
        grant = Grant(beat=beat, lease_s=lease_s)
        net.send(lambda: take(one.handle(core.Asked(grant))))

    def beat() -> None:
        number = one.next_beat(net.now).beat
        net.send(lambda: answer(number))
        net.at(net.now + one.pause_s, beat)

    def tick() -> None:
        held = core.Held(0, is_ending=False) if state["alive"] else None
        take(one.handle(core.Ticked(net.now, held)))
        if state["alive"] and net.now > state["granted"] + lease_s + MARGIN_S:
            said.append(f"ranks live at {net.now:.1f}, granted at {state['granted']:.1f} for {lease_s:g} s")
        if calm and not state["alive"]:
            said.append(f"ranks were killed at {net.now:.1f} although every beat was answered")
        away = state["away"]
        if away is not None and net.now > away + wait_s + 2 * TICK_S and not state["left"]:
            said.append(f"nobody leads since {away:.1f}, and the follower is still there")
        if not said:
            net.at(net.now + TICK_S, tick)

    def link(*, cut: bool) -> None:
        net.is_cut, state["away"] = cut, net.now if cut else None
        one.handle(core.Disconnected(net.now, "reset by peer") if cut else core.Welcomed(lease_s))

    take(one.handle(core.Welcomed(lease_s)))
    net.at(0.0, beat)
    net.at(0.0, tick)
    if not calm:
        begin, pause = dice.uniform(5.0, 100.0), dice.uniform(5.0, 200.0)
        net.at(begin, lambda: link(cut=True))
        net.at(begin + dice.choice((2.0, 20.0, 150.0)), lambda: link(cut=False))
        net.at(pause, lambda: state.update(paused=net.now + dice.choice((1.0, 15.0))))
    net.run(RUN_S)
    return said


def leader(seed: int, core: ModuleType = lease_core, *, calm: bool = False) -> list[str]:
    """A leader's ranks die within the lease after another has raised its epoch, or after it was cut off."""
    dice = random.Random(f"leader/{seed}")
    lease = core.LeaderLease(dice.choice((3.0, 10.0)), 0.0)
    lease_s = lease.lease.lease_s
    takeover = RUN_S if calm else dice.uniform(5.0, 60.0)
    cut_at, cut_s = (RUN_S, 0.0) if calm or dice.random() < 0.5 else (dice.uniform(5.0, 60.0), dice.choice((2.0, 60.0)))
    slow_s = 0.1 if calm else dice.choice((0.1, 2.0, 100.0))
    now, reading = 0.0, None
    while now < RUN_S:
        is_cut = cut_at <= now < cut_at + cut_s
        asks = lease.handle(core.LeaseLooked(now=now, is_cut=is_cut, is_reading=reading is not None))
        if any(isinstance(ask, core.ReadEpoch) for ask in asks):
            reading = (now, now + dice.random() * slow_s, 1 if now < takeover else 2)
        awaited = any(isinstance(ask, core.AwaitEpoch) for ask in asks)
        if reading is not None and (awaited or reading[1] <= now):
            since, _, found = reading
            reading = None
            read = core.EpochRead(now=now, since=since, is_cut=is_cut, found=found, own=1, has_begun=True)
            asks = lease.handle(read)
            if any(isinstance(ask, core.YieldJob) for ask in asks):
                return [f"it yields at {now:.1f}, and nobody has taken over"] if now < takeover else []
        checked = core.LeaseChecked(now=now, is_cut=is_cut, is_reading=reading is not None, is_held=True)
        if any(isinstance(ask, core.LoseLease) for ask in lease.handle(checked)):
            return [f"it loses its lease at {now:.1f} for no reason"] if calm else []
        lost_at = min(takeover, cut_at if cut_s > lease_s else RUN_S)
        if now > lost_at + lease_s + MARGIN_S:
            return [f"two leaders: its ranks live at {now:.1f}, and the job was another's since {lost_at:.1f}"]
        now += lease.pause_s if calm or dice.random() > 0.01 else dice.choice((1.0, 5.0, 30.0))
    return []


def complaints(
    seed: int, follower_module: ModuleType = follower_core, lease_module: ModuleType = lease_core
) -> list[str]:
    """All that is wrong with a seed; every fifth is calm."""
    calm = seed % 5 == 0
    return follower(seed, follower_module, calm=calm) + leader(seed, lease_module, calm=calm)


BUGS: dict[str, tuple[str, str, str]] = {
    "a lease that is renewed too late": ("lease", "sent + lease_s", "sent + 2 * lease_s"),
    "beats that are not told apart": ("lease", "self._number += 1", "self._number = 1"),
    "a lease that ends late": ("lease", "return now >= self._until", "return now >= self._until + 3.0"),
    "two leaders": ("lease", "if report.found > report.own and", "if report.found < report.own and"),
    "a leader that yields to itself": (
        "lease",
        "if report.found > report.own and",
        "if report.found >= report.own and",
    ),
    "renewed by the end of a reading": ("lease", "self.lease.renew(report.since)", "self.lease.renew(report.now)"),
    "a lost lease that is not said": ("lease", "and report.is_held else []", "and not report.is_held else []"),
    "ranks that outlive the lease": ("follower", "if is_over and held is not None", "if not is_over and held is None"),
    "a grant that is not heard": ("follower", "self._lease.answered(ask.beat, ask.lease_s)", "pass"),
    "a follower that never leaves": ("follower", "> self._wait_s:", "> 9 * self._wait_s:"),
    "a lease without end": ("lease", "max(self._until, since + self.lease_s)", "max(self._until, since + 99.0)"),
}
"""Name -> module of `launch.core`, text, and the text with the bug."""


def planted(name: str) -> tuple[ModuleType, ModuleType]:
    """The follower's and the lease's module with this bug. Raises ValueError when the text has changed."""
    module, old, new = BUGS[name]
    made: dict[str, ModuleType] = {}
    for short, real in (("lease", lease_core), ("follower", follower_core)):
        with open(str(real.__file__), encoding="utf-8") as file:
            text = file.read()
        if short == module:
            if old not in text:
                raise ValueError(f"{name!r} cannot be planted: {old!r} does not stand in {short}.py")
            text = text.replace(old, new, 1)
        made[short] = ModuleType(f"holdfast.launch.core.{short}")
        made[short].__dict__["__name__"] = real.__name__
        exec(compile(text, str(real.__file__), "exec"), made[short].__dict__)
        if short == "follower":
            made[short].Lease = made["lease"].Lease  # type: ignore[attr-defined]
    return made["follower"], made["lease"]
