"""The list of attempts, read from the marks of the tests themselves (`attack_fixture`): pytest collects, nothing runs."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parents[1]
MARK = "@pytest.mark.attempt("
FORMS = re.compile(r"(check removed|shipped)-?")


class Listed(NamedTuple):
    """One attempt."""

    actor: str
    asset: str
    attempt: str
    removed: str
    test: str
    """The test's name behind its file, with the parameters that make it this attempt."""
    forms: frozenset[str]
    """`shipped` and `check removed`; both for a test that removes its check in the middle."""


def files() -> list[Path]:
    """Test files that hold attempts."""
    return sorted(path for path in TESTS.rglob("test_*.py") if MARK in path.read_text(encoding="utf-8"))


class _Collected:
    """A plugin that keeps what was collected."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = list(session.items)


def attempts() -> list[Listed]:
    """All of them, by actor, asset and test. Raises RuntimeError where a file cannot be collected."""
    seen = _Collected()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *map(str, files())], plugins=[seen])
    if code:
        raise RuntimeError(said.getvalue())
    found: dict[tuple[str, str], Listed] = {}
    for item in seen.items:
        mark = item.get_closest_marker("attempt")
        if mark is None:
            continue
        name = (
            FORMS.sub("", "::".join([item.path.name, *item.nodeid.split("::")[1:]]))
            .replace("[]", "")
            .replace("-]", "]")
        )
        form = FORMS.search(item.nodeid)
        fixtures = getattr(item, "fixturenames", ())
        forms = {form[1]} if form and "attempt" in fixtures else {"shipped", "check removed"} & set(_forms(fixtures))
        said_by = (item.obj.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")  # type: ignore[attr-defined]
        for each in mark.kwargs.get("each", ("",)):
            text = re.sub(r"\s+", " ", said_by.partition(". ")[0].rstrip("."))
            key = (name, each)
            known = found[key].forms if key in found else frozenset()
            found[key] = Listed(
                mark.kwargs["actor"], mark.kwargs["asset"], f"{text} ({each})" if each else text,
                mark.kwargs["removed"], name, known | forms,
            )  # fmt: skip
    return sorted(found.values(), key=lambda one: (one.actor, one.asset, one.test, one.attempt))


def _forms(fixtures: tuple[str, ...]) -> tuple[str, ...]:
    return ("shipped", "check removed") if "removing" in fixtures else ()
