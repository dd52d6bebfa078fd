"""Two nodes: a leader and a follower as two processes with a folder each, on one machine."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.launch.conftest import Launched, alive, counter, wait_for

from holdfast.checkpoint.errors import FencedError
from holdfast.checkpoint.fence import Fence
from holdfast.model.evidence import Domain
from holdfast.telemetry.slot import SlotError, read_slot

pytestmark = [pytest.mark.cluster, pytest.mark.alone]


def pair(launched, tmp_path: Path, *args: str, **env: str) -> tuple[Launched, Launched]:
    """Leader on node01, follower on node02."""
    shared = {
        "HOLDFAST_JOB_ID": "12",
        "HOLDFAST_NODELIST": "node01,node02",
        "HOLDFAST_CLUSTER": "here",
        "HOLDFAST_LEASE_S": "1.5",
        **env,
    }
    (tmp_path / "job").mkdir(exist_ok=True)
    follower = launched(*args, node="node02", env={**shared, "HOLDFAST_NODE_RANK": "1"})
    leader = launched(*args, node="node01", env={**shared, "HOLDFAST_NODE_RANK": "0"})
    return leader, follower


def slot_pid(tmp_path: Path, node: str, rank: int, attempt: int) -> int:
    path = tmp_path / "nodes" / node / "telemetry" / "12" / f"a{attempt}" / f"rank-{rank:05d}.slot"

    def look() -> int | None:
        try:
            view = read_slot(path)
        except SlotError:
            return None
        return view.pid if view.steps else None

    return wait_for(f"rank {rank} on {node}", look)


def test_ranks_of_two_nodes_train_together_to_the_end(launched, tmp_path: Path):
    """Consecutive ranks, one rendezvous, both launchers leave with 0, the address file is private and removed."""
    leader, follower = pair(launched, tmp_path, "--nproc-per-node", "2", *counter(tmp_path, steps=60))
    facts = tmp_path / "job" / "leader.json"
    wait_for("the leader's address", facts.exists)
    assert facts.stat().st_mode & 0o777 == 0o600
    slot_pid(tmp_path, "node02", 3, 0)
    assert leader.wait() == 0
    assert follower.wait() == 0
    assert not facts.exists()
    started = leader.events("attempt_started")[0]
    assert (started.nodes, started.ranks) == (("node01", "node02"), 4)
    logs = sorted(path.name for path in (tmp_path / "job" / "logs" / "attempt-0").iterdir())
    ranks = [f"rank-{rank:05d}.log" for rank in range(4)]
    assert logs == ["launcher-node01.log", "launcher-node02.log", *ranks]


STAYS = """
import os, time
from holdfast import telemetry
with telemetry.step(1):
    pass
while os.environ["HOLDFAST_ATTEMPT"] == "0":
    time.sleep(0.05)
"""
"""Trains until it is killed, however late the engine is loaded; the next attempt ends at once."""


def test_a_death_on_the_followers_node_restarts_both(launched, tmp_path: Path):
    """The follower's rank dies: its end is seen at once, and both nodes get the new attempt."""
    (tmp_path / "stays.py").write_text(STAYS)
    leader, follower = pair(launched, tmp_path, "--nproc-per-node", "1", "stays.py")
    leader.wait_event("first_step_done")
    pid = slot_pid(tmp_path, "node02", 1, 0)
    before = time.time()
    os.kill(pid, signal.SIGABRT)
    found = leader.wait_event("finding_seen", lambda event: event.finding.rule == "exit.signal.6")
    assert (found.finding.place.node, found.finding.place.rank) == ("node02", 1)
    assert found.at - before < 0.5
    assert leader.wait() == 0
    assert follower.wait() == 0
    assert [event.attempt for event in leader.events("attempt_started")] == [0, 1]


def test_a_lost_follower_is_told_as_a_lost_node(launched, tmp_path: Path):
    """kill -9 of its launcher: the reset is positive evidence; its rank is dead; the job cannot go on here."""
    leader, follower = pair(launched, tmp_path, "--nproc-per-node", "1", *counter(tmp_path, steps=2000))
    leader.wait_event("first_step_done")
    pid = slot_pid(tmp_path, "node02", 1, 0)
    follower.popen.kill()
    gone = leader.wait_event("node_gone")
    assert gone.node == "node02"
    assert "connection" in gone.evidence
    assert gone.domain in {Domain.NETWORK, Domain.PLATFORM}, "the machine is not blamed"
    wait_for("its rank dead", lambda: not alive(pid), 5.0)
    assert leader.wait(60) in {85, 86}
    assert leader.events("attempt_ended")


