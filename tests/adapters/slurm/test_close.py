"""What the adapter has under way ends with it: a loop that ends in the middle of starting a tool would wait for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.adapters.slurm.client import SlurmOrchestrator
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.lab.waiting import wait_until
from holdfast.ports import Orchestrator
from holdfast.wiring.orchestrators import close

SLOW = """#!/bin/sh
echo begun >> {mark}
exec sleep 1000
"""


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's tools as they are while slurmctld says nothing; the file is there once one of them runs."""
    mark = tmp_path / "begun"
    for name in ("scontrol", "squeue", "sinfo", "sacct"):
        (tmp_path / name).write_text(SLOW.format(mark=mark))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return mark


def test_a_look_under_way_ends_with_the_adapter(begun: Path, tmp_path: Path) -> None:
    """Whoever asked has let go, the look goes on by itself; `close` ends it and leaves no task and no process."""

    async def body() -> None:
        adapter = SlurmOrchestrator(SlurmConfig(), folder=tmp_path)
        asked = asyncio.create_task(adapter.looks.fresh())
        await asyncio.to_thread(wait_until, begun.exists, what="a tool runs", limit_s=90)
        asked.cancel()
        await asyncio.wait([asked])
        assert {task.get_name() for task in asyncio.all_tasks()} > {"look at slurm"}
        # As the program does it, behind a topology.
        await close(cast("Orchestrator", SimpleNamespace(inner=adapter)))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(body())


def test_a_state_being_set_ends_with_the_adapter(begun: Path, tmp_path: Path) -> None:
    """A node order whose tool says nothing: `close` ends the tool, and the order is not taken for done."""

    async def body() -> None:
        adapter = SlurmOrchestrator(SlurmConfig(), folder=tmp_path)
        asked = asyncio.create_task(adapter.nodes._set("node01", "drain", "why"))
        await asyncio.to_thread(wait_until, begun.exists, what="a tool runs", limit_s=90)
        await adapter.close()
        await asyncio.wait([asked])
        assert asked.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(body())
