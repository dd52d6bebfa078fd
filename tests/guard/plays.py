"""The events that the base's tests of `decide` give to their engines, as journals: corners that no simulated seed reaches.

A plugin of pytest (`-p tests.guard.plays`), with the base's code and tests. Every engine that a test makes is one journal of
`GUARD_PLAYS`. What the tests assert is not asked: the guard compares all orders and records, also when tests have moved.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from msgspec import Raw

from holdfast.decide.engine import Engine
from holdfast.model.wire import encode

from .journal import Head, Line, Recorded, write

PER_TEST = 12
"""Engines of one test that are kept."""
_made: defaultdict[str, list[tuple[Head, list[Line]]]] = defaultdict(list)
_running = [""]


def pytest_configure() -> None:
    """Stand between the tests and the engine."""
    init, handle = Engine.__init__, Engine.handle

    def made(self: Engine, policies: Any, *, scope: str = "cluster", state: Any = None, **named: Any) -> None:
        init(self, policies, scope=scope, state=state, **named)
        of = _made[_running[0]]
        if _running[0] and state is None and len(of) < PER_TEST:
            name = f"plays/{_running[0].removeprefix('tests/')}/{len(of)}"
            self._guard = []
            of.append((Head(name=name, scope=scope, policies=Raw(encode(policies))), self._guard))

    def handled(self: Engine, event: Any) -> Any:
        if hasattr(self, "_guard"):
            self._guard.append(Line(Raw(encode(event)), Raw(b"[]")))
        return handle(self, event)

    Engine.__init__, Engine.handle = made, handled


def pytest_runtest_setup(item: Any) -> None:
    """Journals are named after their test."""
    _running[0] = item.nodeid


def pytest_unconfigure() -> None:
    """Write them, one file for each file of tests."""
    files: defaultdict[str, list[Recorded]] = defaultdict(list)
    for test, engines in _made.items():
        files[Path(test.partition("::")[0]).stem] += [
            Recorded(head=head, lines=lines) for head, lines in engines if lines
        ]
    for name, journals in files.items():
        write(Path(os.environ["GUARD_PLAYS"]) / f"{name}.xz", journals)
