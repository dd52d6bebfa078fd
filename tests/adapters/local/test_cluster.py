"""The embedded cluster with real processes: queue, requeue, power, cuts, and nothing left behind."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from cluster_fixture import TestCluster, embedded_cluster, job_of, node_of
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.adapters.local.cluster import hold
from holdfast.adapters.local.daemon import start_cluster
from holdfast.adapters.local.processes import environment_of, marked
from holdfast.adapters.local.protocol import Hold, Release
from holdfast.errors import HoldfastError, LinkError, NotFoundError, PermanentOrderError, RefusedError, UsageError
from holdfast.model.cluster import JobKey, SchedulerState
from holdfast.model.orders import (
    QuarantineNode,
    RebootNode,
    ReleaseJob,
    ReplaceNode,
    RequeueHeld,
    ReturnNode,
    SetExcluded,
)

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

S = SchedulerState
STUBBORN = "trap '' TERM; setsid env -i sleep 1000 & sleep 1000 & while :; do sleep 0.1; done"
"""A task that ignores SIGTERM and whose child has its own session and no marks in its environment."""


def key(job_id: str) -> JobKey:
    return JobKey(cluster="cluster", id=job_id)


async def running(cluster: TestCluster, argv: list[str], **wishes: object) -> str:
    """Submit and wait until every task has a process."""
    job = await cluster.orchestrator.submit(argv, **wishes)
    await cluster.until_job(job.key.id, S.RUNNING)
    folder, count = Path(job.job_dir), job.want_nodes
    deadline = time.monotonic() + 60
    while len(pids_of_job(cluster, job.key.id)) < count:
        assert time.monotonic() < deadline, folder
        await asyncio.sleep(0.005)
    return job.key.id


def pids_of_job(cluster: TestCluster, job_id: str, node: str = "") -> list[int]:
    found = []
    for pid in cluster.left():
        env = environment_of(pid)
        if env.get("HOLDFAST_JOB_ID") == job_id and node in {"", env.get("HOLDFAST_NODE")}:
            found.append(pid)
    return found


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def gone(pids: list[int], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while alive := [p for p in pids if _lives(p)]:
        assert time.monotonic() < deadline, f"still there: {alive}"
        await asyncio.sleep(0.005)


async def whole_tree(process: psutil.Process, least: int, limit_s: float = 60.0) -> list[int]:
    """A job runs before its shell has started all that it starts."""
    deadline = time.monotonic() + limit_s
    while len(tree := [p.pid for p in process.children(recursive=True)]) < least:
        assert time.monotonic() < deadline, f"only {tree}"
        await asyncio.sleep(0.005)
    return tree


def run(tmp_path: Path, scenario, **options) -> None:
    async def body() -> None:
        async with embedded_cluster(tmp_path, **options) as cluster:
            await scenario(cluster)
        assert cluster.left() == []

    asyncio.run(body())


# --- jobs ---


def test_a_job_runs_once_on_every_node_of_its_allocation(tmp_path: Path) -> None:
    """Each task sees its node, rank, list, folder and restart count; output is appended to one log; exit 0 completes."""

    async def scenario(cluster: TestCluster) -> None:
        script = "#!/bin/bash\necho $HOLDFAST_JOB_ID $HOLDFAST_NODE $HOLDFAST_NODE_RANK $HOLDFAST_NODELIST $HOLDFAST_RESTART_COUNT\n"
        job = await cluster.orchestrator.submit(script=script, nodes=2)
        done = await cluster.until_job(job.key.id, S.COMPLETED)
        lines = sorted((Path(job.job_dir) / "output.log").read_text().splitlines())
        assert lines == ["1 node01 0 node01,node02 0", "1 node02 1 node01,node02 0"]
        assert (done.exit_code, done.nodes, done.started_at > 0) == (0, ("node01", "node02"), True)

    run(tmp_path, scenario)


def test_the_first_bad_exit_ends_the_other_tasks(tmp_path: Path) -> None:
    """Exit 3 on one node ends the job as failed with code 3 after the grace, and what the others forked is gone."""

    async def scenario(cluster: TestCluster) -> None:
        argv = ["bash", "-c", f"[ $HOLDFAST_NODE_RANK = 1 ] && exit 3; {STUBBORN}"]
        job = await cluster.orchestrator.submit(argv, nodes=2, bad_exit_wait_s=0.1, stop_grace_s=0.1)
        failed = await cluster.until_job(job.key.id, S.FAILED)
        assert (failed.exit_code, failed.reason) == (3, "exit 3 on node02")
        daemon = psutil.Process(cluster.running.process.pid)
        assert [p.name() for p in daemon.children(recursive=True) if p.name() in {"sleep", "bash"}] == []

    run(tmp_path, scenario)


def test_a_death_by_signal_is_told_at_once(tmp_path: Path) -> None:
    """From a task's death by signal 11 to an observer that knows of it: a few milliseconds, pushed and not polled."""

    async def scenario(cluster: TestCluster) -> None:
        lags = []
        for _ in range(5):
            job_id = await running(cluster, ["sleep", "1000"], nodes=1)
            (pid,) = pids_of_job(cluster, job_id)
            await cluster.orchestrator.observe()
            waiting = asyncio.create_task(cluster.until(lambda w, j=job_id: job_of(w, j).signal == 11))
            await asyncio.sleep(0.02)
            begun = time.monotonic()
            os.kill(pid, signal.SIGSEGV)
            await waiting
            lags.append(time.monotonic() - begun)
            await cluster.until_job(job_id, S.FAILED)
        assert sorted(lags)[2] < 0.05, lags

    run(tmp_path, scenario, nodes=1)


