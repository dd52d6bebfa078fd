"""What a reader may not see is not gone: PrivateData, an ordinary user's slurmrestd, a slurmctld that forgot a requeue."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from holdfast.model import orders as o
from holdfast.model.cluster import JobView, SchedulerState
from slurm_fixture import need_slurm
from slurm_keeper import TINY, Kept
from slurm_world import SlurmWorld, job_in, small_lab

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="another user's view needs root"),
]
OTHER = "daemon"
S = SchedulerState
SLEEP = "#!/bin/bash\nsleep 600\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    need_slurm(rest=True)
    with small_lab(2, rest=True, extra_conf="PrivateData=jobs") as lab:
        yield lab


def as_other(*argv: str) -> list[str]:
    known = pwd.getpwnam(OTHER)
    return ["setpriv", f"--reuid={known.pw_uid}", f"--regid={known.pw_gid}", "--clear-groups", *argv]


@pytest.fixture
def rest(lab: SlurmLab) -> Iterator[str]:
    """A slurmrestd of an ordinary user's, who may not see the jobs of others."""
    place = lab.folder / "other"
    place.mkdir()
    shutil.chown(place, OTHER)
    sock = place / "rest.sock"
    plugins = ",".join(lab.daemons.rest_command()[2])
    argv = ["slurmrestd", "-f", str(lab.facts.conf), "-s", plugins, "-a", "rest_auth/local", f"unix:{sock}"]
    with (lab.folder / "log" / "other-rest.out").open("wb") as out:
        process = subprocess.Popen(as_other(*argv), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=lab.env())
    try:
        wait_until(sock.exists, "slurmrestd listens", limit_s=10, logs=(lab.folder / "log" / "other-rest.out",))
        yield f"unix:{sock}"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(place)


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    """A folder for PATH: Slurm's tools as an ordinary user sees their answers."""
    folder = tmp_path / "narrow"
    folder.mkdir()
    for name in ("squeue", "scontrol", "sinfo", "sacct"):
        words = " ".join(as_other(shutil.which(name) or name))
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def look(lab: SlurmLab, folder: Path, job: str, **settings: object) -> list[JobView]:
    """The jobs under this id, as a controller that was just started sees them."""

    async def body() -> list[JobView]:
        world = SlurmWorld(lab, folder, **settings)
        try:
            return [view for view in (await world.orchestrator.observe()).jobs if view.key.id == job]
        finally:
            await world.orchestrator.close()

    return asyncio.run(body())


def test_jobs_that_slurmrestd_hides_are_asked_of_the_tools(lab: SlurmLab, tmp_path: Path, rest: str) -> None:
    """Seen by the tools first, then hidden by slurmrestd: it is the same job, and runs."""
    job = lab.sbatch(["--output=/dev/null"], script=SLEEP)
    lab.until_job(job, "RUNNING")
    try:
        for settings in ({}, {"rest": rest}, {}, {"rest": rest}):
            (seen,) = look(lab, tmp_path, job, **settings)
            assert (seen.state, seen.key.generation) == (S.RUNNING, 1)
    finally:
        lab.run(["scancel", job])


