"""kill -9 of ranks in the middle of saves: what is restored is complete, recent, and leads to the same bits."""

import os
import random
import time
from pathlib import Path

import pytest

from holdfast.checkpoint import scan, verify
from holdfast.checkpoint.claim import LOCK_FILE

WORLD = 2


def read(log):
    """Per rank: losses by step (each step always with the same loss), where each attempt began, the last step."""
    found = []
    for rank in range(WORLD):
        losses, began, last = {}, [], 0
        path = Path(f"{log}-{rank}")
        for line in path.read_text().splitlines() if path.exists() else []:
            step, word = line.split()
            if word == "began":
                began.append(int(step))
            else:
                last = int(step)
                assert losses.setdefault(last, word) == word, f"rank {rank} step {last}"
        found.append((losses, began, last))
    return found


def kill_in_the_middle(victims, log, attempts, moment_s):
    """Wait until each rank trains, then kill at a moment that falls anywhere into a step or a save.

    A save waits for the one before it, so with three steps done one checkpoint more is published, however
    slow the machine is.
    """

    def during(processes):
        deadline = time.monotonic() + 60
        while any(len(began) < attempts or last < began[-1] + 3 for _, began, last in read(log)):
            assert time.monotonic() < deadline
            assert all(process.is_alive() for process in processes)
            time.sleep(0.002)
        time.sleep(moment_s)
        for victim in victims:
            processes[victim].kill()

    return during


def killed_runs(ranks, tmp_path, kind, count, seed):
    draw = random.Random(seed)
    folder, log = tmp_path / "ckpt", tmp_path / "log"
    for number in range(1, count + 1):
        victims = draw.choice([[0, 1], [0], [1]])
        before = max(last for _, _, last in read(log))
        during = kill_in_the_middle(victims, log, number, draw.uniform(0, 0.04))
        outcome = ranks(WORLD, "train_on", folder, during=during, kind=kind, log=str(log))
        assert 0 not in outcome.codes
        for rank, (_, began, _) in enumerate(read(log)):
            # Saved every step: at worst the save in flight and the one that waited for it are lost.
            assert began[-1] >= before - 2, f"run {number} rank {rank}, seed {seed}: {outcome.errors}"
        for info in scan(folder):
            assert verify(info.path).ok
    reached = scan(folder)[0].step
    ranks(WORLD, "train_on", tmp_path / "whole", kind=kind, log=f"{tmp_path}/undisturbed", steps=reached, every=10**9)
    for (losses, _, _), (wanted, _, _) in zip(read(log), read(f"{tmp_path}/undisturbed"), strict=True):
        assert {step: loss for step, loss in losses.items() if step <= reached} == wanted
    assert len([name for name in os.listdir(folder) if name.startswith(".") and name != LOCK_FILE]) <= 2


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_random_kills_of_ranks(ranks, tmp_path, kind):
    """Ten kills (all ranks, the writer, the other one); every loss is that of an undisturbed run."""
    killed_runs(ranks, tmp_path, kind, 10 if kind == "ddp" else 5, seed=8470)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_three_hundred_random_kills_of_ranks(ranks, tmp_path, kind):
    """Three hundred kills with another seed."""
    killed_runs(ranks, tmp_path, kind, 200 if kind == "ddp" else 100, int(os.environ.get("HOLDFAST_SOAK_SEED", "61")))