def test_a_program_that_does_not_exist_fails_with_127(tmp_path: Path) -> None:
    """The job fails as a shell would say it, and its log names the program."""

    async def scenario(cluster: TestCluster) -> None:
        job = await cluster.orchestrator.submit(["no-such-program"])
        failed = await cluster.until_job(job.key.id, S.FAILED)
        assert failed.exit_code == 127
        assert "cannot start no-such-program" in (Path(job.job_dir) / "output.log").read_text()

    run(tmp_path, scenario, nodes=1)


def test_requeue_exclude_release_runs_on_the_spare(tmp_path: Path) -> None:
    """Requeue-held ends every process of the old attempt; exclude and release start the next one on the spare, same id."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        job_id = await running(
            cluster, ["bash", "-c", f"echo attempt $HOLDFAST_RESTART_COUNT; {STUBBORN}"], nodes=2, stop_grace_s=0.1
        )
        log, deadline = cluster.folder / "jobs" / job_id / "output.log", time.monotonic() + 60
        while not log.exists() or log.read_text().count("attempt 0") < 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        old = pids_of_job(cluster, job_id)
        await o.execute(RequeueHeld(id="o1", cause=1, job=key(job_id), restart_count=0, why="Xid 74"))
        held = await o.job(job_id)
        assert held is not None
        assert (held.state, held.restart_count, held.nodes, held.reason) == (S.HELD, 1, (), "held by holdfast: Xid 74")
        await gone(old)
        await o.execute(SetExcluded(id="o2", cause=1, job=key(job_id), nodes=("node01",)))
        await o.execute(ReleaseJob(id="o3", cause=1, job=key(job_id), epoch=7, restore_step_max=120))
        again = await cluster.until_job(job_id, S.RUNNING)
        assert again.nodes == ("node02", "node03")
        assert (Path(again.job_dir) / "epoch").read_text().strip() == "7"
        deadline = time.monotonic() + 60
        while not pids_of_job(cluster, job_id):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        env = environment_of(pids_of_job(cluster, job_id)[0])
        assert (env["HOLDFAST_RESTART_COUNT"], env["HOLDFAST_RESTORE_STEP"]) == ("1", "120")
        while log.read_text().count("attempt 1") < 2:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        assert log.read_text().count("attempt 0") == 2, "the old attempt's output is kept"
        await o.cancel(job_id)
        await cluster.until_job(job_id, S.CANCELLED)

    run(tmp_path, scenario, nodes=2, spares=1)


def test_from_requeue_to_new_processes_in_well_under_a_second(tmp_path: Path) -> None:
    """Requeue, exclude, release and the new attempt's processes, of a job that ends at SIGTERM: below half a second."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        job_id = await running(cluster, ["sleep", "1000"], nodes=2)
        begun = time.monotonic()
        await o.execute(RequeueHeld(id="o1", cause=1, job=key(job_id), restart_count=0))
        await o.execute(SetExcluded(id="o2", cause=1, job=key(job_id), nodes=("node01",)))
        await o.execute(ReleaseJob(id="o3", cause=1, job=key(job_id), epoch=1))
        await cluster.until_job(job_id, S.RUNNING)
        while len(pids_of_job(cluster, job_id)) < 2:
            await asyncio.sleep(0.002)
        assert time.monotonic() - begun < 0.5

    run(tmp_path, scenario, nodes=2, spares=1)