def test_a_job_that_nobody_may_see_is_unknown_and_comes_back_as_itself(
    lab: SlurmLab, tmp_path: Path, narrow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller's own rights do not reach: neither is a running job over, nor may a failed one begin anew."""
    runs = lab.sbatch(["--output=/dev/null"], script=SLEEP)
    failed = lab.sbatch(["--output=/dev/null"], script="#!/bin/bash\nexit 3\n")
    lab.until_job(runs, "RUNNING")
    lab.until_job(failed, "FAILED")
    whole = os.environ["PATH"]
    try:
        for path, expected in ((whole, S.RUNNING), (f"{narrow}:{whole}", S.UNKNOWN), (whole, S.RUNNING)):
            monkeypatch.setenv("PATH", path)
            (seen,) = look(lab, tmp_path, runs)
            assert (seen.state, seen.key.generation) == (expected, 1)
            (ended,) = look(lab, tmp_path, failed)
            assert (ended.state, ended.key.generation) == (S.FAILED, 1)
    finally:
        monkeypatch.setenv("PATH", whole)
        lab.run(["scancel", runs])


def test_a_requeue_that_slurmctld_forgot_still_counts(lab: SlurmLab, tmp_path: Path) -> None:
    """Killed within moments of a requeue, slurmctld comes back with the job as before: its restart count never falls."""
    job = lab.sbatch(["--output=/dev/null", "--requeue"], script=SLEEP)
    lab.until_job(job, "RUNNING")

    async def body() -> None:
        world = SlurmWorld(lab, tmp_path)
        try:
            first = next(view for view in (await world.orchestrator.observe()).jobs if view.key.id == job)
            saved = (lab.folder / "state" / "job_state").stat().st_mtime_ns
            # It may have been saved already, and then is only once more when something changes.
            await asyncio.to_thread(lab.run, ["scontrol", "update", f"JobId={job}", "Comment=changed"])
            await asyncio.to_thread(
                wait_until,
                lambda: (lab.folder / "state" / "job_state").stat().st_mtime_ns > saved,
                "slurmctld saves its state", limit_s=30, logs=(lab.ctld_log,),
            )  # fmt: skip
            await asyncio.to_thread(lab.run, ["scontrol", "requeuehold", job])
            again = await world.until_job(first.key, lambda view: view.restart_count == 1)
            await asyncio.to_thread(lab.daemons.stop, "slurmctld", sig=9)
            await asyncio.to_thread(lab.daemons.start_ctld)
            assert lab.job(job)["Restarts"] == "0", "slurmctld had saved it this time"
            seen = await world.until(lambda shown: job_in(shown, again.key), "the same job")
            assert [(view.key.generation, view.restart_count) for view in seen.jobs if view.key.id == job] == [(1, 1)]
        finally:
            await world.orchestrator.close()

    try:
        asyncio.run(body())
    finally:
        lab.run(["scancel", job])


def test_a_release_that_slurmctld_forgot_is_made_again(lab: SlurmLab, tmp_path: Path) -> None:
    """Killed within moments of our release, slurmctld comes back with the job in our own hold: nobody else would end it."""
    job = lab.sbatch(["--output=/dev/null", "--requeue"], script=SLEEP)
    lab.until_job(job, "RUNNING")
    state = lab.folder / "state" / "job_state"

    async def body() -> None:
        world = SlurmWorld(lab, tmp_path)
        give = world.orchestrator.execute
        try:
            key = next(view.key for view in (await world.orchestrator.observe()).jobs if view.key.id == job)
            await give(o.RequeueHeld(id="a1", cause=1, job=key, restart_count=0))
            # It cannot start, so that what is seen is the hold.
            await give(o.SetExcluded(id="a2", cause=1, job=key, nodes=("node01", "node02")))
            held_at = time.time()
            await asyncio.to_thread(
                wait_until, lambda: state.stat().st_mtime > held_at, "slurmctld saves its state", limit_s=30
            )
            saved = state.read_bytes()
            await give(o.ReleaseJob(id="a3", cause=1, job=key, epoch=1))
            await world.until_job(key, lambda view: view.state is S.PENDING)
            await asyncio.to_thread(lab.daemons.stop, "slurmctld", sig=9)
            state.write_bytes(saved)
            await asyncio.to_thread(lab.daemons.start_ctld)
            assert lab.job(job)["Priority"] == "0", "slurmctld has forgotten nothing"
            await world.until(lambda shown: lab.job(job)["Priority"] != "0", "released again")
            await world.until_job(key, lambda view: view.state is S.PENDING)
            # What a person holds afterwards stays held.
            await asyncio.to_thread(lab.run, ["scontrol", "hold", job])
            await world.until_job(key, lambda view: view.state is S.HELD)
            assert world.orchestrator.starts.mended == 1
        finally:
            await world.orchestrator.close()

    try:
        asyncio.run(body())
    finally:
        lab.run(["scancel", job])


@pytest.mark.soak
def test_a_given_up_job_that_was_hidden_for_a_while_is_not_requeued_again(
    lab: SlurmLab, tmp_path: Path, narrow: Path
) -> None:
    """A controller whose rights are taken and given back: one requeue was allowed, and one is made."""
    comment = '--comment={"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 1}}'
    kept = Kept(lab, tmp_path / "c", TINY)
    switch = tmp_path / "path"
    switch.mkdir()
    for tool in narrow.iterdir():
        (switch / tool.name).write_text(
            f'#!/bin/sh\n[ -e {tmp_path}/narrowed ] && exec {tool} "$@"\nexec {shutil.which(tool.name)} "$@"\n'
        )
        (switch / tool.name).chmod(0o755)
    whole = lab.env()
    lab.env = lambda **extra: {**whole, **extra, "PATH": f"{switch}:{whole['PATH']}"}  # type: ignore[method-assign]
    try:
        kept.start()
        failed = lab.sbatch(["--output=/dev/null", comment], script="#!/bin/bash\nsleep 0.5; exit 3\n")
        runs = lab.sbatch(["--output=/dev/null", comment], script=SLEEP)
        kept.until(lambda: kept.state(failed) == "given_up", "given up after one requeue")
        kept.until(lambda: kept.attempts(runs) == [0], "the other runs")
        (tmp_path / "narrowed").touch()
        kept.until(lambda: kept.job(runs)["view"].get("state", "unknown") == "unknown", "out of sight")
        (tmp_path / "narrowed").unlink()
        kept.until(lambda: kept.job(runs)["view"].get("state") == "running", "in sight")
        for job, state in ((failed, "given_up"), (runs, "watching")):
            (record,) = kept.records(job)
            assert (record["key"].get("generation", 1), kept.state(job)) == (1, state)
        assert lab.job(failed)["Restarts"] == "1"
    finally:
        kept.end()
        del lab.env
        lab.run(["scancel", "--user", lab.facts.user])
