"""What the viewing commands print at 80 columns, letter for letter, and what they say when something is not there.

`UPDATE_GOLDEN=1` writes the files in golden/ anew; look at the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from journal_with_history import NOW, make
from msgspec.structs import replace

from conftest import Holdfast
from holdfast.model.cluster import NodeView
from holdfast.model.orders import OrderStatus, QuarantineNode
from holdfast.model.records import Approval, BrakeRecord, NodeRecord, NodeState, OrderRecord, Rested, Touched

GOLDEN = Path(__file__).parent / "golden"


def stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def same_as_golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(stripped(text), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == stripped(text)


@pytest.mark.parametrize(
    "command",
    ["jobs", "job 1778", "nodes", "node show node04", "incidents", "incident i-1", "incident i-2", "orders",
     "orders --all", "report"],
)  # fmt: skip
def test_output_at_80_columns(command: str, holdfast: Holdfast, journal: Path) -> None:
    """The whole output is as in golden/, no line is longer than 80 columns, and no control character is in it."""
    ran = holdfast(*command.split(), "--journal", journal)
    assert (ran.code, ran.err) == (0, "")
    assert max(len(line) for line in ran.out.splitlines()) <= 80
    assert not any(ord(char) < 32 and char != "\n" for char in ran.out)
    same_as_golden(command.replace(" ", "-"), ran.out)


def test_wide_terminals_are_used(holdfast: Holdfast, journal: Path) -> None:
    """At 200 columns nothing of an attempt's or an order's row is broken over lines."""
    assert "signal 11 (SIGSEGV), i-1" in holdfast("job", "1778", "--journal", journal, columns=200).out
    orders = holdfast("orders", "--all", "--journal", journal, columns=200).out
    assert "application crash, restart 1 of 3 -> 6 ranks started" in orders


def test_text_from_outside_is_text(holdfast: Holdfast, journal: Path) -> None:
    """Markup, emoji codes, escape sequences and marks that turn the line do nothing; the words are still there."""
    for command in (["jobs"], ["job", "1778"], ["incident", "i-1"], ["report"]):
        out = holdfast(*command, "--journal", journal, columns=200).out
        assert "\x1b" not in out
        assert "\u202e" not in out
    assert "[red]x[/red]" in out or "[red]x[/red]" in holdfast("job", "1778", "--journal", journal, columns=200).out
    assert ":smile:" in holdfast("job", "1778", "--journal", journal, columns=200).out


@pytest.mark.parametrize(
    ("holder", "ran_out_s", "is_gone"),
    [("launcher:1778", 60.0, True), ("launcher:1778", -5.0, False), ("", NOW, False), ("controller-a", 60.0, False)],
)
def test_a_killed_launcher_is_gone_and_not_running(
    holder: str, ran_out_s: float, is_gone: bool, holdfast: Holdfast, journal: Path, tmp_path: Path
) -> None:
    """By the lease in its own journal: since when, and how to go on. One that lives, or has left, is not called so."""
    copy = shutil.copy(journal, tmp_path / "journal.db")
    with contextlib.closing(sqlite3.connect(copy)) as store, store:
        store.execute("UPDATE lease SET holder = ?, expires = ?", (holder, NOW - ran_out_s))
    said = " ".join(holdfast("job", "1778", "--journal", copy).out.split())
    assert ("proving for 90 s; its launcher is gone" in said) is is_gone
    assert ("running in the scheduler; the controller decides" in said) is not is_gone
    assert ("its lease ran out at 08:04:00Z, 60 s ago; where no controller leads the job, start" in said) is is_gone


def test_a_journal_on_a_read_only_file_system(
    holdfast: Holdfast, journal: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Viewing commands read it; one that writes beside it names the file system and the way out, and no owner."""
    copy = shutil.copy(journal, tmp_path / "journal.db")
    real = os.statvfs(copy)
    read_only = os.statvfs_result((*real[:8], real.f_flag | os.ST_RDONLY, *real[9:]))
    monkeypatch.setattr(os, "statvfs", lambda _: read_only)
    monkeypatch.setattr(os, "access", lambda _, mode: mode == os.R_OK)
    assert holdfast("job", "1778", "--journal", copy).code == 0
    Path("new.toml").touch()
    refused = holdfast("simulate", "--replay", copy, "--policy", "new.toml")
    assert refused.code
    assert "is on a read-only file system, and this command writes beside it: copy it" in refused.sentence


