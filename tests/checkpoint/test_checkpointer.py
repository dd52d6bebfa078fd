"""The checkpointer in a world of one: what a state comes back as, and what happens when something is wrong."""

import os
import random
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from holdfast import telemetry
from holdfast.checkpoint import (
    EX_RESTART,
    Checkpointer,
    CheckpointError,
    FencedError,
    RestoreError,
    not_finite,
    scan,
    verify,
)
from holdfast.checkpoint.claim import LOCK_FILE


def new_state(seed=1):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5),
        "average": {"w": torch.zeros(3), "b": torch.zeros(1)},
        "best": torch.tensor(9.0),
        "history": [],
        "seen": {"tokens": 0},
        "epoch": 0,
    }


def train(state, steps):
    for _ in range(steps):
        noise = torch.tensor(np.random.normal(size=(4, 6)), dtype=torch.float32) * random.random()  # noqa: NPY002 - the global one is what is saved
        loss = state["model"](torch.randn(4, 6) + noise).square().mean()
        loss.backward()
        state["optimizer"].step()
        state["optimizer"].zero_grad()
        state["scheduler"].step()
        state["average"]["w"] += 1
        state["best"].fill_(loss.item())
        state["history"].append(loss.item())
        state["seen"]["tokens"] += 24
        state["epoch"] += 1
    return state["history"]


@pytest.fixture
def make(tmp_path):
    made = []

    def make(**options):
        options.setdefault("environ", {})
        options.setdefault("signals", ())
        checkpointer = Checkpointer(tmp_path / "ckpt", **options)
        made.append(checkpointer)
        return checkpointer

    yield make
    for checkpointer in made:
        checkpointer.__exit__(RuntimeError, None, None)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "ckpt"


def test_everything_comes_back(make):
    """Weights, moments, schedule, tensors, lists, dicts, numbers and all random generators go on as before."""
    state = new_state()
    train(state, 4)
    first = make()
    assert first.restore(new_state()) == 0
    first.save(4, state)
    expected = list(train(state, 3))
    first.close()
    other = new_state(seed=2)
    history, seen = other["history"], other["seen"]
    assert make().restore(other) == 4
    assert train(other, 3) == expected
    assert other["history"] is history
    assert other["seen"] is seen
    assert (seen["tokens"], other["epoch"]) == (7 * 24, 7)
    assert torch.equal(other["average"]["w"], torch.full((3,), 7.0))
    assert other["scheduler"].state_dict() == state["scheduler"].state_dict()
    for a, b in zip(other["model"].parameters(), state["model"].parameters(), strict=True):
        assert torch.equal(a, b)


def test_training_may_go_on_while_a_save_is_written(make, folder):
    """What is written is the state at the save, whatever training does to it meanwhile."""
    state = new_state()
    checkpointer = make()
    train(state, 2)
    wanted = state["model"][0].weight.detach().clone()
    checkpointer.save(2, state)
    with torch.no_grad():
        for parameter in state["model"].parameters():
            parameter.fill_(float("nan"))
    assert checkpointer.wait()
    restored = new_state(seed=5)
    make().restore(restored)
    assert torch.equal(restored["model"][0].weight, wanted)


def test_nothing_restored_lies_in_the_file_any_more(make, folder):
    """The file is mapped while it is read; what becomes of it later must not show in the state."""
    state = new_state()
    train(state, 3)
    checkpointer = make()
    checkpointer.save(3, state)
    checkpointer.close()
    restored = new_state(seed=2)
    make().restore(restored)
    file = folder / "step-000000003.e000000/shared.pt"
    with file.open("r+b") as stream:
        stream.write(b"\xff" * file.stat().st_size)
    for name in ("model", "optimizer"):
        assert str(restored[name].state_dict()) == str(state[name].state_dict())
    assert torch.equal(restored["average"]["w"], state["average"]["w"])


def test_tied_weights_are_saved_once(make, folder):
    """Two names for one memory are one tensor in the file and still tied afterwards."""
    tied = torch.nn.ModuleDict({"a": torch.nn.Linear(64, 64, bias=False), "b": torch.nn.Linear(64, 64, bias=False)})
    tied["b"].weight = tied["a"].weight
    checkpointer = make()
    checkpointer.save(1, {"model": tied})
    checkpointer.close()
    assert scan(folder)[0].manifest.size < 2 * 64 * 64 * 4 + 15_000
    assert make().restore({"model": tied}) == 1
    assert tied["a"].weight is tied["b"].weight


