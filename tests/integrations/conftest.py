"""The launchers of tests/launch, and ranks that only have a telemetry folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launch.conftest import launched as launched  # noqa: PLC0414 - a fixture

from holdfast.telemetry.slot import SlotView, read_slot


@pytest.fixture
def rank(tmp_path: Path) -> Callable[..., SlotView]:
    """`rank("code")` runs Python code, or `rank("-m", "module", "args")` a program, as rank 0; what its slot holds after it."""

    def run(*what: str) -> SlotView:
        folder = tmp_path / "telemetry"
        folder.mkdir()
        env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        env |= {"HOLDFAST_TELEMETRY_DIR": str(folder), "RANK": "0", "OMP_NUM_THREADS": "1"}
        command = what if len(what) > 1 else ("-c", *what)
        ran = subprocess.run(
            [sys.executable, *command], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=90
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return read_slot(folder / "rank-00000.slot")

    return run