def test_an_attempt_names_its_job(holdfast: Holdfast, journal: Path) -> None:
    """`holdfast job 1778(1)`, as tables write it, shows job 1778."""
    assert holdfast("job", "1778(1)", "--journal", journal).out == holdfast("job", "1778", "--journal", journal).out


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("job 4711", 'no job "4711"; `holdfast jobs` lists them'),
        ("incident i-77", 'no incident "i-77"; `holdfast incidents` lists them'),
        ("node show nod04", 'no node "nod04"; did you mean "node04"?'),
        ("report --job 4711", 'no job "4711"; `holdfast jobs` lists them'),
        ("report --incident i-77", 'no incident "i-77"; `holdfast incidents` lists them'),
    ],
)
def test_what_is_not_there_is_said(command: str, sentence: str, holdfast: Holdfast, journal: Path) -> None:
    """One sentence, exit code 1."""
    ran = holdfast(*command.split(), "--journal", journal)
    assert (ran.code, ran.sentence, ran.out) == (1, sentence, "")


def test_an_unknown_state_is_named(holdfast: Holdfast, journal: Path) -> None:
    """`--state` knows its words."""
    ran = holdfast("nodes", "--state", "drainin", "--journal", journal)
    assert (ran.code, ran.sentence) == (2, '--state "drainin" is not a state of a node; did you mean "draining"?')


def test_two_thousand_nodes_are_readable(holdfast: Holdfast, tmp_path: Path) -> None:
    """Folded by group and state in a screenful, the ill ones listed; `--all` gives every row."""
    nodes = [
        NodeRecord(f"gpu{n:04d}", NodeView(f"gpu{n:04d}", group="a" if n <= 1000 else "b", alive=True), since=NOW - 60)
        for n in range(1, 2001)
    ]
    for number in (17, 18, 19, 1500):
        nodes[number - 1].state = NodeState.QUARANTINED
        nodes[number - 1].findings = ["nvidia.xid.79"]
    path = make(tmp_path / "journal.db", Touched(nodes=nodes))
    out = holdfast("nodes", "--journal", path).out
    assert len(out.splitlines()) < 20
    assert "gpu[0001-0016,0020-1000]" in out
    assert "gpu[0017-0019]" in out
    assert out.count("nvidia.xid.79") == 4
    assert max(map(len, out.splitlines())) <= 80
    everything = holdfast("nodes", "--all", "--journal", path).out
    assert sum(line.startswith("gpu") for line in everything.splitlines()) == 2000
    assert "gpu[0017-0019]" not in everything
    only = holdfast("nodes", "--state", "quarantined", "--journal", path).out
    assert sum(line.startswith("gpu") for line in only.splitlines()) == 4


def test_what_rests_on_one_reporters_word_is_listed(holdfast: Holdfast, tmp_path: Path) -> None:
    """Under the groups: which nodes, how many jobs, and which orders wait for a person; and who has approved these."""
    rested = Rested(nodes={"n1": NOW, "n2": NOW}, requeues=[NOW], held=["c7.1"])
    brake = BrakeRecord("gpu", nodes=8, recent=[NOW], reporters={"launcher:7": rested})
    order = QuarantineNode(id="c7.1", cause=7, node="n3", why="gpu.broken")
    approval = Approval("root", "mei 3f0c2a9b1d4e", NOW)
    waits = OrderRecord(
        order, OrderStatus.PROPOSED, NOW, expires_at=NOW + 900, waits_for="only launcher:7 speaks against it",
        approvals_needed=2, approvals=[approval],
    )  # fmt: skip
    path = make(tmp_path / "journal.db", Touched(brakes=[brake], orders=[waits]))
    out = " ".join(holdfast("brakes", "--journal", path).out.split())
    assert "launcher:7 n[1-2] 1 c7.1" in out
    assert "gpu not tripped 8" in out  # "open" would be the opposite: the policy says that a brake closes again
    shown = " ".join(holdfast("orders", "--journal", path).out.split())
    assert "against it" in shown
    assert "2 approvals" in shown
    assert "(mei)" in shown


