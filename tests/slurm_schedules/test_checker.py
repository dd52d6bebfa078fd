"""Each rule of the schedules' checker accepts a good schedule and rejects a bad one, made by hand."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from . import checker
from .record import Broken, Evidence, Line, Ran, affected, fences, read_lines


def lines(*told: tuple[str, int, str, float], rank: int = 0) -> tuple[Line, ...]:
    """Of one task: (what, restart count, node, second)."""
    return tuple(Line(did, (restart, 0), node, rank, at) for did, restart, node, at in told)


HIT = Ran("1", "j0", 1, 3, False, True, 0.0, lines(
    ("start", 0, "n1", 1.0), ("beat", 0, "n1", 2.0), ("start", 1, "n2", 8.0), ("end", 1, "n2", 9.0),
), "COMPLETED", 1)  # fmt: skip
FAILS = Ran("2", "j1", 1, 1, True, True, 0.0, lines(
    ("start", 0, "n3", 1.0), ("fail", 0, "n3", 2.0), ("start", 1, "n3", 5.0), ("fail", 1, "n3", 6.0),
), "FAILED", 1)  # fmt: skip
ALONE = Ran("3", "j2", 1, 0, False, True, 0.0, lines(("start", 0, "n4", 1.0), ("end", 0, "n4", 6.0)), "COMPLETED")
OFF = Broken("node off", "n1", 2.5, 4.0)
GOOD = Evidence(
    (HIT, FAILS, ALONE), (OFF,), ("n1",), ("n4", "mei: 1"), 3.0, {"n4": ("IDLE+DRAIN", "mei: 1"), "n1": ("IDLE", "")}
)


def with_job(changed: Ran, seen: Evidence = GOOD) -> Evidence:
    """The good schedule with one job changed."""
    return replace(seen, jobs=tuple(changed if job.id == changed.id else job for job in seen.jobs))


BAD: dict[str, list[Evidence]] = {
    "no_job_is_lost": [
        replace(GOOD, unrest="job 1 is PENDING"),
        with_job(replace(HIT, state="")),
        with_job(replace(HIT, state="PENDING")),
        with_job(replace(HIT, state="NODE_FAIL", restarts=0)),
        with_job(replace(HIT, lines=HIT.lines[:-1])),
        with_job(replace(FAILS, restarts=0)),
        with_job(replace(ALONE, state="FAILED")),
    ],
    "none_runs_twice_at_once": [
        with_job(replace(HIT, lines=lines(("start", 0, "n1", 1.0), ("beat", 0, "n1", 8.5), ("start", 1, "n2", 8.0)))),
        with_job(replace(ALONE, lines=(*ALONE.lines, *lines(("start", 0, "n1", 7.0))))),
    ],
    "none_is_requeued_past_its_limit": [
        with_job(replace(FAILS, lines=(*FAILS.lines, *lines(("start", 2, "n3", 9.0))))),
        with_job(replace(ALONE, lines=lines(("start", 0, "n4", 1.0), ("fail", 0, "n4", 2.0), ("start", 1, "n4", 5.0)))),
    ],
    "no_healthy_node_is_fenced": [
        replace(GOOD, fenced=("n1", "n2")),
        replace(GOOD, nodes={**GOOD.nodes, "n2": ("DOWN", "[holdfast] lost")}),
        replace(GOOD, broken=(replace(OFF, kind="slurmd killed"),)),
    ],
    "no_drain_of_an_administrator_is_touched": [
        replace(GOOD, nodes={"n4": ("IDLE", "")}),
        replace(GOOD, nodes={"n4": ("IDLE+DRAIN", "[holdfast] lost")}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("rule", checker.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_rejects_its_bad_schedules(rule):
    """And accepts the good one."""
    assert rule(GOOD) == []
    for seen in BAD[rule.__name__]:
        assert rule(seen), seen


def test_what_a_killed_slurmctld_had_not_saved_is_its_own_loss():
    """A job that started, and a drain that was made, after the last save. The limit of requeues holds all the same."""
    killed = Broken("slurmctld killed unsaved", "", 3.5, 4.5, saved_at=0.5)
    seen = replace(with_job(replace(HIT, state="")), broken=(OFF, killed), nodes={"n4": ("IDLE", "")})
    assert checker.judge(seen) == []
    early = replace(killed, saved_at=3.1)
    assert len(checker.judge(replace(seen, drained_at=1.0, broken=(OFF, early)))) == 2
    (again,) = BAD["none_is_requeued_past_its_limit"][:1]
    assert checker.judge(replace(again, broken=(OFF, killed)))


def test_a_fault_affects_what_was_on_its_node_or_had_to_tell_its_daemon():
    """A node touches the jobs that run there; a daemon those that start, end, fail or wait for their start meanwhile."""
    assert affected(OFF, GOOD.jobs) == ["1"]
    assert affected(replace(OFF, node="n3"), GOOD.jobs) == []
    assert affected(Broken("munged killed", "", 2.5, 4.0), GOOD.jobs) == ["2"]
    assert affected(Broken("munged killed", "", 5.5, 7.0), GOOD.jobs) == ["2", "3"]
    assert affected(Broken("munged killed", "", 10.0, 11.0), GOOD.jobs) == []


def test_lines_are_read_in_their_order_without_the_one_that_was_cut_off():
    text = "end 1 0 node02 0 9.5\nstart 1 0 node02 0 8.25\nbeat 1 0 no"
    assert read_lines(text) == [Line("start", (1, 0), "node02", 0, 8.25), Line("end", (1, 0), "node02", 0, 9.5)]


def test_fences_are_read_from_the_journal(tmp_path: Path):
    path = tmp_path / "journal.db"
    with contextlib.closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE orders (kind, node, issued_at)")
        rows = [("quarantine_node", "n1", 5.0), ("quarantine_node", "n2", 1.0), ("return_node", "n3", 6.0)]
        made.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    assert fences(path, 2.0) == ("n1",)
