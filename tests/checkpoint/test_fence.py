"""The epoch fence: an attempt that is over publishes nothing that its successors believe."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.checkpoint.errors import CheckpointError, FencedError
from holdfast.checkpoint.fence import Fence, Seal, inadmissible
from holdfast.checkpoint.store import CheckpointStore, scan

WRITER = Path(__file__).with_name("writer.py")


def steps(store):
    return [(info.step, info.epoch) for info in store.candidates()]


def restore(store, not_after=None):
    """What a checkpointer's restore does to the store."""
    found = store.candidates(not_after=not_after)
    step = found[0].step if found else 0
    store.settle(step)
    return step


def overtaken(between):
    """A fence that lets something happen right after it was found open for a publication."""

    class Overtaken(Fence):
        def check(self, doing):
            super().check(doing)
            if doing.startswith("publish"):
                between()

    return Overtaken


def test_an_old_attempt_may_not_begin_publish_restore_prune_or_copy(job, save, tmp_path):
    """Once the launcher has opened a new attempt, the old one is refused everything, in a clear sentence."""
    old = job.new_attempt(tmp_path / "mirror")
    published = save(old, 10)
    save(old, 11)
    pending = save(old, 20, publish=False)
    job.new_attempt()
    said = "this attempt has epoch 1, but epoch 2 has been started since"
    with pytest.raises(FencedError, match=f"refused to save step 30: {said}"):
        old.begin(30)
    with pytest.raises(FencedError, match=f"refused to publish the checkpoint of step 20: {said}"):
        pending.publish(world_size=1, attempt="0", layout="test")
    with pytest.raises(FencedError, match="refused to restore"):
        old.candidates()
    with pytest.raises(FencedError, match="refused to prune"):
        old.prune(1)
    with pytest.raises(FencedError, match="refused to copy"):
        old.copy(published, tmp_path / "mirror")
    assert [info.step for info in scan(job.folder)] == [11, 10]


def test_an_old_attempt_that_runs_on_saves_nothing_beside_its_successor(job, save):
    """Its launcher is stopped (SIGSTOP), so nothing ends its ranks: they train on, and each of their saves is refused."""
    old = job.new_attempt()
    save(old, 10)
    new = job.new_attempt()
    assert restore(new) == 10
    for step in (11, 12, 13):
        with pytest.raises(FencedError, match=f"refused to save step {step}"):
            save(old, step)
        save(new, step)
    assert steps(new) == [(13, 2), (12, 2), (11, 2), (10, 1)]


def test_a_late_publication_is_ignored_by_every_later_attempt(job, save):
    """A writer that was cut off between its last check and its rename changes nothing for its successors."""
    life = []

    def successor():
        second = job.new_attempt()
        life.append(restore(second))
        save(second, 15)
        life.append(second)

    first = job.new_attempt(fence_class=overtaken(lambda: life or (len(scan(job.folder)) == 1 and successor())))
    save(first, 10)
    save(first, 20)  # checked, cut off, overtaken, published
    resumed, second = life
    assert resumed == 10
    assert [(i.step, i.epoch) for i in scan(job.folder)] == [(20, 1), (15, 2), (10, 1)]
    assert steps(second) == [(15, 2), (10, 1)]
    third = job.new_attempt()
    assert steps(third) == [(15, 2), (10, 1)]
    assert [(i.step, why) for i, why in third.ruled_out()] == [
        (20, "was published after attempt epoch 2 had taken over")
    ]


def test_it_is_ignored_also_when_the_successor_left_nothing(job, save):
    """The record made at the restore counts, not the successor's own checkpoints."""
    seen = []
    first = job.new_attempt(
        fence_class=overtaken(lambda: seen or (scan(job.folder) and seen.append(restore(job.new_attempt()))))
    )
    save(first, 10)
    save(first, 20)
    assert seen == [10]
    assert steps(job.new_attempt()) == [(10, 1)]


def test_what_was_published_before_the_successor_looked_counts(job, save):
    """A publication that wins the race against the successor's first look is a good checkpoint like any other."""
    opened = []
    first = job.new_attempt(fence_class=overtaken(lambda: opened or opened.append(job.new_attempt())))
    save(first, 20)
    assert restore(opened[0]) == 20


def test_steps_left_behind_stay_left_behind(job, save):
    """When an attempt was pinned to an older step, its successors do not jump back to the newer ones."""
    first = job.new_attempt()
    for step in (10, 20, 30):
        save(first, step)
    second = job.new_attempt()
    assert restore(second, not_after=15) == 10
    third = job.new_attempt()
    assert steps(third) == [(10, 1)]
    assert restore(third) == 10
    save(third, 20)
    fourth = job.new_attempt()
    assert steps(fourth) == [(20, 3), (10, 1)]
    assert {why for _, why in fourth.ruled_out()} == {"was left behind when attempt epoch 2 went back to step 10"}


def test_steps_left_behind_are_cleared_away_in_time(job, save):
    """They do not count as kept, and go once enough good ones exist."""
    first = job.new_attempt()
    for step in (10, 20, 30):
        save(first, step)
    second = job.new_attempt()
    restore(second, not_after=15)
    assert second.prune(2) == []
    save(second, 15)
    assert sorted(second.prune(2)) == ["step-000000020.e000001", "step-000000030.e000001"]


def test_an_attempt_that_saves_without_restoring_bounds_nothing(job, save):
    """A program that loads its state by other means does not rule out what was there."""
    save(job.new_attempt(), 10)
    save(job.new_attempt(), 12)
    assert steps(job.new_attempt()) == [(12, 2), (10, 1)]


