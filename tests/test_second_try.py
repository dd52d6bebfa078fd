"""What fails is tried once more, said so, and no more than that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from second_try import MOST, second_try

ONE = "tests/test_a.py::test_x"


def never(_: Sequence[str]) -> int:
    raise AssertionError("nothing was to be tried again")


def listed(tmp_path: Path, *tests: str) -> Path:
    path = tmp_path / "lastfailed"
    path.write_text(json.dumps(dict.fromkeys(tests, True)))
    return path


def test_all_passed_is_quiet(tmp_path: Path) -> None:
    """Whatever an older list says."""
    assert second_try([0, 0], listed(tmp_path, ONE), never) == (0, "")


@pytest.mark.parametrize(
    ("code", "whole", "words"), [(0, 0, "UNSTEADY"), (1, 1, "failed twice"), (2, 1, "failed twice")]
)
def test_one_failure_is_tried_once_more(tmp_path: Path, code: int, whole: int, words: str) -> None:
    """By its id; the outcome is the second one's, and named."""
    tried: list[Sequence[str]] = []

    def run(tests: Sequence[str]) -> int:
        tried.append(tests)
        return code

    got, said = second_try([0, 1], listed(tmp_path, ONE), run)
    assert (got, tried) == (whole, [[ONE]])
    assert words in said
    assert code or ONE in said


@pytest.mark.parametrize(
    ("codes", "tests"),
    [
        ([2, 0], [ONE]),
        ([1, -9], [ONE]),
        ([1, 1], [f"{ONE}{number}" for number in range(MOST + 1)]),
        ([1, 0], ["tests/test_a.py"]),
        ([1, 0], []),
    ],
)
def test_a_run_that_broke_off_many_failures_and_files_that_do_not_load_fail_at_once(
    tmp_path: Path, codes: list[int], tests: list[str]
) -> None:
    """None of these is an accident of the machine."""
    code, words = second_try(codes, listed(tmp_path, *tests), never)
    assert code == 1
    assert words


def test_a_list_that_cannot_be_read_fails(tmp_path: Path) -> None:
    """And says which."""
    code, words = second_try([1, 0], tmp_path / "none", never)
    assert code == 1
    assert "none" in words
