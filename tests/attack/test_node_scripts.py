"""A user whose words stand in what a node's Prolog, Epilog and HealthCheckProgram read: names of processes above all."""

from __future__ import annotations

from pathlib import Path

import pytest

from attack_fixture import Attempt
from holdfast.adapters.probes import rounds, sysfs_reading
from holdfast.adapters.probes.check import Status
from holdfast.adapters.probes.rounds import Verdict
from holdfast.cli import check

FORGED = "CRITICAL: gone"
LINES = ["\n", "\r", "\x0b", "\x85", "\u2028", "\x1b[1A\x1b[2K"]


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node", asset="the agent", removed="adapters.probes.rounds.clean"
)
@pytest.mark.parametrize("end", LINES)
def test_a_name_begins_no_line_of_its_own(attempt: Attempt, end: str) -> None:
    """The scripts drain a node for a line that begins with CRITICAL: a process named so must not write one."""
    attempt.without(rounds, "clean", lambda text: text)
    verdict = Verdict(check="left-over", status=Status.WARNING, detail=f"left over: python{end}{FORGED} (77)")
    text = "\n".join(check._lines([verdict], quiet=True))
    attempt.judge(succeeded=end in text)


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node", asset="the agent", removed="adapters.probes.sysfs_reading._line"
)
def test_a_process_name_is_one_line(attempt: Attempt, tmp_path: Path) -> None:
    """Fifteen characters of any kind, a new line among them: prctl(PR_SET_NAME) takes all."""
    attempt.without(sysfs_reading, "_line", lambda path: path.read_text())
    comm = tmp_path / "comm"
    comm.write_text(f"x\n{FORGED}\n")
    attempt.judge(succeeded=FORGED in sysfs_reading._line(comm))


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh", "healthcheck.sh", "task_prolog.sh"])
def test_the_scripts_name_their_programs(script: str) -> None:
    """By whole paths, and nothing is evaluated: neither PATH nor a file's name chooses what root runs."""
    text = (Path(__file__).parents[2] / "deploy" / "slurm" / script).read_text()
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    words = set(code.replace("$(", " ").replace(";", " ").split())
    assert not words & {
        "eval",
        "source",
        ".",
        "rm",
        "mkdir",
        "grep",
        "sed",
        "cut",
        "tr",
        "head",
        "stat",
        "id",
        "hostname",
    }
