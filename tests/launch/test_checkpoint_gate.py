"""What is looked at before ranks start, on folders as frameworks leave them, and in a real restart."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from tests.launch.conftest import environ_of, marked, wait_for

from holdfast.checkpoint import CheckpointStore, Fence
from holdfast.checkpoint.layouts.contents import check_file
from holdfast.checkpoint.manifest import Problem
from holdfast.launch.checkpoint_gate import Gate, look_before_start

TRACKER = "latest_checkpointed_iteration.txt"


def megatron(root: Path, *steps: int) -> Path:
    for step in steps:
        path = root / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt"
        path.parent.mkdir(parents=True)
        torch.save({"weight": torch.full((1000,), float(step))}, path)
    (root / TRACKER).write_text(str(steps[-1]))
    return root


def flip(root: Path, step: int) -> None:
    path = root / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt"
    content = bytearray(path.read_bytes())
    content[content.index(torch.full((2,), float(step)).numpy().tobytes()) + 1] ^= 1
    path.write_bytes(content)


def test_good_checkpoints_are_left_alone(tmp_path: Path) -> None:
    """Nothing is said, and the step that will be loaded is known."""
    assert look_before_start(megatron(tmp_path / "c", 20, 40), restore_step=None) == Gate(resumes_from=40)


def test_bad_ones_are_set_aside_until_one_is_good(tmp_path: Path) -> None:
    """A cut and a flipped one: both renamed, the tracker names the third, and the sentences name each."""
    root = megatron(tmp_path / "c", 20, 40, 60)
    flip(root, 40)
    os.truncate(root / "iter_0000060" / "mp_rank_00" / "model_optim_rng.pt", 100)
    gate = look_before_start(root, restore_step=None)
    assert (gate.resumes_from, gate.set_aside) == (20, ("iter_0000060", "iter_0000040"))
    assert (root / TRACKER).read_text() == "20"
    named = zip(("iter_0000060", "iter_0000040", "iter_0000020"), gate.says, strict=True)
    assert all(name in said for name, said in named)
    assert look_before_start(root, restore_step=None) == Gate(resumes_from=20)


def test_only_what_will_be_loaded_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred older checkpoints cost a restart nothing: the newest is good, so no other file is opened."""
    root = megatron(tmp_path / "c", 20, 40, 60)
    read: list[str] = []

    def counting(path: Path, *, full: bool) -> tuple[Problem | None, int]:
        read.append(path.parent.parent.name)
        return check_file(path, full=full)

    monkeypatch.setattr("holdfast.checkpoint.layouts.frameworks.check_file", counting)
    assert look_before_start(root, restore_step=None).resumes_from == 60
    assert read == ["iter_0000060"]


def test_nothing_newer_than_the_step_that_is_trusted(tmp_path: Path) -> None:
    """The engine mistrusts what came after step 30: the framework, which knows no such limit, finds step 20."""
    gate = look_before_start(megatron(tmp_path / "c", 20, 40, 60), restore_step=30)
    assert (gate.resumes_from, gate.set_aside) == (20, ("iter_0000060", "iter_0000040"))


def test_large_ones_are_not_read_in_full(tmp_path: Path) -> None:
    """Above the limit a flipped bit stays unseen, so that the restart does not wait for it."""
    root = megatron(tmp_path / "c", 20, 40)
    flip(root, 40)
    assert look_before_start(root, restore_step=None, full_bytes_max=100).resumes_from == 40


def test_checkpoints_of_holdfast_are_left_to_their_own_restore(tmp_path: Path) -> None:
    """Their restore verifies on every rank, and knows mirrors."""
    pending = CheckpointStore(tmp_path, fence=Fence.from_environment({})).begin(5)
    pending.write_bytes("state.bin", b"x" * 100)
    path = pending.publish(world_size=1, attempt="1(0)", layout="replicated")
    (path / "state.bin").write_bytes(b"y")
    assert look_before_start(tmp_path, restore_step=None) == Gate()
    assert path.is_dir()


def test_a_folder_that_cannot_be_checked_stops_nothing(tmp_path: Path) -> None:
    """No folder, or a file in its place: the job starts all the same."""
    assert look_before_start(tmp_path / "no", restore_step=None) == Gate()
    (tmp_path / "file").write_text("x")
    assert look_before_start(tmp_path / "file", restore_step=None) == Gate()


@pytest.mark.cluster
def test_a_restart_never_loads_a_torn_checkpoint(launched, tmp_path: Path) -> None:
    """A Megatron-LM training is killed and its newest checkpoint torn: the restart goes on from the one before, and ends."""
    train = Path(__file__).parents[2] / "examples" / "megatron" / "pretrain_gpt.py"
    folder = tmp_path / "ckpt"
    # Cold starts: a standby shows the environment that it was born with.
    run = launched("--standbys", "0", "--checkpoints", str(folder), str(train), "--train-iters", "200",
                   "--iteration-s", "0.05", "--save", str(folder), "--load", str(folder))  # fmt: skip
    run.wait_event("checkpoint_saved", lambda event: event.durable and event.step >= 40, limit_s=60)
    rank = next(pid for pid in marked(run.mark) if environ_of(pid).get("RANK") == "0")
    # Stopped first, so that what is torn is what it leaves.
    os.kill(rank, signal.SIGSTOP)
    latest = int(wait_for("the tracker", (folder / TRACKER).read_text))
    os.truncate(folder / f"iter_{latest:07d}" / "mp_rank_00" / "model_optim_rng.pt", 500)
    os.kill(rank, signal.SIGKILL)
    first = run.wait_event("first_step_done", lambda event: event.attempt == 1, limit_s=60)
    ranks = [pid for pid in marked(run.mark) if environ_of(pid).get("HOLDFAST_ATTEMPT") == "1"]
    told = {environ_of(pid).get("HOLDFAST_RESTORE_STEP") for pid in ranks}
    assert run.wait(90) == 0
    assert told == {str(latest - 20)}  # every rank is pinned to the step that was verified
    assert first.step == latest - 20 + 1
    assert f"iter_{latest:07d} is damaged" in run.text()
    assert (folder / f"bad-iter_{latest:07d}").is_dir()
