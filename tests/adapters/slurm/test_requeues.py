"""Requeues in a row on a real Slurm: no start is lost to the credential race, provoked or not."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.lab.slurm_lab import SlurmLab
from holdfast.model import orders as o
from holdfast.model.cluster import SchedulerState
from slurm_fixture import mend
from slurm_world import SlurmWorld, small_lab

pytestmark = pytest.mark.cluster
S = SchedulerState
SCRIPT = """#!/bin/bash
#SBATCH --requeue
srun bash -c "trap 'echo no' TERM; while :; do sleep 0.2; done"
"""
_ids = itertools.count(1)


@pytest.fixture(scope="module")
def _stock_lab() -> Iterator[SlurmLab]:
    """Slurm's own credential time (120 s), KillWait (30 s) and scheduling intervals."""
    with small_lab(4, defaults=True) as lab:
        yield lab


@pytest.fixture
def stock_lab(_stock_lab: SlurmLab) -> Iterator[SlurmLab]:
    yield _stock_lab
    mend(_stock_lab)


async def requeued(world: SlurmWorld, key, count: int) -> float:
    """One requeue, held and released; returns the seconds from the order to running again."""
    begun = time.monotonic()
    execute = world.orchestrator.execute
    await execute(o.RequeueHeld(id=f"q{next(_ids)}", cause=1, job=key, restart_count=count))
    await execute(o.ReleaseJob(id=f"q{next(_ids)}", cause=1, job=key, epoch=count + 1))
    seen: list[SchedulerState] = []
    await world.until_job(key, lambda job: seen.append(job.state) or job.state is S.RUNNING, 30)
    assert set(seen) <= {S.PENDING, S.RUNNING}, f"the engine would have seen {seen}"
    return time.monotonic() - begun


def in_a_row(
    lab: SlurmLab, folder: Path, times: int, *, pull_in_s: int, until_mended: bool = False
) -> tuple[list[float], int]:
    """So many requeues; with `until_mended`, each early in a second, and no more once a refused start was seen."""

    async def body() -> tuple[list[float], int]:
        world = SlurmWorld(lab, folder, pull_in_s=pull_in_s)
        try:
            key = await world.submit(nodes=2, script=SCRIPT, args=[f"--output={lab.folder}/jobs/race-%j.out"])
            job = await world.until_job(key, lambda job: job.state is S.RUNNING, 30)
            took = []
            for _ in range(times):
                if until_mended:
                    if world.orchestrator.starts.mended:
                        break
                    await asyncio.sleep(1.02 - time.time() % 1)
                took.append(await requeued(world, key, job.restart_count))
                job = await world.until_job(key, lambda job: job.state is S.RUNNING)
            return took, world.orchestrator.starts.mended
        finally:
            for job in (await world.orchestrator.observe()).jobs:
                await world.orchestrator.execute(
                    o.GiveUp(id=f"q{next(_ids)}", cause=1, job=job.key, why="the test is over")
                )
            await world.orchestrator.close()

    return asyncio.run(body())


def test_requeues_in_a_row_at_stock_settings(stock_lab: SlurmLab, tmp_path: Path) -> None:
    """Tasks trap SIGTERM, KillWait is 30 s, credentials last 120 s: each requeue takes seconds all the same."""
    took, _ = in_a_row(stock_lab, tmp_path / "m", 3, pull_in_s=1)
    assert len(took) == 3
    assert min(took) < 30.0, f"{took}: each waited for KillWait"


@pytest.mark.soak  # a requeue must take less than a second: on a busy machine none is ever refused, and nothing is shown
@pytest.mark.timeout(1200)
def test_a_provoked_race_is_mended_before_anybody_sees_a_failure(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Released with `StartTime=now`, starts are refused now and then; the job is shown as waiting and runs in the end."""
    _, mended = in_a_row(slurm_lab, tmp_path / "m", 150, pull_in_s=0, until_mended=True)
    assert mended >= 1, "no start was refused in 150 tries, so nothing was proved: is this machine that slow?"


@pytest.mark.soak
def test_a_hundred_requeues_in_a_row_lose_nothing(stock_lab: SlurmLab, tmp_path: Path) -> None:
    """At Slurm's own settings, one after another."""
    took, mended = in_a_row(stock_lab, tmp_path / "m", 100, pull_in_s=1)
    print(f"100 requeues: median {sorted(took)[50]:.2f} s, longest {max(took):.2f} s, {mended} refused starts mended")
    assert len(took) == 100
