"""A training job, one fault after the other, and a controller that is killed with SIGKILL while each is recovered.

`plan` draws everything from a seed before anything runs; `run` plays a plan on one embedded cluster with one job, and
judges after each fault. Called by `test_controller_kills`. Time is real; all waits end with what they wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import holdfast.drill
from chaos import checkers
from chaos.checkers import PROBE, Injected, Tail, WorldLog
from chaos.replay import Replay
from holdfast.adapters.local import processes
from holdfast.drill.clusters import StageSettings
from holdfast.drill.stage import Stage
from holdfast.drill.training import TrainingJob, counter_losses, largest_difference, read_losses
from holdfast.errors import HoldfastError
from holdfast.model.cluster import JobKey
from holdfast.model.events import FindingSeen
from holdfast.model.evidence import Finding, Role

POLICY = Path(holdfast.drill.__file__).with_name("policy.toml")
OPTIONS = ("--silent-after-s", "2", "--tmp-mib", "4")
XID_74 = "NVRM: Xid (PCI:0000:b9:00): 74, pid=1, name=x, NVLink: fatal error detected on link 6(0x0, 0x0, 0x10000)"
DELAY_MAX_S = {"rank": 1.2, "xid": 3.0}
"""About as long as the recovery of each takes on an idle machine."""
RECOVER_LIMIT_S = 60.0
LOOK_S = 0.001

MOMENTS = {
    "rank": ("finding_seen", "attempt_ended", "notify", "attempt_started", "first_step_done", "checkpoint_saved"),
    "xid": (
        "finding_seen",
        "quarantine_node",
        "requeue_held",
        "order_done",
        "attempt_ended",
        "set_excluded",
        "release_job",
        "replace_node",
        "validate_node",
        "node_validated",
        "return_node",
        "launcher_attached",
        "attempt_started",
        "first_step_done",
        "checkpoint_saved",
    ),
}
"""Events and orders in whose first moments a kill is interesting: they are stored, and may not be carried out yet."""


# --- what is going to be done ---


@dataclass(frozen=True)
class Kill:
    """When the controller is killed, and how it comes back."""

    at: str
    """`delay`, or the kind of event or order whose appearance in the journal is waited for."""
    after_s: float
    """After the fault (`delay`), or after the event was seen."""
    pause_s: float
    """Until it is started again."""
    again_s: float | None
    """Killed once more so long after it was started again, wherever it is by then; None: not."""

    @property
    def count(self) -> int:
        return 1 if self.again_s is None else 2


@dataclass(frozen=True)
class Round:
    """One fault with its kills."""

    fault: str
    place: int
    """Which of the job's nodes."""
    signal: int
    kills: tuple[Kill, ...]


@dataclass
class Outcome:
    """What a run has shown."""

    kills: int = 0
    moments: Counter[str] = field(default_factory=Counter)
    """Kind of the newest event when the controller died."""
    pending: Counter[str] = field(default_factory=Counter)
    """Orders that were stored and had no outcome when the controller died."""
    complaints: list[str] = field(default_factory=list)


def plan(seed: int, kills: int) -> list[Round]:
    """Faults in turn with one or two kills each, until there are so many kills."""
    rng = random.Random(seed)
    rounds: list[Round] = []
    faults = ["rank", "xid"]
    rng.shuffle(faults)
    left = kills
    while left > 0:
        fault = faults[len(rounds) % 2]
        moments = MOMENTS[fault]
        chosen: list[Kill] = []
        first = rng.randrange(len(moments))
        wanted = min(left, 1 if fault == "rank" else rng.choice((1, 2, 3)))
        while wanted > 0:
            by_delay = rng.random() < 0.4 and not chosen
            twice = wanted > 1 and rng.random() < 0.3
            chosen.append(
                Kill(
                    at="delay" if by_delay else moments[first],
                    after_s=round(rng.uniform(0.0, DELAY_MAX_S[fault] if by_delay else 0.004), 4),
                    pause_s=0.0 if rng.random() < 0.5 else round(rng.uniform(0.0, 2.0), 3),
                    again_s=round(rng.uniform(0.05, 1.5), 3) if twice else None,
                )
            )
            wanted -= chosen[-1].count
            if first + 1 >= len(moments):
                break
            first = rng.randrange(first + 1, len(moments))  # a second kill comes later in the recovery
        left -= sum(kill.count for kill in chosen)
        rounds.append(Round(fault, rng.randrange(2), rng.choice((6, 9, 11)), tuple(chosen)))
    return rounds


