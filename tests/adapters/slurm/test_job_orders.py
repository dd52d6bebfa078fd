"""What orders about jobs tell Slurm, and in which order, where a node of the job is lost. Without a Slurm."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.adapters.slurm.job_orders import JobOrders, pull_in
from holdfast.adapters.slurm.looks import Reading
from holdfast.adapters.slurm.memory import Memory
from holdfast.adapters.slurm.node_orders import NodeOrders
from holdfast.adapters.slurm.node_output import SlurmNode
from holdfast.adapters.slurm.output import SlurmJob, node_names
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.adapters.slurm.starts import REQUEUED_HELD, was_forgotten
from holdfast.errors import PermanentOrderError
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey

KEY = JobKey("lab", "7")


class Slurm:
    """Slurm's tools and their words: a running job on two nodes, queued as soon as one of them is down."""

    def __init__(self) -> None:
        self.job = SlurmJob(id="7", states=frozenset({"RUNNING"}), nodes=("node01", "node02"))
        self.nodes = {name: SlurmNode(name=name, states=frozenset({"ALLOCATED"})) for name in self.job.nodes}
        self.told: list[str] = []
        self.cost_s = 0.0

    async def fresh(self) -> Reading:
        return Reading(at=0.0, jobs={"7": self.job}, nodes=dict(self.nodes))

    async def text(self, argv: Sequence[str]) -> str:
        return "7.0\n"

    async def run(self, argv: Sequence[str], **_: object) -> bytes:
        words = " ".join(argv)
        self.told.append(words)
        if "State=DOWN" in words:
            self.nodes["node02"] = SlurmNode(name="node02", states=frozenset({"DOWN"}))
            self.job = replace(self.job, states=frozenset({"PENDING"}), restart_count=1, nodes=())
        if words.startswith("scontrol hold"):
            self.job = replace(self.job, priority=0, reason="JobHeldAdmin")
        return b""


def _jobs(slurm: Slurm, memory: Memory | None = None) -> JobOrders:
    return JobOrders(
        slurm,  # type: ignore[arg-type]
        slurm,  # type: ignore[arg-type]
        memory or Memory(None),
        find=lambda seen, key: seen.jobs[key.id],
        released=lambda *_: None,
    )


async def _lost(*, leased: bool) -> list[str]:
    """The two orders of one moment: requeue the job, take its dead node out of service."""
    slurm = Slurm()
    memory = Memory(None)
    jobs = _jobs(slurm, memory)
    nodes = NodeOrders(slurm, slurm, memory, SlurmConfig(), until_killed=jobs.until_killed)  # type: ignore[arg-type]
    out = o.QuarantineNode(id="2", node="node02", why="lost", cause=1, gone=True)
    requeue = o.RequeueHeld(id="1", job=KEY, why="lost", cause=1, restart_count=0, gone=("node02",), leased=leased)
    await asyncio.gather(nodes.execute(out), jobs.execute(requeue))
    return slurm.told


@pytest.mark.parametrize("leased", [False, True])
def test_tasks_on_the_nodes_that_are_left_are_killed_before_the_lost_one_is_down(leased: bool) -> None:
    """By slurmctld, which does not wait for the dead node; ranks of launchers end without us."""
    told = asyncio.run(_lost(leased=leased))
    down = next(number for number, words in enumerate(told) if "State=DOWN" in words)
    assert told[:down] == ([] if leased else ["scancel --ctld --signal=KILL 7.0"])
    assert "scontrol hold 7" in told


def test_all_nodes_that_a_job_has_lost_are_set_down_by_one_command() -> None:
    """One that is left out keeps the job in the queue until SlurmdTimeout."""

    async def work() -> list[str]:
        slurm = Slurm()
        requeue = o.RequeueHeld(
            id="1", job=KEY, why="lost", cause=1, restart_count=0, gone=("node01", "node02"), leased=True
        )
        await _jobs(slurm).execute(requeue)
        return slurm.told

    assert asyncio.run(work())[0].startswith("scontrol update NodeName=node[01-02] State=DOWN")


def test_what_the_owner_excluded_stays_excluded_when_ours_changes() -> None:
    """Exactly the owner's nodes and the ones asked for: ours come free again, the owner's never."""

    async def work() -> list[tuple[str, ...]]:
        slurm, kept_off = Slurm(), []
        slurm.job = replace(slurm.job, states=frozenset({"PENDING"}), priority=0, nodes=(), excluded=("node09",))
        jobs = _jobs(slurm)
        for nodes in (("node02",), ("node03",), ()):
            await jobs.execute(o.SetExcluded(id="1", job=KEY, cause=1, nodes=nodes))
            said = next(word for word in slurm.told[-1].split() if word.startswith("ExcNodeList="))
            kept_off.append(node_names(said.partition("=")[2]))
            slurm.job = replace(slurm.job, excluded=kept_off[-1])
        return kept_off

    assert asyncio.run(work()) == [("node02", "node09"), ("node03", "node09"), ("node09",)]


@pytest.mark.parametrize("state", ["RUNNING", "FAILED"])
def test_a_job_that_may_not_be_requeued_is_left_as_it_is(state: str) -> None:
    """--no-requeue, or JobRequeue=0: neither killed nor changed, running or ended."""
    slurm = Slurm()
    slurm.job = replace(slurm.job, states=frozenset({state}), requeue=False)
    order = o.RequeueHeld(id="1", job=KEY, why="a crash", cause=1, restart_count=0)
    with pytest.raises(PermanentOrderError, match="--no-requeue"):
        asyncio.run(_jobs(slurm).execute(order))
    assert slurm.told == []


def test_what_is_held_once_more_is_no_forgotten_release() -> None:
    """Whoever asks for the hold by Holdfast is respected, also when slurmctld comes back with an older hold of ours."""
    slurm, memory = Slurm(), Memory(None)
    slurm.job = replace(slurm.job, states=frozenset({"PENDING"}), nodes=(), restart_count=1)
    entry = memory.seen(slurm.job)
    entry.released, entry.released_at = 1, 1.0
    order = o.RequeueHeld(id="a1", cause=1, job=KEY, restart_count=0)
    assert "held; its restart count is 1" in asyncio.run(_jobs(slurm, memory).execute(order))
    forgotten = replace(slurm.job, reason="JobHeldUser", description=REQUEUED_HELD)
    assert not was_forgotten(forgotten, memory.seen(forgotten), 9.0)


@pytest.mark.parametrize(
    ("ended_at", "now", "wanted"),
    [(0.0, 500.0, 1), (500.2, 500.9, 1), (500.9, 501.05, 1), (500.9, 501.2, 0), (500.0, 700.0, 0)],
)
def test_a_start_is_asked_for_at_once_when_the_end_was_in_an_earlier_second(
    ended_at: float, now: float, wanted: int
) -> None:
    """A start in the second of the kill is refused by slurmd, so that one waits for the next second only then."""
    assert pull_in(ended_at, now, 1) == wanted
