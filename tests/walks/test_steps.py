"""Every step of every walk has a test and a place on its page, or stands in `open.toml`."""

from __future__ import annotations

import re

from tests.walks.walking import open_steps, walked, walks

UNDER_WAY = "21 Walks"
MOST_OPEN = 12
"""Steps that may wait for another issue."""


def test_every_step_has_a_test_or_is_open() -> None:
    """A step that nobody walks, a step that stands twice and a test of a step that does not exist are named."""
    steps = [step for walk in walks().values() for step in walk.steps]
    untested = [one.step for one in open_steps() if not one.test]
    assert sorted([*walked(), *untested]) == sorted(steps)


def test_every_walked_step_stands_on_its_page() -> None:
    """A page has one numbered heading for each step that has a test, in order."""
    for walk in walks().values():
        numbers = [step.rpartition(".")[2] for step in walk.steps if step in walked()]
        text = walk.page.read_text(encoding="utf-8") if numbers else ""
        assert re.findall(r"^## (\d)\. ", text, flags=re.MULTILINE) == numbers, walk.page.name


def test_open_steps_are_few_and_say_who_closes_them() -> None:
    """An entry names a step, what is missing, an issue by number and title, and a test unless the walks are under way."""
    tests = walked()
    entries = open_steps()
    assert len({one.step for one in entries if one.issue != UNDER_WAY}) <= MOST_OPEN
    for one in entries:
        assert one.test in tests.get(one.step, []) or (not one.test and one.issue == UNDER_WAY), one
        assert re.fullmatch(r"2[1-8] [A-Z][\w ]+", one.issue), one
        assert one.what.endswith("."), one
