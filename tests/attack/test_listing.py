"""The list of attempts and the threat model: each attempt has both forms, and each row names tests that there are."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.attack.listing import TESTS, Listed

REPO = TESTS.parent
PAGE = (REPO / "docs" / "threat-model.md").read_text(encoding="utf-8")
LEAST = 400


@pytest.fixture(scope="module")
def listed() -> list[Listed]:
    """In a process of its own: pytest collects, and does not like to inside a test."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.attack", "--json"], cwd=REPO, capture_output=True, check=False, timeout=110
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return msgspec.json.decode(ran.stdout, type=list[Listed])


def rows() -> list[tuple[str, str, list[str]]]:
    """Heading, asset and named tests of each row of the tables that have a column `tests`."""
    found = []
    for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        table = [line for line in body.splitlines() if line.startswith("|")]
        if not table or not table[0].rstrip().endswith("| tests |"):
            continue
        for line in table[2:]:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            found.append((heading, cells[0], re.findall(r"`([\w/]+)`", cells[-1])))
    return found


def test_there_are_so_many_attempts(listed: list[Listed]) -> None:
    """The number that the documents name, and that a change may only raise."""
    assert len(listed) >= LEAST


def test_each_attempt_has_both_forms(listed: list[Listed]) -> None:
    """As shipped and with its check removed; and says who attempts what on which asset."""
    assert [one.test for one in listed if one.forms != {"shipped", "check removed"}] == []
    assert [one for one in listed if not (one.actor and one.asset and one.attempt and one.removed)] == []


def resolves(name: str) -> bool:
    """A name below `holdfast`, or a file of the repository or the package."""
    if "/" in name:
        return (REPO / name).is_file() or (REPO / "src" / "holdfast" / name).is_file()
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(["holdfast", *parts[:cut]]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):  # set by __init__
                return inspect.isclass(found) and f"self.{part} " in inspect.getsource(found)
            found = getattr(found, part)
        return True
    return False


def test_each_removed_check_is_there(listed: list[Listed]) -> None:
    """A check that was renamed is renamed in the list, too."""
    names = {name for one in listed for name in one.removed.split(", ")}
    assert sorted(name for name in names if not resolves(name)) == []


def test_each_attempt_belongs_to_a_row_of_the_threat_model(listed: list[Listed]) -> None:
    """Its actor begins a heading, its asset is a row there, and that row names the test's file."""
    table: dict[tuple[str, str], set[str]] = {}
    for heading, asset, tests in rows():
        table.setdefault((heading, asset), set()).update(tests)
    homeless = set()
    for one in listed:
        file = Path(one.test.partition("::")[0]).stem
        places = [
            tests for (heading, asset), tests in table.items() if heading.startswith(one.actor) and asset == one.asset
        ]
        if not any(name.rpartition("/")[2] == file for tests in places for name in tests):
            homeless.add((one.actor, one.asset, file))
    assert sorted(homeless) == []


def test_each_row_names_tests_that_there_are() -> None:
    """Every row of a table of attempts names a file, and the file holds tests."""
    assert len(rows()) > 30
    unnamed = [(heading, asset) for heading, asset, tests in rows() if not tests]
    missing = [name for _, _, tests in rows() for name in tests if not (TESTS / f"{name}.py").is_file()]
    assert (unnamed, missing) == ([], [])
