"""kill -9 of the writer at random moments: a restore always finds a complete, verified, recent checkpoint."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xxhash

from holdfast.checkpoint.claim import LOCK_FILE
from holdfast.checkpoint.fence import Fence
from holdfast.checkpoint.store import CheckpointStore, scan, verify

WRITER = Path(__file__).with_name("writer.py")


def content(step):
    """What writer.py writes for a step."""
    return xxhash.xxh3_128(str(step).encode()).digest() * 4000


def killed_run(folder, moment_s):
    """Start the writer, kill it that long after its first publication; the last step it announced."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    argv = [sys.executable, str(WRITER), str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environ, text=True) as process:
        try:
            lines = [process.stdout.readline()]
            time.sleep(moment_s)
        finally:
            process.kill()
        lines += process.stdout.readlines()
    return int(lines[-1].split()[1]) if lines[-1].endswith("\n") else int(lines[-2].split()[1])


def check(folder, announced):
    """Everything published verifies; the newest is the last announced or the one in flight after it."""
    for info in scan(folder):
        assert verify(info.path).ok, verify(info.path).sentence
    newest = CheckpointStore(folder, fence=Fence(None, 0)).newest_good()
    assert newest.step in {announced, announced + 1}
    for part in range(3):
        assert (newest.path / f"part-{part}.bin").read_bytes() == content(newest.step)
    return newest.step


def killed_runs(folder, count, seed):
    draw = random.Random(seed)
    print(f"seed {seed}")
    reached = 0
    for _ in range(count):
        announced = killed_run(folder, draw.uniform(0, 0.05))
        assert announced > reached
        reached = check(folder, announced)
    left = [name for name in os.listdir(folder) if name.startswith(".") and name != LOCK_FILE]
    assert len(left) <= 3, "each run sweeps what the one before it left"


def test_twenty_random_kills(tmp_path):
    """20 moments: complete, verified, and not older than the last one announced."""
    killed_runs(tmp_path / "ckpt", 20, seed=6)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_three_hundred_random_kills(tmp_path):
    """300 moments with another seed."""
    killed_runs(tmp_path / "ckpt", 300, seed=int(os.environ.get("HOLDFAST_SOAK_SEED", "60")))
