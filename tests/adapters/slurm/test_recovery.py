"""Jobs and nodes of a real Slurm, kept by a real controller: from a failure to running again."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.slurm.output import NO_REQUEUE, NO_SHRINK, node_names
from holdfast.errors import LinkError
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from slurm_fixture import need_slurm, short_folder
from slurm_keeper import TINY, Kept, keeping
from slurm_world import small_lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

APS = """#SBATCH --comment='{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 1}}'"""
OURS = """#SBATCH --comment='{"holdfast": {"max_requeues": 3}}'"""
QUICK_START = f"""#!/bin/bash
#SBATCH --job-name=quick --nodes=2 --exclusive
{APS}
DATETIME=$(date +%Y%m%d-%H%M%S)
srun --output="%x_%j_${{DATETIME}}.log" bash -c '
  echo "Rank0: (1) segmentation fault: artificial segfault"; sleep 1.2; exit 1'
"""
ONCE = f"""#!/bin/bash
#SBATCH --nodes=1 --exclusive
{OURS}
echo attempt $SLURM_RESTART_COUNT
if [ -z "$SLURM_RESTART_COUNT" ]; then sleep 0.5; exit 3; fi
sleep 1000
"""
FOREVER = f"#!/bin/bash\n#SBATCH --exclusive\n{OURS}\nsrun sleep 1000\n"


@pytest.fixture(scope="module")
def _controller(_module_lab: SlurmLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    with keeping(_module_lab, tmp_path_factory.mktemp("kept")) as kept:
        yield kept


@pytest.fixture
def kept(_controller: Kept, slurm_lab: SlurmLab) -> Kept:
    """One controller for the whole module, on a lab that is mended after every test."""
    _controller.until(lambda: {n["view"].get("drained") for n in _controller.get("nodes")} == {None}, "all in service")
    return _controller


def orders_about(kept: Kept, job: str) -> list[str]:
    """What was done about the job, oldest first, without notices and the final word."""
    about = [record for record in reversed(kept.get("orders")) if record["order"].get("job", {}).get("id") == job]
    return [r["order"]["order"] for r in about if r["order"]["order"] not in {"notify", "give_up"}]


def folder_of(lab: SlurmLab, name: str) -> Path:
    place = lab.folder / "jobs" / name
    place.mkdir(exist_ok=True)
    return place


def test_mission_controls_quick_start(slurm_lab: SlurmLab, kept: Kept) -> None:
    """The script of the quick start: attempts 0 and 1, held in between, a log file per attempt, then given up as asked."""
    cwd = folder_of(slurm_lab, "quick")
    job = slurm_lab.sbatch([], script=QUICK_START, cwd=cwd)
    kept.until(lambda: kept.state(job) == "given_up", "given up after one requeue")
    assert kept.attempts(job) == [0, 1]
    assert orders_about(kept, job) == ["requeue_held", "release_job"]
    logs = sorted(path.name for path in cwd.iterdir())
    assert len([name for name in logs if re.fullmatch(rf"quick_{job}_[0-9-]+\.log", name)]) == 2
    assert f"slurm-{job}.attempt-0.out" in logs
    assert slurm_lab.job(job)["Restarts"] == "1"


def test_a_failed_job_runs_again_within_seconds_and_keeps_its_output(slurm_lab: SlurmLab, kept: Kept) -> None:
    """A plain script without any launcher: from FAILED to RUNNING; the old output stands beside the new."""
    cwd = folder_of(slurm_lab, "once")
    job = slurm_lab.sbatch([], script=ONCE, cwd=cwd)
    slurm_lab.until_job(job, "FAILED")
    fields = kept.until(lambda: (seen := slurm_lab.job(job))["JobState"] == "RUNNING" and seen, "running again")
    assert fields["Restarts"] == "1"
    kept.until(lambda: kept.state(job) == "proving", "proving")
    kept.until((cwd / f"slurm-{job}.out").exists, "new output")
    assert (cwd / f"slurm-{job}.attempt-0.out").read_text() == "attempt\n"
    kept.until(lambda: (cwd / f"slurm-{job}.out").read_text() == "attempt 1\n", "the new attempt's output")


@pytest.mark.parametrize("how", ["cancel", "success", pytest.param("time limit", marks=pytest.mark.soak)])
def test_other_ends_are_no_failures(slurm_lab: SlurmLab, kept: Kept, how: str) -> None:
    """A time limit, a cancel and a success end the job; nothing is requeued."""
    script = FOREVER if how != "success" else FOREVER.replace("srun sleep 1000", "exit 0")
    job = slurm_lab.sbatch(["--output=/dev/null"], script=script)
    if how != "success":
        kept.until(lambda: kept.state(job) == "watching" and slurm_lab.job(job)["JobState"] == "RUNNING", "runs")
    if how == "cancel":
        slurm_lab.run(["scancel", job])
    elif how == "time limit":
        # A minute is Slurm's smallest limit; set into the past it is over at the scheduler's next look.
        slurm_lab.run(["scontrol", "update", f"JobId={job}", f"EndTime={_soon()}"])
    expected = "cancelled" if how == "cancel" else "completed"
    kept.until(lambda: kept.state(job) == expected, expected, 60)
    assert kept.job(job)["view"].get("restart_count", 0) == 0
    assert orders_about(kept, job) == []


def _soon() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 2))


