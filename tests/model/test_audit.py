"""The audit's chain: every way to change, remove, add or reorder lines is seen at its first line."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import UsageError
from holdfast.model.audit import NOTHING, ChainError, Head, act_of, chained, read_head, verified
from holdfast.model.events import Command, OperatorCommand, PolicyLoaded


def chain(count: int = 6) -> tuple[list[str], Head]:
    head, lines = Head(), []
    for number in range(1, count + 1):
        line, head = chained({"event": "operator_command", "who": f"mei{number}", "why": "é\n"}, head)
        lines.append(line)
    return lines, head


def test_a_whole_chain_ends_in_its_head():
    """Also in parts, each behind the other; a part by itself begins where it says."""
    lines, head = chain()
    assert verified(lines, before=Head()) == head == verified(lines)
    assert verified(lines[3:], before=verified(lines[:3])) == head
    assert verified(lines[3:]) == head
    assert read_head(str(head)) == head
    assert verified([]) == Head(0, NOTHING)


CHANGES = {
    "changed": (lambda lines: [*lines[:2], lines[2].replace("mei3", "eve"), *lines[3:]], "line 4 does not fit line 3"),
    "removed": (lambda lines: lines[:2] + lines[3:], "line 3 is missing: line 4 follows line 2"),
    "first removed": (lambda lines: lines[1:], "line 1 is missing"),
    "reordered": (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], "line 3 stands behind line 4: lines have changed places"),
    "doubled": (lambda lines: [*lines[:3], lines[2], *lines[3:]], "line 3 stands again behind line 3"),
    "spaced": (lambda lines: [*lines[:2], lines[2].replace(":", ": ", 1), *lines[3:]], "the line after line 2 was changed"),
    "more": (lambda lines: [*lines[:2], lines[2].replace('{"act"', '{"aa":1,"act"'), *lines[3:]], "the line after line 2"),
    "not JSON": (lambda lines: [*lines[:2], "hello", *lines[3:]], "the line after line 2"),
    "renumbered": (lambda lines: [*lines[:2], lines[2].replace('"number":3', '"number":4'), *lines[3:]], "line 3 is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_the_first_line_that_does_not_fit_is_named(case: str):
    """Changed, removed, added and reordered lines."""
    change, said = CHANGES[case]
    with pytest.raises(ChainError, match=said):
        verified(change(chain()[0]), before=Head())


def test_a_last_line_that_changed_ends_in_another_head():
    """Nothing follows it, so only a noted head shows that."""
    lines, head = chain()
    assert verified([*lines[:-1], lines[-1].replace("mei6", "eve")], before=Head()) != head


@pytest.mark.parametrize("text", ["", "1", f"x:{NOTHING}", "1:abc", f"1:{NOTHING[1:]}G", f"-1:{NOTHING}"])
def test_what_is_not_a_head_is_refused(text: str):
    """One sentence."""
    with pytest.raises(UsageError, match="is not a head"):
        read_head(text)


def test_an_act_is_kept_whole_and_a_policy_by_its_hash():
    """Who, what and why stand in the line; a policy's text is long, and its hash says which one it was."""
    act = act_of(
        OperatorCommand(id="c", at=1.0, seq=7, received_at=2.0, command=Command.DRAIN, who="mei", why="w", node="n1")
    )
    assert (act["event"], act["who"], act["command"], act["node"], act["seq"]) == (
        "operator_command",
        "mei",
        "drain",
        "n1",
        7,
    )
    assert "received_at" not in act
    assert act_of(PolicyLoaded(id="p", at=1.0, toml="x"))["toml"].startswith("sha256:2d711642")
    assert json.loads(chained(act, Head())[0])["act"] == act
