"""Telemetry slots of jobs without a launcher, read by the agent: what counts, what does not, and what comes of it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.slurm.open_files import OpenJob, open_jobs
from holdfast.agent.job_slots import read_slots
from holdfast.agent.parser import ParserProcess
from holdfast.agent.slurm_output import SlurmOutput
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from holdfast.model.events import CheckpointSaved, FirstStepDone, StepReached
from holdfast.model.wire import SamplePoint

RANK = """
import sys
import holdfast.telemetry as telemetry
for line in sys.stdin:
    what, step = line.split()
    if what == "step":
        with telemetry.step(int(step)) as s:
            s.loss = 1 / int(step)
    else:
        telemetry.checkpoint(int(step), durable=what == "durable")
    print("done", flush=True)
"""
TASK_PROLOG = Path(__file__).parents[2] / "deploy" / "slurm" / "task_prolog.sh"


class Rank:
    """A training process that says what it is told to."""

    def __init__(self, folder: Path, rank: int) -> None:
        env = {**os.environ, "HOLDFAST_TELEMETRY_DIR": str(folder), "RANK": str(rank)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def say(self, *words: str) -> None:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        for word in words:
            stdin.write(word + "\n")
            stdin.flush()
            assert stdout.readline() == "done\n"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Rank]]:
    started = [Rank(tmp_path, 0), Rank(tmp_path, 1)]
    yield started
    for rank in started:
        rank.end()


def job(folder: Path, ranks: list[Rank], restarts: int = 0) -> OpenJob:
    return OpenJob(
        job_id="12",
        cluster="lab",
        restart_count=restarts,
        node="node01",
        users=frozenset({os.geteuid()}),
        telemetry=(str(folder), "/dev/shm/not-there"),
        writers=frozenset(rank.process.pid for rank in ranks),
    )


class Agent:
    """What an agent does with the reader, with looks by hand."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.jobs: list[OpenJob] = []
        self.reader = SlurmOutput(
            node="node01",
            source="agent:node01",
            parser=ParserProcess(None, SystemClock()),  # no line is read here
            clock=SystemClock(),
            report=self.events.append,
            look=lambda: self.jobs,
        )

    def look(self) -> list[SamplePoint]:
        jobs, slots = self.reader._look_with_slots()
        self.reader.take(jobs)
        self.reader.take_slots(slots)
        return self.reader.points()


def test_steps_and_checkpoints_become_events_and_points_of_the_attempt(tmp_path: Path, ranks: list[Rank]) -> None:
    """Resumed at 40, first step 41, a checkpoint that is only staged is none; nothing is told twice."""
    agent = Agent()
    agent.jobs = [job(tmp_path, ranks, restarts=2)]
    for rank in ranks:
        rank.say("step 41", "step 42", "staged 42")
    points = {(point.series, point.subject): point.value for point in agent.look()}
    assert {key: value for key, value in points.items() if key[0] != "step_s"} == {
        ("step", "job:12(2)/rank:0"): 42.0,
        ("loss", "job:12(2)/rank:0"): pytest.approx(1 / 42),
        ("step", "job:12(2)/rank:1"): 42.0,
        ("loss", "job:12(2)/rank:1"): pytest.approx(1 / 42),
    }
    assert agent.look() == []
    for rank in ranks:
        rank.say("durable 42", "step 43")
    assert {point.value for point in agent.look() if point.series == "step"} == {43.0}
    # The first step may be told a second time where two looks are seconds apart.
    assert list(dict.fromkeys((type(event), event.attempt, event.step) for event in agent.events)) == [
        (FirstStepDone, 2, 42),
        (StepReached, 2, 42),
        (CheckpointSaved, 2, 42),
    ]
    assert agent.events[0].resumed_from == 40


def test_only_the_node_of_rank_0_speaks_for_the_job(tmp_path: Path, ranks: list[Rank]) -> None:
    """The others' ranks are drawn, and no event is told by two nodes."""
    ranks[1].say("step 7", "durable 7")
    agent = Agent()
    agent.jobs = [job(tmp_path, ranks[1:])]
    assert {point.subject for point in agent.look()} == {"job:12(0)/rank:1"}
    assert agent.events == []


def test_what_no_process_of_the_job_writes_does_not_count(tmp_path: Path, ranks: list[Rank]) -> None:
    """Left by a run before, copied, a link, a pipe, a folder, half a page, another file: passed over without waiting."""
    ranks[0].say("step 1")
    ranks[1].say("step 1")
    shutil.copy(tmp_path / "rank-00000.slot", tmp_path / "rank-00002.slot")  # says rank 0 of a living process: the same
    (tmp_path / "rank-00003.slot").symlink_to(tmp_path / "rank-00000.slot")
    os.mkfifo(tmp_path / "rank-00004.slot")
    (tmp_path / "rank-00005.slot").mkdir()
    (tmp_path / "rank-00006.slot").write_bytes((tmp_path / "rank-00000.slot").read_bytes()[:100])
    (tmp_path / "rank-00007.slot").write_text("no slot")
    assert [view.rank for view in read_slots(job(tmp_path, ranks))] == [0, 1]
    assert [view.rank for view in read_slots(job(tmp_path, ranks[:1]))] == [0]
    assert read_slots(job(tmp_path, [])) == []


@pytest.mark.cluster
def test_a_real_jobs_slots_are_found_from_its_environment(slurm_lab: SlurmLab) -> None:
    """The folder that `task_prolog.sh` makes; a task of a real step tells its steps, and the agent hears them."""
    cwd = slurm_lab.folder / "jobs" / "slots"
    cwd.mkdir()
    (cwd / "train.py").write_text(
        "import time, holdfast.telemetry as telemetry\n"
        "for step in (1, 2, 3):\n    with telemetry.step(step): pass\n"
        "telemetry.checkpoint(3, durable=True)\ntime.sleep(120)\n"
    )
    script = f'#!/bin/bash\neval "$(sh {TASK_PROLOG})"\nRANK=0 srun {sys.executable} train.py\n'
    name = slurm_lab.sbatch([], script=script, cwd=cwd)
    agent, conf = Agent(), str(slurm_lab.facts.conf)
    agent.reader._look = lambda: [one for one in open_jobs(conf=conf) if one.job_id == name]

    async def look() -> None:
        agent.reader._node = next((one.node for one in agent.reader._look()), "")
        jobs, slots = agent.reader._look_with_slots()
        assert all(not job.has_launcher for job in jobs)
        agent.reader.take([OpenJob(job_id=j.job_id, cluster=j.cluster, node=j.node) for j in jobs])
        agent.reader.take_slots(slots)

    def heard() -> bool:
        asyncio.run(look())
        return any(isinstance(event, CheckpointSaved) for event in agent.events)

    try:
        wait_until(heard, "a durable checkpoint of the job", limit_s=90.0)
    finally:
        slurm_lab.run(["scancel", name])
        shutil.rmtree(f"/dev/shm/holdfast-telemetry-{os.getuid()}-{name}", ignore_errors=True)
    # How far it was at the first look is not ours to say.
    assert [type(event) for event in agent.events] == [FirstStepDone, StepReached, CheckpointSaved]
    assert [event.step for event in agent.events][-1] == 3


def test_a_folder_that_opens_and_cannot_be_listed_has_no_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """NFS with a stale handle, or a file system of the job's own user: no slots, and the agent goes on."""

    def stale(_folder: int) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "scandir", stale)
    assert read_slots(OpenJob(job_id="7", telemetry=(str(tmp_path),), users=frozenset({os.geteuid()}))) == []
