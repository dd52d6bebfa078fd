"""The contract suite, unchanged, against a real Kubernetes control plane of three nodes, for both ways to hold a job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from contract.orchestrator import CASES, Case
from holdfast.lab.kube_lab import KubeLab
from kube_world import KubeWorld

OF_JOBS = ("requeue", "released", "excluded", "giving_up", "seen_with")
"""Cases that are about jobs: a batch Job, which is made anew, has them once more."""


@pytest.mark.timeout(900)
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, id=f"{case.__name__}-{kind}")
        for kind in ("PyTorchJob", "Job")
        for case in CASES
        if kind == "PyTorchJob" or any(word in case.__name__ for word in OF_JOBS)
    ],
)
def test_contract(case: Case, kind: str, kube_lab: KubeLab, tmp_path: Path) -> None:
    """See the case's own docstring in `contract/orchestrator.py`."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path / "controller", kind=kind)
        try:
            await case(world)
        finally:
            await world.orchestrator.close()

    asyncio.run(body())
