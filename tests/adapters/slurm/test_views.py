"""Slurm's states as the engine sees them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from adapters.slurm.test_output import recorded
from holdfast.adapters.slurm.node_output import SlurmNode, nodes_of_text
from holdfast.adapters.slurm.output import SlurmJob, jobs_of_json
from holdfast.adapters.slurm.views import (
    alive_of,
    busy_nodes,
    is_drained,
    is_lost,
    job_view,
    joined,
    node_view,
    out_of_reach,
    state_of,
)
from holdfast.model.cluster import JobKey, RecoverySpec, SchedulerState
from holdfast.model.machine import MachineId

S = SchedulerState
KEY = JobKey("lab", "1")


def job(*states: str, **more) -> SlurmJob:
    return SlurmJob(**{"id": "1", "states": frozenset(states), **more})


def node(*states: str, reason: str = "", **more) -> SlurmNode:
    return SlurmNode(name="node01", states=frozenset(states), reason=reason, partitions=("main",), **more)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (job("PENDING"), S.PENDING),
        (job("PENDING", priority=0), S.HELD),
        (job("PENDING", reason="JobHeldUser"), S.HELD),
        (job("PENDING", reason="BadConstraints", priority=0), S.PENDING),
        (job("PENDING", "REQUEUE_HOLD", reason="BadConstraints", priority=0), S.HELD),
        (job("PENDING", "REQUEUED"), S.PENDING),
        (job("PENDING", "SPECIAL_EXIT"), S.HELD),
        (job("RUNNING"), S.RUNNING),
        (job("RUNNING", "CONFIGURING"), S.PENDING),
        (job("CONFIGURING"), S.PENDING),
        (job("SUSPENDED"), S.RUNNING),
        (job("COMPLETING"), S.COMPLETING),
        (job("FAILED", "COMPLETING"), S.COMPLETING),
        (job("PENDING", "COMPLETING", priority=0), S.COMPLETING),
        (job("FAILED"), S.FAILED),
        (job("OUT_OF_MEMORY"), S.FAILED),
        (job("NODE_FAIL"), S.NODE_FAIL),
        (job("BOOT_FAIL"), S.NODE_FAIL),
        (job("TIMEOUT"), S.TIMEOUT),
        (job("DEADLINE"), S.TIMEOUT),
        (job("CANCELLED"), S.CANCELLED),
        (job("PREEMPTED"), S.PREEMPTED),
        (job("COMPLETED"), S.COMPLETED),
        (job("A_NEW_STATE"), S.UNKNOWN),
    ],
)
def test_states_of_jobs(seen: SlurmJob, expected: SchedulerState) -> None:
    """Flags count before the base state; held is what has priority 0; time limits and deadlines are no failures."""
    assert state_of(seen) is expected


def test_a_job_of_mission_control_is_seen_with_its_wish() -> None:
    """Owner, wish, nodes and exclusions; a waiting job has no start yet, whatever Slurm expects."""
    jobs = {job.id: job for job in jobs_of_json(recorded("22.05", "squeue--json-many.json"))}
    view = job_view(jobs["1"], KEY)
    assert (view.state, view.user, view.partition, view.excluded) == (S.RUNNING, "root", "main", ("node05",))
    assert view.recovery == RecoverySpec(max_requeues=1)
    assert len(view.nodes) == 2
    assert job_view(jobs["7"], KEY).started_at == 0.0
    assert job_view(jobs["10"], KEY).signal == 11


def test_a_job_whose_own_nodes_are_excluded_lacks_nodes() -> None:
    """Slurm gives it the priority 0, which is nobody's hold: it waits for its nodes, or for the exclusion to end."""
    seen = job_view(job("PENDING", reason="BadConstraints", priority=0), KEY)
    assert (seen.state, seen.lacks_nodes) == (S.PENDING, True)