def test_a_job_that_failed_while_nobody_looked_is_recovered(slurm_lab: SlurmLab, kept: Kept) -> None:
    """The controller was down when the job was submitted and failed; Slurm still remembers it, so it comes back."""
    kept.kill()
    job = slurm_lab.sbatch(["--output=/dev/null"], script=ONCE)
    slurm_lab.until_job(job, "FAILED")
    kept.start()
    assert slurm_lab.until_job(job, "RUNNING")["Restarts"] == "1"


def test_a_job_that_slurm_will_not_run_again_is_told_so_at_once(slurm_lab: SlurmLab, kept: Kept) -> None:
    """Under --no-requeue Slurm refuses every requeue once the job has ended: its owner learns that before."""
    job = slurm_lab.sbatch(["--output=/dev/null", "--no-requeue"], script=FOREVER)
    kept.until(lambda: NO_REQUEUE in kept.notices(), "its owner is told")
    slurm_lab.run(["scancel", job])


@pytest.mark.soak
def test_a_site_where_no_job_may_shrink_is_told_what_a_lost_node_costs(slurm_lab: SlurmLab, kept: Kept) -> None:
    """By doctor; the owner of a job of several nodes by a notice when it is submitted, and by its launcher."""
    conf, cwd = slurm_lab.facts.conf, folder_of(slurm_lab, "shrink")
    stock = conf.read_text()
    holdfast = Path(sys.executable).with_name("holdfast")
    try:
        conf.write_text(f"{stock}SchedulerParameters=disable_job_shrink,sched_interval=1,batch_sched_delay=0\n")
        slurm_lab.run(["scontrol", "reconfigure"])
        said = subprocess.run(
            [str(holdfast), "doctor", "--json"], env=slurm_lab.env(), capture_output=True, text=True, timeout=60
        ).stdout
        (fact,) = [fact for fact in json.loads(said) if fact["name"] == "lost nodes"]
        assert "disable_job_shrink" in fact["advice"]
        assert "SlurmdTimeout=120" in fact["advice"]  # the lab's own is short
        kept.end()
        kept.start()
        script = f"#!/bin/bash\n#SBATCH --nodes=2 --output=out\n{OURS}\n{holdfast} srun --auto-resume=1 true\n"
        slurm_lab.sbatch([], script=script, cwd=cwd)
        kept.until(lambda: NO_SHRINK in kept.notices(), "its owner is told")
        kept.until(lambda: (cwd / "out").exists() and NO_SHRINK in (cwd / "out").read_text(), "its launcher says so")
    finally:
        conf.write_text(stock)
        slurm_lab.run(["scontrol", "reconfigure"])


