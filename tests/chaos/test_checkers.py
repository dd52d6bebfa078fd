"""The judges of chaos tests find what they are there for, in histories that were tampered with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from chaos import checkers
from chaos.checkers import Injected, JobFact, JournalFacts, NodeFact, Row, WorldLog

XID = Injected("xid", "n1", "nvidia.xid.74")


def row(seq: int, kind: str, orders: tuple[tuple[str, str], ...] = (), **body) -> Row:
    given = [{"order": name, "id": one} for name, one in orders]
    return Row(seq, f"e{seq}", kind, "x", 0.0, 0.0, body, given)


@pytest.fixture
def history() -> JournalFacts:
    """One Xid on n1: quarantined, requeued, released, replaced, returned."""
    found = {"rule": "nvidia.xid.74", "place": {"node": "n1"}}
    kinds = ("quarantine_node", "requeue_held", "set_excluded", "release_job", "replace_node", "return_node")
    rows = [row(1, "controller_started", epoch=1), row(2, "attempt_started", attempt=0, epoch=1, job={"id": "7"})]
    rows.append(row(3, "finding_seen", tuple((kind, f"c3.{n}") for n, kind in enumerate(kinds)), finding=found))
    rows += [row(4 + n, "order_done", order=f"c3.{n}") for n in range(len(kinds))]
    rows.append(row(10, "attempt_started", attempt=1, epoch=2, job={"id": "7"}))
    orders = {f"c3.{n}": {"status": "done", "order": {"order": kind}} for n, kind in enumerate(kinds)}
    incident = {"diagnosis": {"cause": "nvidia.xid.74"}, "opened_at": 1.0, "closed_at": 2.0, "outcome": "recovered"}
    return JournalFacts(rows, orders, [{**incident, "nodes": ["n1"]}], {}, {}, {}, None)


@pytest.fixture
def world(tmp_path: Path) -> WorldLog:
    """The scheduler's own record of the same."""
    (tmp_path / "nodes" / ".n1.i-old").mkdir(parents=True)
    seen = WorldLog(tmp_path)
    old, new = NodeFact(True, False, "i-old", "b1", ("7",)), NodeFact(True, False, "i-new", "b2", ())
    seen.nodes["n1"] = [old, replace(old, drained=True), replace(new, drained=True), new]
    seen.jobs["7"] = [
        JobFact("running", 0, ("n1",), 1.0),
        JobFact("held", 1, (), 1.0),
        JobFact("running", 1, ("n2",), 2.0),
    ]
    return seen


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    """A job's folder after two attempts."""
    folder = tmp_path / "job"
    for attempt in (0, 1):
        (folder / "logs" / f"attempt-{attempt}").mkdir(parents=True)
    write_losses(folder, (0, 1), (0, 2), (1, 2), (1, 3))
    return folder


def write_losses(folder: Path, *lines: tuple[int, int]) -> None:
    text = "".join(json.dumps({"attempt": str(a), "step": s, "loss": 1.0}) + "\n" for a, s in lines)
    (folder / "losses.jsonl").write_text(text)


def test_a_good_history_has_no_complaints(history, world, job_dir):
    """Nothing is made up."""
    assert checkers.journal_is_sound(history) == []
    assert checkers.recovered(history, [XID]) == []
    assert checkers.done_once(history, world, "7", job_dir, [XID]) == []
    assert checkers.nothing_lost(history, ["e1", "e3"]) == []
    assert checkers.written_in_turn(job_dir) == []


def test_a_lost_event_is_found(history):
    """By its number, and by whoever was told that it is stored."""
    torn = replace(history, rows=[one for one in history.rows if one.seq != 2])
    assert "not 1 to 9" in checkers.journal_is_sound(torn)[0]
    assert checkers.nothing_lost(torn, ["e2"]) == ["event e2 was acknowledged and is not in the journal"]


def test_an_order_done_twice_is_found(history):
    """Two outcomes of one order."""
    twice = replace(history, rows=[*history.rows, row(11, "order_done", order="c3.1")])
    assert checkers.journal_is_sound(twice) == ["order c3.1 was done 2 times"]


def test_a_second_requeue_is_found(history, world, job_dir):
    """By the scheduler's restart count, though the journal knows of one only."""
    world.jobs["7"].append(JobFact("running", 2, ("n2",), 3.0))
    said = checkers.done_once(history, world, "7", job_dir, [XID])
    assert [line.partition(":")[0] for line in said] == [
        "the scheduler's restart count",
        "times that the job got an allocation",
    ]


def test_a_second_replacement_and_a_forgotten_drain_are_found(history, world, job_dir):
    """By machines and drains that the scheduler has seen."""
    world.nodes["n1"].append(NodeFact(True, True, "i-third", "b3", ()))
    said = " ".join(checkers.done_once(history, world, "7", job_dir, [XID]))
    assert "machines called n1: 3, should be 2" in said
    assert "drains of n1: 2, should be 1" in said


def test_an_incident_that_stays_open_and_a_wrong_cause_are_found(history):
    """One sentence each; an order without an outcome, too."""
    wrong = {**history.incidents[0], "closed_at": 0.0, "outcome": "", "diagnosis": {"cause": "exit.code.1"}}
    orders = {**history.orders, "c3.5": {"status": "pending", "order": {"order": "return_node"}}}
    said = checkers.recovered(replace(history, incidents=[wrong], orders=orders), [XID])
    assert said == [
        "incident 1 has cause exit.code.1, the fault was nvidia.xid.74",
        "incident 1 (nvidia.xid.74) is open",
        "an order has no outcome: return_node c3.5",
    ]


def test_an_old_attempt_that_writes_beside_the_new_one_is_found(job_dir):
    """In the loss log by the order of lines, in checkpoints by their epoch and date."""
    write_losses(job_dir, (0, 1), (0, 2), (1, 2), (0, 3), (1, 3))
    assert len(checkers.written_in_turn(job_dir)) == 2
    late = job_dir / "checkpoints" / "step-000000010.e000001"
    late.mkdir(parents=True)
    (late / "manifest.json").write_text(json.dumps({"epoch": 1, "saved_at": 105.0}))
    assert checkers.checkpoints_in_turn(job_dir, {1: 90.0, 2: 100.0}) == [
        "step-000000010.e000001 was saved 5.000 s after epoch 2 had started"
    ]
    assert checkers.checkpoints_in_turn(job_dir, {1: 90.0, 2: 110.0}) == []


def test_a_skipped_step_is_found(job_dir):
    """Neither attempt did it."""
    write_losses(job_dir, (0, 1), (0, 2), (1, 4), (1, 5))
    assert checkers.written_in_turn(job_dir) == ["no attempt did the steps [3]"]
