"""The checkpointer over several ranks: agreement, identical resumption, sharded state, other world sizes."""

import pytest

from holdfast.checkpoint import scan, verify


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "ckpt"


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_resumed_run_is_identical_in_every_bit(ranks, tmp_path, kind):
    """Stopped after step 4 and resumed, the losses of each rank are those of the undisturbed run."""
    whole = ranks(2, "train", tmp_path / "whole", kind=kind).good
    ranks(2, "train", tmp_path / "ckpt", kind=kind, die_after=4)
    resumed = ranks(2, "train", tmp_path / "ckpt", kind=kind).good
    assert [result["first"] for result in resumed] == [4, 4]
    for rank in range(2):
        assert resumed[rank]["losses"] == {step: whole[rank]["losses"][step] for step in ("5", "6")}
        assert resumed[rank]["mine"] == {"drawn": 6, "rank": rank}
        assert resumed[rank]["epoch"] == 6
    assert scan(tmp_path / "ckpt")[0].manifest.layout == {"ddp": "replicated", "fsdp": "sharded"}[kind]


def damage(path):
    victim = max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_all_ranks_fall_back_together(ranks, folder, kind):
    """A bit flip in the newest checkpoint sends every rank to the one before, and the reason is said once."""
    ranks(2, "train", folder, kind=kind).check()
    damage(scan(folder)[0].path)
    outcome = ranks(2, "train", folder, kind=kind)
    assert [result["first"] for result in outcome.good] == [4, 4]
    assert "step-000000006.e000000 is damaged" in outcome.errors[0]
    assert "kept as bad-step-000000006.e000000; restored" in outcome.errors[0]
    assert outcome.errors[1] == ""
    assert (folder / "bad-step-000000006.e000000").is_dir()


def test_a_rank_that_cannot_read_it_decides_for_all(ranks, folder):
    """A checkpoint that one rank cannot see is passed over by all, but not quarantined: its mount may be at fault."""
    ranks(2, "train", folder).check()
    outcome = ranks(2, "blind_rank", folder)
    assert [result["first"] for result in outcome.good] == [4, 4]
    assert "on rank 1: step-000000006.e000000 is damaged: manifest.json: missing" in outcome.errors[0]
    assert scan(folder)[0].step == 6


def test_a_mirror_is_used_before_an_older_step(ranks, folder, tmp_path):
    """The same step from a mirror beats an older one from the first place."""
    mirrors = [str(tmp_path / "mirror")]
    ranks(2, "train", folder, mirrors=mirrors).check()
    damage(scan(folder)[0].path)
    outcome = ranks(2, "train", folder, mirrors=mirrors)
    assert [result["first"] for result in outcome.good] == [6, 6]
    assert f"restored {tmp_path}/mirror/step-000000006" in outcome.errors[0]


@pytest.mark.parametrize(("saved", "loaded"), [(("fsdp", 2), ("fsdp", 3)), (("fsdp", 3), ("plain", 1))])
def test_sharded_state_is_read_by_any_number_of_ranks(ranks, folder, saved, loaded):
    """Weights and moments are the same on another number of ranks, also on one that is not sharded."""
    ranks(saved[1], "train", folder, kind=saved[0]).check()
    before = ranks(saved[1], "weights", folder, kind=saved[0]).good[0]
    outcome = ranks(loaded[1], "weights", folder, kind=loaded[0])
    after = outcome.good[0]
    assert before["first"] == after["first"] == 6
    assert after["model"] == pytest.approx(before["model"], abs=1e-12)
    assert after["moments"] == pytest.approx(before["moments"], abs=1e-12)
    assert f"was saved by {saved[1]} ranks and is loaded by {loaded[1]}" in outcome.errors[0]


def test_replicated_state_is_read_by_any_number_of_ranks(ranks, folder):
    """A run of two ranks goes on with three; the new rank has its own random numbers."""
    ranks(2, "train", folder, steps=4).check()
    outcome = ranks(3, "train", folder)
    assert [result["first"] for result in outcome.good] == [4, 4, 4]
    assert len({str(result["losses"]) for result in outcome.good}) == 3


def test_all_files_of_a_sharded_checkpoint_are_on_the_manifest(ranks, folder):
    """Each rank's part and DCP's index are hashed, so nothing can change unseen."""
    ranks(2, "train", folder, kind="fsdp").check()
    newest = scan(folder)[0]
    on_disk = {p.relative_to(newest.path).as_posix() for p in newest.path.rglob("*") if p.is_file()}
    assert on_disk == {entry.path for entry in newest.manifest.files} | {"manifest.json"}
    assert verify(newest.path).ok
    assert {"state/.metadata", "state/__0_0.distcp", "state/__1_0.distcp"} <= on_disk


def test_a_signal_to_one_rank_saves_on_all_at_one_step(ranks, folder):
    """SIGUSR1 reaches rank 1 in step 3; all ranks save at the same later step and go on."""
    ranks(2, "train", folder, every=100, kill=3).check()
    assert [info.step for info in scan(folder)] == [4]


def test_an_old_attempt_is_fenced_on_every_rank(ranks, folder, tmp_path):
    """Once a newer epoch stands in the job's folder, each rank ends with FencedError."""
    job = tmp_path / "job"
    job.mkdir()
    (job / "epoch").write_text("2\n")
    environ = {"JOB_DIR": str(job), "EPOCH": "1", "ATTEMPT": "0"}
    outcome = ranks(2, "train", folder, environ=environ)
    assert outcome.codes == [1, 1]
    assert all("FencedError: refused to restore: this attempt has epoch 1" in text for text in outcome.errors)
    environ["EPOCH"] = "2"
    ranks(2, "train", folder, environ=environ).check()
    assert [info.epoch for info in scan(folder)] == [2, 2, 2]
