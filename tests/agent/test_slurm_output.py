"""Output of Slurm jobs without a launcher: found from what they have open, read once, turned into findings and progress."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.slurm.open_files import OpenJob, open_jobs
from holdfast.agent.slurm_output import SlurmOutput
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.model.events import CheckpointSaved, FindingSeen, FirstStepDone, StepReached
from parsers import ParserInside

MEGATRON = b"""\
 iteration        1/     100 | consumed samples: 8 | elapsed time per iteration (ms): 20.0 | lm loss: 1.0E+00 |
 iteration        2/     100 | consumed samples: 16 | elapsed time per iteration (ms): 20.0 | lm loss: 1.0E+00 |
  successfully saved checkpoint from iteration       2 to /ckpt
Rank0: (1) segmentation fault: artificial segfault
"""


@pytest.fixture(scope="module")
def matcher():
    return read_matcher(read_catalogue(()))


class Agent:
    """What an agent does with the reader, with looks by hand."""

    def __init__(self, matcher) -> None:
        self.events = []
        self.reader = SlurmOutput(
            node="node01",
            source="agent:node01",
            parser=ParserInside(matcher),
            clock=SystemClock(),
            report=self.events.append,
            look=list,
        )

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def job(path: Path, restarts: int = 0, **more) -> OpenJob:
    mine = frozenset({os.geteuid()})
    return OpenJob(
        job_id="12", cluster="lab", restart_count=restarts, node="node01", users=mine, files=(str(path),), **more
    )


def read(matcher, *looks: tuple[OpenJob, bytes]) -> Agent:
    async def body() -> Agent:
        agent = Agent(matcher)
        agent.reader._tailer.start()
        for seen, data in looks:
            with Path(seen.files[0]).open("ab") as file:
                file.write(data)
            agent.reader.take([seen])
            agent.reader._tailer.drain()
        agent.reader._tailer.close()
        return agent

    return asyncio.run(body())


def test_lines_become_progress_and_findings_of_the_attempt(matcher, tmp_path: Path) -> None:
    """First step, steps, a durable checkpoint, and the fault; all of the attempt that Slurm's restart count names."""
    agent = read(matcher, (job(tmp_path / "out", restarts=1), MEGATRON))
    assert list(dict.fromkeys((event.attempt, event.step) for event in agent.of(FirstStepDone))) == [(1, 1)]
    assert [(event.step, event.durable) for event in agent.of(CheckpointSaved)] == [(2, True)]
    assert agent.of(StepReached)[-1].step == 2
    found = [event.finding for event in agent.of(FindingSeen)]
    assert any("segfault" in finding.rule or "segmentation" in finding.summary.lower() for finding in found), found
    assert {(finding.job.id, finding.attempt, finding.place.node) for finding in found} == {("12", 1, "node01")}


def test_the_first_step_is_told_again_once_the_run_is_known(matcher, tmp_path: Path) -> None:
    """What the controller hears of a run before the scheduler has shown it is lost; seconds later it hears it again,
    with the time at which it was, and before the checkpoint that proves the run; a third time it does not."""
    begin, end = MEGATRON[: MEGATRON.index(b"\n") + 1], MEGATRON[MEGATRON.index(b"\n") + 1 :]
    out = tmp_path / "out"

    async def body() -> Agent:
        agent = Agent(matcher)
        agent.reader._tailer.start()
        for at, data in ((1000.0, begin), (1003.0, end), (1006.0, MEGATRON)):
            agent.reader._clock = SimpleNamespace(now=lambda at=at: at, monotonic=lambda at=at: at)
            with out.open("ab") as file:
                file.write(data)
            agent.reader.take([job(out)])
            agent.reader._tailer.drain()
        agent.reader._tailer.close()
        return agent

    agent = asyncio.run(body())
    told = agent.of(FirstStepDone)
    assert [(event.at, event.step) for event in told] == [(1000.0, 1)] * 2
    assert told[0].id != told[1].id
    assert agent.events.index(told[1]) < agent.events.index(agent.of(CheckpointSaved)[0])


