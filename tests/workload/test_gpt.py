"""The GPT workload: killed and resumed, its losses are those of an undisturbed run, bit for bit."""

import signal
import subprocess
import sys
from pathlib import Path

from holdfast.checkpoint import scan
from holdfast.telemetry.slot import request_evacuate

ROOT = Path(__file__).parents[2]


def test_killed_and_resumed_the_losses_are_the_same_bits(start, attempt, losses, tmp_path):
    """Three ranks (sums of three numbers depend on their order), one killed by signal 11, one attempt evacuated."""
    common = ["--steps", 26, "--checkpoint-every", 5]
    hurt = [*common, "--checkpoint-dir", tmp_path / "b", "--loss-log", tmp_path / "hurt.jsonl"]
    first = start("gpt_torch", 3, *hurt, **attempt(0))
    first.wait_for("step 8/")
    first.send(2, signal.SIGSEGV)
    assert 0 not in first.wait()
    environ = attempt(1)
    second = start("gpt_torch", 3, *hurt, "--step-time", "0.05", **environ)
    second.wait_for("step 12/")
    request_evacuate(Path(environ["HOLDFAST_TELEMETRY_DIR"]) / "rank-00001.slot")
    assert second.wait() == [85, 85, 85]
    assert "starting at step 5 of 26, attempt 1, 3 ranks" in second.text()
    third = start("gpt_torch", 3, *hurt, **attempt(2))
    assert third.wait() == [0, 0, 0]
    whole = [*common, "--checkpoint-dir", tmp_path / "a", "--loss-log", tmp_path / "whole.jsonl"]
    assert start("gpt_torch", 3, *whole).wait() == [0, 0, 0]
    assert losses(tmp_path / "hurt.jsonl") == losses(tmp_path / "whole.jsonl")
    assert sorted(losses(tmp_path / "whole.jsonl")) == list(range(1, 27))
    assert [info.epoch for info in scan(tmp_path / "b")] == [3, 3, 3]
    assert losses(tmp_path / "whole.jsonl")[26] < losses(tmp_path / "whole.jsonl")[1] - 0.5


def test_the_example_script_resumes(tmp_path):
    """examples/gpt/train.py goes on where it stopped, under torchrun's environment with one rank."""
    environ = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "PATH": ""}
    said = []
    for steps in ("4", "6"):
        argv = [sys.executable, ROOT / "examples/gpt/train.py", "--steps", steps, "--checkpoint-every", "2"]
        argv += ["--checkpoint-dir", tmp_path / "ckpt"]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        said.append([line.split(" loss")[0] for line in done.stdout.splitlines()])
    assert said == [["step 1/4", "step 2/4", "step 3/4", "step 4/4"], ["step 5/6", "step 6/6"]]


def test_the_corpus_can_be_made_again():
    """The text that ships is exactly what its generator writes."""
    made = subprocess.run([sys.executable, ROOT / "examples/gpt/make_corpus.py"], capture_output=True, check=True)
    assert made.stdout == (ROOT / "src/holdfast/workload/corpus.txt").read_bytes()