def test_a_cut_followers_ranks_die_by_their_lease(launched, tmp_path: Path):
    """Nobody can tell a cut-off node anything: it kills its ranks by itself, in time, and the fence refuses the rest."""
    leader, follower = pair(launched, tmp_path, "--nproc-per-node", "1", *counter(tmp_path, steps=5000))
    leader.wait_event("first_step_done")
    pid = slot_pid(tmp_path, "node02", 1, 0)
    cut = tmp_path / "nodes" / "node02" / "cut"
    cut.touch()
    cut_at = time.monotonic()
    wait_for("its rank dead", lambda: not alive(pid), 10.0)
    assert time.monotonic() - cut_at < 1.5 + 1.5
    assert follower.popen.poll() is None
    silent = leader.wait_event("node_silent")
    assert silent.node == "node02"
    assert leader.events("node_gone") == []
    leader.wait_event("attempt_ended", lambda event: event.attempt == 0)
    cut.unlink()
    started = leader.wait_event("attempt_started", lambda event: event.attempt == 1, limit_s=40)
    assert started.nodes == ("node01", "node02")
    assert leader.wait_event("node_heard").node == "node02"
    old, new = Fence(tmp_path / "job", 1), Fence(tmp_path / "job", 2)
    with pytest.raises(FencedError, match="epoch 2 has been started"):
        old.check("publish")
    new.check("publish")


def test_a_follower_that_nobody_leads_leaves_when_it_is_told_to(launched, tmp_path: Path):
    """The leader's machine is gone without a word, so its connection stands: the scheduler must not wait for us."""
    leader, follower = pair(launched, tmp_path, "--nproc-per-node", "1", *counter(tmp_path, steps=5000))
    leader.wait_event("first_step_done")
    pid = slot_pid(tmp_path, "node02", 1, 0)
    (tmp_path / "nodes" / "node02" / "cut").touch()
    wait_for("its rank dead", lambda: not alive(pid))
    assert follower.popen.poll() is None
    follower.popen.send_signal(signal.SIGTERM)
    assert follower.wait() == 128 + signal.SIGTERM


def test_a_cut_leader_ends_the_whole_job_by_itself(launched, tmp_path: Path):
    """The leader's lease runs out too: its own rank dies by its hand, the follower's because nothing is granted."""
    leader, follower = pair(launched, tmp_path, "--nproc-per-node", "1", *counter(tmp_path, steps=5000))
    leader.wait_event("first_step_done")
    pids = [slot_pid(tmp_path, "node01", 0, 0), slot_pid(tmp_path, "node02", 1, 0)]
    (tmp_path / "nodes" / "node01" / "cut").touch()
    cut_at = time.monotonic()
    wait_for("all ranks dead", lambda: not any(map(alive, pids)), 10.0)
    assert time.monotonic() - cut_at < 1.5 + 1.5 + 1.0
    assert leader.popen.poll() is None
    assert follower.popen.poll() is None
    time.sleep(0.5)
    assert [event.attempt for event in leader.events("attempt_started")] == [0]


def test_what_a_killed_launcher_left_pending_is_not_done_by_its_successor(launched, tmp_path: Path):
    """A restart in place was ordered while the leader was cut off; the job was started anew: one attempt, not two."""
    args = ("--nproc-per-node", "1", *counter(tmp_path, steps=400))
    leader, follower = pair(launched, tmp_path, *args)
    leader.wait_event("checkpoint_saved", lambda event: event.durable)
    cut = tmp_path / "nodes" / "node01" / "cut"
    cut.touch()
    leader.wait_event("attempt_ended")
    wait_for("restart ordered", lambda: "restarts in place" in leader.text())
    assert [event.finding.rule for event in leader.events("finding_seen")].count("launch.lease") <= 2
    for launcher in (leader, follower):
        launcher.popen.kill()
        launcher.popen.wait()
    cut.unlink()
    again, _ = pair(launched, tmp_path, *args, HOLDFAST_RESTART_COUNT="1")
    assert again.wait(40) == 0
    assert [(event.attempt, event.restart_count) for event in again.events("attempt_started")] == [(0, 0), (1, 1)]
    assert "Traceback" not in again.text()


def test_a_leader_that_was_superseded_leaves(launched, tmp_path: Path):
    """A newer epoch in the job's folder: another launcher has the job; nothing of this one goes on."""
    leader, follower = pair(launched, tmp_path, "--nproc-per-node", "1", *counter(tmp_path, steps=5000))
    leader.wait_event("first_step_done")
    (tmp_path / "job" / "epoch.new").write_text("7\n")
    (tmp_path / "job" / "epoch.new").rename(tmp_path / "job" / "epoch")
    assert leader.wait(10) == 69
    assert "another launcher has taken this job over" in leader.text()
    assert follower.wait(10) == 69


