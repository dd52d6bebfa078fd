"""Attacks. Each is made twice: on what is shipped, where it must fail, and with its check removed, where it must succeed.

A test takes `attempt`, says which check stands in the way (`attempt.without`, or `attempt.text` for a script), makes the
attack, and hands what came of it to `attempt.judge`. So no attack stands here that could not succeed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

STRANGER = 54321
"""Somebody else's number."""


class Attempt:
    """One attack, on one of the two builds."""

    is_skipped = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_open: bool) -> None:
        self.is_open = is_open
        """The check is removed."""
        self.says_check = self.is_judged = False
        self._monkeypatch = monkeypatch

    def without(self, place: object, name: str, instead: object) -> None:
        """The check that stands in the way, and what is there in its place once it is removed."""
        self.says_check = True
        assert hasattr(place, name), f"there is no {name} any more: what checks this now?"
        if self.is_open:
            self._monkeypatch.setattr(place, name, instead)

    def text(self, text: str, check: str, instead: str) -> str:
        """A script, for an attack on its text."""
        self.says_check = True
        assert check in text, f"{check!r} is not there any more: what checks this now?"
        return text.replace(check, instead) if self.is_open else text

    def judge(self, *, succeeded: bool) -> None:
        """What came of it."""
        self.is_judged = True
        if self.is_open:
            assert succeeded, "the attack fails without the check, too: it proves nothing"
        else:
            assert not succeeded, "the attack succeeds"


def skip(why: str) -> None:
    """Skip the rest of a test, which judges nothing then."""
    Attempt.is_skipped = True
    pytest.skip(why)


def only_root(why: str) -> None:
    """Skip the rest of a test where we are not root."""
    if os.geteuid() != 0:
        skip(why)


@pytest.fixture(params=[False, True], ids=["shipped", "check removed"])
def attempt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
    """See `Attempt`."""
    Attempt.is_skipped = False
    made = Attempt(monkeypatch, is_open=request.param)
    yield made
    if Attempt.is_skipped:
        return
    assert made.says_check, "the test names no check"
    assert made.is_judged, "the test judges nothing"


class Stranger:
    """Somebody else, to whom files are given: by root in truth; without root's rights we become another user in name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def owns(self, *paths: Path) -> None:
        """These are the stranger's."""
        if os.geteuid() == 0:
            for path in paths:
                os.lchown(path, STRANGER, STRANGER)
        else:
            self._monkeypatch.setattr(os, "geteuid", lambda: STRANGER)


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Stranger:
    """See `Stranger`."""
    return Stranger(monkeypatch)