def test_one_order_id_has_one_effect(tmp_path: Path) -> None:
    """A release and a requeue that are executed again change nothing, though the world has gone on."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        job_id = await running(cluster, ["sleep", "1000"])
        first = RequeueHeld(id="o1", cause=1, job=key(job_id), restart_count=0)
        release = ReleaseJob(id="o2", cause=1, job=key(job_id), epoch=1)
        await asyncio.gather(o.execute(first), o.execute(first))
        assert (await o.job(job_id)).restart_count == 1
        await o.execute(release)
        await cluster.until_job(job_id, S.RUNNING)
        await o.execute(first)
        assert (await o.job(job_id)).state == S.RUNNING
        await o.execute(RequeueHeld(id="o3", cause=2, job=key(job_id), restart_count=1))
        await o.execute(release)
        assert (await o.job(job_id)).state == S.HELD
        assert "already requeued" in await o.execute(RequeueHeld(id="o4", cause=2, job=key(job_id), restart_count=0))

    run(tmp_path, scenario, nodes=1)


def test_what_was_requeued_already_and_waits_is_held(tmp_path: Path) -> None:
    """So a person's `holdfast hold` of a released job that waits for nodes keeps it from starting."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        job_id = await running(cluster, ["sleep", "1000"])
        await o.execute(RequeueHeld(id="o1", cause=1, job=key(job_id), restart_count=0))
        await o.execute(QuarantineNode(id="o2", cause=1, node="node01", why="Xid 74"))
        await o.execute(ReleaseJob(id="o3", cause=1, job=key(job_id), epoch=1))
        await o.execute(RequeueHeld(id="o4", cause=2, job=key(job_id), restart_count=0))
        view = await o.job(job_id)
        assert (view.state, view.restart_count) == (S.HELD, 1)

    run(tmp_path, scenario, nodes=1)


def test_a_persons_word_wins(tmp_path: Path) -> None:
    """A person's hold outlives Holdfast's release; a cancelled or completed job is not requeued."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        job_id = await running(cluster, ["sleep", "1000"])
        await o.execute(RequeueHeld(id="o1", cause=1, job=key(job_id), restart_count=0))
        await o.ask(Hold(job=job_id, who="mei", why="debugging"))
        with pytest.raises(PermanentOrderError, match="held by mei: debugging"):
            await o.execute(ReleaseJob(id="o2", cause=1, job=key(job_id), epoch=1))
        await o.ask(Release(job=job_id, who="mei"))
        await cluster.until_job(job_id, S.RUNNING)
        await o.cancel(job_id, who="mei", why="enough")
        with pytest.raises(PermanentOrderError, match="cancelled"):
            await o.execute(RequeueHeld(id="o3", cause=1, job=key(job_id), restart_count=1))
        await cluster.until_job(job_id, S.CANCELLED)

    run(tmp_path, scenario, nodes=1)


# --- nodes ---


def test_drain_keeps_new_work_off_and_only_our_own_drain_is_lifted(tmp_path: Path) -> None:
    """Quarantine leaves running work alone and keeps an admin's drain; an order for a former machine is stale."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        await o.execute(QuarantineNode(id="o1", cause=1, node="node01", why="Xid 74"))
        assert node_of(await o.observe(), "node01").drain_reason == "[holdfast] Xid 74"
        job = await o.submit(["sleep", "1000"])
        assert (await cluster.until_job(job.key.id, S.RUNNING)).nodes == ("node02",)
        await o.execute(ReturnNode(id="o2", cause=1, node="node01"))
        assert not node_of(await o.observe(), "node01").drained
        await o.do("drain", "node01", reason="memory swap by mei")
        await o.execute(QuarantineNode(id="o3", cause=1, node="node01", why="Xid 74"))
        with pytest.raises(PermanentOrderError, match="memory swap by mei"):
            await o.execute(ReturnNode(id="o4", cause=1, node="node01"))
        with pytest.raises(PermanentOrderError, match="another machine"):
            await o.execute(QuarantineNode(id="o5", cause=1, node="node01", instance_id="i-old", why="late"))
        await o.do("resume", "node01")

    run(tmp_path, scenario)


