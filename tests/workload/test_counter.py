"""The torch-free workload behaves as a data-parallel job does where Holdfast looks."""

import json
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.checkpoint import scan
from holdfast.telemetry.slot import read_slot, request_evacuate


def test_it_starts_without_torch():
    """Nothing heavy is imported: the chaos tests start it hundreds of times."""
    code = (
        "import sys, holdfast.workload.counter;"
        "heavy = {'torch', 'numpy', 'msgspec', 'asyncio', 'typing_extensions'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90)


def test_it_runs_alone_and_prints_its_progress(start, tmp_path):
    """Rank 0 prints a line a step and where it began; checkpoints lie where asked."""
    ranks = start("counter", 1, "--steps", 6, "--checkpoint-every", 2, "--checkpoint-dir", tmp_path / "ckpt")
    assert ranks.wait() == [0]
    lines = ranks.text().splitlines()
    assert lines[0] == "starting at step 0 of 6, attempt 0, 1 ranks"
    assert [line.split(" loss ")[0] for line in lines[1:7]] == [f"step {n}/6" for n in range(1, 7)]
    assert lines[-1] == "training complete"
    assert [info.step for info in scan(tmp_path / "ckpt")] == [6, 4, 2]


def test_killed_at_random_steps_it_ends_with_the_same_losses(start, attempt, losses, tmp_path):
    """After five kills of random ranks, every loss is that of the undisturbed run."""
    common = ["--steps", 60, "--checkpoint-every", 5, "--step-time", "0.002"]
    whole = start("counter", 3, *common, "--checkpoint-dir", tmp_path / "a", "--loss-log", tmp_path / "whole.jsonl")
    draw = random.Random(11)
    for number in range(6):
        ranks = start(
            *("counter", 3, *common),
            *("--checkpoint-dir", tmp_path / "b", "--loss-log", tmp_path / "hurt.jsonl"),
            **attempt(number),
        )
        if number < 5:
            ranks.wait_for(f"step {number * 10 + draw.randint(2, 9)}/60")
            ranks.send(draw.randrange(3), signal.SIGKILL)
            assert 0 not in ranks.wait()
    assert whole.wait() == ranks.wait() == [0, 0, 0]
    assert losses(tmp_path / "hurt.jsonl") == losses(tmp_path / "whole.jsonl")
    assert len(losses(tmp_path / "whole.jsonl")) == 60
    attempts = [json.loads(line)["attempt"] for line in (tmp_path / "hurt.jsonl").read_text().splitlines()]
    assert sorted(set(attempts)) == list("012345")


def test_a_dead_rank_breaks_the_others_in_gloos_words(start, tmp_path):
    """Peers of a killed rank end with an error that a log matcher knows as a cascade."""
    ranks = start("counter", 3, "--steps", 10_000, "--step-time", "0.01", "--checkpoint-dir", tmp_path / "ckpt")
    ranks.wait_for("step 3/")
    ranks.send(1, signal.SIGKILL)
    assert ranks.wait() == [1, -signal.SIGKILL, 1]
    for rank in (0, 2):
        last = ranks.text(rank).splitlines()[-1]
        assert last.startswith("RuntimeError: Connection closed by peer [127.0.0.1]:")


def test_a_stopped_rank_stalls_all(start, tmp_path):
    """While one rank is stopped no step is completed; when it goes on, so do all."""
    ranks = start("counter", 2, "--steps", 10_000, "--step-time", "0.005", "--checkpoint-dir", tmp_path / "ckpt")
    ranks.wait_for("step 3/")
    ranks.send(1, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    before = ranks.text()
    while True:  # the step under way may still end
        select.select([], [], [], 0.1)
        now = ranks.text()
        if now == before:
            break
        assert time.monotonic() < deadline
        before = now
    ranks.send(1, signal.SIGCONT)
    ranks.wait_for(f"step {int(before.splitlines()[-1].split()[1].split('/')[0]) + 3}/")


def test_asked_to_leave_it_saves_and_exits_with_restart_me(start, attempt, losses, tmp_path):
    """The request to one rank ends all at the same step, durably, and the next attempt goes on there."""
    arguments = ["--steps", 40, "--checkpoint-every", 1000, "--checkpoint-dir", tmp_path / "ckpt"]
    environ = attempt(0)
    ranks = start("counter", 2, *arguments, "--step-time", "0.02", "--loss-log", tmp_path / "l", **environ)
    ranks.wait_for("step 3/")
    request_evacuate(Path(environ["HOLDFAST_TELEMETRY_DIR"]) / "rank-00001.slot")
    assert ranks.wait() == [85, 85]
    saved = scan(tmp_path / "ckpt")[0].step
    assert saved == max(losses(tmp_path / "l"))
    view = read_slot(Path(environ["HOLDFAST_TELEMETRY_DIR"]) / "rank-00000.slot")
    assert (view.step_ended, view.checkpoint_staged, view.checkpoint_durable) == (saved, saved, saved)
    again = start("counter", 2, *arguments, "--loss-log", tmp_path / "l", **attempt(1))
    assert again.wait() == [0, 0]
    assert f"starting at step {saved} of 40, attempt 1" in again.text()
    assert sorted(losses(tmp_path / "l")) == list(range(1, 41))


def test_a_damaged_checkpoint_costs_one_interval(start, tmp_path):
    """The newest is damaged: it is named and the one before is taken."""
    arguments = ["--checkpoint-every", 5, "--checkpoint-dir", tmp_path / "ckpt"]
    assert start("counter", 2, "--steps", 20, *arguments).wait() == [0, 0]
    (tmp_path / "ckpt/step-000000020.e000000/counter.json").write_bytes(b"{}")
    ranks = start("counter", 2, "--steps", 30, *arguments)
    assert ranks.wait() == [0, 0]
    assert "step-000000020.e000000 is damaged: counter.json: 2 bytes instead of" in ranks.text()
    assert "starting at step 15 of 30" in ranks.text()


def test_an_old_attempt_ends_fenced(start, attempt, tmp_path):
    """When a newer attempt is opened, the old one ends at its next save with a clear sentence."""
    arguments = ["--steps", 10_000, "--step-time", "0.01", "--checkpoint-every", 5, "--checkpoint-dir", tmp_path / "c"]
    ranks = start("counter", 2, *arguments, **attempt(0))
    ranks.wait_for("step 6/")
    attempt(1)
    assert ranks.wait() == [1, 1]
    assert "[rank0] FencedError: refused to" in ranks.text()
    assert "this attempt has epoch 1, but epoch 2 has been started since" in ranks.text()


@pytest.mark.parametrize(("wrong", "said"), [(["--steps", "0"], "--steps must be 1"), (["--stops", "3"], "--stops")])
def test_a_wrong_argument_is_named(start, wrong, said):
    """argparse's sentence, code 2."""
    ranks = start("counter", 1, *wrong)
    assert ranks.wait() == [2]
    assert said in ranks.text()