def test_an_order_that_all_have_approved_asks_nobody(holdfast: Holdfast, tmp_path: Path) -> None:
    """Its row has who approved and that the brake holds it; the call to approve stands only where one is missing."""
    given = [Approval("root", f"{name} 3f0c2a9b1d4e", NOW) for name in ("mei", "ann")]
    waits = OrderRecord(
        QuarantineNode(id="c7.1", cause=7, node="n3", why="gpu.broken"), OrderStatus.PROPOSED, NOW,
        waits_for="the brake of its group holds it back until that closes", approvals_needed=2, approvals=given,
    )  # fmt: skip
    shown = " ".join(holdfast("orders", "--journal", make(tmp_path / "one.db", Touched(orders=[waits]))).out.split())
    assert "2 of 2" in shown
    assert "approvals (mei, " in shown
    assert "wait for you" not in shown
    missing = replace(waits, approvals=given[:1])
    assert "wait for you" in holdfast("orders", "--journal", make(tmp_path / "two.db", Touched(orders=[missing]))).out


def test_a_reporter_on_whose_word_nothing_rests_has_no_row(holdfast: Holdfast, tmp_path: Path) -> None:
    """Its last order was withdrawn, or the window is over: the record is empty, and so is the page's second part."""
    brake = BrakeRecord("gpu", nodes=8, reporters={"launcher:7": Rested()})
    assert "launcher" not in holdfast("brakes", "--journal", make(tmp_path / "x.db", Touched(brakes=[brake]))).out


def test_orders_that_wait_are_listed_behind_any_number_of_newer_ones(holdfast: Holdfast, tmp_path: Path) -> None:
    """`--limit` counts what waits: newer orders that are over, and newer ones under way, hide no proposal."""
    old = OrderRecord(QuarantineNode(id="c1.1", cause=1, node="n3"), OrderStatus.PROPOSED, NOW - 9.0)
    newer = [
        OrderRecord(QuarantineNode(id=f"c2.{number}", cause=2, node="n4"), status, NOW)
        for number, status in enumerate([OrderStatus.DONE] * 250 + [OrderStatus.PENDING] * 3)
    ]
    path = make(tmp_path / "journal.db", Touched(orders=[old, *newer]))
    assert "c1.1" in holdfast("orders", "--journal", path).out
    assert "c1.1" in holdfast("orders", "--limit", "1", "--journal", path).out
    assert "c1.1" not in holdfast("orders", "--all", "--limit", "1", "--journal", path).out


def test_an_empty_cluster_says_so(holdfast: Holdfast, tmp_path: Path) -> None:
    """No table without rows."""
    path = make(tmp_path / "journal.db", Touched())
    said = [holdfast(name, "--journal", path).out for name in ("jobs", "nodes", "incidents", "orders")]
    assert said == [
        "No jobs.\n",
        "No nodes.\n",
        "No incidents.\n",
        "No orders wait. `holdfast orders --all` lists those that are over.\n",
    ]


def test_states_are_words_and_colours_only_repeat_them(
    holdfast: Holdfast, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With colours the same words are printed as without."""
    import re

    plain = holdfast("nodes", "--journal", journal).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = holdfast("nodes", "--journal", journal).out
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_a_node_without_an_agent_is_unheard(holdfast: Holdfast, tmp_path: Path) -> None:
    """`nodes` tells it from a healthy one, `--state` chooses it, and `node show` says why."""
    nodes = [
        NodeRecord(name, NodeView(name=name, group="gpu", alive=True), heard=heard)
        for name, heard in (("n1", True), ("n2", False), ("n3", False))
    ]
    journal = make(tmp_path / "journal.db", Touched(nodes=nodes))
    rows = holdfast("nodes", "--journal", journal).out.splitlines()[-3:]
    assert [row.split()[2] for row in rows] == ["healthy", "unheard", "unheard"]
    chosen = json.loads(holdfast("nodes", "--state", "unheard", "--json", "--journal", journal).out)["nodes"]
    told = [(one["node"], one["state"], one["heard"]) for one in chosen]
    assert told == [("n2", "healthy", False), ("n3", "healthy", False)]
    assert "never heard" in holdfast("node", "show", "n2", "--journal", journal).out
