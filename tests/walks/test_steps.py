"""Every step of every walk has a test and a place on its page, or stands in `open.toml`."""

from __future__ import annotations

import re

from tests.walks.walking import open_steps, walked, walks

MOST_OPEN = 12


def test_every_step_has_a_test() -> None:
    """A step without a test, or a test of a step that does not exist, is named."""
    steps = {step for walk in walks().values() for step in walk.steps}
    assert sorted(walked()) == sorted(steps)


def test_every_step_stands_on_its_page() -> None:
    """A page has one numbered heading for each step, in order."""
    for walk in walks().values():
        numbers = re.findall(r"^## (\d)\. ", walk.page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert numbers == [str(number) for number in range(1, len(walk.steps) + 1)], walk.page.name


def test_open_steps_are_few_and_say_who_closes_them() -> None:
    """An entry names a step, a test of that step, what is missing, and an issue by number and title."""
    tests = walked()
    entries = open_steps()
    assert len({one.step for one in entries}) <= MOST_OPEN
    for one in entries:
        assert one.test in tests.get(one.step, []), one
        assert re.fullmatch(r"2[2-8] [A-Z][\w ]+", one.issue), one
        assert one.what.endswith("."), one
