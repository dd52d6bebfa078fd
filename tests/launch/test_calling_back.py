"""A follower's last act when its leader's machine is gone: one of them has the requeued job called back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.adapters.slurm.daemons import NodeAddress
from holdfast.adapters.slurm.own_job import JobFacts
from holdfast.errors import TemporaryOrderError
from holdfast.launch import own_slurm_job
from holdfast.launch.output import Voice

ENVIRON = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}


class OurJob:
    """Stands for `OwnJob`: Slurm has requeued it `restarts` times."""

    restarts = 2
    recalls: list[tuple[str, ...]]
    refusal = ""

    def __init__(self, name: str, *_: object) -> None:
        assert name == "7"

    async def facts(self) -> JobFacts:
        return JobFacts(restarts=type(self).restarts)

    async def addresses(self, nodes: Sequence[str]) -> dict[str, NodeAddress]:
        return {node: NodeAddress(node, 6818) for node in nodes}

    async def own_pace(self) -> str:
        return "at the scheduler's pace"

    async def call_back(self, facts: JobFacts, exclude: Sequence[str]) -> str:
        assert facts.restarts == type(self).restarts
        if self.refusal:
            raise TemporaryOrderError(self.refusal)
        self.recalls.append(tuple(exclude))
        return "8"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What people were told; the leader led from node01, which is gone, and Slurm has requeued the job."""
    facts = {"node": "node01", "address": "192.0.2.1", "port": 1, "secret": "00"}
    (tmp_path / "leader.json").write_text(json.dumps(facts))
    monkeypatch.setattr(OurJob, "restarts", 2)
    monkeypatch.setattr(OurJob, "refusal", "")
    OurJob.recalls = []
    monkeypatch.setattr(own_slurm_job, "OwnJob", OurJob)
    machine(monkeypatch, is_gone=True)
    lines: list[str] = []
    monkeypatch.setattr(Voice, "say", lambda _, *said: lines.extend(said))
    return lines


def machine(monkeypatch: pytest.MonkeyPatch, *, is_gone: bool) -> None:
    async def answers_not(where: NodeAddress | None) -> bool:
        assert where == NodeAddress("node01", 6818)
        return is_gone

    monkeypatch.setattr(own_slurm_job, "answers_not", answers_not)


def call(folder: Path, **environ: str) -> None:
    asyncio.run(own_slurm_job.call_back(folder, {**ENVIRON, **environ}, Voice()))


def test_one_follower_of_all_calls_the_job_back(tmp_path: Path, told: list[str]) -> None:
    """Without the lost node; the next run's followers may do it again."""
    call(tmp_path)
    call(tmp_path)
    assert OurJob.recalls == [("node01",)]
    assert told == ["node01 is lost, and the scheduler has requeued the job; job 8 calls it back at once"]
    OurJob.restarts = 3
    call(tmp_path, SLURM_RESTART_COUNT="2")
    assert len(OurJob.recalls) == 2


def test_a_leader_whose_machine_runs_has_its_own_recall_job(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them would take two nodes, of which the job may need one."""
    machine(monkeypatch, is_gone=False)
    call(tmp_path)
    assert (OurJob.recalls, told) == ([], [])


@pytest.mark.parametrize(
    "environ",
    [{"SLURM_RESTART_COUNT": "2"}, {"SLURM_JOB_ID": ""}, {"HOLDFAST_CONTROLLER": "http://192.0.2.9:1"}],
    ids=["not requeued", "not on Slurm", "a controller does it"],
)
def test_otherwise_nothing_is_done(tmp_path: Path, told: list[str], environ: dict[str, str]) -> None:
    """A job that was cancelled does not come back, and a controller brings its jobs back itself."""
    call(tmp_path, **environ)
    assert (OurJob.recalls, told) == ([], [])


def test_where_slurm_refuses_the_job_comes_back_at_its_pace(tmp_path: Path, told: list[str]) -> None:
    """And that is said."""
    OurJob.refusal = "sbatch: Job violates accounting policy"
    call(tmp_path)
    [line] = told
    assert "at the scheduler's pace" in line
    assert "accounting policy" in line


def test_without_the_leaders_address_nobody_is_blamed(tmp_path: Path, told: list[str]) -> None:
    """Its file went with an orderly end."""
    (tmp_path / "leader.json").unlink()
    call(tmp_path)
    assert OurJob.recalls == []