def test_reboot_changes_the_boot_id_and_replace_the_machine(tmp_path: Path) -> None:
    """A reboot keeps the instance id and empties the kernel log; a replacement is another machine under the same name."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        before = node_of(await o.observe(), "node01")
        await o.do("kmsg", "node01", text="NVRM: Xid (PCI:0000:b9:00): 74, NVLink: fatal error")
        order = RebootNode(id="o1", cause=1, node="node01", boot_id=before.boot_id)
        await asyncio.gather(o.execute(order), o.do("reboot", "node01"))
        rebooted = node_of(await o.observe(), "node01")
        assert rebooted.alive is True
        assert rebooted.boot_id != before.boot_id
        assert rebooted.instance_id == before.instance_id
        assert "Xid" not in (cluster.node_dir("node01") / "kmsg").read_text()
        assert "already" in await o.execute(RebootNode(id="o2", cause=1, node="node01", boot_id=before.boot_id))
        await o.execute(QuarantineNode(id="o3", cause=1, node="node01", why="Xid 74"))
        await o.execute(ReplaceNode(id="o4", cause=1, node="node01", instance_id=before.instance_id))
        fresh = node_of(await o.observe(), "node01")
        assert (fresh.alive, fresh.drained, fresh.instance_id == before.instance_id) == (True, True, False)
        await o.execute(ReplaceNode(id="o5", cause=1, node="node01", instance_id=before.instance_id))
        assert node_of(await o.observe(), "node01").instance_id == fresh.instance_id
        await o.do("replace", "node01", new_name="node09")
        assert [n.name for n in (await o.observe()).nodes] == ["node02", "node09"]

    run(tmp_path, scenario)


def test_a_power_off_is_seen_quickly_and_takes_all_of_the_node(tmp_path: Path) -> None:
    """alive=False well below a second after power-off, all processes of the node dead, its job ends as node_fail."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        job_id = await running(cluster, ["bash", "-c", STUBBORN], nodes=2, bad_exit_wait_s=0.05, stop_grace_s=0.05)
        there = pids_of_job(cluster, job_id, "node02")
        await o.observe()
        begun = time.monotonic()
        seen = asyncio.create_task(cluster.until_node("node02", lambda n: n.alive is False))
        await o.do("power_off", "node02")
        await seen
        assert time.monotonic() - begun < 0.5
        await gone(there)
        failed = await cluster.until_job(job_id, S.NODE_FAIL)
        assert failed.reason == "node lost: powered off on node02"
        await o.do("power_on", "node02")
        assert node_of(await o.observe(), "node02").alive is True

    run(tmp_path, scenario)


def test_a_crash_of_the_nodes_first_process_is_a_node_loss(tmp_path: Path) -> None:
    """Killing node_init from outside is seen by its closed connection, and what fell to the daemon is ended."""

    async def scenario(cluster: TestCluster) -> None:
        job_id = await running(cluster, ["bash", "-c", STUBBORN], nodes=1)
        daemon = psutil.Process(cluster.running.process.pid)
        (init,) = [p for p in daemon.children() if "node01" in p.cmdline()]
        tree = await whole_tree(init, 3)
        begun = time.monotonic()
        init.kill()
        node = await cluster.until_node("node01", lambda n: n.alive is False)
        assert time.monotonic() - begun < 0.5
        assert node.state_text == "off (connection reset)"
        await gone(tree)
        await cluster.until_job(job_id, S.NODE_FAIL)

    run(tmp_path, scenario, nodes=1)