def test_the_owner_of_a_job_that_slurm_itself_holds_is_told(slurm_lab: SlurmLab, kept: Kept) -> None:
    """RequeueExitHold: Slurm queues the failed job anew and holds it for a person. It stays so, and is released by one."""
    conf = slurm_lab.facts.conf
    stock = conf.read_text()
    try:
        conf.write_text(f"{stock}RequeueExitHold=7\n")
        slurm_lab.run(["scontrol", "reconfigure"])
        job = slurm_lab.sbatch(["--output=/dev/null"], script=ONCE.replace("exit 3", "exit 7"))
        kept.until(lambda: kept.job(job).get("view", {}).get("state") == "held", "held")
        kept.until(lambda: f"scontrol release {job}" in kept.notices(), "its owner is told")
        assert orders_about(kept, job) == []
        slurm_lab.run(["scontrol", "release", job])
        kept.until(lambda: slurm_lab.job(job)["JobState"] == "RUNNING", "it runs again")
        assert kept.state(job) == "watching"
    finally:
        conf.write_text(stock)
        slurm_lab.run(["scontrol", "reconfigure"])


def test_an_output_file_that_cannot_be_written_is_named(slurm_lab: SlurmLab, kept: Kept) -> None:
    """Slurm ends such a job with 0:53, which is no signal of a rank."""
    job = slurm_lab.sbatch(["--output=/nonexistent/job.out"], script=ONCE)
    kept.until(lambda: kept.job(job).get("attempts", [{}])[-1].get("ended_at"), "ended")
    assert slurm_lab.job(job)["ExitCode"] == "0:53"
    kept.until(lambda: "output file" in kept.notices(), "the cause is told")
    assert "signal 53" not in kept.notices()


def test_a_task_of_an_array_is_recovered_alone(slurm_lab: SlurmLab, kept: Kept) -> None:
    """The task that failed is requeued, its sisters run on; the last task, which has the array's id, too."""
    script = ONCE.replace(
        'if [ -z "$SLURM_RESTART_COUNT" ]',
        'if [ -z "$SLURM_RESTART_COUNT" ] && [ $SLURM_ARRAY_TASK_ID = WHICH ]',
    )
    for which in ("1", "3"):
        array = slurm_lab.sbatch(["--array=1-3", "--output=/dev/null"], script=script.replace("WHICH", which))

        def restarts(array: str = array) -> dict[str, str]:
            rows = slurm_lab.run(["squeue", "-h", "-r", "-j", array, "-O", "ArrayTaskID:8,RestartCnt:8,StateCompact:4"])
            return {row.split()[0]: "/".join(row.split()[1:]) for row in rows.splitlines()}

        expected = {task: "1/R" if task == which else "0/R" for task in ("1", "2", "3")}
        kept.until(lambda expected=expected: restarts() == expected, f"only task {which} was requeued")
        assert f"{array}_{which}(0)" in kept.notices()
        argv = [sys.executable, "-m", "holdfast", "job", f"{array}_{which}", "--dir", str(kept.folder)]
        shown = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert shown.returncode == 0, shown.stderr
        assert f"{array}_{which}(1)" in shown.stdout
        slurm_lab.run(["scancel", array])


def test_what_waits_for_a_job_still_waits_after_its_requeue(slurm_lab: SlurmLab, kept: Kept) -> None:
    """A running job is requeued by an operator: what depends on it (afterok, singleton) neither starts nor dies."""
    job = slurm_lab.sbatch(["--nodes=1", "--job-name=one", "--output=/dev/null"], script=FOREVER)
    after = slurm_lab.sbatch([f"--dependency=afterok:{job}", "--output=/dev/null"], script=FOREVER)
    alone = slurm_lab.sbatch(["--dependency=singleton", "--job-name=one", "--output=/dev/null"], script=FOREVER)
    kept.until(lambda: kept.attempts(job) == [0], "runs")
    key = kept.job(job)["key"]
    kept.command("requeue", job=key)
    kept.until(lambda: slurm_lab.job(job)["JobState"] == "RUNNING" and slurm_lab.job(job)["Restarts"] == "1", "again")
    for waiting in (after, alone):
        assert (slurm_lab.job(waiting)["JobState"], slurm_lab.job(waiting)["Reason"]) == ("PENDING", "Dependency")


