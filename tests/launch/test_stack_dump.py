"""`launch/stack_dump.py`: no process is ended by being asked for its stack."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.launch.stack_dump import Target, dump_stacks
from holdfast.telemetry.layout import stacks_name
from holdfast.telemetry.signals import STACK_SIGNAL


def test_a_process_with_a_ranks_number_is_not_ended(tmp_path: Path) -> None:
    """The rank's slot says that it armed the signal; the process that has its number now did not."""
    (tmp_path / stacks_name(0)).touch()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        slot: Any = SimpleNamespace(pid=stranger.pid, stack_signal=int(STACK_SIGNAL))
        (found,) = asyncio.run(dump_stacks([Target(0, stranger.pid, slot)], tmp_path, 5.0))
        assert "takes no stack signal" in found.why
        assert stranger.poll() is None
        stranger.kill()