def test_a_second_launcher_of_a_node_disturbs_nothing(launched, tmp_path: Path):
    """It is told so, and the job comes to its end with the first one."""
    args = ("--nproc-per-node", "1", *counter(tmp_path, steps=1500))
    leader, follower = pair(launched, tmp_path, *args)
    leader.wait_event("first_step_done")
    env = {"HOLDFAST_JOB_ID": "12", "HOLDFAST_NODELIST": "node01,node02", "HOLDFAST_CLUSTER": "here",
           "HOLDFAST_LEASE_S": "1.5", "HOLDFAST_NODE_RANK": "1"}  # fmt: skip
    twin = launched(*args, node="node02", env=env)
    wait_for("the twin's word", lambda: "another launcher of node02 leads its ranks" in twin.text())
    assert leader.wait(60) == 0
    assert follower.wait(10) == 0
    assert [event.attempt for event in leader.events("attempt_started")] == [0]


def test_a_cut_leader_that_was_replaced_does_not_come_back(launched, tmp_path: Path):
    """Its ranks are dead, its own restart is pending, and another launcher took the job: after the heal it leaves."""
    leader, _follower = pair(launched, tmp_path, "--nproc-per-node", "1", *counter(tmp_path, steps=5000))
    leader.wait_event("first_step_done")
    cut = tmp_path / "nodes" / "node01" / "cut"
    cut.touch()
    leader.wait_event("attempt_ended")
    (tmp_path / "job" / "epoch.new").write_text("9\n")
    (tmp_path / "job" / "epoch.new").rename(tmp_path / "job" / "epoch")
    cut.unlink()
    assert leader.wait(10) == 69
    assert [event.attempt for event in leader.events("attempt_started")] == [0]
    assert (tmp_path / "job" / "epoch").read_text() == "9\n"


def test_a_follower_waits_for_a_leader_that_comes_back(launched, tmp_path: Path):
    """The leader's launcher is killed and started again: the follower stays, and takes part in the next attempt."""
    args = ("--nproc-per-node", "1", *counter(tmp_path, steps=400))
    leader, follower = pair(launched, tmp_path, *args)
    leader.wait_event("checkpoint_saved", lambda event: event.durable)
    leader.popen.kill()
    leader.popen.wait()
    env = {"HOLDFAST_JOB_ID": "12", "HOLDFAST_NODELIST": "node01,node02", "HOLDFAST_CLUSTER": "here",
           "HOLDFAST_LEASE_S": "1.5", "HOLDFAST_NODE_RANK": "0"}  # fmt: skip
    again = launched(*args, node="node01", env=env)
    assert again.wait(40) == 0
    assert follower.wait(10) == 0
    assert [(event.attempt, event.epoch) for event in again.events("attempt_started")] == [(0, 1), (1, 2)]


def test_a_spare_of_the_allocation_takes_a_lost_nodes_place(launched, tmp_path: Path):
    """Two nodes of three train; the second is lost; the third takes over inside the allocation."""
    (tmp_path / "job").mkdir()
    env = {"HOLDFAST_JOB_ID": "12", "HOLDFAST_NODELIST": "node01,node02,node03", "HOLDFAST_CLUSTER": "here"}
    args = ("--nnodes", "2", *counter(tmp_path, steps=250))
    others = [launched(*args, node=f"node0{n}", env={**env, "HOLDFAST_NODE_RANK": str(n - 1)}) for n in (3, 2)]
    leader = launched(*args, node="node01", env={**env, "HOLDFAST_NODE_RANK": "0"})
    first = leader.wait_event("attempt_started")
    leader.wait_event("checkpoint_saved", lambda event: event.durable)
    lost = others[0] if first.nodes[1] == "node03" else others[1]
    lost.popen.kill()
    again = leader.wait_event("attempt_started", lambda event: event.attempt == 1)
    assert {*again.nodes} == {"node01", "node02", "node03"} - {first.nodes[1]}
    assert leader.wait(40) == 0


def test_strangers_cannot_join(launched, tmp_path: Path):
    """A connection without the secret learns nothing and changes nothing."""
    import socket

    leader, _ = pair(launched, tmp_path, "--nproc-per-node", "1", *counter(tmp_path, steps=100))
    address = tmp_path / "job" / "leader.json"
    wait_for("the leader's address", address.exists)
    facts = json.loads(address.read_text())
    with socket.create_connection((facts["address"], facts["port"]), timeout=5) as link:
        assert len(link.recv(16)) == 16
        link.sendall(b"n" * 16 + (5).to_bytes(4, "big") + b"m" * 32 + b"hello")
        assert link.recv(1) == b""
    assert leader.wait() == 0
    assert leader.events("finding_seen") == []