def test_a_silent_node_is_unknown_not_gone(tmp_path: Path) -> None:
    """With all of a node stopped its alive becomes None after the time-out, and True again when it goes on."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        await o.do("stop_process", "node01", target="node")
        node = await cluster.until_node("node01", lambda n: n.alive is not True)
        assert node.alive is None
        job = await o.submit(["true"], exclude=("node02",))
        await asyncio.sleep(0.1)
        assert (await o.job(job.key.id)).state == S.PENDING
        await o.do("stop_process", "node01", target="node", resume=True)
        await cluster.until_node("node01", lambda n: n.alive is True)
        await cluster.until_job(job.key.id, S.COMPLETED)

    run(tmp_path, scenario, options=("--silent-after-s", "1.0"))


def test_requeue_of_a_job_on_a_cut_node_waits_for_the_lease(tmp_path: Path) -> None:
    """The scheduler cannot kill there; it says done only after the lease, and ends the leftovers when the cut is healed."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        job_id = await running(cluster, ["sleep", "1000"], nodes=2, lease_s=1.0)
        there = pids_of_job(cluster, job_id, "node02")
        await o.do("cut", "node02")
        with pytest.raises(LinkError, match="node02 is cut off"):
            cluster.link("node02").check()
        begun = time.monotonic()
        detail = await o.execute(RequeueHeld(id="o1", cause=1, job=key(job_id), restart_count=0))
        assert time.monotonic() - begun >= 1.0
        assert "node02 is out of reach" in detail
        assert pids_of_job(cluster, job_id) == there, "the cut node's processes could not be killed from here"
        await o.execute(ReleaseJob(id="o2", cause=1, job=key(job_id), epoch=2))
        assert (await cluster.until_job(job_id, S.RUNNING)).nodes == ("node01", "node03")
        assert node_of(await o.observe(), "node02").jobs == (job_id,)
        await o.do("heal", "node02")
        cluster.link("node02").check()
        await gone(there)
        await cluster.until_node("node02", lambda n: n.alive is True and not n.jobs)

    run(tmp_path, scenario, nodes=2, spares=1)


def test_requeue_of_a_job_on_a_dead_node_does_not_wait_for_the_lease(tmp_path: Path) -> None:
    """Positive evidence that the node is gone ends the wait at once."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        job_id = await running(cluster, ["sleep", "1000"], nodes=2, lease_s=30.0)
        await o.do("power_off", "node02")
        begun = time.monotonic()
        await o.execute(RequeueHeld(id="o1", cause=1, job=key(job_id), restart_count=0))
        assert time.monotonic() - begun < 1.0

    run(tmp_path, scenario)


def test_a_full_disk_is_the_nodes_own(tmp_path: Path) -> None:
    """fill_disk leaves no space on this node's scratch folder, not on its neighbour's; free_disk undoes it."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        how = await o.do("fill_disk", "node01")
        probe = ["bash", "-c", "head -c 65536 /dev/zero > $HOLDFAST_NODE_DIR/tmp/probe"]
        if "emulated" in how:
            assert (cluster.node_dir("node01") / "disk_full").exists()
        else:
            full = await o.submit(probe, exclude=("node02",))
            assert (await cluster.until_job(full.key.id, S.FAILED)).exit_code == 1
            fine = await o.submit(probe, exclude=("node01",))
            await cluster.until_job(fine.key.id, S.COMPLETED)
        await o.do("free_disk", "node01")
        again = await o.submit(probe, exclude=("node02",))
        await cluster.until_job(again.key.id, S.COMPLETED)

    run(tmp_path, scenario)


def test_without_a_tmpfs_a_full_disk_is_a_marker(tmp_path: Path) -> None:
    """Where none may be mounted, fill_disk says that it is emulated and by which file, and free_disk removes it."""

    async def scenario(cluster: TestCluster) -> None:
        how = await cluster.orchestrator.do("fill_disk", "node01")
        marker = cluster.node_dir("node01") / "disk_full"
        assert str(marker) in how
        assert marker.exists()
        await cluster.orchestrator.do("free_disk", "node01")
        assert not marker.exists()

    run(tmp_path, scenario, nodes=1, options=("--tmp-mib", "0"))


# --- refusals ---


def test_bad_requests_are_one_clear_sentence(tmp_path: Path) -> None:
    """Unknown jobs, nodes and ops, impossible sizes and wrong targets are named; breakers need an open cluster."""

    async def scenario(cluster: TestCluster) -> None:
        o = cluster.orchestrator
        with pytest.raises(UsageError, match="the cluster has 1"):
            await o.submit(["true"], nodes=2)
        with pytest.raises(NotFoundError, match="no job 99"):
            await o.cancel("99")
        with pytest.raises(NotFoundError, match="no node node77"):
            await o.do("reboot", "node77")
        with pytest.raises(RefusedError, match="not started open to drills"):
            await o.do("power_off", "node01")
        reader, writer = await asyncio.open_unix_connection(str(cluster.running.socket))
        writer.write(b'{"op":"submitt"}\n')
        assert b"did you mean `submit`?" in await reader.readline()
        writer.write(b'{"op":"submit","nodes":"two"}\n')
        assert b"$.nodes" in await reader.readline()
        writer.close()

    run(tmp_path, scenario, nodes=1, drill_ok=False)


