"""How jobs ended, as a real slurmdbd tells it: what `sacct` prints is read, for every way in which a job can end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.slurm import commands
from holdfast.adapters.slurm.figures import SlurmCollector, look
from holdfast.adapters.slurm.output import JobEnd, ends_of_sacct
from holdfast.adapters.slurm.tool import Tool
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from slurm_fixture import need_slurm
from slurm_world import small_lab

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    need_slurm(dbd=True)
    with small_lab(2, dbd=True) as lab:
        yield lab


def ends(lab: SlurmLab, *jobs: str) -> dict[str, JobEnd]:
    """By job id, as the adapter asks and reads."""

    async def body() -> dict[str, JobEnd]:
        return ends_of_sacct(await Tool(lab.facts.conf, lab.env()).text(commands.ends(jobs)))

    return asyncio.run(body())


def test_the_exporter_sees_a_real_cluster(lab: SlurmLab, tmp_path: Path) -> None:
    """A running job, a held one and a drained node of real daemons become figures; without a cluster it says so."""
    running = lab.sbatch(["--output=/dev/null"], script="#!/bin/bash\nsleep 600\n")
    held = lab.sbatch(["--output=/dev/null", "--hold"], script="#!/bin/bash\nsleep 600\n")
    lab.until_job(running, "RUNNING", limit_s=120)
    lab.run(["scontrol", "update", "nodename=node02", "state=drain", "reason=figures"])
    collector = SlurmCollector(lambda: look(lab.facts.conf), look_again_s=0.0)

    def figures() -> dict[tuple[str, ...], float]:
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in collector.collect()
            for sample in family.samples
        }

    def shown() -> bool:
        found = figures()
        return bool(
            found["slurm_up",]
            and found.get(("slurm_jobs", "main", "running"))
            and found.get(("slurm_jobs", "main", "pending"))
            and any(found.get(("slurm_nodes", state)) for state in ("drained", "draining"))
        )

    try:
        wait_until(shown, "the exporter shows jobs and nodes", limit_s=120, logs=(lab.ctld_log,))
    finally:
        lab.run(["scancel", running, held])
        lab.run(["scontrol", "update", "nodename=node02", "state=resume"])
    bad = tmp_path / "slurm.conf"
    bad.write_text("NoSuchKey=1\n")
    nowhere = SlurmCollector(lambda: look(bad), look_again_s=0.0)
    assert next(iter(nowhere.collect())).samples[0].value == 0


def test_every_end_of_a_job_is_read_from_accounting(lab: SlurmLab) -> None:
    """Completed, failed with its code, killed by a signal, cancelled by a person, requeued once and then failed."""
    scripts = {
        "completed": "exit 0",
        "failed": "exit 7",
        "killed": "kill -9 $$",
        "cancelled": "sleep 600",
        "requeued": '[ "$SLURM_RESTART_COUNT" ] && exit 4; scontrol requeue $SLURM_JOB_ID; sleep 600',
    }
    jobs = {
        name: lab.sbatch(["--requeue", "--output=/dev/null"], script=f"#!/bin/bash\n{body}\n")
        for name, body in scripts.items()
    }
    lab.until_job(jobs["cancelled"], "RUNNING", limit_s=120)
    lab.run(["scancel", jobs["cancelled"]])
    over = {"COMPLETED", "FAILED", "CANCELLED"}

    def told() -> bool:
        found = ends(lab, *jobs.values())
        return set(found) == set(jobs.values()) and all(end.states & over and end.at for end in found.values())

    wait_until(told, f"accounting knows the ends of {jobs}", limit_s=120, logs=(lab.ctld_log,))
    found = {name: end for name, job in jobs.items() for end in [ends(lab, *jobs.values())[job]]}
    facts = {name: (next(iter(end.states & over)), end.exit_code, end.signal) for name, end in found.items()}
    # What signal ended a cancelled script depends on how far it had come; that somebody cancelled it does not.
    assert facts.pop("cancelled")[0] == "CANCELLED"
    assert facts == {
        "completed": ("COMPLETED", 0, None),
        "failed": ("FAILED", 7, None),
        "killed": ("FAILED", 0, 9),
        "requeued": ("FAILED", 4, None),
    }
