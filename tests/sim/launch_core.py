"""The launcher's core under virtual time: messages lost, late and doubled, cut links, paused processes, a second leader.

`complaints(seed)` drives each core of `launch.core` and judges it by what its words promise, without its code. `BUGS` are
changes of their text that must not go unseen. To judge many seeds::

    python -m tests.sim.launch_core --from 30000 --seeds 10000
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

from holdfast.errors import EXIT_DO_NOT_REQUEUE
from holdfast.launch.core import fence as fence_core
from holdfast.launch.core import follower as follower_core
from holdfast.launch.core import lease as lease_core
from holdfast.launch.core import presence as presence_core
from holdfast.launch.core import shutdown as shutdown_core
from holdfast.launch.frames import Grant
from holdfast.launch.process import Exit

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


def fence(seed: int, core: ModuleType = fence_core) -> list[str]:
    """Each attempt has a new number and starts behind an epoch that nobody has passed, unless its launcher leaves."""
    dice = random.Random(f"fence/{seed}")
    folder, used = dice.choice((0, 3, 7)), dice.choice((-1, 2))
    one = core.Fence()
    known = dice.random() < 0.5
    one.handle(
        core.Resumed(
            epoch=folder,
            record_epoch=max(0, folder - dice.choice((0, 1))) if known else None,
            record_attempt=max(-1, used - dice.choice((0, 1))) if known else None,
            folder_attempt=used if folder else -1,
        )
    )
    numbers, said = {used} if folder and not known else set(), []
    for _ in range(12):
        taken = dice.random() < 0.2
        leaves = dice.random() < 0.2
        ordered = one.attempt + dice.choice((0, 1, 1, 1, 2)), dice.choice((0, one.epoch, one.epoch + 1))
        asks = one.handle(core.StartOrdered(attempt=ordered[0], epoch=ordered[1], in_place=dice.random() < 0.5))
        raised = None
        while asks:
            ask, asks = asks[0], asks[1:]
            match type(ask).__name__:
                case "LayOut":
                    if ask.attempt in numbers:
                        said.append(f"attempt {ask.attempt} has been started before")
                    numbers.add(ask.attempt)
                    asks = one.handle(core.LaidOut(ask.attempt, ask.epoch))
                case "RaiseEpoch":
                    if ask.epoch <= folder:
                        said.append(f"epoch {ask.epoch} is raised, and the folder holds {folder}")
                    folder = max(folder, ask.epoch) + (dice.choice((0, 5)) if taken else 0)
                    raised = None if taken else ask.epoch
                    asks = one.handle(core.EpochTaken(folder) if taken else core.EpochRaised(0.0))
                case "YieldJob":
                    if not taken:
                        said.append("it yields to itself")
                    return said
                case "PinCheckpoint":
                    asks = one.handle(core.Pinned(is_leaving=leaves))
                case "StartRanks":
                    if raised is None or raised < folder:
                        said.append(f"ranks start unfenced: {raised} is raised, the folder holds {folder}")
                    if leaves:
                        said.append("ranks start although the launcher leaves")
    return said


def presence(seed: int, core: ModuleType = presence_core) -> list[str]:
    """No lease is granted without the leader's own; nobody is taken for dead while a grant may hold; silence is told once."""
    dice = random.Random(f"presence/{seed}")
    lease_s = dice.choice((2.25, 10.0))
    one = core.Presence(lease_s)
    granted: dict[str, float] = {}
    heard: dict[str, float] = {}
    silent: set[str] = set()
    said: list[str] = []
    now = 0.0
    for node in ("n2", "n3"):
        one.handle(core.Connected(node, now))
        heard[node] = now
    for number in range(400):
        now += 0.1
        for node in ("n2", "n3"):
            is_away = (number // 60) % (2 if node == "n2" else 3) == 1
            if not is_away and dice.random() < 0.9:
                may = dice.random() < 0.8
                asks = one.handle(core.Heard(node=node, now=now, beat=number, may_grant=may))
                heard[node] = now
                if asks and not may:
                    said.append(f"{node} is granted a lease that the leader itself does not hold")
                if asks:
                    granted[node] = now
                    if asks[0].grant.beat != number or asks[0].grant.lease_s != lease_s:
                        said.append("another beat is answered, or with another lease")
        looked = core.FollowersLooked(now=now, used=frozenset({"n2"}), gone=frozenset(), can_ask=True)
        for ask in one.handle(looked):
            match type(ask).__name__:
                case "TellSilent":
                    if ask.node in silent or now - heard[ask.node] <= lease_s or ask.node != "n2":
                        said.append(f"{ask.node} is said to be silent at {now:.1f}, heard at {heard[ask.node]:.1f}")
                    silent.add(ask.node)
                case "TellHeard":
                    if ask.node not in silent or now - heard[ask.node] > lease_s:
                        said.append(f"{ask.node} is said to be heard again")
                    silent.discard(ask.node)
                case "CheckSpare":
                    if ask.node != "n3" or now - heard["n3"] <= lease_s:
                        said.append(f"{ask.node} is checked as a spare")
                    one.handle(core.SpareChecked(ask.node))
        if now - heard["n2"] > lease_s + 0.2 and "n2" not in silent:
            said.append(f"the silence of n2 is not told at {now:.1f}")
        for node, at in granted.items():
            if one.is_lapsed(node, now) and now <= at + lease_s + MARGIN_S - 0.01:
                said.append(f"{node} is taken for dead while its lease may hold")
            if not one.is_lapsed(node, now) and now > at + lease_s + MARGIN_S + 0.2:
                said.append(f"{node} is never taken for dead")
    return said[:3]


def shutdown(seed: int, core: ModuleType = shutdown_core) -> list[str]:
    """What is left is left after its ranks; a second signal hurries; what the controller knows of is waited for."""
    dice = random.Random(f"shutdown/{seed}")
    recovers, observes = dice.random() < 0.7, dice.random() < 0.3
    one = core.Shutdown(recovers=recovers, observes=observes, is_command=False, stop_grace_s=5.0)
    said: list[str] = []

    def kinds(asks: list[Any]) -> list[str]:
        return [type(ask).__name__ for ask in asks]

    def expect(what: str, told: bool) -> None:
        if not told:
            said.append(what)

    code, stop_asked = dice.choice((0, 1, 85)), dice.random() < 0.3
    ended = core.Ended(exit=Exit(code=code), is_good=code == 0, cause="rank 1", stop_asked=stop_asked)
    lost = kinds(one.handle(core.LeaseLost(3)))
    expect("a lost lease kills no ranks", "KillRanks" in lost)
    expect("a lost lease ends the launcher", "Finish" not in lost)
    expect("a lost lease is told twice", one.handle(core.LeaseLost(3)) == [])
    expect("the lease of the next attempt is not told", one.handle(core.LeaseLost(4)) != [])
    taken = kinds(one.handle(core.Superseded(epoch=9, own=8, attempt=3)))
    expect("it leaves before its ranks are dead", taken.index("KillRanks") < taken.index("Finish"))
    exit_code = dice.choice((1, 85, EXIT_DO_NOT_REQUEUE))
    for is_told in (False, True):
        handed = one.handle(core.Handed(code=exit_code, why="", is_told=is_told))
        waits = kinds(handed) == ["FinishLater"]
        expect("an escalation that nobody knows of is waited for", is_told or not waits)
        expect("it leaves before the controller acts", waits or not is_told or exit_code == EXIT_DO_NOT_REQUEUE)
        expect("it waits though given up for good", not waits or exit_code != EXIT_DO_NOT_REQUEUE)
        finish = handed[0].finish if waits else handed[0]
        expect("it leaves with another exit code", finish.code == exit_code)
    over = one.handle(core.AttemptOver(ended, core.Stored.TAKEN))
    if code == 0:
        expect("a good end is not the end", kinds(over) == ["Finish"] and over[0].code == 0)
    elif code == 85:
        expect("a saved state is not handed on", kinds(over) == ["Finish"] and over[0].code == 85)
    elif not recovers:
        expect("a plain launcher waits", kinds(over) == ["Finish"] and over[0].code == 1)
    else:
        awaits = kinds(over) == ["AwaitDecision"]
        expect("an end by itself is not judged", awaits or (stop_asked and not observes))
        expect("an end that was asked for is judged", not awaits or not stop_asked or observes)
    fell = kinds(one.handle(core.RankFell(3)))
    expect("others wait for a dead rank", fell != [] or (recovers and not observes))
    expect("ranks are ended behind the engine's back", fell == [] or not recovers or observes)
    first = kinds(one.handle(core.Signalled(signum=15, attempt=3, has_ranks=True)))
    expect("the signal is not passed on", "PassEnd" in first and "EndRanks" in first)
    expect("it leaves before its ranks have ended", "Finish" not in first)
    second = kinds(one.handle(core.Signalled(signum=15, attempt=3, has_ranks=True)))
    expect("a second signal does not hurry", "Hurry" in second and "EndRanks" in second)
    after = one.handle(core.AttemptOver(ended, core.Stored.TAKEN))
    expect("an ended job waits for a decision", kinds(after) == ["Finish"])
    return said


CORES: dict[str, ModuleType] = {
    "lease": lease_core,
    "follower": follower_core,
    "fence": fence_core,
    "presence": presence_core,
    "shutdown": shutdown_core,
}


def complaints(seed: int, cores: dict[str, ModuleType] | None = None) -> list[str]:
    """All that is wrong with a seed; every fifth is calm."""
    core, calm = cores or CORES, seed % 5 == 0
    return [
        *follower(seed, core["follower"], calm=calm),
        *leader(seed, core["lease"], calm=calm),
        *fence(seed, core["fence"]),
        *presence(seed, core["presence"]),
        *shutdown(seed, core["shutdown"]),
    ]


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
    "a number that is used twice": ("fence", "if report.attempt > self.attempt:", "if report.attempt >= self.attempt:"),
    "an epoch that is not new": ("fence", "max(report.epoch, self.epoch + 1)", "max(report.epoch, self.epoch)"),
    "ranks before the fence": ("fence", "return [RaiseEpoch(report.epoch)]", "return [StartRanks()]"),
    "a fence that another has passed": (
        "fence",
        "return [YieldJob(report.found)]",
        "return [RenewLease(0.0), PinCheckpoint()]",
    ),
    "ranks of a launcher that leaves": ("fence", "if not report.is_leaving:", "if report is not None:"),
    "an attempt that its journal does not know": (
        "fence",
        "self.attempt = max(self.attempt, report.folder_attempt)",
        "pass",
    ),
    "a grant without own lease": ("presence", "or not report.may_grant", ""),
    "dead before the lease ends": ("presence", "+ LEASE_MARGIN_S", "- LEASE_MARGIN_S"),
    "silence that is told again": ("presence", "self._silent.add(node)", "pass"),
    "silence that is never told": ("presence", "return TellSilent(node, round(quiet_s, 1))", "return None"),
    "a spare that is taken for used": ("presence", "and node in report.used and", "and"),
    "a lost escalation": ("shutdown", "waits = report.is_told and", "waits ="),
    "an end before the kill": (
        "shutdown",
        "[Say(line), ExpectStop(), KillRanks(report.attempt), taken]",
        "[Say(line), ExpectStop(), taken, KillRanks(report.attempt)]",
    ),
    "a lost lease that kills nothing": (
        "shutdown",
        "[Say(line), KillRanks(report.attempt, _UNREACHABLE)]",
        "[Say(line)]",
    ),
    "an end on request that is judged": (
        "shutdown",
        "if self.ending:\n            return Finish(code",
        "if False:\n            return Finish(code",
    ),
    "a second signal that waits": ("shutdown", "return [Hurry(), EndRanks(report.attempt)] if", "return [] if"),
    "a plain launcher that waits for ever": (
        "shutdown",
        "return None if self.recovers else Finish(code, ended.cause)",
        "return None",
    ),
    "a lease without end": ("lease", "max(self._until, since + self.lease_s)", "max(self._until, since + 99.0)"),
}
"""Name -> module of `launch.core`, text, and the text with the bug."""


