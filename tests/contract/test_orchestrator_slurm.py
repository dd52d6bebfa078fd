"""The contract suite, unchanged, against a real Slurm of three nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.orchestrator import CASES, Case
from holdfast.lab.slurm_lab import SlurmLab
from slurm_fixture import mend
from slurm_world import SlurmWorld, small_lab


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[SlurmLab]:
    with small_lab(3) as lab:
        yield lab


@pytest.fixture
def lab(three_nodes: SlurmLab) -> Iterator[SlurmLab]:
    yield three_nodes
    mend(three_nodes)


@pytest.mark.cluster
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_contract(case: Case, lab: SlurmLab, tmp_path: Path) -> None:
    """See the case's own docstring in `contract/orchestrator.py`."""

    async def body() -> None:
        world = SlurmWorld(lab, tmp_path / "controller")
        try:
            await case(world)
        finally:
            await world.orchestrator.close()

    asyncio.run(body())
