"""A node of a running job is cut off the network: its ranks end by their own lease, and write nothing beside the next.

The proof is in files: manifests carry the epoch that wrote them, lines of the loss log their attempt. The embedded cut
holds back Holdfast's transports and the scheduler's orders; the ranks could go on writing if nobody ended them.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from chaos import checkers
from chaos.checkers import Tail, WorldLog
from chaos.kills import OPTIONS, is_alive, rank_pids
from holdfast.drill.clusters import StageSettings
from holdfast.drill.stage import Stage
from holdfast.drill.training import TrainingJob, counter_losses, largest_difference, read_losses
from holdfast.lab.waiting import ends
from holdfast.model.cluster import JobKey, RecoverySpec
from holdfast.model.records import JobState

LEASE_S = 3.0
KILL_SLACK_S = 1.0
"""Beyond the lease: the launcher looks, kills, and the kernel ends the process, on a machine with other things to do."""
POLICY = """
name = "cut"

[waits]
unknown_s = 2.0

[node]
flap_hold_s = 0.0

[brake]
max_nodes = 10
max_percent = 100.0
"""
"""Quick to take a lease's end for the end: the test's cut lasts until the job runs elsewhere."""

pytestmark = [pytest.mark.cluster, pytest.mark.alone, pytest.mark.timeout(180)]


async def submit(stage: Stage, job: TrainingJob) -> JobKey:
    view = await stage.cluster.breaker.submit(
        job.argv(),
        nodes=job.nodes,
        name=job.name,
        drill_ok=True,
        recovery=RecoverySpec(),
        env={"PYTHONUNBUFFERED": "1"},
        lease_s=LEASE_S,
    )
    return view.key


async def until(holds, what: str, limit_s: float = 60.0) -> float:
    """Wait until `holds()`; returns how long that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < limit_s, f"not within {limit_s:.0f} s: {what}"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


def told(stage: Stage, job_dir: Path) -> str:
    """The machine's load, and what the launchers and the controller said last."""
    logs = [*job_dir.rglob("*.log"), *stage.folder.glob("jobs/*.out"), stage.folder / "controller" / "controller.log"]
    return f"load {os.getloadavg()}{ends(*logs)}"


def lines(job_dir: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (job_dir / "losses.jsonl").read_text(encoding="ascii").splitlines()]


async def cut(folder: Path, place: int) -> None:
    policy = folder.with_name("policy.toml")
    policy.write_text(POLICY)
    settings = StageSettings(folder=folder, nodes=2, spares=1, policy=policy, boot_s=0.1, options=OPTIONS)
    async with Stage(settings) as stage:
        world = WorldLog(stage.folder)
        await world.start()
        job = TrainingJob(nodes=2, step_s=0.03, checkpoint_every=10)
        key = await submit(stage, job)
        job_dir = stage.job_dir(key)
        record = await stage.until(
            key, lambda one: one.attempt is not None and one.attempt.durable_step is not None, limit_s=60
        )
        assert record.attempt is not None
        node = record.attempt.nodes[place]
        old = rank_pids(stage.folder, node)
        assert len(old) == 1
        await stage.cluster.breaker.do("cut", node)
        died_s = await until(lambda: not any(map(is_alive, old)), f"the ranks on {node} end")
        assert died_s < LEASE_S + KILL_SLACK_S, (
            f"the cut-off rank lived for {died_s:.2f} s, its lease is {LEASE_S} s; {told(stage, job_dir)}"
        )

        again = await stage.until(
            key,
            lambda one: one.state is JobState.WATCHING and one.attempt is not None and one.attempt.number > 0,
            limit_s=60,
        )
        assert again.attempt is not None
        assert node not in again.attempt.nodes
        before = len(lines(job_dir))
        await until(lambda: len(lines(job_dir)) > before + 20, "the job goes on elsewhere")
        assert rank_pids(stage.folder, node) == []

        await stage.cluster.breaker.do("heal", node)
        tail = Tail(stage.journal)
        try:
            await until(lambda: not tail.incidents()[1] and not tail.pending(), "the node is back and all is closed")
        finally:
            tail.close()
        before = len(lines(job_dir))
        await until(lambda: len(lines(job_dir)) > before + 40, "the job goes on after the cut is healed")
        assert rank_pids(stage.folder, node) == []
        await until(lambda: not world.nodes[node][-1].jobs, "what was left of the old attempt has gone")
        await world.stop()
        view = await stage.cluster.breaker.job(key.id)
        assert view is not None
        await stage.stop_controller()

        facts = checkers.read_journal(stage.journal)
        last = world.nodes[node][-1]
        assert (last.alive, last.drained, last.jobs) == (True, False, ())
        assert [one.get("outcome") for one in facts.incidents] == ["recovered"]
        assert (view.restart_count, world.starts(key.id)) == (1, 2)
        assert (len(facts.given("requeue_held")), len(facts.given("release_job"))) == (1, 1)
        assert world.drains(node) == world.returns(node) <= 1
        assert world.machines(node) <= 2
        assert facts.unsettled() == []
        # Nothing of the old attempt after the new one's start, by three books.
        started = checkers.epochs_started(facts)
        assert len(started) == 2
        assert checkers.attempts_once(facts, key.id, job_dir, 2) == []
        assert checkers.written_in_turn(job_dir) == []
        assert checkers.checkpoints_in_turn(job_dir, started) == []
        newest = max(started)
        assert int((job_dir / "epoch").read_text()) == newest
        for log in (job_dir / "logs" / "attempt-0").glob("rank-*.log"):
            assert log.stat().st_mtime < started[newest], f"{log.name} of the old attempt was written to"
        attempts = read_losses(job_dir)
        reached = max(step for losses in attempts.values() for step in losses)
        assert largest_difference(attempts, counter_losses(job, reached)) == 0.0
        assert checkers.journal_is_sound(facts) == []


@pytest.mark.parametrize(("place", "whose"), [(0, "leader"), (1, "follower")])
def test_a_node_that_was_cut_off_writes_nothing_beside_its_successor(tmp_path, place, whose):
    """Its ranks are dead within the lease, the job goes on elsewhere, no checkpoint, loss or output of the old attempt
    is from after the new one's start; once the cut is healed the node is back in service and nothing is done twice."""
    asyncio.run(cut(tmp_path / "cluster", place))