def test_a_launchers_job_and_another_nodes_job_are_left_alone(matcher, tmp_path: Path) -> None:
    """One reader per file: the launcher's comes first, and nodes that share a machine read their own."""
    agent = read(
        matcher,
        (job(tmp_path / "a", has_launcher=True), MEGATRON),
        (OpenJob(job_id="13", cluster="lab", node="node02", files=(str(tmp_path / "b"),)), MEGATRON),
    )
    assert agent.events == []


def test_what_the_run_before_wrote_is_not_the_next_runs(matcher, tmp_path: Path) -> None:
    """With --open-mode=append both write to one file; each line is read once, for the run that wrote it."""
    out = tmp_path / "out"
    agent = read(
        matcher,
        (job(out), MEGATRON),
        (job(out, restarts=1), MEGATRON.replace(b"iteration        2", b"iteration        3")),
    )
    assert list(dict.fromkeys((event.attempt, event.step) for event in agent.of(FirstStepDone))) == [(0, 1), (1, 1)]
    assert {event.finding.attempt for event in agent.of(FindingSeen)} == {0, 1}


def test_a_new_file_of_the_same_name_is_the_next_runs(matcher, tmp_path: Path) -> None:
    """The old output was moved aside and Slurm made a new file: its first lines are not held against the old run, even
    when they are read before the next look."""
    out = tmp_path / "out"

    async def body() -> Agent:
        agent = Agent(matcher)
        agent.reader._tailer.start()
        out.write_bytes(MEGATRON)
        agent.reader.take([job(out)])
        out.rename(tmp_path / "out.attempt-0")
        out.write_bytes(MEGATRON.replace(b"iteration        1", b"iteration        3"))
        agent.reader._tailer.drain()
        agent.reader.take([job(out)])  # a look that was begun before the old run was over
        agent.reader.take([job(out, restarts=1)])
        agent.reader._tailer.drain()
        agent.reader._tailer.close()
        return agent

    agent = asyncio.run(body())
    assert list(dict.fromkeys((event.attempt, event.step) for event in agent.of(FirstStepDone))) == [(0, 1), (1, 3)]


@pytest.mark.cluster
def test_files_are_found_from_what_a_real_jobs_processes_have_open(slurm_lab: SlurmLab) -> None:
    """The batch script's own output and a step's `%x_%j_<date>.log`; of a job with a launcher only that it has one."""
    cwd = slurm_lab.folder / "jobs" / "open"
    cwd.mkdir()
    script = '#!/bin/bash\n#SBATCH --job-name=quick\necho here\nsrun --output="%x_%j_$(date +%Y%m%d).log" bash -c "echo there; sleep 60"\n'
    plain = slurm_lab.sbatch([], script=script, cwd=cwd)
    launched = slurm_lab.sbatch(
        [], script=f"#!/bin/bash\n{sys.executable} -m holdfast.cli.main run -- sleep 60\n", cwd=cwd
    )
    deadline = time.monotonic() + 30
    while True:
        found = {job.job_id: job for job in open_jobs(conf=str(slurm_lab.facts.conf)) if job.files}
        mine = {name: job for name, job in found.items() if any(path.startswith(str(cwd)) for path in job.files)}
        done = plain in mine and len([p for p in mine[plain].files if p.startswith(str(cwd))]) == 2
        if done and launched in mine and mine[launched].has_launcher:
            break
        assert time.monotonic() < deadline, (mine, subprocess.run(["ps", "ax"], capture_output=True, text=True).stdout)
        time.sleep(0.1)
    names = sorted(Path(path).name for path in mine[plain].files if path.startswith(str(cwd)))
    assert names == [f"quick_{plain}_{time.strftime('%Y%m%d')}.log", f"slurm-{plain}.out"]
    assert (mine[plain].has_launcher, mine[plain].restart_count) == (False, 0)
    assert mine[plain].node.startswith("node")
