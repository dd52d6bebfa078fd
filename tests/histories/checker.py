"""Judges of a history: did the controller keep what it promised to its clients? Nothing of Holdfast is imported here.

Each rule takes the requests of one history and the journal as it is stored, and returns complaints, one sentence each.
The promises are those of docs/api.md, docs/high-availability.md and docs/security.md. Requests are compared by real
time: one that ended before another was sent is before it. `test_checker.py` shows each rule a history that it rejects.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .record import OK, REFUSED, UNKNOWN, Journal, Op

PAGE = 100
"""Deeds of one answer of `/v1/audit`, as the clients ask for it."""


@dataclass
class Verdict:
    """What is wrong, and the counts that people ask for first."""

    acknowledged: int = 0
    """Events and commands whose receipt a client has."""
    lost: int = 0
    doubled: int = 0
    complaints: list[str] = field(default_factory=list)


def writes(ops: Sequence[Op]) -> Iterator[tuple[str, Op]]:
    """Each id that somebody sent, once for each time that it was sent."""
    for op in ops:
        if op.what in {"report", "command"}:
            for name in op.asked["ids"]:
                yield name, op


def _outcomes(ops: Sequence[Op]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, op in writes(ops):
        found.setdefault(name, set()).add(op.outcome)
    return found


def acknowledged(ops: Sequence[Op]) -> set[str]:
    """Ids with a receipt."""
    return {name for name, outcomes in _outcomes(ops).items() if OK in outcomes}


def nothing_is_lost(ops: Sequence[Op], journal: Journal) -> list[str]:
    """What was acknowledged is stored."""
    stored = {row.id for row in journal.rows}
    return [f"{name} was acknowledged and is not stored" for name in sorted(acknowledged(ops) - stored)]


def nothing_is_doubled(ops: Sequence[Op], journal: Journal) -> list[str]:
    """What was sent is stored once or not at all, under whichever id: its own mark is looked for in what is stored."""
    marks = {mark for op in ops if op.what in {"report", "command"} for mark in op.asked["marks"]}
    ids = Counter(row.id for row in journal.rows)
    said = [f"{name} is stored {count} times" for name, count in ids.items() if count > 1]
    found: Counter[str] = Counter()
    for row in journal.rows:
        if row.kind in {"finding_seen", "operator_command"}:
            found.update(marks & {_mark_of(row.body)})
    return said + [f"what {mark} marks is stored {count} times" for mark, count in found.items() if count > 1]


def _mark_of(body: dict[str, Any]) -> str:
    return str(body.get("why") or body.get("finding", {}).get("summary", ""))


def what_was_refused_is_not_there(ops: Sequence[Op], journal: Journal) -> list[str]:
    """A request that was refused, each time that it was sent, has left nothing."""
    stored = {row.id for row in journal.rows}
    refused = {name for name, outcomes in _outcomes(ops).items() if outcomes == {REFUSED}}
    return [f"{name} was refused and is stored" for name in sorted(refused & stored)]


def numbers_have_no_gap(ops: Sequence[Op], journal: Journal) -> list[str]:
    """Events are numbered one after the other, and say their own number."""
    said = []
    for before, row in zip(itertools.count(journal.after), journal.rows, strict=False):
        if row.seq != before + 1:
            return [f"event {row.seq} follows event {before}"]
        if row.body.get("seq") != row.seq or row.body.get("id") != row.id:
            said.append(f"the row of event {row.seq} and its payload differ")
    return said


def receipts_are_in_order(ops: Sequence[Op], journal: Journal) -> list[str]:
    """A receipt names a number that covers what it is for; what is sent later is stored behind it."""
    numbers = {row.id: row.seq for row in journal.rows}
    floor, said, first = _Floor(ops), [], set()
    for name, op in writes(ops):
        seq = numbers.get(name)
        if seq is not None and name not in first and seq <= floor.at(op.began):
            said.append(f"{name} is event {seq}, and event {floor.at(op.began)} was known before it was sent")
        first.add(name)
        if seq is not None and op.outcome == OK and op.answer["seq"] < seq:
            said.append(f"the receipt of {name} says {op.answer['seq']}, and it is event {seq}")
    return said


class _Floor:
    """The highest number that some client had been told before a moment."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._known = sorted((op.ended, told(op)) for op in ops if op.outcome == OK)

    def at(self, moment: float) -> int:
        return max((seq for ended, seq in self._known if ended < moment), default=0)