def test_a_pid_outside_the_node_is_refused(tmp_path: Path) -> None:
    """The kill breaker reaches only processes of its node."""

    async def scenario(cluster: TestCluster) -> None:
        with pytest.raises(RefusedError, match="does not run on node01"):
            await cluster.orchestrator.do("kill", "node01", pid=os.getpid())

    run(tmp_path, scenario, nodes=1)


def test_two_daemons_do_not_share_a_folder(tmp_path: Path) -> None:
    """The second one says that a cluster runs there already."""

    async def scenario(cluster: TestCluster) -> None:
        with pytest.raises(LinkError, match=r"runs in .* already"):
            start_cluster(cluster.folder, nodes=1, agents=False)
        await cluster.orchestrator.observe()

    run(tmp_path, scenario, nodes=1)


def test_a_deep_folder_is_fine(tmp_path: Path) -> None:
    """A socket path longer than the kernel's 107 bytes works all the same."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)

    async def scenario(cluster: TestCluster) -> None:
        assert len(str(cluster.running.socket)) > 107
        await cluster.orchestrator.observe()

    run(deep, scenario, nodes=1)


# --- the end ---


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_daemon_ends(tmp_path: Path, how: signal.Signals) -> None:
    """However the daemon ends: no process of it is left, not even one that left its session and wiped its environment."""
    running_cluster = start_cluster(tmp_path / "c", nodes=2, agents=False, options=["--boot-s", "0.1"])
    try:

        async def scenario() -> list[int]:
            await running_cluster.until_up()
            cluster = TestCluster(running_cluster)
            await running(cluster, ["bash", "-c", STUBBORN], nodes=2)
            deadline = time.monotonic() + 60
            while True:
                tree = psutil.Process(running_cluster.process.pid).children(recursive=True)
                wiped = [p for p in tree if p.name() == "sleep" and not p.environ()]
                if len(wiped) == 2:
                    return [p.pid for p in tree]
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)

        tree = asyncio.run(scenario())
        running_cluster.process.send_signal(how)
        running_cluster.process.wait(6)
        asyncio.run(gone(tree))
        assert marked(tmp_path / "c") == []
    finally:
        running_cluster.end()


def test_the_cluster_ends_with_its_parent(tmp_path: Path) -> None:
    """A daemon that follows a process ends when that process is killed."""
    parent = subprocess.Popen(["sleep", "1000"])
    options = ["--parent-pid", str(parent.pid)]
    running_cluster = start_cluster(tmp_path / "c", nodes=1, agents=False, follow=False, options=options)
    try:
        parent.kill()
        parent.wait()
        running_cluster.process.wait(6)
        assert marked(tmp_path / "c") == []
        with pytest.raises(LinkError):
            asyncio.run(LocalOrchestrator(running_cluster.socket).observe())
    finally:
        parent.kill()
        parent.wait()
        running_cluster.end()


def test_ids_go_on_in_the_same_folder(tmp_path: Path) -> None:
    """A cluster started again in a used folder gives new job ids and new machines."""

    async def once(seen: list[str]) -> None:
        async with embedded_cluster(tmp_path, nodes=1) as cluster:
            job = await cluster.orchestrator.submit(["true"])
            await cluster.until_job(job.key.id, S.COMPLETED)
            world = await cluster.orchestrator.observe()
            seen += [job.key.id, world.nodes[0].instance_id]

    seen: list[str] = []
    asyncio.run(once(seen))
    asyncio.run(once(seen))
    assert seen[0::2] == ["1", "2"]
    assert seen[1] != seen[3]
    assert issubclass(LinkError, HoldfastError)


def test_a_lock_that_cannot_be_taken_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here a folder stands in the place of its file."""
    (tmp_path / "cluster.lock").mkdir()

    async def run() -> None:
        raise AssertionError

    assert hold(tmp_path, run) == 69
    said = f"holdfast cluster: the lock {tmp_path}/cluster.lock cannot be taken: Is a directory\n"
    assert capsys.readouterr().err == said
