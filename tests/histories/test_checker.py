"""Each rule of the histories' checker accepts a good history and rejects a bad one, made by hand."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from . import checker
from .record import OK, REFUSED, UNKNOWN, Journal, Op, Recorder, Row, read_history, read_journal

START = "0:" + "0" * 64


def row(seq: int, name: str, kind: str = "finding_seen", **body) -> Row:
    return Row(seq, name, kind, "x", json.dumps({"event": kind, "seq": seq, "id": name, **body}))


def report(seq: int, mark: str) -> Row:
    return row(seq, f"agent:n1/{mark}", finding={"summary": mark})


def command(seq: int, mark: str, what: str = "hold", who: str = "ann") -> Row:
    return row(seq, f"command:{mark}", "operator_command", command=what, who=who, why=mark, job={"id": "1"})


def chain(rows: list[Row], before: str = START) -> tuple[list[tuple[int, int, str]], str]:
    """Lines of the audit for these rows, and the head."""
    number, _, digest = before.partition(":")
    at, lines = int(number), []
    for one in rows:
        if one.kind in {"operator_command", "controller_started"}:
            at += 1
            found = {"number": at, "previous": digest, "act": one.body}
            line = json.dumps(found, sort_keys=True, separators=(",", ":"))
            digest = hashlib.sha256(line.encode()).hexdigest()
            lines.append((at, one.seq, line))
    return lines, f"{at}:{digest}"


def journal(*rows: Row) -> Journal:
    return Journal(list(rows), *chain(list(rows)))


def asked_report(*marks: str) -> dict:
    return {"ids": [f"agent:n1/{mark}" for mark in marks], "marks": list(marks)}


def asked_command(mark: str, what: str = "hold", who: str = "ann") -> dict:
    return {"ids": [f"command:{mark}"], "marks": [mark], "command": what, "who": who, "why": mark, "target": "1"}


ROWS = (
    row(1, "started:1", "controller_started", epoch=1),
    report(2, "m1"),
    command(3, "m2"),
    row(4, "started:2", "controller_started", epoch=2),
    report(5, "m3"),
)
GOOD_JOURNAL = journal(*ROWS)
GOOD = [
    Op(1, "agent", "report", asked_report("m1"), 1.0, 2.0, OK, {"seq": 2}),
    Op(2, "ann", "command", asked_command("m2"), 3.0, 4.0, OK, {"seq": 3, "refused": ""}),
    Op(3, "eve", "state", {}, 5.0, 6.0, OK, {"seq": 3, "held_by": "ann"}),
    Op(4, "agent", "report", asked_report("m3"), 6.5),
    Op(5, "agent", "report", asked_report("m3"), 7.0, 8.0, OK, {"seq": 5}),
    Op(6, "eve", "events", {"after": 3, "limit": 50}, 9.0, 10.0, OK, {"events": [[4, "started:2"], [5, "agent:n1/m3"]]}),
    Op(7, "eve", "stream", {"after": 1}, 9.0, answer={"events": [[2, "agent:n1/m1"], [3, "command:m2"]]}),
    Op(8, "eve", "audit", {}, 9.0, 10.0, OK, {"deeds": [[4, "", "controller_started", "", ""], [3, "ann", "hold", "1", "m2"]]}),
    Op(9, "agent", "report", asked_report("m9"), 11.0, 12.0, REFUSED, {}),
    Op(10, "agent", "report", asked_report("m10"), 11.0),
]  # fmt: skip


def instead(number: int, **changes) -> list[Op]:
    """The good history with one request changed."""
    return [replace(op, **changes) if op.number == number else op for op in GOOD]


def lines_with(change: Callable[[dict], dict]) -> Journal:
    """The good journal with the act of the command changed, and the chain made anew over it."""
    rows = [replace(one, payload=json.dumps(change(one.body))) if one.seq == 3 else one for one in ROWS]
    return journal(*rows)


def tampered(at: int, change: Callable[[str], str]) -> Journal:
    lines = [(number, seq, change(line) if number == at else line) for number, seq, line in GOOD_JOURNAL.lines]
    return replace(GOOD_JOURNAL, lines=lines)


BAD: dict[str, list[tuple[list[Op], Journal]]] = {
    "nothing_is_lost": [(GOOD, journal(*ROWS[:4]))],
    "nothing_is_doubled": [
        (GOOD, journal(*ROWS, report(6, "m1"))),
        # Under another id, and of a request without an answer.
        (GOOD, journal(*ROWS, row(6, "agent:n2/m10", finding={"summary": "m10"}), report(7, "m10"))),
    ],
    "what_was_refused_is_not_there": [(GOOD, journal(*ROWS, report(6, "m9")))],
    "numbers_have_no_gap": [
        (GOOD, journal(*ROWS[:3], replace(ROWS[4], seq=6))),
        (GOOD, journal(*ROWS[:4], replace(report(4, "m3"), seq=5))),
        (GOOD, replace(GOOD_JOURNAL, after=1)),
    ],
    "receipts_are_in_order": [
        (instead(5, answer={"seq": 4}), GOOD_JOURNAL),
        # m3 is sent when 3 is known, and stands before it.
        (GOOD, journal(ROWS[0], report(2, "m3"), command(3, "m2"), ROWS[3], report(5, "m1"))),
    ],
    "reads_do_not_go_back": [
        (instead(3, answer={"seq": 2, "held_by": "ann"}), GOOD_JOURNAL),
        (instead(6, answer={"events": []}), GOOD_JOURNAL),
    ],
    "streams_are_whole": [
        (instead(7, answer={"events": [[2, "agent:n1/m1"], [4, "started:2"]]}), GOOD_JOURNAL),
        (instead(7, answer={"events": [[3, "command:m2"], [2, "agent:n1/m1"]]}), GOOD_JOURNAL),
        (instead(6, answer={"events": [[4, "started:2"], [5, "agent:n1/never"]]}), GOOD_JOURNAL),
    ],
    "records_follow_commands": [(instead(3, answer={"seq": 3, "held_by": ""}), GOOD_JOURNAL)],
    "commands_stand_in_the_audit": [
        (GOOD, replace(GOOD_JOURNAL, lines=[line for line in GOOD_JOURNAL.lines if line[1] != 3])),
        (GOOD, replace(GOOD_JOURNAL, lines=[*GOOD_JOURNAL.lines, GOOD_JOURNAL.lines[1]])),
        (GOOD, lines_with(lambda body: {**body, "who": "ben"})),
        (GOOD, lines_with(lambda body: {**body, "job": {"id": "2"}})),
    ],
    "a_command_has_one_answer": [
        (instead(2, answer={"seq": 4, "refused": ""}), GOOD_JOURNAL),
        (
            [*GOOD, replace(GOOD[1], number=11, began=13.0, ended=14.0, answer={"seq": 3, "refused": "no"})],
            GOOD_JOURNAL,
        ),
    ],
    "the_audit_is_shown": [
        (instead(8, answer={"deeds": []}), GOOD_JOURNAL),
        (instead(8, answer={"deeds": [[3, "ann", "hold", "1", "m2"]] * 2}), GOOD_JOURNAL),
        (instead(8, answer={"deeds": [[3, "ben", "hold", "1", "m2"]]}), GOOD_JOURNAL),
    ],
    "the_chain_holds": [
        (GOOD, tampered(2, lambda line: line.replace('"who":"ann"', '"who":"ben"'))),
        (GOOD, tampered(3, lambda line: line.replace('"number":3', '"number":4'))),
        (GOOD, tampered(2, lambda line: line.replace(",", ", "))),
        (GOOD, replace(GOOD_JOURNAL, lines=GOOD_JOURNAL.lines[:-1])),
        (GOOD, replace(GOOD_JOURNAL, lines=GOOD_JOURNAL.lines[1:])),
        (GOOD, replace(GOOD_JOURNAL, rows=[*ROWS[:2], command(3, "m7"), *ROWS[3:]])),
    ],
    "epochs_grow": [(GOOD, journal(*ROWS, row(6, "started:2b", "controller_started", epoch=2)))],
}


def test_a_good_history_has_no_complaint_and_is_counted():
    """Three ids have a receipt. A request without an answer may have left nothing."""
    verdict = checker.judge(GOOD, GOOD_JOURNAL)
    assert verdict == checker.Verdict(acknowledged=3)


def test_an_unknown_outcome_may_have_happened():
    assert checker.judge(GOOD, journal(*ROWS, report(6, "m10"))).complaints == []


@pytest.mark.parametrize("rule", checker.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_rejects_its_bad_histories(rule):
    """And accepts the good one."""
    assert rule(GOOD, GOOD_JOURNAL) == []
    for ops, stored in BAD[rule.__name__]:
        assert rule(ops, stored), (ops, stored)


def test_lost_and_doubled_are_counted():
    assert checker.judge(GOOD, journal(*ROWS[:4])).lost == 1
    assert checker.judge(GOOD, journal(*ROWS, report(6, "m1"))).doubled == 2  # by its id and by its mark


def test_a_history_file_is_read_as_it_was_written(tmp_path: Path):
    """A request whose client died before its answer is unknown, and so has no end."""
    recorder = Recorder(tmp_path / "h")
    first = recorder.invoke("ann", "command", ids=["command:1"])
    recorder.note("kill of the leader")
    recorder.complete(first, OK, seq=4)
    recorder.invoke("eve", "state")
    recorder.close()
    one, two = read_history((tmp_path / "h").read_text().splitlines())
    assert (one.outcome, one.answer, one.client) == (OK, {"seq": 4}, "ann")
    assert one.began < one.ended < two.began
    assert (two.outcome, two.ended) == (UNKNOWN, float("inf"))


def test_a_journal_is_read_from_where_the_history_began(tmp_path: Path):
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE events (seq, id, kind, source, payload)")
        made.execute("CREATE TABLE audit (number, seq, line)")
        made.execute("CREATE TABLE meta (key, value)")
        made.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", map(astuple, ROWS))
        made.executemany("INSERT INTO audit VALUES (?, ?, ?)", GOOD_JOURNAL.lines)
        made.execute("INSERT INTO meta VALUES ('audit_head', ?)", (GOOD_JOURNAL.head,))
    assert read_journal(path) == GOOD_JOURNAL
    before = chain(list(ROWS[:2]))[1]
    rest = read_journal(path, after=2, before=before)
    assert [one.seq for one in rest.rows] == [3, 4, 5]
    assert checker.judge([], rest).complaints == []