def test_a_node_that_slurm_loses_costs_the_job_its_timeout_and_little_more(slurm_lab: SlurmLab, kept: Kept) -> None:
    """No agent, no launcher: Slurm's own word. The job is adopted, kept off the node, and its begin time pulled in."""
    job = slurm_lab.sbatch(["--nodes=2", "--output=/dev/null"], script=FOREVER)
    kept.until(lambda: kept.attempts(job) == [0], "runs")
    lost = kept.job(job)["view"]["nodes"][-1]
    slurm_lab.crash(lost)
    again = kept.until(
        lambda: (seen := slurm_lab.job(job))["JobState"] == "RUNNING" and seen["Restarts"] == "1" and seen,
        "elsewhere",
    )
    assert lost in again["ExcNodeList"]
    kept.until(lambda: kept.attempts(job) == [0, 1], "two attempts")
    assert slurm_lab.job(job)["Restarts"] == "1"
    assert kept.node(lost)["state"] != "healthy"


def test_a_reason_on_a_node_is_an_operators_command(slurm_lab: SlurmLab, kept: Kept) -> None:
    """`Action:Reboot` with state fail: rebooted once idle, checked, and in service again; a near miss is warned about."""
    kept.until(lambda: kept.node("node03").get("state") == "healthy", "seen")
    boot = kept.node("node03")["view"]["boot_id"]
    slurm_lab.run(["scontrol", "update", "NodeName=node04", "State=FAIL", "Reason=action:reboot"])
    slurm_lab.run(["scontrol", "update", "NodeName=node03", "State=FAIL", "Reason=Action:Reboot"])
    kept.until(lambda: kept.node("node03")["view"]["boot_id"] != boot, "rebooted")
    kept.until(
        lambda: kept.node("node03")["state"] == "healthy" and not kept.node("node03")["view"].get("drained"),
        "in service",
    )  # fmt: skip
    notices = kept.notices()
    assert "nearly understood" in notices
    assert "Action:Reboot" in notices
    assert kept.node("node04")["view"]["drain_reason"] == "action:reboot"
    assert kept.node("node04")["state"] == "healthy"


def test_an_admins_drain_stays(slurm_lab: SlurmLab, kept: Kept) -> None:
    """An operator of Holdfast may not return what an admin drained, nor does anything else lift it."""
    slurm_lab.run(["scontrol", "update", "NodeName=node02", "State=DRAIN", "Reason=memory swap"])
    kept.until(lambda: kept.node("node02")["view"].get("drained"), "seen")
    assert "Refused: return node02" in kept.command("return", node="node02")
    assert slurm_lab.node_states()["node02"].startswith("drain")


def test_a_comment_that_is_nearly_right_is_warned_about(slurm_lab: SlurmLab, kept: Kept) -> None:
    """The job is not recovered, and its owner is told why, before it fails."""
    script = ONCE.replace("holdfast", "Holdfast")
    job = slurm_lab.sbatch(["--output=/dev/null"], script=script)
    kept.until(lambda: kept.state(job) == "given_up", "left alone")
    assert "'holdfast' is, exactly so" in kept.notices()
    assert slurm_lab.job(job)["Restarts"] == "0"


def test_a_push_brings_the_next_look_at_once(slurm_lab: SlurmLab, kept: Kept) -> None:
    """`holdfast notify-slurm` ends with 0 with and without a controller; --strict tells them apart."""
    quiet = [sys.executable, "-m", "holdfast.cli.main", "notify-slurm", "--dir", str(kept.folder)]
    slurm_lab.run([*quiet, "--strict"])
    kept.kill()
    slurm_lab.run(quiet)
    with pytest.raises(LinkError, match="ended with 69"):
        slurm_lab.run([*quiet, "--strict"])
    kept.start()