def test_at_most_one_save_is_under_way(make, folder):
    """Saves in quick succession wait for each other: bounded memory, and every one of them is published in order."""
    state = new_state()
    checkpointer = make(keep=9)
    for step in range(1, 6):
        checkpointer.save(step, state)
        assert sum(thread.name.startswith("holdfast-save") for thread in threading.enumerate()) <= 1
    checkpointer.close()
    assert [info.step for info in scan(folder)] == [5, 4, 3, 2, 1]


def test_only_as_many_as_asked_for_are_kept(make, folder):
    """After each save older ones go; a synchronous save is published when it returns."""
    checkpointer = make(keep=2, async_=False)
    for step in (1, 2, 3, 4):
        checkpointer.save(step, new_state())
        assert scan(folder)[0].step == step
    assert [info.step for info in scan(folder)] == [4, 3]


def test_the_newest_good_one_is_restored_and_the_reason_said(make, folder, capsys):
    """A damaged newest checkpoint costs one sentence and one interval, never the run."""
    checkpointer = make()
    for step in (1, 2, 3):
        checkpointer.save(step, new_state())
    checkpointer.close()
    os.truncate(folder / "step-000000003.e000000/shared.pt", 100)
    assert make().restore(new_state()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "step-000000003.e000000 is damaged: shared.pt: 100 bytes instead of" in said
    assert said.endswith("step-000000002.e000000\n")


def test_nothing_good_left_starts_from_nothing_or_is_refused(make, folder, capsys):
    """With every checkpoint damaged the run starts over, loudly; `required` makes it an error."""
    checkpointer = make(async_=False)
    checkpointer.save(1, new_state())
    (folder / "step-000000001.e000000/manifest.json").unlink()
    with pytest.raises(RestoreError, match=r"no good checkpoint in .*manifest\.json: missing"):
        make().restore(new_state(), required=True)
    assert (folder / "bad-step-000000001.e000000").exists()
    assert make().restore(new_state()) == 0
    with pytest.raises(RestoreError, match="no good checkpoint"):
        make().restore(new_state(), required=True)


def test_a_good_checkpoint_of_another_model_is_not_skipped(make, folder):
    """Falling back cannot help when the program has changed: it is an error that names the part."""
    checkpointer = make()
    checkpointer.save(1, new_state())
    checkpointer.close()
    other = {**new_state(), "model": torch.nn.Linear(3, 3)}
    with pytest.raises(RestoreError, match=r"step-000000001.*part 'model' .* does not fit this program's"):
        make().restore(other)
    with pytest.raises(RestoreError, match="no part named 'teacher'; it has average, best, model, optimizer"):
        make().restore({"teacher": torch.nn.Linear(1, 1)})
    assert scan(folder)[0].ok


def test_a_part_that_is_new_keeps_its_value(make, capsys):
    """A plain value that the checkpoint does not hold stays, and is named."""
    checkpointer = make()
    checkpointer.save(1, new_state())
    checkpointer.close()
    state = {**new_state(), "warmup": 5}
    make().restore(state)
    assert state["warmup"] == 5
    assert "holds nothing for warmup" in capsys.readouterr().err


def test_a_dict_that_was_filled_with_tensors_comes_back(make):
    """A dict that is empty when the program starts gets its tensors, whatever it was taken for at the save."""
    checkpointer = make()
    checkpointer.save(1, {"ema": {"w": torch.ones(3)}})
    checkpointer.close()
    state = {"ema": {}}
    assert make().restore(state) == 1
    assert torch.equal(state["ema"]["w"], torch.ones(3))


def test_a_pin_bounds_the_restore(make):
    """HOLDFAST_RESTORE_STEP: nothing newer is loaded; a mistake in it is named."""
    checkpointer = make()
    for step in (1, 2, 3):
        checkpointer.save(step, new_state())
    checkpointer.close()
    assert make(environ={"HOLDFAST_RESTORE_STEP": "2"}).restore(new_state()) == 2
    assert make(environ={"HOLDFAST_RESTORE_STEP": "0"}).restore(new_state()) == 0
    with pytest.raises(CheckpointError, match="HOLDFAST_RESTORE_STEP='last' must be a whole number"):
        make(environ={"HOLDFAST_RESTORE_STEP": "last"}).restore(new_state())


@pytest.fixture
def file_size_limit():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_does_not_stop_the_training(make, folder, file_size_limit, capsys):
    """The save fails in one sentence, the older checkpoint stays, and the next save tries again."""
    checkpointer = make()
    state = new_state()
    checkpointer.save(1, state)
    assert checkpointer.wait()
    file_size_limit(2000)
    checkpointer.save(2, state)
    assert not checkpointer.wait()
    file_size_limit(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    said = capsys.readouterr().err
    assert "the checkpoint of step 2 was not saved in" in said
    assert "no space is left on its file system; training goes on, step 1 stays the newest good one" in said
    assert sorted(os.listdir(folder)) == [LOCK_FILE, "step-000000001.e000000"]
    checkpointer.save(3, state)
    assert checkpointer.wait()
    assert [info.step for info in scan(folder)] == [3, 1]


def test_a_poisoned_state_is_not_saved(make, folder, capsys):
    """With `not_finite`, a NaN in any parameter keeps the good checkpoints from being pushed out."""
    state = new_state()
    checkpointer = make(refuse_if=not_finite, keep=1)
    checkpointer.save(1, state)
    checkpointer.wait()
    with torch.no_grad():
        state["model"][2].weight[1, 3] = float("nan")
    checkpointer.save(2, state)
    checkpointer.close()
    assert [info.step for info in scan(folder)] == [1]
    assert "step 2 is not saved: model.2.weight is not finite; step 1 stays" in capsys.readouterr().err


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_not_finite_finds_every_kind(value):
    """One bad element among many is found; a healthy model is not."""
    model = torch.nn.Linear(100, 100)
    assert not_finite({"model": model}) is None
    with torch.no_grad():
        model.weight[50, 50] = value
    assert not_finite({"model": model}) == "model.weight is not finite"


def test_an_attempt_that_is_over_learns_it(make, folder, tmp_path):
    """A fence that moves during the background write ends the run at the next call, and nothing is published."""
    job = tmp_path / "job"
    job.mkdir()
    (job / "epoch").write_text("1")
    checkpointer = make(environ={"HOLDFAST_JOB_DIR": str(job), "HOLDFAST_EPOCH": "1"})
    state = new_state()
    checkpointer.restore(state)
    checkpointer.save(1, state)
    checkpointer.wait()
    (job / "epoch").write_text("2")
    with pytest.raises(FencedError, match="refused to save step 2"):
        checkpointer.save(2, state)
    assert [info.step for info in scan(folder)] == [1]


def test_mirrors_get_copies_and_a_broken_one_is_named(make, folder, tmp_path, capsys):
    """A mirror that cannot be written costs a sentence; the others and the checkpoint itself are good."""
    (tmp_path / "broken").write_text("a file, not a folder")
    checkpointer = make(mirrors=[tmp_path / "broken", tmp_path / "good"])
    checkpointer.save(1, new_state())
    assert checkpointer.wait()
    assert verify(tmp_path / "good/step-000000001.e000000").ok
    assert f"the mirror {tmp_path}/broken did not get step-000000001.e000000" in capsys.readouterr().err


def test_a_local_tier_is_durable_when_a_mirror_has_it(make, tmp_path):
    """On a node's own disk a save counts only once shared storage holds it; a restore takes the near one."""
    with pytest.raises(CheckpointError, match="is_local needs a mirror"):
        make(is_local=True)
    (tmp_path / "broken").write_text("")
    checkpointer = make(is_local=True, mirrors=[tmp_path / "broken"])
    checkpointer.save(1, new_state())
    assert not checkpointer.wait()
    checkpointer = make(is_local=True, mirrors=[tmp_path / "shared"])
    checkpointer.save(2, new_state())
    assert checkpointer.wait()
    assert make(is_local=True, mirrors=[tmp_path / "shared"]).restore(new_state()) == 2


def test_staged_is_told_before_durable(make, folder, tmp_path, monkeypatch):
    """Telemetry hears of a durable checkpoint only when it is published and verifies."""
    told = []

    def checkpoint(step, durable):
        told.append((step, durable, [verify(info.path).ok for info in scan(folder)]))

    monkeypatch.setattr(telemetry, "checkpoint", checkpoint)
    checkpointer = make()
    checkpointer.save(7, new_state())
    checkpointer.close()
    assert [(step, durable) for step, durable, _ in told] == [(7, False), (7, True)]
    assert told[1][2] == [True]


def test_due_by_steps_and_by_seconds(make):
    """Steps count by multiples; seconds are turned into a step at the measured pace."""
    assert [s for s in range(1, 11) if make(every_steps=4).due(s)] == [4, 8]
    always = make(every_s=1e-9)
    always.restore(new_state())
    assert not any(always.due(step) for step in range(1, 10))
    assert always.due(10)
    never = make(every_s=1e9)
    never.restore(new_state())
    assert not any(never.due(step) for step in range(1, 200))
    for wrong in ({"every_steps": 0}, {"every_s": 0}, {"every_s": float("nan")}, {"keep": 0}):
        with pytest.raises(CheckpointError, match="must be"):
            make(**wrong)


def test_sigterm_saves_and_leaves_with_restart_me(make, folder, capsys):
    """SIGTERM is noted, the next step boundary saves, and the process ends with 85 once that is durable."""
    former = signal.getsignal(signal.SIGTERM)
    checkpointer = make(signals=[signal.SIGTERM])
    state = new_state()
    assert not checkpointer.due(1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert checkpointer.due(2)
    with pytest.raises(SystemExit) as caught:
        checkpointer.save(2, state)
    assert caught.value.code == EX_RESTART == 85
    assert [info.step for info in scan(folder)] == [2]
    assert "asked to leave: step 2 is saved" in capsys.readouterr().err
    checkpointer.__exit__(SystemExit, None, None)
    assert signal.getsignal(signal.SIGTERM) is former


def test_sigusr1_saves_and_goes_on(make, folder):
    """Slurm's warning before the end of a job: save now, keep training."""
    checkpointer = make(signals=[signal.SIGUSR1])
    os.kill(os.getpid(), signal.SIGUSR1)
    assert checkpointer.due(1)
    checkpointer.save(1, new_state())
    assert not checkpointer.leaving()
    assert not checkpointer.due(2)


def test_the_launchers_wish_saves_and_leaves(make, monkeypatch):
    """Asked by telemetry to make room; with `exits=False` the program is told instead of ended."""
    asked = []
    monkeypatch.setattr(telemetry, "evacuate_requested", lambda: bool(asked))
    checkpointer = make(exits=False)
    assert not checkpointer.due(1)
    asked.append(True)
    assert checkpointer.due(2)
    checkpointer.save(2, new_state())
    assert checkpointer.leaving()


def test_a_save_that_fails_does_not_let_the_job_leave(make, monkeypatch, file_size_limit):
    """Leaving without a durable state would lose the work that the wish was to keep."""
    monkeypatch.setattr(telemetry, "evacuate_requested", lambda: True)
    checkpointer = make()
    file_size_limit(2000)
    assert checkpointer.due(1)
    checkpointer.save(1, new_state())
    file_size_limit(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    assert checkpointer.due(2)
    with pytest.raises(SystemExit):
        checkpointer.save(2, new_state())


def test_the_end_of_the_time_limit_asks_for_one_save(make):
    """SLURM_JOB_END_TIME within the margin makes one save due."""
    near = make(environ={"SLURM_JOB_END_TIME": "1000"})
    assert [near.due(step) for step in (1, 2, 3)] == [True, False, False]
    far = make(environ={"SLURM_JOB_END_TIME": "99999999999"})
    assert not far.due(1)
    assert not make(environ={"SLURM_JOB_END_TIME": "1000"}, before_end_s=0).due(1)


def test_importing_the_package_does_not_import_torch():
    """Commands and the torch-free workload use scan and verify without paying for torch."""
    code = (
        "import sys, holdfast.checkpoint as c; c.scan, c.verify, c.CheckpointStore;"
        "assert 'torch' not in sys.modules; c.Checkpointer; assert 'torch' in sys.modules;"
        "assert 'torch.distributed.checkpoint' not in sys.modules; assert 'Checkpointer' in dir(c)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    import holdfast.checkpoint

    with pytest.raises(AttributeError, match="no attribute 'Chekpointer'"):
        holdfast.checkpoint.Chekpointer  # noqa: B018
