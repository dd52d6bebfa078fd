"""`holdfast audit`: acts are in the chain with the commit that stores them, whoever writes; every change is found."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sqlite3
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.adapters.journal import open_journal
from holdfast.api.auth import ensure_tokens
from holdfast.cli.main import app
from holdfast.errors import UsageError
from holdfast.model.audit import Head, chained
from holdfast.model.events import AnyEvent, Command, FindingSeen, OperatorCommand
from holdfast.model.evidence import Finding, Place
from holdfast.ports import Entry, Touched


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def command(seq: int) -> AnyEvent:
    return OperatorCommand(
        id=f"c{seq}", at=time.time(), seq=seq, command=Command.DRAIN, who="mei", why="loud", node=f"n{seq}"
    )


def evidence(seq: int) -> AnyEvent:
    seen = Finding(id=f"f{seq}", rule="x", at=1.0, place=Place(node="n1"))
    return FindingSeen(id=f"f{seq}", at=1.0, seq=seq, finding=seen)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two controllers in turn, three commands and some evidence each, and a token made between them."""
    place = tmp_path / "controller"
    place.mkdir()
    ensure_tokens(place)

    async def controller(holder: str, first: int) -> None:
        journal = open_journal(f"sqlite:///{place / 'journal.db'}")
        await journal.acquire(holder, lease_s=10.0, now=time.time())
        for seq in range(first, first + 6):
            event = command(seq) if seq % 2 else evidence(seq)
            await journal.append([Entry(event, [], Touched())])
        await journal.release()
        await journal.close()

    asyncio.run(controller("one", 1))
    call("token", "create", "ci", "--dir", str(tmp_path))
    asyncio.run(controller("two", 7))
    return tmp_path


def change(folder: Path, *statements: str) -> None:
    with sqlite3.connect(folder / "controller" / "journal.db") as connection:
        for statement in statements:
            connection.execute(statement)


def test_two_controllers_and_the_command_line_write_one_chain(folder: Path):
    """Seven acts, seven lines, in order; evidence is not an act; the head is what --head accepts."""
    at = ("--dir", str(folder))
    said = json.loads(call("audit", "verify", *at, "--json"))
    assert (said["ok"], said["number"]) == (True, 7)
    lines = [json.loads(line) for line in call("audit", "export", *at).splitlines()]
    assert [line["number"] for line in lines] == list(range(1, 8))
    assert [line["act"]["event"] for line in lines] == ["operator_command"] * 3 + ["token_created"] + [
        "operator_command"
    ] * 3
    head = f"{said['number']}:{said['hash']}"
    assert f"head {head}" in call("audit", "verify", *at, "--head", head)
    call("token", "revoke", "ci", *at)
    assert json.loads(call("audit", "export", *at, "--after", "7"))["act"]["event"] == "token_revoked"
    assert "8 lines fit" in call("audit", "verify", *at, "--head", head)