LAUNCHED = """#!/bin/bash
#SBATCH --nodes=2 --exclusive --requeue --open-mode=append
#SBATCH --comment='{{"holdfast": {{"max_requeues": 3}}}}'
export HOLDFAST_CONTROLLER_FILE={folder}/controller/controller.json
export HOLDFAST_TOKEN_FILE={folder}/controller/agent-token
srun -K1 {python} -m holdfast.cli.main run --lease-s 6 --nproc-per-node 1 train.py
"""
STOCK_CREDENTIALS = "AuthInfo=socket={folder}/munge/socket"


def test_a_node_without_power_costs_seconds_not_slurms_timeouts(tmp_path: Path) -> None:
    """No spare in the allocation, credentials of 120 s as Slurm has them: launchers miss the node, and the job runs
    elsewhere seconds later, requeued once, while plain `--requeue` would wait for SlurmdTimeout and 121 s more. The
    node of the batch script takes the leading launcher with it: the controller asks after it, and proves it gone."""
    need_slurm(netns=True)
    with short_folder() as place:
        settings = LabSettings(
            nodes=5, netns=True, boot_s=0.3, slurmd_timeout_s=300,
            # Slurm waits for an srun that is gone as long as its own connections may take, six times.
            extra_conf=f"{STOCK_CREDENTIALS.format(folder=place.resolve())}\nTCPTimeout=1",
        )  # fmt: skip
        with SlurmLab.start(settings, place) as lab:
            kept = Kept(lab, tmp_path / "c", f"{TINY}[brake]\nmax_percent = 100\nmax_nodes = 64\n")
            kept.listen = f"{lab.facts.ctld_address}:0"
            try:
                kept.start()
                cwd = folder_of(lab, "lost")
                (cwd / "train.py").write_text("import time\nwhile True:\n    time.sleep(0.1)\n")
                job = lab.sbatch([], script=LAUNCHED.format(folder=kept.folder, python=sys.executable), cwd=cwd)
                lost = [_switched_off(lab, kept, job, which=-1, restarts=1)]
                lost.append(_switched_off(lab, kept, job, which=0, restarts=2))
                assert not set(lost) & set(node_names(lab.job(job)["NodeList"]))
                told = {event["node"]: event for event in kept.events(kind="node_gone")}
                assert told[lost[0]]["source"].startswith("launcher")
                assert told[lost[1]]["source"] == "controller"
                assert "nobody answers at" in told[lost[1]]["evidence"]
            finally:
                kept.end()


def _switched_off(lab: SlurmLab, kept: Kept, job: str, *, which: int, restarts: int) -> str:
    """Switch one of the job's nodes off and wait until it runs again; the node."""
    kept.until(
        lambda: (made := kept.job(job).get("attempts", [{}])[-1]).get("epoch")
        and made.get("restart_count", 0) == restarts - 1,
        "its launchers run",
    )  # fmt: skip
    lost = str(kept.job(job)["view"]["nodes"][which])
    lab.crash(lost)
    kept.until(
        lambda: (seen := lab.job(job))["JobState"] == "RUNNING" and seen["Restarts"] == str(restarts),
        "elsewhere", 150,
    )  # fmt: skip
    kept.until(lambda: len(kept.attempts(job)) > restarts, "another attempt")
    return lost


WITH_SPARE = LAUNCHED.replace("--nodes=2", "--nodes=3").replace("--nproc-per-node", "--nnodes 2 --nproc-per-node")


