"""Attacks. Each is made twice: on what is shipped, where it must fail, and with its check removed, where it must succeed.

A test takes `attempt`, says which check stands in the way (`attempt.without`, or `attempt.text` for a script), makes the
attack, and hands what came of it to `attempt.judge`. Where the house is dear, one test takes `removing` and does both in turn:
the attack fails, `removing(place, name, instead)`, the attack succeeds. So no attack stands here that could not succeed.

`@pytest.mark.attempt(actor=..., asset=..., removed=...)` puts a test on the list of attempts (`python -m tests.attack`). The actor
begins a heading of docs/threat-model.md, the asset is a cell of its table, and `removed` is the check's name below `holdfast`
(`os.tls.listener_uids`, several with commas) or a script's path there; `each` names the attempts of one test that makes several. The docstring's first sentence says what is attempted.
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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_open: bool, listed: str = "") -> None:
        self.is_open = is_open
        """The check is removed."""
        self.says_check = self.is_judged = False
        self._monkeypatch = monkeypatch
        self._listed = listed

    def without(self, place: object, name: str, instead: object) -> None:
        """The check that stands in the way, and what is there in its place once it is removed."""
        self.says_check = True
        assert hasattr(place, name), f"there is no {name} any more: what checks this now?"
        assert name in self._listed, f"the list of attempts says {self._listed!r} is removed, the test removes {name}"
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


def listed_check(request: pytest.FixtureRequest) -> str:
    """The check that the list of attempts names for this test."""
    mark = request.node.get_closest_marker("attempt")
    assert mark is not None, "put the test on the list: @pytest.mark.attempt(actor=..., asset=..., removed=...)"
    return str(mark.kwargs["removed"])


@pytest.fixture(params=[False, True], ids=["shipped", "check removed"])
def attempt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
    """See `Attempt`."""
    Attempt.is_skipped = False
    made = Attempt(monkeypatch, is_open=request.param, listed=listed_check(request))
    yield made
    if Attempt.is_skipped:
        return
    assert made.says_check, "the test names no check"
    assert made.is_judged, "the test judges nothing"


class Removing:
    """Removes the check in the middle of a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, listed: str) -> None:
        self.is_done = False
        self._monkeypatch = monkeypatch
        self._listed = listed

    def __call__(self, place: object, name: str, instead: object) -> None:
        """From here on `instead` is there."""
        assert hasattr(place, name), f"there is no {name} any more: what checks this now?"
        assert name in self._listed, f"the list of attempts says {self._listed!r} is removed, the test removes {name}"
        self.is_done = True
        self._monkeypatch.setattr(place, name, instead)

    def item(self, table: dict, key: object, instead: object) -> None:
        """As above, for a line of a table."""
        self.is_done = True
        self._monkeypatch.setitem(table, key, instead)


@pytest.fixture
def removing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Removing]:
    """See `Removing`."""
    made = Removing(monkeypatch, listed_check(request))
    Attempt.is_skipped = False
    yield made
    assert made.is_done or Attempt.is_skipped, "the test removes no check"


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
