"""The jobs that are broken: their command lines, and the proof that their losses are right."""

import json
import sys

from holdfast.drill.training import (
    TrainingJob,
    counter_losses,
    largest_difference,
    loss_difference,
    read_losses,
    repeated_difference,
)
from holdfast.workload import counter


def log(folder, attempt, losses):
    with (folder / "losses.jsonl").open("a") as file:
        for step, loss in losses.items():
            file.write(json.dumps({"step": step, "loss": loss, "attempt": attempt}) + "\n")


def test_the_computed_reference_is_what_the_counter_does(tmp_path, monkeypatch):
    """A real single-rank run gives the same losses to the last bit."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "HOLDFAST_TELEMETRY_DIR"):
        monkeypatch.delenv(name, raising=False)
    job = TrainingJob(nodes=1, steps=25, step_s=0.0, seed=5)
    assert counter.main(job.script()[2:]) == 0
    assert read_losses(tmp_path)["0"] == counter_losses(job, 25)
    assert loss_difference(job, tmp_path) == 0.0


def test_a_wrong_or_doubled_step_shows(tmp_path):
    """One loss that differs in the last digits is enough; a torn line is passed over."""
    job = TrainingJob(nodes=2)
    right = counter_losses(job, 30)
    log(tmp_path, 0, {step: right[step] for step in range(1, 21)})
    with (tmp_path / "losses.jsonl").open("a") as file:
        file.write('{"step": 21, "lo\n')
    log(tmp_path, 1, {step: right[step] for step in range(11, 31)})
    assert loss_difference(job, tmp_path) == 0.0
    log(tmp_path, 2, {25: right[25] + 1e-6})
    assert loss_difference(job, tmp_path) > 0.0


def test_runs_without_a_computed_reference_are_held_against_themselves(tmp_path):
    """Steps that two attempts completed must agree; with none in common nothing is known."""
    job = TrainingJob(workload="gpt")
    log(tmp_path, 0, {1: 4.0, 2: 3.5})
    assert loss_difference(job, tmp_path) is None
    log(tmp_path, 1, {2: 3.5, 3: 3.0})
    assert loss_difference(job, tmp_path) == 0.0
    log(tmp_path, 2, {3: 3.25})
    assert loss_difference(job, tmp_path) == 0.25
    assert read_losses(tmp_path / "nowhere") == {}
    assert repeated_difference({}) is None
    assert largest_difference({"0": {1: 1.0}}, {}) is None


def test_command_lines():
    """`holdfast run` with standbys, or torchrun inside it."""
    own = TrainingJob(ranks_per_node=2).argv()
    assert own[:4] == [sys.executable, "-m", "holdfast", "run"]
    assert own[own.index("--nproc-per-node") + 1] == "2"
    assert own[own.index("-m", 2) :][:2] == ["-m", "holdfast.workload.counter"]
    theirs = TrainingJob(launcher="torchrun", workload="gpt").argv()
    inner = theirs[theirs.index("--") + 1 :]
    assert inner[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert "holdfast.workload.gpt_torch" in inner


def test_nan_counts_only_where_it_was_left_standing(tmp_path):
    """A poisoned step that was done again is right; one that was not is as wrong as can be."""
    job = TrainingJob(nodes=1)
    right = counter_losses(job, 12)
    log(tmp_path, 0, {step: right[step] for step in range(1, 11)} | {11: float("nan"), 12: float("nan")})
    assert loss_difference(job, tmp_path) == float("inf")
    log(tmp_path, 1, {11: right[11], 12: right[12]})
    assert loss_difference(job, tmp_path) == 0.0
    gpt = {"0": {1: 2.0, 2: float("nan")}}
    assert repeated_difference(gpt) == float("inf")
    assert repeated_difference(gpt | {"1": {1: 2.0, 2: 1.9}}) == 0.0
