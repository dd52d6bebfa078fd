"""`holdfast simulate fuzz`: silent when nothing is wrong, else all that is needed to repeat it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from conftest import Holdfast

sys.path.insert(0, str(Path(__file__).parent.parent))

from sim.mutants import planted
from sim.test_mutants import FOUND_BY

SEED = FOUND_BY["budget not reset"]


def test_nothing_found_is_one_line(holdfast: Holdfast) -> None:
    """Seeds, events, exit code 0."""
    ran = holdfast("simulate", "fuzz", "--seeds", "3", "--from", "100")
    assert ran.code == 0
    assert ran.out.startswith("seeds 100 to 102: ")
    assert ran.out.rstrip().endswith("no complaint")


def test_a_bug_is_printed_with_options_and_command(holdfast: Holdfast) -> None:
    """The command that is printed finds it again; exit code 1."""
    with planted("budget not reset"):
        first = holdfast("simulate", "fuzz", "--seeds", "1", "--from", str(SEED), "--no-shrink")
        assert first.code == 1
        assert "  budgets_hold: " in first.out
        assert "    fault_s = " in first.out
        [again] = [line.partition("again: ")[2] for line in first.out.splitlines() if "again: " in line]
        assert again == f"holdfast simulate fuzz --from {SEED} --seeds 1"
        second = holdfast(*shlex.split(again)[1:], "--no-shrink", "--json")
        form = json.loads(second.out)
    assert second.code == 1
    assert form["failed"] == [SEED]
    [failure] = form["failures"]
    assert failure["complaints"][0]["judge"] == "budgets_hold"
    assert failure["options"]["seed"] == SEED


def test_a_failing_seed_is_told_of_at_once(holdfast: Holdfast) -> None:
    """On standard error: thousands of seeds take hours, and making them small comes after the last."""
    with planted("budget not reset"):
        ran = holdfast("simulate", "fuzz", "--seeds", "2", "--from", str(SEED), "--no-shrink")
    assert f"seed {SEED} fails: budgets_hold" in ran.err


def test_faults_are_named_for_one_seed_only(holdfast: Holdfast) -> None:
    """Ids of another seed mean nothing."""
    assert "--seeds 1" in holdfast("simulate", "fuzz", "--only", "gpu-1", "--seeds", "2").sentence
    assert "plans no fault" in holdfast("simulate", "fuzz", "--only", "ghost-1", "--seeds", "1").sentence
