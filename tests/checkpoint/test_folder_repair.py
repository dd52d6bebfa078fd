"""Repair of a folder: bad ones are kept aside and fetched again from a mirror that has them good."""

import os
import subprocess

import pytest

from holdfast.checkpoint import repair, scan, verify
from holdfast.checkpoint.fence import Fence
from holdfast.checkpoint.store import CheckpointStore

NAMES = ["step-000000020.e000000", "step-000000010.e000000"]


@pytest.fixture
def store(tmp_path, save):
    store = CheckpointStore(tmp_path / "ckpt", mirrors=[tmp_path / "m1", tmp_path / "m2"], fence=Fence(None, 0))
    for step in (10, 20):
        for mirror in store.mirrors:
            store.copy(save(store, step), mirror)
    return store


def test_a_bad_checkpoint_is_fetched_from_the_first_good_mirror(store):
    """The bad one is kept, the first mirror is bad too, the second serves; good ones are left alone."""
    name = "step-000000020.e000000"
    os.truncate(store.folder / name / "state.bin", 5)
    os.truncate(store.mirrors[0] / name / "state.bin", 5)
    done = repair(store.folder, store.mirrors)
    assert [(entry.name, entry.fetched_from) for entry in done] == [(name, store.mirrors[1])]
    assert done[0].kept_as == store.folder / f"bad-{name}"
    assert "state.bin: 5 bytes instead of" in done[0].problem
    assert all(verify(info.path).ok for info in scan(store.folder))
    assert [info.step for info in scan(store.folder)] == [20, 10]
    assert repair(store.folder, store.mirrors) == []


def test_without_a_good_mirror_it_is_only_kept_aside(store):
    """Nothing to fetch: the bad one no longer stands in the way, and no mirror is made."""
    os.truncate(store.folder / "step-000000020.e000000" / "state.bin", 5)
    done = repair(store.folder, [store.folder.parent / "none"])
    assert [entry.fetched_from for entry in done] == [None]
    assert [info.step for info in scan(store.folder)] == [10]
    assert not (store.folder.parent / "none").exists()


def test_a_read_only_place_is_passed_over(store, save):
    """Mounted read-only: a mirror gets no copy and says so, a bad checkpoint there stays where it is."""
    mirror = store.mirrors[0]
    if os.geteuid() != 0 or subprocess.run(["mount", "--bind", mirror, mirror], capture_output=True).returncode:
        pytest.skip("a read-only mount takes root")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", mirror], check=True)
        path = save(store, 30)
        with pytest.raises(OSError, match="Read-only file system"):
            store.copy(path, mirror)
        assert store.newest_good().step == 30
        bad = scan(mirror)[0]
        assert store.quarantine(bad) is None
        assert scan(mirror)[0] == bad
        assert store.prune(1) == [*NAMES, "step-000000010.e000000"]  # from the folder, and from the other mirror
        assert [info.step for info in scan(mirror)] == [20, 10]
    finally:
        subprocess.run(["umount", "-l", mirror], check=True)