def test_a_job_held_after_a_failed_prolog_has_failed_for_its_node() -> None:
    """`launch failed requeued held` waits for a person who may never come; the engine is told that its start failed."""
    seen = job("PENDING", priority=0, reason="JobHeldUser", description="launch failed requeued held")
    view = job_view(seen, KEY)
    assert view.state is S.NODE_FAIL
    assert "launch failed" in view.reason


def test_a_job_whose_only_nodes_are_left_out_waits_for_nodes_and_is_held_by_nobody() -> None:
    """Slurm sets its priority to 0 as for a hold, and lifts that itself; the reason says where to look."""
    view = job_view(job("PENDING", priority=0, reason="BadConstraints"), KEY)
    assert (view.state, view.lacks_nodes) == (S.PENDING, True)
    assert view.reason.startswith("BadConstraints; no node fits what ReqNodeList and ExcNodeList")


def test_a_heterogeneous_job_is_one_job() -> None:
    """Under its leader's id, on all its nodes; array tasks stay jobs of their own."""
    jobs = joined(jobs_of_json(recorded("22.05", "squeue--json-many.json")))
    by_id = {seen.id: seen for seen in jobs}
    assert "4" not in by_id
    assert (len(by_id["3"].nodes), by_id["3"].want_nodes) == (2, 2)
    assert {"5", "2"} <= set(by_id)


def test_busy_nodes_count_everybodys_jobs() -> None:
    """A node is idle only when no job of any user has processes there."""
    jobs = [
        job("RUNNING", id="1", nodes=("a", "b")),
        job("COMPLETING", id="2", nodes=("b",)),
        job("FAILED", id="3", nodes=("a",)),
    ]
    assert busy_nodes(jobs) == {"a": ["1"], "b": ["1", "2"]}


@pytest.mark.parametrize(
    ("seen", "alive", "drained"),
    [
        (node("IDLE"), True, False),
        (node("ALLOCATED", "DRAIN", reason="memory"), True, True),
        (node("IDLE", "FAIL", reason="Action:Reboot"), True, True),
        (node("MIXED", "FAIL", reason="x"), True, True),
        (node("IDLE", "NOT_RESPONDING"), None, False),
        (node("DOWN", "NOT_RESPONDING", reason="Not responding"), False, False),
        (node("DOWN", reason="Node unexpectedly rebooted"), False, False),
        (node("DOWN", reason="taken out by mei"), None, True),
        (node("DOWN", reason="[holdfast] lost"), None, True),
        (node("DOWN", "NOT_RESPONDING", reason="[holdfast] lost"), None, True),
        (node("DOWN", reason="[holdfast] lost", reason_at=100.0, slurmd_at=130.0), True, True),
        (node("DOWN", reason="[holdfast] slurmd does not answer", reason_at=100.0, slurmd_at=50.0), False, True),
        (node("DOWN", "NOT_RESPONDING", reason="Not responding", reason_at=100.0, slurmd_at=50.0), False, False),
        (node("IDLE", "POWERED_DOWN", "CLOUD"), None, False),
        (node("ALLOCATED", "POWERING_UP", "CLOUD"), None, False),
        (node("DOWN", "DRAIN", "REBOOT_ISSUED", reason="[holdfast] x : reboot issued"), None, True),
        (node("IDLE", "MAINTENANCE"), True, False),
    ],
)
def test_states_of_nodes(seen: SlurmNode, alive: bool | None, drained: bool) -> None:
    """Silence is unknown, Slurm's own `down` is evidence, a person's is a decision; asleep is neither."""
    assert (alive_of(seen), is_drained(seen)) == (alive, drained)


def test_a_node_tells_what_a_person_asks_with_its_reason() -> None:
    """Only on a node that was taken out of service, and near misses come as a warning."""
    facts = {
        "jobs": (),
        "machine": MachineId("node01/1", "slurm"),
        "boot": "slurm:1@5",
    }
    asked = node_view(node("IDLE", "FAIL", reason="Action:Replace", gpus=8), **facts)
    assert (asked.asked, asked.warnings, asked.group, asked.gpus) == ("replace", (), "main", 8)
    assert (asked.instance_id, asked.boot_id) == ("slurm:node01/1", "slurm:1@5")
    nearly = node_view(node("IDLE", "DRAIN", reason="action:replace"), **facts)
    assert nearly.asked == ""
    assert "Action:Replace" in nearly.warnings[0]


