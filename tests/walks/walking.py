"""The table of walks and of their open steps, read from `steps.toml` and `open.toml`; what each test says it walks.

Called by `conftest.py`, which expects the tests of open steps to fail, and by `test_steps.py`, which compares the table
with the pages and the tests. Nothing here runs a test.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
PAGES = FOLDER.parents[1] / "docs" / "walks"


class OpenStep(NamedTuple):
    """A step that does not work yet. `issue`: number and title of the one that closes it; `test`: file and name."""

    step: str
    what: str
    issue: str
    test: str = ""


class Walk(NamedTuple):
    """One walk: `steps` maps "W1.1" to what is done there."""

    page: Path
    title: str
    steps: dict[str, str]


def walks() -> dict[str, Walk]:
    """All walks by name, "W1" to "W5"."""
    table = tomllib.loads((FOLDER / "steps.toml").read_text(encoding="utf-8"))
    return {
        name: Walk(
            PAGES / one["page"],
            one["title"],
            {f"{name}.{number}": text for number, text in enumerate(one["steps"], start=1)},
        )
        for name, one in table.items()
    }


def open_steps() -> list[OpenStep]:
    """The entries of `open.toml`. Raises TypeError when one has other keys than those of `OpenStep`."""
    table = tomllib.loads((FOLDER / "open.toml").read_text(encoding="utf-8"))
    return [OpenStep(**one) for one in table.get("open", [])]


def walked() -> dict[str, list[str]]:
    """For each step the tests ("file::name") marked with `pytest.mark.walk`."""
    found: dict[str, list[str]] = {}
    for file in sorted(FOLDER.glob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for mark in node.decorator_list:
                    for step in re.findall(r"W\d\.\d", ast.unparse(mark)) if ".walk(" in ast.unparse(mark) else ():
                        found.setdefault(step, []).append(f"{file.name}::{node.name}")
    return found