@pytest.mark.soak
def test_a_spare_in_the_allocation_is_used_before_the_job_is_requeued(tmp_path: Path) -> None:
    """The controller sets a lost node down only after the launcher has let it go: Slurm requeues nothing. When a second
    node is lost the job is requeued, with as many nodes as it began with."""
    need_slurm(netns=True)
    with short_folder() as place:
        stock = f"{STOCK_CREDENTIALS.format(folder=place.resolve())}\nTCPTimeout=1"
        settings = LabSettings(nodes=6, netns=True, boot_s=0.3, slurmd_timeout_s=300, extra_conf=stock)
        with SlurmLab.start(settings, place) as lab:
            kept = Kept(lab, tmp_path / "c", f"{TINY}[brake]\nmax_percent = 100\nmax_nodes = 64\n")
            kept.listen = f"{lab.facts.ctld_address}:0"
            try:
                kept.start()
                cwd = folder_of(lab, "spare")
                (cwd / "train.py").write_text("import time\nwhile True:\n    time.sleep(0.1)\n")
                job = lab.sbatch([], script=WITH_SPARE.format(folder=kept.folder, python=sys.executable), cwd=cwd)
                lost = _crash_a_follower(lab, kept, job)
                kept.until(lambda: lab.node_states()[lost].startswith("down"), "set down")
                kept.until(lambda: len(kept.attempts(job)) > 1, "attempt 1 on the spare")
                seen = lab.job(job)
                assert (seen["JobState"], seen["Restarts"], seen["NumNodes"]) == ("RUNNING", "0", "2")
                again = _crash_a_follower(lab, kept, job)
                kept.until(
                    lambda: (seen := lab.job(job))["JobState"] == "RUNNING" and seen["Restarts"] == "1", "elsewhere"
                )
                seen = lab.job(job)
                assert seen["NumNodes"] == "3"
                assert not {lost, again} & set(node_names(seen["NodeList"]))
            finally:
                kept.end()


@pytest.mark.soak
def test_an_idle_spare_that_is_lost_ends_nothing(tmp_path: Path) -> None:
    """With a controller, and under --no-requeue: the spare leaves the job before the controller sets it down."""
    need_slurm(netns=True)
    with short_folder() as place:
        settings = LabSettings(nodes=4, netns=True, boot_s=0.3, slurmd_timeout_s=20, extra_conf="TCPTimeout=1")
        with SlurmLab.start(settings, place) as lab:
            kept = Kept(lab, tmp_path / "c", f"{TINY}[brake]\nmax_percent = 100\nmax_nodes = 64\n")
            kept.listen = f"{lab.facts.ctld_address}:0"
            try:
                kept.start()
                cwd = folder_of(lab, "idle")
                (cwd / "train.py").write_text("import time\nwhile True:\n    time.sleep(0.1)\n")
                script = WITH_SPARE.format(folder=kept.folder, python=sys.executable)
                job = lab.sbatch(["--no-requeue"], script=script, cwd=cwd)
                kept.until(lambda: kept.job(job).get("attempts", [{}])[-1].get("epoch"), "its launchers run")
                used = kept.job(job)["attempts"][-1]["nodes"]
                (spare,) = set(node_names(lab.job(job)["NodeList"])) - set(used)
                lab.crash(spare)
                kept.until(lambda: lab.node_states()[spare].startswith("down"), "set down, or given up")
                kept.until(lambda: lab.job(job)["NumNodes"] == "2", "let go")
                seen = lab.job(job)
                assert (seen["JobState"], seen["Restarts"]) == ("RUNNING", "0")
                assert kept.attempts(job) == [0]
            finally:
                kept.end()


def _crash_a_follower(lab: SlurmLab, kept: Kept, job: str) -> str:
    """Switch off a node of the newest attempt that does not lead it; the node."""

    def follower() -> str:
        made = kept.job(job).get("attempts", [{}])[-1]
        return made.get("nodes", [""])[-1] if made.get("epoch") else ""

    lost = str(kept.until(follower, "its launchers run"))
    lab.crash(lost)
    return lost


TRAINS = """#!/bin/bash
#SBATCH --job-name=plain --ntasks=1
#SBATCH --comment='{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 2}}'
say() { for i in $(seq $1 $2); do
  echo " iteration $i/ 100 | consumed samples: 8 | elapsed time per iteration (ms): 20.0 | lm loss: 1.0E+00 |"; sleep 0.2; done
  echo "  successfully saved checkpoint from iteration       $2 to /ckpt"; }
if [ -z "$SLURM_RESTART_COUNT" ]; then
  say 1 12; echo "Rank0: (1) segmentation fault: artificial segfault"; sleep 3; exit 1
fi
say 13 30
sleep 1000
"""


