"""`benchmarks/against.py` tells two versions' speeds apart as its formula says, and says what it lacks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "against.py"


@pytest.fixture(scope="module")
def against() -> ModuleType:
    spec = importlib.util.spec_from_file_location("against", SCRIPT)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules["against"] = made
    spec.loader.exec_module(made)
    return made


def test_the_interval_is_students_on_logarithms(against: ModuleType) -> None:
    """Ratios 1, 2 and 4: in the middle 2, and 2 / 5.596 to 2 x 5.596 (t = 4.303, s = ln 2, n = 3)."""
    found = against.compared("x", [(10.0, 10.0), (6.0, 3.0), (4.0, 1.0)])
    assert (found.n, found.ratio) == (3, pytest.approx(2.0))
    assert (found.low, found.high) == (pytest.approx(0.3574, abs=5e-4), pytest.approx(11.19, abs=5e-2))
    assert found.verdict == "too few pairs to tell"


@pytest.mark.parametrize(
    ("new", "verdict"), [((90.0, 91.0, 92.0), "slower"), ((99.0, 100.0, 101.0), "no slower")], ids=["by 9 %", "equal"]
)
def test_a_verdict_is_the_whole_intervals(against: ModuleType, new: tuple[float, ...], verdict: str) -> None:
    """All of it below 0.95, or all of it above."""
    assert against.compared("x", [(one, 100.0) for one in new]).verdict == verdict


def test_seconds_become_speeds_and_what_did_not_come_back_is_left_out(against: ModuleType) -> None:
    """Half the seconds are twice the speed; a launcher whose job never came back has no figure."""
    found = against.recovery({"medians": {"holdfast": 0.5, "torchrun": float("inf")}})
    assert found == {"1/s, holdfast": 2.0}


def test_a_folder_without_an_environment_is_named(tmp_path: Path) -> None:
    """One sentence that names the folder and the fix, before anything runs."""
    argv = [sys.executable, str(SCRIPT), "engine", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "has no .venv: run `make install` there" in done.stderr