LAST = "(SELECT max(number) FROM audit)"
SNAPSHOT = "INSERT INTO snapshots VALUES (12, x'00')"
"""Events up to it may be missing: retention drops some."""
TAMPERED = {
    "changed": (["UPDATE audit SET line = replace(line, 'loud', 'kind') WHERE number = 2"], "line 3 does not fit line 2"),
    "removed": (["DELETE FROM audit WHERE number = 3"], "line 3 is missing: line 4 follows line 2"),
    "reordered": (
        ["UPDATE audit SET number = 99 WHERE number = 2", "UPDATE audit SET number = 2 WHERE number = 3", "UPDATE audit SET number = 3 WHERE number = 99"],
        "line 2 stands behind line 3: lines have changed places",
    ),
    "cut at the end": ([f"DELETE FROM audit WHERE number = {LAST}"], "line 7 is missing: the journal has written 7"),
    "all removed": (["DELETE FROM audit"], "line 1 is missing: the journal has written 7"),
    "last changed": ([f"UPDATE audit SET line = replace(line, 'loud', 'kind') WHERE number = {LAST}"], "line 7 does not fit the journal"),
    "event changed": (["UPDATE events SET payload = replace(payload, 'loud', 'kind') WHERE seq = 5"], "line 3 and event 5"),
    "event made unreadable": (["UPDATE events SET payload = 'xx' WHERE seq = 5"], "event 5, of which line 3 speaks, was changed"),
    "orders made bytes": (["UPDATE events SET orders = x'ff00' WHERE seq = 5"], "column orders of event 5 was changed"),
    "count made unreadable": (["UPDATE meta SET value = 'xx' WHERE key = 'audit_head'"], "the journal's own count (meta.audit_head) is missing"),
    "kind of an event": (["UPDATE events SET kind = 'node_heard' WHERE seq = 5"], "column kind of event 5 was changed: its act says 'operator_command'"),
    "node of an event": (["UPDATE events SET node = 'n1' WHERE seq = 5"], "column node of event 5 was changed: its act says 'n5'"),
    "source of an event": (["UPDATE events SET source = 'x' WHERE seq = 5"], "column source of event 5 was changed"),
    "time of an event": (["UPDATE events SET at = 1.0 WHERE seq = 5"], "column at of event 5 was changed"),
    "evidence made an act": (["UPDATE events SET kind = 'drill_fired' WHERE seq = 4"], "event 4 is an act, and no line"),
    "act deleted from the events": ([SNAPSHOT, "DELETE FROM events WHERE seq = 5"], "event 5 is missing, of which line 3 speaks: retention did not drop it"),
    "act deleted and its line unbound": (
        [SNAPSHOT, "DELETE FROM events WHERE seq = 5", "UPDATE audit SET seq = 0 WHERE number = 3"],
        "column seq of line 3 was changed: its act says 5",
    ),
    "what came of an act": (
        ["""UPDATE events SET orders = '[{"kind":"notify"}]' WHERE seq = 5"""],
        "column orders of event 5 was changed: line 3 tells of other orders",
    ),
    "line and count taken away": (
        [
            "UPDATE meta SET value = '6:' || (SELECT json_extract(line, '$.previous') FROM audit WHERE number = 7) WHERE key = 'audit_head'",
            "DELETE FROM audit WHERE number = 7",
        ],
        "event 11 is an act, and no line of the audit speaks of it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TAMPERED)
def test_what_was_changed_in_the_journal_is_named(case: str, folder: Path):
    """Lines changed, removed, reordered, cut off; an event that differs from its line. Exit code 1."""
    statements, said = TAMPERED[case]
    change(folder, *statements)
    assert f"broken: {said}" in call("audit", "verify", "--dir", str(folder), code=1)


def test_a_chain_made_anew_is_shown_by_a_noted_head_alone(folder: Path):
    """Whoever can write the journal can forge all of it; the head that stands elsewhere does not fit any longer."""
    at = ("--dir", str(folder))
    said = json.loads(call("audit", "verify", *at, "--json"))
    change(
        folder,
        "DELETE FROM audit",
        "DELETE FROM meta WHERE key = 'audit_head'",
    )
    call("audit", "verify", *at)
    shown = call("audit", "verify", *at, "--head", f"{said['number']}:{said['hash']}", code=1)
    assert "line 7 is missing, which was noted: the chain ends in 0" in shown


def test_a_line_that_vanished_stays_vanished(folder: Path):
    """The next act goes on with the journal's count, so that a gap shows for ever."""
    change(folder, f"DELETE FROM audit WHERE number = {LAST}")
    call("token", "create", "later", "--dir", str(folder))
    assert "broken: line 7 is missing: line 8 follows line 6" in call("audit", "verify", "--dir", str(folder), code=1)


def test_exported_files_follow_one_another(folder: Path, tmp_path: Path):
    """Two files, as a rotation leaves them, are one chain in their order and none in the other; a cut one needs a head."""
    at = ("--dir", str(folder))
    lines = call("audit", "export", *at).splitlines(keepends=True)
    head = json.loads(call("audit", "verify", *at, "--json"))
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("".join(lines[:4]))
    second.write_text("".join(lines[4:]))
    noted = ("--head", f"{head['number']}:{head['hash']}")
    assert "7 lines fit" in call("audit", "verify", str(first), str(second), *noted)
    assert "line 1 stands again behind line 7: it was copied, or these lines are out of order" in call(
        "audit", "verify", str(second), str(first), code=1
    )
    swapped = tmp_path / "swapped"
    swapped.write_text("".join([*lines[:4], lines[5], lines[4], lines[6]]))
    assert "line 5 stands behind line 6: lines have changed places" in call("audit", "verify", str(swapped), code=1)
    assert "line 5 does not fit line 4" in call("audit", "verify", str(changed(first)), str(second), code=1)
    first.write_text("".join(lines[:4]))
    assert "line 7 is missing, which was noted" in call("audit", "verify", str(first), *noted, code=1)


def changed(path: Path) -> Path:
    path.write_text(path.read_text().replace('"name":"ci"', '"name":"cd"'))
    return path


def test_a_journal_that_is_not_there_proves_nothing(tmp_path: Path):
    """It ends with 2, as a missing file does: 1 is the word for a chain that is broken."""
    (tmp_path / "empty").mkdir()
    for where in (("--dir", str(tmp_path / "empty")), ("--journal", str(tmp_path / "absent.db"))):
        with pytest.raises(UsageError, match=r"there is no journal .*, so nothing is proven") as refused:
            call("audit", "verify", *where)
        assert refused.value.exit_code == 2


def test_old_events_go_and_the_chain_stays(folder: Path):
    """Retention drops the journal's events, and not one line: it adds one that names the acts among them."""

    async def retain() -> None:
        journal = open_journal(f"sqlite:///{folder / 'controller' / 'journal.db'}")
        await journal.acquire("three", lease_s=10.0, now=time.time())
        await journal.snapshot(b"x", 12)
        assert await journal.retain(time.time() + 1) > 0
        await journal.close()

    asyncio.run(retain())
    assert "8 lines fit" in call("audit", "verify", "--dir", str(folder))
    last = json.loads(call("audit", "export", "--dir", str(folder)).splitlines()[-1])
    assert (last["act"]["event"], last["act"]["seqs"]) == ("acts_dropped", [1, 3, 5, 7, 9, 11])


def test_lines_of_before_tell_of_no_orders(folder: Path):
    """A journal whose chain was written by a version that kept neither orders nor what retention took is whole."""
    place = folder / "controller" / "journal.db"
    with sqlite3.connect(place) as connection:
        head = Head()
        for number, text in connection.execute("SELECT number, line FROM audit ORDER BY number").fetchall():
            act = json.loads(text)["act"]
            act.pop("orders", None)
            line, head = chained(act, head)
            connection.execute("UPDATE audit SET line = ? WHERE number = ?", (line, number))
        connection.execute("UPDATE meta SET value = ? WHERE key = 'audit_head'", (str(head),))
        connection.execute(SNAPSHOT)
        connection.execute("DELETE FROM events WHERE seq = 5")
    assert "7 lines fit" in call("audit", "verify", "--dir", str(folder))


def test_a_revocation_does_not_wait_for_a_driver(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Where the journal is in PostgreSQL and this machine has no driver for it, the token is gone all the same."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    call("token", "revoke", "ci", "--dir", str(folder), "--journal", "postgresql://db/holdfast")
    left = json.loads(call("token", "list", "--dir", str(folder), "--json"))["tokens"]
    assert "ci" not in [token["name"] for token in left]


def test_every_head_that_was_noted_counts(folder: Path):
    """The head of an empty chain fits any chain. Of two for one line one is wrong, in whichever order they are given."""
    at = ("--dir", str(folder))
    nothing = f"0:{'0' * 64}"
    said = json.loads(call("audit", "verify", *at, "--head", nothing, "--json"))
    head, other = f"{said['number']}:{said['hash']}", f"{said['number']}:{'f' * 64}"
    for pair in ((head, other), (other, head)):
        assert "is not the one that was noted" in call(
            "audit", "verify", *at, "--head", pair[0], "--head", pair[1], code=1
        )
