"""Two writers on one checkpoint folder: two jobs, one program started twice, an old attempt that wakes up late.

Nobody attacks here: a script that was copied with its path. The newest good checkpoint of whoever came first is never
lost or mixed, and the second is told by one sentence.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.conftest import wait_for

from attack_fixture import Attempt
from holdfast.checkpoint import store as store_module
from holdfast.checkpoint.claim import LOCK_FILE
from holdfast.checkpoint.errors import SaveError
from holdfast.checkpoint.fence import Fence
from holdfast.checkpoint.store import CheckpointStore, scan, verify

WRITER = Path(__file__).parents[1] / "checkpoint" / "writer.py"


def job_folder(tmp_path: Path, name: str, epoch: int = 1) -> Path:
    job = tmp_path / name
    job.mkdir(exist_ok=True)
    (job / "epoch").write_text(f"{epoch}\n")
    return job


def started(folder: Path, job: Path | None, epoch: int = 1) -> subprocess.Popen[bytes]:
    """A process that saves into the folder; it has published once when this returns."""
    env = dict(os.environ)
    env.pop("HOLDFAST_JOB_DIR", None)
    if job is not None:
        env |= {"HOLDFAST_JOB_DIR": str(job), "HOLDFAST_EPOCH": str(epoch)}
    writer = subprocess.Popen([sys.executable, str(WRITER), str(folder)], env=env, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline().startswith(b"published")
    return writer


def end(writer: subprocess.Popen[bytes]) -> None:
    writer.kill()
    writer.wait()
    assert writer.stdout is not None
    writer.stdout.close()


def save(store: CheckpointStore, step: int) -> None:
    pending = store.begin(step)
    pending.write_bytes("part-0.bin", b"mine" * 100)
    pending.publish(world_size=1, attempt="0", layout="test")


@pytest.mark.attempt(actor="Two writers", asset="the newest good checkpoint", removed="checkpoint.store.claim")
@pytest.mark.parametrize("who", ["another job", "a program started twice"])
def test_a_second_job_in_the_folder_takes_nothing_away(attempt: Attempt, tmp_path: Path, who: str) -> None:
    """Have a job's checkpoints replaced and cleared away by another job that saves into the same folder."""
    attempt.without(store_module, "claim", lambda _folder, _job_dir: None)
    folder, first = tmp_path / "ckpt", job_folder(tmp_path, "first")
    second = job_folder(tmp_path, "second") if who == "another job" else None
    writer = started(folder, first if second else None)
    try:
        writer.send_signal(signal.SIGSTOP)
        before = {info.name for info in scan(folder) if info.ok}
        drafts = {path.name for path in folder.glob(".*-*")}
        store = CheckpointStore(folder, fence=Fence(second, 1 if second else 0))
        store.sweep()
        said = ""
        try:
            for step in (10_000, 10_001, 10_002):
                save(store, step)
                store.prune(2)
        except SaveError as error:
            said = str(error)
        after = {info.name for info in scan(folder)}
        if said:
            assert (
                f"(process {writer.pid} on {os.uname().nodename}) saves there; give each job a folder of its own"
                in said
            )
            assert "\n" not in said
            assert drafts == {path.name for path in folder.glob(".*-*")}
        attempt.judge(succeeded=not before <= after)
    finally:
        end(writer)


def test_the_folder_is_free_once_its_writer_is_dead(tmp_path: Path) -> None:
    """A job goes on in the folder of one that has ended, or was killed, and in its own after a restart."""
    folder = tmp_path / "ckpt"
    writer = started(folder, job_folder(tmp_path, "first"))
    end(writer)
    for name, epoch in (("second", 1), ("second", 2)):
        store = CheckpointStore(folder, fence=Fence(job_folder(tmp_path, name, epoch), epoch))
        save(store, 20_000 + epoch)
        found = store.newest_good()
        assert found is not None
        assert found.step == 20_000 + epoch
    assert (folder / LOCK_FILE).exists()


def test_an_old_attempt_that_wakes_up_beside_the_new_one_changes_nothing(tmp_path: Path) -> None:
    """Stopped in the middle of its saves, with the lock in its hand: its successor saves, it is fenced when it wakes."""
    folder, job = tmp_path / "ckpt", job_folder(tmp_path, "job")
    old = started(folder, job)
    old.send_signal(signal.SIGSTOP)
    job_folder(tmp_path, "job", 2)
    new = started(folder, job, epoch=2)
    try:
        assert new.stdout is not None
        assert old.stdout is not None
        old.send_signal(signal.SIGCONT)
        told = wait_for("the old attempt's end", lambda: old.poll() is not None and old.stdout.read())
        assert b"fenced: refused to" in told
        assert new.stdout.readline().startswith(b"published")
        end(new)
        found = CheckpointStore(folder, fence=Fence(job, 2)).newest_good()
        assert found is not None
        assert found.epoch == 2
        assert verify(found.path).ok
    finally:
        for writer in (old, new):
            if writer.poll() is None:
                end(writer)