def told(op: Op) -> int:
    """The number up to which this answer says that everything is stored; 0: it says nothing of it."""
    if op.what == "audit":
        return max((deed[0] for deed in op.answer["deeds"]), default=0)
    if op.what == "stream":
        return 0
    if op.what == "events":
        return int(op.answer["events"][-1][0]) if op.answer["events"] else 0
    return int(op.answer["seq"])


def reads_do_not_go_back(ops: Sequence[Op], journal: Journal) -> list[str]:
    """A read shows at least what anybody had been told before it was sent, whichever controller answers."""
    floor, said = _Floor(ops), []
    for op in ops:
        wanted = floor.at(op.began)
        if op.outcome != OK or op.what not in {"state", "events"}:
            continue
        seen = max(told(op), op.asked.get("after", 0))
        if op.what == "events" and len(op.answer["events"]) >= op.asked["limit"]:
            continue  # a full page ends where it ends
        if seen < wanted:
            said.append(f"{op} shows event {seen}, and event {wanted} was known before it was sent")
    return said


def streams_are_whole(ops: Sequence[Op], journal: Journal) -> list[str]:
    """What a reader got is what is stored, from the number it asked for on, without a gap and in order."""
    stored = {row.seq: row.id for row in journal.rows}
    said = []
    for op in ops:
        if op.what not in {"stream", "events"}:
            continue
        for wanted, (seq, name) in enumerate(op.answer.get("events", ()), op.asked["after"] + 1):
            if seq != wanted:
                said.append(f"{op} got event {seq} where event {wanted} was to come")
                break
            if seq > journal.after and stored.get(seq) != name:
                said.append(f"{op} got event {seq} as {name}, and stored is {stored.get(seq)}")
    return said


def records_follow_commands(ops: Sequence[Op], journal: Journal) -> list[str]:
    """A hold that was acknowledged shows in every state that was asked for after it, until it is ended, and not after.

    Each history has a job of its own that one client holds and releases, one command after the other.
    """
    said, spans = [], _spans(ops)
    for op in ops:
        if op.what != "state" or op.outcome != OK or op.answer.get("held_by") is None:
            continue
        # Nothing of the job may be on its way: what is, may be seen or not.
        before = [span for span in spans if span[0] < op.ended]
        if not before or any(ended >= op.began for _, ended, _ in before):
            continue
        last = before[-1][2]
        wanted = last.asked["who"] if last.asked["command"] == "hold" else ""
        if op.answer["held_by"] != wanted:
            said.append(f"{op} shows the job held by {op.answer['held_by']!r} after {last} ({last.asked['command']})")
    return said


def _spans(ops: Sequence[Op]) -> list[tuple[float, float, Op]]:
    """Of each hold and release: when it was first sent, when it was first acknowledged, and its first request."""
    first: dict[str, Op] = {}
    ended: dict[str, float] = {}
    for name, op in writes(ops):
        if op.asked.get("command") in {"hold", "release"}:
            first.setdefault(name, op)
            if op.outcome != UNKNOWN:
                ended.setdefault(name, op.ended)
    return [(op.began, ended.get(name, float("inf")), op) for name, op in first.items()]