def test_another_jobs_folder_can_be_continued(job, save, tmp_path):
    """Epochs are a job's own: a new job starts at epoch 1 and takes over what an older job left, but nothing later."""
    for _ in range(5):
        older = job.new_attempt()
    save(older, 100)
    pending = save(older, 110, publish=False)
    newer = type(job)(tmp_path / "newer", job.folder)
    first = newer.new_attempt()
    assert restore(first) == 100
    save(first, 105)
    pending.publish(world_size=1, attempt="0", layout="test")  # the old job's fence never moved
    assert steps(first) == [(105, 1), (100, 5)]
    assert steps(newer.new_attempt()) == [(105, 1), (100, 5)]


def test_a_copy_that_reaches_the_mirror_late_is_believed(job, save, tmp_path):
    """A copy has its original's manifest, and the original was there when the successor looked."""
    mirror = tmp_path / "mirror"
    path = save(job.new_attempt(mirror), 10)
    second = job.new_attempt(mirror)
    assert restore(second) == 10
    CheckpointStore(mirror, fence=Fence(None, 0)).copy(path, mirror)
    assert [info.path.parent for info in job.new_attempt(mirror).candidates()] == [job.folder, mirror]


def test_a_file_of_the_same_name_with_other_content_is_not_believed(job, save):
    """The record names content, not only names: an old writer cannot replace what was sealed."""
    first = job.new_attempt()
    save(first, 10)
    second = job.new_attempt()
    assert restore(second) == 10
    CheckpointStore(job.folder, fence=Fence(None, 1)).prune(1)
    save(CheckpointStore(job.folder, fence=Fence(None, 1)), 10, b"another")
    assert steps(job.new_attempt()) == []


def test_one_seal_per_attempt_whoever_makes_it(job):
    """Processes that race to record an attempt's beginning end up with the same record."""
    job.new_attempt()
    seals = []
    threads = [
        threading.Thread(
            target=lambda n=n: seals.append(Fence(job.job_dir, 1).seal(job.folder, {"x": str(n)})), daemon=True
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(seals) == 8
    assert len({seal.writer for seal in seals}) == 1
    assert Fence(job.job_dir, 1).seals(job.folder) == (seals[0],)


def test_admission_is_decided_by_every_later_seal():
    """The pure rule: seals of the writer's own attempt and earlier ones do not count, all later ones must agree."""
    seals = [Seal(1, "w1", {}, 0), Seal(2, "w2", {"a": "h"}, 10), Seal(4, "w4", {"a": "h", "b": "k"}, None)]
    assert inadmissible("a", 10, "h", "w1", seals) is None
    assert inadmissible("a", 11, "h", "w1", seals) == "was left behind when attempt epoch 2 went back to step 10"
    assert inadmissible("b", 12, "k", "w2", seals) is None
    assert inadmissible("b", 12, "other", "w2", seals) == "was published after attempt epoch 4 had taken over"
    assert inadmissible("c", 99, "z", "w4", seals) is None
    assert inadmissible("c", 99, "z", "nobody", []) is None


def test_the_environment_names_the_epoch(tmp_path):
    """Without a launcher there is no fence; without an epoch of its own an attempt adopts the fence's."""
    assert Fence.from_environment({}) == Fence(None, 0)
    (tmp_path / "epoch").write_text("7\n")
    assert Fence.from_environment({"HOLDFAST_JOB_DIR": str(tmp_path)}) == Fence(tmp_path, 7)
    assert Fence.from_environment({"HOLDFAST_JOB_DIR": str(tmp_path), "HOLDFAST_EPOCH": "6"}).epoch == 6
    with pytest.raises(CheckpointError, match="HOLDFAST_EPOCH='one' must be a whole number"):
        Fence.from_environment({"HOLDFAST_EPOCH": "one"})


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "²"])
def test_a_fence_that_cannot_be_read_proves_nothing(tmp_path, text):
    """A damaged fence file refuses the save instead of letting it pass."""
    (tmp_path / "epoch").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match="the epoch fence"):
        Fence(tmp_path, 1).check("save step 1")


def test_a_job_folder_that_is_gone_is_named(tmp_path):
    """A missing folder is an error, a folder without a fence file is the first attempt."""
    Fence(tmp_path, 1).check("save step 1")
    with pytest.raises(CheckpointError, match=r"gone \(HOLDFAST_JOB_DIR\) does not exist"):
        Fence(tmp_path / "gone", 1).check("save step 1")


@pytest.fixture
def start_writer(job):
    running = []

    def start():
        environ = {**os.environ, "HOLDFAST_JOB_DIR": str(job.job_dir), "HOLDFAST_EPOCH": str(job.epoch)}
        argv = [sys.executable, str(WRITER), str(job.folder)]
        process = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait(10)
        process.stdout.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_stopped_process_that_wakes_up_late_changes_nothing(job, save, start_writer, seed):
    """A writer frozen at a random moment, and continued after its successor has gone on, ends fenced."""
    job.new_attempt()
    writer = start_writer()
    for _ in range(3):
        assert writer.stdout.readline().startswith("published")
    time.sleep(random.Random(seed).uniform(0, 0.02))
    writer.send_signal(signal.SIGSTOP)
    os.waitpid(writer.pid, os.WUNTRACED)
    second = job.new_attempt()
    resumed = restore(second)
    assert resumed >= 3
    save(second, resumed + 1)
    before = steps(second)
    writer.send_signal(signal.SIGCONT)
    assert "fenced: refused to" in writer.stdout.read()
    third = job.new_attempt()
    assert set(steps(third)) <= set(before)
    assert steps(third)[0] == (resumed + 1, 2)
