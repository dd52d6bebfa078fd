"""The guard itself: what it compares on a tiny journal, which differences it lets pass, and that mutants are programs."""

from __future__ import annotations

import ast

import msgspec
import pytest

from holdfast.decide import restart
from holdfast.decide.engine import Engine

from . import compare, journal, mutants, record
from .compare import Difference, Meant, Tally


@pytest.fixture(scope="module")
def recorded():
    """A seed with a launcher, judged by the engine as it is."""
    made, others = record.expected(record.simulated(3)[0])
    assert others == 0
    return made


def test_the_same_engine_gives_the_same_orders_and_records(recorded):
    """Every event's orders, the records at the end, and the orders after a start from the snapshot."""
    tally = Tally([])
    assert compare.journal(recorded, tally)
    assert tally.ok
    assert tally.compared["orders"] == len(recorded.lines) > 100
    assert tally.compared["records"] > 20
    assert 0 < tally.compared["orders after a restart"] < len(recorded.lines)


def test_another_order_is_found_with_its_event(recorded, monkeypatch):
    """The first event at which a changed engine orders something else is named, with both orders."""
    monkeypatch.setattr(restart, "release", lambda _turn, _job: None)
    tally = Tally([])
    assert not compare.journal(recorded, tally)
    (found,) = tally.first.values()
    assert found.where.startswith("simulated/3 event ")
    assert '"order":"release' in found.old
    assert found.new == "[]"
    assert "1 x orders: * event * " in tally.report()


def test_a_refused_event_is_a_difference(recorded, monkeypatch):
    """An engine that raises is told of as one that orders something else."""

    def broken(_self, _event):
        raise RuntimeError("loose wire")

    monkeypatch.setattr(Engine, "handle", broken)
    tally = Tally([])
    assert not compare.journal(recorded, tally)
    assert "loose wire" in next(iter(tally.first.values())).new


def test_a_record_that_differs_is_found(recorded):
    """Also when all orders are the same."""
    end = msgspec.json.decode(recorded.tail.records)
    name = next(iter(end["jobs"]))
    end["jobs"][name]["state"] = "held"
    tail = msgspec.structs.replace(recorded.tail, records=msgspec.Raw(msgspec.json.encode(end)))
    tally = Tally([])
    assert not compare.journal(msgspec.structs.replace(recorded, tail=tail), tally)
    assert [(one.where.split()[-1], one.old) for one in tally.first.values()] == [("state", "held")]


def test_a_listed_difference_passes_and_any_other_fails():
    """An entry covers its kind, where all of its patterns are found; one that is never met is told."""
    meant = Meant(76, "options", where="^run --lease-s default", old="2.25", new="3")
    tally = Tally([meant, Meant(76, "metrics")])
    assert tally.differs(Difference("options", "run --lease-s default", "2.25", "3.0"))
    assert tally.ok
    assert not tally.differs(Difference("options", "run --lease-s default", "2.25", "4.0"))
    assert not tally.differs(Difference("openapi", "run --lease-s default", "2.25", "3.0"))
    assert not tally.ok
    assert (tally.listed["options"], tally.different["options"]) == (1, 1)
    assert "not met" in tally.report()
    assert "metrics" in tally.report().partition("not met")[2]


def test_a_listed_difference_names_a_decision_that_exists(tmp_path):
    """And the file that is committed reads well."""
    compare.read_meant()
    path = tmp_path / "differences.toml"
    path.write_text("[[difference]]\ndecision = 999\nkind = 'options'\n")
    with pytest.raises(ValueError, match="no decision 999"):
        compare.read_meant(path)


def test_values_are_compared_leaf_by_leaf():
    """What is missing on one side differs, and the place is named."""
    old, new = {"a": [1, {"b": 2}], "c": 3}, {"a": [1, {"b": 4}, 5]}
    assert [one for one in compare.leaves(old, new, "x") if one[1] != one[2]] == [
        ("x a 1 b", 2, 4),
        ("x a 2", "(missing)", 5),
        ("x c", 3, "(missing)"),
    ]


def test_a_journal_is_read_as_it_was_written(recorded, tmp_path):
    """Several in one file, with and without an end."""
    without = msgspec.structs.replace(recorded, tail=None)
    journal.write(tmp_path / "a.xz", [recorded, without])
    assert journal.read(tmp_path / "a.xz") == [recorded, without]


def test_committed_journals_are_small_and_say_whose_they_are():
    """Under 8 MB in all, each with a scope that the engine knows, and nothing of the machine that they were recorded on."""
    files = journal.paths(record.LAB)
    assert sum(path.stat().st_size for path in files) < 8_000_000
    for one in (one for path in files for one in journal.read(path)):
        assert one.head.scope in {"cluster", "allocation"}
        assert one.head.name.startswith("lab/")
        assert one.lines
        assert one.tail is None


@pytest.mark.parametrize("file", ["decide/recovery.py", "launch/core/lease.py"])
def test_every_mutant_is_a_program_and_differs(file):
    """A sample of those that can be drawn in a file."""
    text = (mutants.SRC / "holdfast" / file).read_text(encoding="utf-8")
    found = list(mutants.sites(file, text))
    assert len({one.kind for one in found}) > 5
    before = ast.dump(ast.parse(text))
    for one in found[:: len(found) // 20]:
        assert text[one.begin : one.end] == one.old
        assert ast.dump(ast.parse(text[: one.begin] + one.new + text[one.end :])) != before, one


@pytest.mark.parametrize("name", sorted(mutants.PLANTED))
def test_bugs_chosen_by_hand_still_fit_the_code(name):
    """Their texts stand in the code once."""
    assert mutants.planted(name).line > 1