# --- doing it ---


class Prober:
    """A source that reports without a pause: each finding again and again until its receipt is there, then the next."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.acknowledged: list[str] = []

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            name = f"probe:{number}"
            # Benign, so that it changes nothing: what is proven is that it is kept.
            finding = Finding(id=name, rule="chaos.probe", at=time.time(), role=Role.BENIGN)
            event = FindingSeen(id=name, at=finding.at, source=PROBE, finding=finding)
            while not await self._told(event):
                await asyncio.sleep(0.05)
            self.acknowledged.append(name)
            await asyncio.sleep(0.05)

    async def _told(self, event: FindingSeen) -> bool:
        try:
            await self._stage.eyes.ingest(PROBE, [event])
        except HoldfastError:
            return False
        return True


class Chaos:
    """One cluster, one job, and what has been done to them."""

    def __init__(self, stage: Stage, job: TrainingJob, key: JobKey, world: WorldLog, prober: Prober) -> None:
        self.stage = stage
        self.job = job
        self.key = key
        self.world = world
        self.prober = prober
        self.tail = Tail(stage.journal)
        self.replay = Replay(stage.journal, POLICY)
        self.faults: list[Injected] = []
        self.outcome = Outcome()

    async def play(self, one: Round) -> None:
        """Inject, kill, wait for the recovery, judge."""
        await self._until(self._progressed(), "the job goes on before the fault")
        # The first attempt is told of when the ranks have long begun: a launcher that is ended before told nobody.
        known = len(self.faults) + 1
        await self._until(lambda: self.tail.attempts_started() >= known, "the controller knows what is running")
        before = self.tail.newest()
        await self._inject(one)
        began = time.monotonic()
        for kill in one.kills:
            await self._await_moment(kill, before, began)
            await self._kill(kill)
        await self._until(self._is_recovered, "the incident is closed and the job runs")
        await self._until(self._progressed(), "the job goes on after the recovery")
        self._judge()

    async def _inject(self, one: Round) -> None:
        view = await self.stage.cluster.breaker.job(self.key.id)
        assert view is not None
        node = view.nodes[one.place]
        if one.fault == "xid":
            self.faults.append(Injected("xid", node, "nvidia.xid.74"))
            await self.stage.cluster.breaker.do("kmsg", node, text=XID_74)
            return
        (pid,) = rank_pids(self.stage.folder, node)
        self.faults.append(Injected("rank", node, f"exit.signal.{one.signal}"))
        os.kill(pid, one.signal)

    async def _await_moment(self, kill: Kill, before: int, began: float) -> None:
        if kill.at == "delay":
            await asyncio.sleep(max(0.0, began + kill.after_s - time.monotonic()))
            return
        # Once everything is over the moment will not come any more: then the kill hits a quiet controller.
        await self._until(
            lambda: kill.at in self.tail.kinds_after(before) or self._is_recovered(), f"`{kill.at}` is stored", LOOK_S
        )
        await asyncio.sleep(kill.after_s)

    async def _kill(self, kill: Kill) -> None:
        pid = self.stage.controller_pid
        assert pid is not None, "the controller is not there to be killed"
        os.kill(pid, signal.SIGKILL)
        await self.stage.stop_controller()
        self._note()
        await asyncio.sleep(kill.pause_s)
        if kill.again_s is not None:
            starting = asyncio.create_task(self.stage.start_controller())
            await asyncio.sleep(kill.again_s)
            pid = self.stage.controller_pid
            assert pid is not None, "the controller has ended while it started"
            os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(HoldfastError):
                await starting
            await self.stage.stop_controller()
            self._note()
        await self.stage.start_controller()

    def _note(self) -> None:
        self.outcome.kills += 1
        self.outcome.pending.update(self.tail.pending())
        last = self.tail.newest()
        self.outcome.moments.update(self.tail.kinds_after(last - 1))

    # --- waiting ---

    async def _until(self, holds: Callable[[], bool], what: str, look_s: float = 0.02) -> None:
        deadline = time.monotonic() + RECOVER_LIMIT_S
        while not holds():
            if time.monotonic() > deadline:
                total, still_open = self.tail.incidents()
                state = self.tail.job_state(self.key.id)
                raise AssertionError(
                    f"not within {RECOVER_LIMIT_S:.0f} s: {what}; the job is {state}, {still_open} of {total} incidents"
                    f" are open, without outcome: {self.tail.pending()}; see {self.stage.folder}"
                )
            await asyncio.sleep(look_s)

    def _is_recovered(self) -> bool:
        total, still_open = self.tail.incidents()
        return (
            total >= len(self.faults)
            and not still_open
            and self.tail.job_state(self.key.id) == "watching"
            and not self.tail.pending()
        )

    def _progressed(self) -> Callable[[], bool]:
        """Five more lines of losses than now."""
        path = self.stage.job_dir(self.key) / "losses.jsonl"

        def lines() -> int:
            return path.read_bytes().count(b"\n") if path.exists() else 0

        wanted = lines() + 5
        return lambda: lines() >= wanted

    # --- judging ---

    def _judge(self) -> None:
        job_dir = self.stage.job_dir(self.key)
        told = [*self.prober.acknowledged, *checkers.acknowledged_by_launcher(job_dir)]
        facts = checkers.read_journal(self.stage.journal)
        self.outcome.complaints += [
            *checkers.journal_is_sound(facts),
            *checkers.nothing_lost(facts, told),
            *checkers.recovered(facts, self.faults),
            *checkers.done_once(facts, self.world, self.key.id, job_dir, self.faults),
            *checkers.written_in_turn(job_dir),
            *checkers.checkpoints_in_turn(job_dir, checkers.epochs_started(facts)),
            *self.replay.follow(facts),
        ]
        attempts = read_losses(job_dir)
        last = max(step for losses in attempts.values() for step in losses)
        difference = largest_difference(attempts, counter_losses(self.job, last))
        if difference != 0.0:
            self.outcome.complaints.append(f"the losses differ from those of an undisturbed run by {difference}")

    async def end(self) -> None:
        """Judge once more after an orderly end of the controller."""
        await self.world.stop()
        await self.stage.stop_controller()
        self._judge()
        self.outcome.complaints += self.replay.same_snapshot(checkers.read_journal(self.stage.journal))


async def run(folder: Path, rounds: Sequence[Round]) -> Outcome:
    """Play all rounds on one cluster; stops at the first that has complaints."""
    settings = StageSettings(folder=folder, nodes=2, spares=1, policy=POLICY, boot_s=0.1, options=OPTIONS)
    async with Stage(settings) as stage:
        world = WorldLog(stage.folder)
        await world.start()
        job = TrainingJob(nodes=2, step_s=0.03, checkpoint_every=10)
        key = await stage.submit(job)
        prober = Prober(stage)
        probing = asyncio.create_task(prober.run())
        chaos = Chaos(stage, job, key, world, prober)
        outcome = chaos.outcome
        try:
            for number, one in enumerate(rounds, 1):
                try:
                    await chaos.play(one)
                except AssertionError as error:
                    outcome.complaints.append(str(error))
                if outcome.complaints:
                    outcome.complaints.insert(0, f"round {number} of {len(rounds)}: {one}")
                    return outcome
            await chaos.end()
        finally:
            chaos.tail.close()
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            await world.stop()
    return outcome


def rank_pids(cluster: Path, node: str, job: str = "") -> list[int]:
    """Training processes on a node, found by what they were started with."""
    found = []
    for pid in processes.marked(cluster):
        env = processes.environment_of(pid)
        of_job = not job or env.get("HOLDFAST_JOB_ID") == job
        if env.get("HOLDFAST_NODE") == node and "RANK" in env and of_job and is_alive(pid):
            found.append(pid)
    return found


def is_alive(pid: int) -> bool:
    """It runs, and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