def commands_stand_in_the_audit(ops: Sequence[Op], journal: Journal) -> list[str]:
    """A command that was acknowledged has one line, which says who, what, to what and why; one that was not, at most one."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for _, _, line in journal.lines:
        act = json.loads(line)["act"]
        lines.setdefault(act.get("id", ""), []).append(act)
    said, sure = [], acknowledged(ops)
    for name, op in {name: op for name, op in writes(ops) if op.what == "command"}.items():
        found = lines.get(name, [])
        if len(found) > 1 or (not found and name in sure):
            said.append(f"{name} has {len(found)} lines in the audit")
        for act in found:
            for key in ("who", "command", "why"):
                if act.get(key) != op.asked[key]:
                    said.append(f"the audit has {name} with {key} {act.get(key)!r} for {op.asked[key]!r}")
            if (act.get("node") or act.get("job", {}).get("id")) != op.asked["target"]:
                said.append(f"the audit has {name} about something else than {op.asked['target']}")
    return said


def a_command_has_one_answer(ops: Sequence[Op], journal: Journal) -> list[str]:
    """Whoever sends a command again is told what they would have been told at first, and which event it is."""
    numbers = {row.id: row.seq for row in journal.rows}
    first: dict[str, Op] = {}
    said = []
    for name, op in writes(ops):
        if op.what != "command" or op.outcome != OK:
            continue
        before = first.setdefault(name, op)
        if op.answer["refused"] != before.answer["refused"]:
            said.append(f"{op} was answered {op.answer['refused']!r}, and {before} {before.answer['refused']!r}")
        if name in numbers and op.answer["seq"] != numbers[name]:
            said.append(f"{op} was told {op.answer['seq']}, and it is event {numbers[name]}")
    return said


def the_audit_is_shown(ops: Sequence[Op], journal: Journal) -> list[str]:
    """`/v1/audit` shows a command that was acknowledged before it was asked, once and by its name, and none twice."""
    numbers = {row.id: row.seq for row in journal.rows}
    said = []
    for op in ops:
        if op.what != "audit" or op.outcome != OK:
            continue
        deeds = {deed[0]: tuple(deed[1:]) for deed in op.answer["deeds"]}
        if len(deeds) != len(op.answer["deeds"]) or list(deeds) != sorted(deeds, reverse=True):
            said.append(f"{op} is not in order, or shows a deed twice")
        oldest = min(deeds, default=0) if len(deeds) >= PAGE else 0
        for name, one in writes(ops):
            seq = numbers.get(name, 0)
            if one.what != "command" or one.outcome != OK or one.ended >= op.began or seq < oldest or not seq:
                continue
            asked = one.asked
            wanted = (asked["who"], asked["command"], asked["target"], asked["why"])
            if deeds.get(seq) != wanted:
                said.append(f"{op} shows {deeds.get(seq)} for {name}, which was {wanted}")
    return said


def the_chain_holds(ops: Sequence[Op], journal: Journal) -> list[str]:
    """The audit's lines follow one another as docs/security.md defines it, and end where the journal says."""
    number, _, digest = journal.before.partition(":")
    at = int(number)
    bodies = {row.seq: row.body for row in journal.rows}
    for numbered, seq, line in journal.lines:
        found = json.loads(line)
        canonical = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        if line != canonical or set(found) != {"number", "previous", "act"}:
            return [f"line {numbered} of the audit is not in its form"]
        if (numbered, found["number"]) != (at + 1, at + 1):
            return [f"line {numbered} of the audit, which calls itself {found['number']}, follows line {at}"]
        if found["previous"] != digest:
            return [f"line {numbered} of the audit does not fit the line before it"]
        if seq in bodies and (bodies[seq]["id"], seq) != (found["act"].get("id"), found["act"].get("seq")):
            return [f"line {numbered} of the audit speaks of another event than {seq}"]
        at, digest = at + 1, hashlib.sha256(line.encode("ascii")).hexdigest()
    if journal.head and journal.head != f"{at}:{digest}":
        return [f"the audit ends in {at}:{digest}, and the journal has counted to {journal.head}"]
    return []


def epochs_grow(ops: Sequence[Op], journal: Journal) -> list[str]:
    """Each controller that led had a higher epoch than the one before."""
    epochs = [row.body["epoch"] for row in journal.rows if row.kind == "controller_started"]
    falls = [(one, two) for one, two in itertools.pairwise(epochs) if two <= one]
    return [f"epoch {two} led after epoch {one}" for one, two in falls]


Rule = Callable[[Sequence[Op], Journal], list[str]]
RULES: tuple[Rule, ...] = (
    nothing_is_lost,
    nothing_is_doubled,
    what_was_refused_is_not_there,
    numbers_have_no_gap,
    receipts_are_in_order,
    reads_do_not_go_back,
    streams_are_whole,
    records_follow_commands,
    commands_stand_in_the_audit,
    a_command_has_one_answer,
    the_audit_is_shown,
    the_chain_holds,
    epochs_grow,
)


ENDURING: tuple[Rule, ...] = (
    nothing_is_lost,
    nothing_is_doubled,
    what_was_refused_is_not_there,
    numbers_have_no_gap,
    commands_stand_in_the_audit,
    the_chain_holds,
    epochs_grow,
)
"""What must still be so when many histories have been played on one journal."""


def judge(ops: Sequence[Op], journal: Journal, rules: Sequence[Rule] = RULES) -> Verdict:
    """All of these rules."""
    lost, doubled = nothing_is_lost(ops, journal), nothing_is_doubled(ops, journal)
    complaints = [f"{rule.__name__}: {said}" for rule in rules for said in rule(ops, journal)]
    return Verdict(len(acknowledged(ops)), len(lost), len(doubled), complaints)
