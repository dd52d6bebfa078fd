"""No state is told by colour alone: each has a word, a letter, or both, on the server's side and in the page's script."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from holdfast.cockpit import rendering
from holdfast.controller.fleet import node_line
from holdfast.model.cluster import NodeView, SchedulerState
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode
from holdfast.model.records import SHOWN_STATES, JobState, NodeRecord, NodeState

STATIC = files("holdfast.cockpit") / "static"
DOCS = Path(__file__).parents[2] / "docs" / "cockpit.md"


def letters_of_the_script() -> dict[str, str]:
    """What `live.js` writes into a cell when a node changes."""
    found = re.search(r"const letters = \{([^}]*)\}", (STATIC / "live.js").read_text())
    assert found
    return dict(re.findall(r'(\w+): "([^"]*)"', found.group(1)))


def test_each_state_of_a_node_has_a_letter_of_its_own() -> None:
    """Healthy has none; the others differ, are the same live and loaded, and the page on keys says what they mean."""
    letters = rendering.LETTERS
    assert set(letters) == set(SHOWN_STATES)
    assert letters.pop("healthy") == ""
    assert all(letters.values())
    assert len(set(letters.values())) == len(letters)
    assert letters_of_the_script() == {"healthy": "", **letters}
    letters["healthy"] = ""
    said = DOCS.read_text()
    for state, letter in letters.items():
        assert state == "healthy" or re.search(rf"{re.escape(letter)}\s+{state}", said), state


@pytest.mark.parametrize("state", [*NodeState])
def test_a_cell_says_its_state_in_words(state: NodeState) -> None:
    """Whoever points at it, or has it read out, gets the name and the state; whoever looks gets the letter."""
    record = NodeRecord("n1", NodeView("n1"), state=state)
    html = str(rendering._grid_cell(node_line(record)))
    assert f'title="n1: {state}' in html
    assert html.endswith(f">{rendering.LETTERS[state]}</a>")


@pytest.mark.parametrize("word", [*NodeState, *JobState, *SchedulerState, *OrderStatus, *Mode])
def test_a_coloured_mark_holds_its_word(word: str) -> None:
    """The pill of a state is that state's word."""
    html = str(rendering.show_state(word))
    assert re.fullmatch(r'<span class="state \w+">([^<]+)</span>', html)
    assert f">{str(word).replace('_', ' ')}<" in html


def test_every_tone_has_its_word_on_the_page() -> None:
    """No template paints a cell, a card or a line of a list without a text in it."""
    templates = files("holdfast.cockpit") / "templates"
    for one in templates.iterdir():
        text = one.read_text()
        for tone in re.findall(r'<(?:span|td|li|b) class="(?:state )?(?:good|bad|warn)[^"]*">\s*</', text):
            pytest.fail(f"{one.name}: {tone} is a colour without a word")
