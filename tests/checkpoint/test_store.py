"""The store: atomic publication, and every kind of damage found, named and survived."""

import os
import resource
import shutil
import signal
import subprocess

import pytest

from holdfast.checkpoint.claim import LOCK_FILE
from holdfast.checkpoint.errors import SaveError
from holdfast.checkpoint.fence import Fence
from holdfast.checkpoint.files import CHUNK, HashingFile, hash_file
from holdfast.checkpoint.manifest import MANIFEST_NAME, digest
from holdfast.checkpoint.store import CheckpointStore, scan, verify


def names(folder):
    return [info.name for info in scan(folder)]


def everything(folder):
    """All that is in it but the writer's lock."""
    return sorted(set(os.listdir(folder)) - {LOCK_FILE})


def test_nothing_is_visible_before_publish(store, save):
    """A checkpoint that is being written is in no listing; a published one is, complete and verified."""
    pending = save(store, 10, publish=False)
    assert scan(store.folder) == []
    path = pending.publish(world_size=1, attempt="1(0)", layout="test")
    assert names(store.folder) == ["step-000000010.e000000"]
    verdict = verify(path)
    assert verdict.ok
    assert {entry.path for entry in verdict.manifest.files} == {"state.bin", "part/rank.bin"}
    assert everything(store.folder) == ["step-000000010.e000000"]


def test_hash_while_writing_equals_hash_of_the_file(tmp_path):
    """The hash in the manifest is that of the bytes on disk, across read boundaries."""
    content = os.urandom(CHUNK + 4321)
    with HashingFile(tmp_path / "x") as file:
        for start in range(0, len(content), 99_991):
            file.write(content[start : start + 99_991])
    entry = file.entry(tmp_path)
    assert hash_file(tmp_path / "x") == (len(content), digest(content)) == (entry.size, entry.xxh3_128)


def truncate(path):
    os.truncate(path / "state.bin", 100)


def flip_bit(path):
    content = bytearray((path / "state.bin").read_bytes())
    content[777] ^= 1
    (path / "state.bin").write_bytes(content)


def remove_file(path):
    (path / "part/rank.bin").unlink()


def swap_file(path):
    other = path.parent / "step-000000010.e000000"
    (path / "state.bin").write_bytes((other / "state.bin").read_bytes())


def swap_manifest(path):
    shutil.copy(path.parent / "step-000000010.e000000" / MANIFEST_NAME, path / MANIFEST_NAME)


def swap_folders(path):
    other = path.parent / "step-000000010.e000000"
    other.rename(path.parent / "aside")
    path.rename(other)
    (path.parent / "aside").rename(path)