def test_a_plain_script_is_diagnosed_and_proven_by_its_output(tmp_path: Path) -> None:
    """No launcher: the node's agent reads what the script prints. The crash is named, and the restart counts as a
    success when a durable checkpoint beyond the old one is printed."""
    with small_lab(2, agents=True) as lab:
        kept = Kept(lab, lab.folder)
        try:
            kept.start()
            kept.until(lambda: [bool(n.get("agent_boot_id")) for n in kept.get("nodes")] == [True] * 2, "agents", 60)
            job = lab.sbatch([], script=TRAINS, cwd=folder_of(lab, "plain"))
            kept.until(lambda: kept.attempts(job) == [0, 1], "it runs again", 60)
            record = kept.until(lambda: kept.state(job) == "watching" and kept.job(job), "proven", 60)
            first, second = record["attempts"]
            assert (first["durable_step"], second["durable_step"]) == (12, 30)
            assert second["first_step"] == 13
            (incident,) = kept.incidents()
            assert incident["outcome"] == "recovered"
            assert "segfault" in str(incident["diagnosis"]) or "segmentation" in str(incident["diagnosis"]).lower()
        finally:
            kept.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="jobs of another user need a lab of root's")
def test_a_user_reaches_only_their_own_job(slurm_lab: SlurmLab, kept: Kept) -> None:
    """A job's name that forges a record with a wish for another's job changes nothing for that job; what the
    controller does with the user's files it does as that user."""
    victim = slurm_lab.sbatch(["--output=/dev/null"], script=ONCE.replace("#SBATCH --comment", "# --comment"))
    nobody = pwd.getpwnam("nobody")
    cwd = slurm_lab.folder / "jobs" / "nobody"
    cwd.mkdir()
    os.chown(cwd, nobody.pw_uid, nobody.pw_gid)
    forged = f"x\nJobId={victim} JobName=y UserId=root(0) GroupId=root(0) JobState=FAILED Comment=" + '{"holdfast": {}}'
    script = cwd / "once.sh"
    script.write_text(ONCE.replace("exit 3", "sleep 1; exit 3"))
    as_nobody = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    said = slurm_lab.run([*as_nobody, "sbatch", "--parsable", f"--job-name={forged}", str(script)], cwd=cwd)
    job = said.strip()
    kept.until(lambda: kept.attempts(job) == [0, 1], "the user's own job is recovered")
    kept.until(lambda: kept.state(victim) == "given_up", "the other's is left alone")
    assert slurm_lab.job(victim)["Restarts"] == "0"
    assert orders_about(kept, victim) == []
    assert (cwd / f"slurm-{job}.attempt-0.out").stat().st_uid == nobody.pw_uid
    slurm_lab.run(["scancel", job])


def test_a_failed_prolog_does_not_leave_the_job_held(tmp_path: Path) -> None:
    """Slurm drains the node and holds the job for a person ("launch failed requeued held"); we let it start elsewhere."""
    need_slurm()
    with short_folder() as place:
        prolog = place.resolve() / "prolog"
        settings = LabSettings(nodes=2, boot_s=0.3, extra_conf=f"Prolog={prolog}")
        prolog.write_text(f"#!/bin/sh\n[ ! -e {place.resolve()}/bad-$SLURMD_NODENAME ]\n")
        prolog.chmod(0o755)
        with SlurmLab.start(settings, place) as lab, keeping(lab, tmp_path / "c") as kept:
            (place / "bad-node01").touch()
            job = lab.sbatch(["--output=/dev/null", "--nodelist=node01"], script=FOREVER)
            lab.run(["scontrol", "update", f"JobId={job}", "ReqNodeList="])
            kept.until(
                lambda: lab.job(job)["JobState"] == "RUNNING" and lab.job(job)["NodeList"] == "node02", "elsewhere"
            )
            kept.until(lambda: kept.state(job) == "proving", "proving")
            assert orders_about(kept, job)[-1] == "release_job", "it came back without us, so nothing was proved"
            assert lab.node_states()["node01"].startswith("drain")
            assert "[holdfast]" not in kept.node("node01")["view"]["drain_reason"]