def planted(name: str) -> dict[str, ModuleType]:
    """The cores with this bug. Raises ValueError when the text has changed."""
    module, old, new = BUGS[name]
    with open(str(CORES[module].__file__), encoding="utf-8") as file:
        text = file.read()
    if old not in text:
        raise ValueError(f"{name!r} cannot be planted: {old!r} does not stand in {module}.py")
    made = ModuleType(f"holdfast.launch.core.{module}")
    made.__dict__["__name__"] = CORES[module].__name__
    exec(compile(text.replace(old, new, 1), str(CORES[module].__file__), "exec"), made.__dict__)
    cores = {**CORES, module: made}
    if module == "lease":
        with open(str(follower_core.__file__), encoding="utf-8") as file:
            follows = ModuleType(follower_core.__name__)
            exec(compile(file.read(), str(follower_core.__file__), "exec"), follows.__dict__)
        follows.Lease = made.Lease  # type: ignore[attr-defined]
        cores["follower"] = follows
    return cores


def main() -> None:
    """Judge seeds, and say which have something to complain of."""
    parser = argparse.ArgumentParser(description="Judge the launcher's cores.")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=200)
    asked = parser.parse_args()
    wrong = {seed: said for seed in range(asked.first, asked.first + asked.seeds) if (said := complaints(seed))}
    for seed, said in wrong.items():
        print(f"seed {seed}: {'; '.join(said)}")
    print(f"launcher's cores, seeds {asked.first} to {asked.first + asked.seeds - 1}: {len(wrong)} seeds failed")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