def test_a_node_that_slurm_drained_for_its_prolog_says_so() -> None:
    """Slurm's own reason, exactly, on a drained node; a person's words about a prolog are a person's."""
    facts = {"jobs": (), "machine": MachineId("node01/1", "slurm"), "boot": ""}
    assert node_view(node("IDLE", "DRAIN", reason="Prolog error"), **facts).failed_check == "its Prolog failed"
    assert node_view(node("IDLE", "DRAIN", reason="prolog error, mei looks"), **facts).failed_check == ""
    assert node_view(node("IDLE", reason="Prolog error"), **facts).failed_check == ""


def test_nodes_that_power_saving_wakes_or_switches_off_are_neither_lost_nor_drained() -> None:
    """A waking node does not respond yet, which is no evidence; it takes work, since it is woken for it."""
    seen = {node.name: node for node in nodes_of_text(recorded("22.05", "scontrol-show-nodes-cloud.txt").decode())}
    assert {name: found.states - {"CLOUD"} for name, found in seen.items()} == {
        "cloud02": {"MIXED", "NOT_RESPONDING", "POWERING_UP"},
        "cloud03": {"IDLE", "NOT_RESPONDING", "POWERING_UP"},
        "cloud04": {"IDLE", "POWERING_DOWN"},
    }
    assert [(alive_of(found), is_drained(found), is_lost(found)) for found in seen.values()] == [
        (None, False, False)
    ] * 3


def cluster(down: int, *, silent: int = 0, well: int = 0, at: float = 100.0, apart_s: float = 0.0) -> list[SlurmNode]:
    """Nodes that Slurm has set down for their silence, those that do not respond yet, and those that do."""
    lost = [
        replace(node("DOWN", "NOT_RESPONDING", reason="Not responding"), name=f"d{i}", reason_at=at + i * apart_s)
        for i in range(down)
    ]
    more = [replace(node("IDLE", "NOT_RESPONDING"), name=f"s{i}") for i in range(silent)]
    return [*lost, *more, *(replace(node("IDLE"), name=f"w{i}") for i in range(well))]


@pytest.mark.parametrize(
    ("nodes", "count"),
    [
        (cluster(4), 4),
        (cluster(5, well=4), 5),
        (cluster(1, silent=3), 1),
        (cluster(3, apart_s=40.0), 3),
        (cluster(4, well=4), 0),
        (cluster(1), 0),
        (cluster(1, well=1), 0),
        (cluster(5, well=4, apart_s=1000.0), 0),
        ([*cluster(2), *(replace(one, name=f"x{one.name}") for one in cluster(1, well=2, at=9000.0))], 0),
    ],
)
def test_a_scheduler_that_has_lost_most_of_its_nodes_at_once_has_lost_its_line_to_them(
    nodes: list[SlurmNode], count: int
) -> None:
    """Silent is not gone: they are weighed with those that do not respond yet against those that do."""
    assert len(out_of_reach(nodes, 50.0)) == count


def test_a_mass_of_nodes_that_booted_unasked_is_no_lost_line() -> None:
    """Slurm has heard of them: power failed under them."""
    booted = [replace(node("DOWN", reason="Node unexpectedly rebooted"), name=f"n{i}") for i in range(4)]
    assert out_of_reach(booted, 50.0) == frozenset()


def test_a_node_out_of_reach_is_unknown_and_nobody_has_drained_it() -> None:
    """The engine neither fences it nor has jobs leave it."""
    facts = {"jobs": (), "machine": MachineId("node01/1", "slurm"), "boot": ""}
    lost = node("DOWN", "NOT_RESPONDING", reason="Not responding")
    seen = node_view(lost, is_out_of_reach=True, **facts)
    assert (seen.alive, seen.drained) == (None, False)