def tear_manifest(path):
    os.truncate(path / MANIFEST_NAME, (path / MANIFEST_NAME).stat().st_size // 2)


def flip_manifest(path):
    content = (path / MANIFEST_NAME).read_text().replace('"size": 6', '"size": 7').replace('"size": 18', '"size": 19')
    (path / MANIFEST_NAME).write_text(content)


def remove_manifest(path):
    (path / MANIFEST_NAME).unlink()


def zero_file(path):
    size = (path / "state.bin").stat().st_size
    (path / "state.bin").write_bytes(b"\0" * size)


def folder_in_place_of_file(path):
    (path / "state.bin").unlink()
    (path / "state.bin").mkdir()


DAMAGE = {
    truncate: {"wrong_size"},
    flip_bit: {"wrong_hash"},
    remove_file: {"missing_file"},
    swap_file: {"wrong_hash"},
    swap_manifest: {"wrong_name"},
    swap_folders: {"wrong_name"},
    tear_manifest: {"bad_manifest"},
    flip_manifest: {"bad_manifest"},
    remove_manifest: {"missing_manifest"},
    zero_file: {"wrong_hash"},
    folder_in_place_of_file: {"wrong_size", "unreadable"},
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
def test_damage_is_found_named_and_survived(store, save, damage):
    """Each kind of damage to the newest checkpoint is named, and an older good one is chosen instead."""
    save(store, 5)
    save(store, 10)
    path = save(store, 20)
    damage(path)
    verdict = verify(path)
    assert not verdict.ok
    assert verdict.problems[0].kind in DAMAGE[damage]
    assert verdict.sentence.startswith("step-000000020.e000000 is damaged: ")
    assert store.newest_good().step == (5 if damage is swap_folders else 10)


def test_the_quick_check_finds_all_but_changed_content(store, save):
    """Sizes and manifest are looked at for a listing; hashes only when asked."""
    path = save(store, 20)
    flip_bit(path)
    assert verify(path, full=False).ok
    assert scan(store.folder)[0].ok
    truncate(path)
    assert not scan(store.folder)[0].ok
    assert "100 bytes instead of" in scan(store.folder)[0].problem


def test_ranks_can_share_the_hashing(store, save):
    """With a share, each rank hashes its part, and together they find what one would."""
    path = save(store, 20)
    flip_bit(path)
    verdicts = [verify(path, share=(rank, 2)) for rank in range(2)]
    assert sorted(v.ok for v in verdicts) == [False, True]
    assert sum(v.bytes_read for v in verdicts) == verdicts[0].manifest.size


def test_a_bad_checkpoint_is_kept_aside(store, save):
    """Quarantine renames and never deletes; a second of the same name finds room too."""
    for _ in range(2):
        path = save(store, 20)
        truncate(path)
        moved = store.quarantine(scan(store.folder)[0])
        assert moved.name.startswith("bad-step-000000020.e000000")
        assert moved.is_dir()
    assert scan(store.folder) == []
    assert len(everything(store.folder)) == 2


def test_prune_keeps_the_newest_good_ones(store, save):
    """Damaged ones do not count as kept and are not removed; a restore will name them."""
    for step in (10, 20, 30, 40, 50):
        save(store, step)
    truncate(store.folder / "step-000000050.e000000")
    removed = store.prune(2)
    assert sorted(removed) == ["step-000000010.e000000", "step-000000020.e000000"]
    assert [info.step for info in scan(store.folder)] == [50, 40, 30]


def test_prune_removes_nothing_while_there_are_too_few(store, save):
    """With fewer good ones than asked for, everything stays."""
    for step in (10, 20):
        save(store, step)
    assert store.prune(3) == []
    assert len(scan(store.folder)) == 2


def test_the_same_step_can_be_saved_again(store, save):
    """A run without a launcher that went back replaces the step it saves again."""
    save(store, 10, b"first")
    path = save(store, 10, b"second")
    assert (path / "state.bin").read_bytes() == b"second"
    assert everything(store.folder) == ["step-000000010.e000000"]


def test_leftovers_of_dead_writers_are_swept(job, save):
    """Drafts of this and older epochs go; those of a newer attempt stay."""
    first = job.new_attempt()
    draft = save(first, 10, publish=False).path
    second = job.new_attempt()
    newer = save(second, 10, publish=False).path
    assert first.sweep() == [draft.name]
    assert newer.exists()


def test_a_mirror_serves_when_the_first_place_is_bad(tmp_path, save):
    """A copy is verified like the original, and is the next choice for the same step."""
    mirror = tmp_path / "mirror"
    store = CheckpointStore(tmp_path / "ckpt", mirrors=[mirror], fence=Fence(None, 0))
    save(store, 10)
    path = save(store, 20)
    store.copy(path, mirror)
    truncate(path)
    assert [(i.step, i.path.parent.name) for i in store.candidates()] == [(20, "ckpt"), (20, "mirror"), (10, "ckpt")]
    assert store.newest_good().path.parent == mirror
    shutil.rmtree(store.folder)
    assert store.newest_good().path.parent == mirror


def test_a_file_that_changed_is_not_mirrored(tmp_path, save):
    """A mirror never gets what no longer matches the manifest."""
    store = CheckpointStore(tmp_path / "ckpt", fence=Fence(None, 0))
    path = save(store, 20)
    flip_bit(path)
    with pytest.raises(SaveError, match=r"state\.bin changed"):
        store.copy(path, tmp_path / "mirror")
    assert os.listdir(tmp_path / "mirror") == []


def test_an_unreadable_mirror_does_not_stop_a_restore(tmp_path, save):
    """A mirror that is a file, or gone, is passed over."""
    (tmp_path / "mirror").write_text("not a folder")
    store = CheckpointStore(tmp_path / "ckpt", mirrors=[tmp_path / "mirror", tmp_path / "gone"], fence=Fence(None, 0))
    save(store, 20)
    assert store.newest_good().step == 20


def test_a_pin_bounds_the_choice(store, save):
    """With a newest step allowed, later checkpoints are not candidates."""
    for step in (10, 20, 30):
        save(store, step)
    assert [info.step for info in store.candidates(not_after=25)] == [20, 10]


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root; the size limit below covers the path")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine allows no mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_leaves_the_older_ones_alone(small_disk, save):
    """No space: the save fails in one sentence, nothing half written is published, the older one stays good."""
    store = CheckpointStore(small_disk, fence=Fence(None, 0))
    save(store, 10)
    pending = store.begin(20)
    with pytest.raises(OSError) as caught:
        pending.write_bytes("state.bin", os.urandom(400 << 10))
    pending.abandon()
    assert "of step 20 was not saved" in str(store.save_error(20, caught.value))
    assert "no space is left" in str(store.save_error(20, caught.value))
    assert everything(small_disk) == ["step-000000010.e000000"]
    assert store.newest_good().step == 10


def test_a_file_size_limit_is_reported_like_a_full_disk(store, save):
    """RLIMIT_FSIZE stands for quotas: the write fails and nothing is published."""
    save(store, 10)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    pending = store.begin(20)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            pending.write_bytes("state.bin", b"x" * 50_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    pending.abandon()
    assert "no space is left" in str(store.save_error(20, caught.value))
    assert [info.step for info in scan(store.folder)] == [10]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """A save into a place that is no folder says so."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=r"step 1 was not saved in .*/file/ckpt"):
        CheckpointStore(tmp_path / "file" / "ckpt", fence=Fence(None, 0)).begin(1)
