"""What an installation brings: a user's own torch is neither named nor brought by anything they can ask for."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


def brought_by(asked: list[str]) -> set[str]:
    """Names of all that these requirements bring, as the distributions installed here tell it."""
    found: set[str] = set()
    todo = [Requirement(text) for text in asked]
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        if name in found:
            continue
        found.add(name)
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for text in needed:
            one = Requirement(text)
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in {"", *wanted.extras}):
                todo.append(one)
    return found


@pytest.mark.parametrize("extra", sorted(ASKED))
def test_nothing_that_a_user_installs_names_or_brings_torch(extra: str):
    """`pip install 'holdfast[...]'` leaves the torch that is there, whatever its version."""
    assert not {name for name in brought_by(ASKED[extra]) if re.fullmatch(r"torch|torch-.*|nvidia-cu.*", name)}


def test_the_demo_and_the_tests_have_a_pinned_torch():
    """`make install` asks for torch by name; constraints.txt alone says which."""
    assert re.search(r"-c constraints\.txt torch numpy -e ", (ROOT / "Makefile").read_text())
    assert "torch==2.13.0\n" in (ROOT / "constraints.txt").read_text()
