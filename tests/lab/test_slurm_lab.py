"""The Slurm lab against the real daemons: what each verb does, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from holdfast.errors import LinkError, NotFoundError, RefusedError, UsageError
from holdfast.lab import network
from holdfast.lab.settings import LabSettings, read_facts
from holdfast.lab.slurm_lab import SlurmLab, down
from holdfast.lab.waiting import wait_gone, wait_until
from slurm_fixture import need_slurm, short_folder

pytestmark = pytest.mark.cluster
NOBODY = 65534


def left_of(folder: Path) -> list[str]:
    """Processes that name the lab's folder: daemons in their arguments, stepds and jobs by what they have open."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if str(folder) in words or process.environ().get("HOLDFAST_LAB_DIR") == str(folder):
                found.append(f"{process.pid} {words}")
        except psutil.Error:
            continue
    return found


def python_for_all() -> str:
    """An interpreter of this version that any user may run: ours often lies in root's own home."""
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        try:
            subprocess.run([python, "-c", ""], user=NOBODY, group=NOBODY, extra_groups=[], check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    pytest.skip("no Python here that a user other than root may run")


def boot_id(lab: SlurmLab, node: str) -> str:
    return str(lab.status()["nodes"][node]["boot_id"])


def is_running(lab: SlurmLab, node: str) -> bool:
    return bool(lab.status()["nodes"][node]["services"].get("slurmd", {}).get("running"))


def test_a_job_spans_nodes_and_gets_gpus(slurm_lab: SlurmLab) -> None:
    """A job of two nodes runs a step on both, and a request for GPUs is met with the lab's devices."""
    job = slurm_lab.sbatch(
        [
            "--nodes=2",
            "--ntasks-per-node=1",
            "--gres=gpu:4",
            "--wrap",
            "srun sh -c 'echo $SLURMD_NODENAME $SLURM_STEP_GPUS'",
        ]
    )
    done = slurm_lab.until_job(job, "COMPLETED")
    said = Path(done["StdOut"]).read_text().split("\n")
    assert sorted(line for line in said if line) == ["node01 0,1,2,3", "node02 0,1,2,3"]


def test_power_off_ends_everything_on_the_node_and_it_comes_back(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """After a crash not even a task that has left its session runs; switched on again, the node is used again."""
    marker = f"sleep {300 + os.getpid() / 1e6:.6f}"
    job = slurm_lab.sbatch(["--nodelist=node03", "--no-requeue", "--wrap", f"setsid {marker} & {marker}"])
    slurm_lab.until_job(job, "RUNNING")

    def sleepers() -> list[int]:
        return [p.pid for p in psutil.process_iter(["cmdline"]) if " ".join(p.info["cmdline"] or []) == marker]

    wait_until(lambda: len(sleepers()) == 2, "the job's two processes", limit_s=30)
    before = boot_id(slurm_lab, "node03")
    slurm_lab.crash("node03")
    assert sleepers() == []
    assert slurm_lab.status()["nodes"]["node03"]["power"] == "off"
    # A boot takes longer than Slurm's clock of whole seconds needs to see that it came after the node's last word.
    slurm_lab.node("reboot", "node03", seconds=1.5)
    wait_until(lambda: boot_id(slurm_lab, "node03") != before, "it boots", limit_s=30)
    # Slurm is told of the boot and draws its own conclusion at once, as it does on a real machine.
    slurm_lab.until_job(job, "NODE_FAIL", limit_s=40)
    assert "unexpectedly rebooted" in slurm_lab.run(["sinfo", "-h", "-n", "node03", "-o", "%E"])


def test_a_killed_slurmd_leaves_its_job_running(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """SIGKILL to slurmd alone: the job goes on, and a new slurmd takes it up."""
    began = tmp_path / "began"
    tmp_path.chmod(0o755)
    job = slurm_lab.sbatch(["--nodelist=node02", "--wrap", f"touch {began}; sleep 3"])
    # RUNNING comes before slurmd has the script: one that is killed in between takes it along.
    wait_until(began.exists, "the job begins", limit_s=30)
    slurm_lab.kill_slurmd("node02")
    wait_until(lambda: not is_running(slurm_lab, "node02"), "slurmd is gone", limit_s=20)
    slurm_lab.start_node("node02")
    assert is_running(slurm_lab, "node02")
    assert slurm_lab.until_job(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"


def test_a_hung_node_is_silent_until_it_goes_on(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Every process of a hung node stops where it is, and none is lost."""
    beat = tmp_path / "beat"
    tmp_path.chmod(0o755)
    job = slurm_lab.sbatch(["--nodelist=node04", "--wrap", f"while :; do date +%N > {beat}; sleep 0.05; done"])
    wait_until(beat.exists, "the job beats", limit_s=30)
    slurm_lab.node("hang", "node04")
    stood = beat.stat().st_mtime_ns
    with pytest.raises(LinkError, match="not within"):
        wait_until(lambda: beat.stat().st_mtime_ns != stood, "a beat", limit_s=0.5)
    slurm_lab.node("unhang", "node04")
    wait_until(lambda: beat.stat().st_mtime_ns != stood, "a beat", limit_s=20)
    assert slurm_lab.job(job)["JobState"] == "RUNNING"


def test_scontrol_reboot_reboots_the_node(slurm_lab: SlurmLab) -> None:
    """Slurm's own reboot goes through RebootProgram to a new boot of that node alone, and Slurm takes it back."""
    before = {name: boot_id(slurm_lab, name) for name in ("node05", "node06")}
    slurm_lab.run(["scontrol", "reboot", "ASAP", "nextstate=RESUME", "reason=test", "node05"])
    wait_until(
        lambda: boot_id(slurm_lab, "node05") != before["node05"], "a boot", limit_s=40, logs=(slurm_lab.ctld_log,)
    )
    wait_until(lambda: slurm_lab.node_states()["node05"] == "idle", "idle", limit_s=40, logs=(slurm_lab.ctld_log,))
    assert boot_id(slurm_lab, "node06") == before["node06"]


def test_a_replaced_node_is_another_machine(slurm_lab: SlurmLab) -> None:
    """Under the same name: other instance, empty disk, its kernel log new; Slurm uses it."""
    old = slurm_lab.status()["nodes"]["node07"]["instance_id"]
    slurm_lab.kmsg("node07", "NVRM: Xid (PCI:0000:b9:00): 79, GPU has fallen off the bus.")
    (slurm_lab.node_dir("node07") / "leftover").touch()
    new = slurm_lab.node("replace", "node07", seconds=0.0)
    wait_until(lambda: is_running(slurm_lab, "node07"), "the new machine boots", limit_s=30)
    slurm_lab.resume("node07")
    assert new != old
    assert not (slurm_lab.node_dir("node07") / "leftover").exists()
    assert "Xid" not in (slurm_lab.node_dir("node07") / "kmsg").read_text()
    job = slurm_lab.sbatch(["--nodelist=node07", "--wrap", "true"])
    slurm_lab.until_job(job, "COMPLETED")


def test_slurmctld_restarted_keeps_its_jobs(slurm_lab: SlurmLab) -> None:
    """slurmctld killed and started again knows the job, which ran on meanwhile."""
    job = slurm_lab.sbatch(["--wrap", "sleep 60"])
    slurm_lab.until_job(job, "RUNNING")
    # slurmctld writes its state a moment after it has changed.
    at = time.time()
    slurm_lab.run(["scontrol", "update", f"JobId={job}", "Comment=known"])
    saved = slurm_lab.folder / "state" / "job_state"
    wait_until(lambda: saved.exists() and saved.stat().st_mtime > at, "the state is written", limit_s=20)
    slurm_lab.daemons.stop("slurmctld", sig=signal.SIGKILL)
    with pytest.raises(LinkError):
        slurm_lab.run(["scontrol", "ping"])
    slurm_lab.daemons.start_ctld()
    assert slurm_lab.job(job)["JobState"] == "RUNNING"


def test_a_cut_node_falls_silent_and_is_heard_again(netns_lab: SlurmLab) -> None:
    """Cut off, the node answers nobody and its own processes go on; healed, Slurm hears from it again."""
    where = netns_lab.status()["nodes"]["node08"]["address"]

    def answers() -> bool:
        try:
            port = netns_lab.facts.node_port(8)
            socket.create_connection((where, port), timeout=0.5).close()
        except OSError:
            return False
        return True

    assert answers()
    netns_lab.node("cut", "node08")
    assert not answers()
    assert is_running(netns_lab, "node08")
    wait_until(lambda: netns_lab.node_states()["node08"].endswith("*"), "Slurm misses it", limit_s=40)
    netns_lab.node("heal", "node08")
    assert answers()
    wait_until(lambda: netns_lab.node_states()["node08"] == "idle", "Slurm hears from it", limit_s=40)


def test_names_that_nobody_knows_are_refused_at_once(netns_lab: SlurmLab) -> None:
    """A node asks its own address for them, where nobody listens: no program waits for an answer from outside the lab."""
    before = Path("/etc/resolv.conf").read_text()
    seen = netns_lab.run(["srun", "--nodelist=node02", "cat", "/etc/resolv.conf"])
    assert [line for line in seen.splitlines() if line.startswith("nameserver")] == ["nameserver 127.0.0.1"]
    assert Path("/etc/resolv.conf").read_text() == before


def test_a_machine_joins_and_leaves(netns_lab: SlurmLab) -> None:
    """A machine that slurm.conf does not name joins, runs a job by its feature, and leaves."""
    netns_lab.add("extra1", "CPUs=2 RealMemory=1000 Feature=spare")
    assert "extra1" in netns_lab.node_states()
    job = netns_lab.sbatch(["--constraint=spare", "--wrap", "hostname"])
    done = netns_lab.until_job(job, "COMPLETED")
    assert Path(done["StdOut"]).read_text().strip() == "extra1"
    with pytest.raises(RefusedError, match="added can be removed"):
        netns_lab.node("remove", "node01")
    netns_lab.remove("extra1")
    assert "extra1" not in netns_lab.node_states()


def test_the_nodes_own_disk_can_be_filled(netns_lab: SlurmLab) -> None:
    """Each node has a scratch file system of its own: full on one, free on the others, free again after."""
    job = ["--wrap", f"head -c 4M /dev/zero > {netns_lab.folder}/nodes/$SLURMD_NODENAME/tmp/file"]
    netns_lab.node("disk", "node01", full=True)
    full, other = netns_lab.sbatch(["-wnode01", *job]), netns_lab.sbatch(["-wnode02", *job])
    assert netns_lab.until_job(full, "COMPLETED", "FAILED")["JobState"] == "FAILED"
    assert netns_lab.until_job(other, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    netns_lab.node("disk", "node01", full=False)
    again = netns_lab.sbatch(["-wnode01", *job])
    assert netns_lab.until_job(again, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"


def test_programs_for_a_controller_power_cycle_and_replace(slurm_lab: SlurmLab) -> None:
    """The lab's `bin` has what a site's BMC and provider are elsewhere: each takes the node's name, and fails aloud."""
    before = slurm_lab.status()["nodes"]["node02"]
    subprocess.run([slurm_lab.folder / "bin" / "power-cycle", "node02"], check=True, timeout=90)
    wait_until(lambda: is_running(slurm_lab, "node02"), "it boots", limit_s=30)
    booted = slurm_lab.status()["nodes"]["node02"]
    assert booted["boot_id"] != before["boot_id"]
    assert booted["instance_id"] == before["instance_id"]
    subprocess.run([slurm_lab.folder / "bin" / "replace-node", "node02"], check=True, timeout=90)
    assert slurm_lab.status()["nodes"]["node02"]["instance_id"] != before["instance_id"]
    wrong = subprocess.run(
        [slurm_lab.folder / "bin" / "replace-node", "node99"], capture_output=True, text=True, timeout=90
    )
    assert wrong.returncode == 1
    assert 'no node "node99"' in wrong.stderr


def test_names_that_are_not_there(slurm_lab: SlurmLab) -> None:
    """An unknown node or a folder without a lab is said, not guessed."""
    with pytest.raises(NotFoundError, match='no node "node99"'):
        slurm_lab.crash("node99")
    with pytest.raises(NotFoundError, match="lab slurm up"):
        SlurmLab.attach(Path("/nonexistent/lab"))


def test_two_labs_beside_each_other_and_nothing_left(slurm_lab: SlurmLab) -> None:
    """A second lab has its own ports and network; its end leaves no process, interface or socket, and the first runs."""
    with short_folder() as folder:
        with SlurmLab.start(LabSettings(nodes=2, netns=os.geteuid() == 0), folder) as second:
            assert second.facts.port != slurm_lab.facts.port
            job = second.sbatch(["--nodes=2", "--wrap", "srun true; sleep 60"])
            second.until_job(job, "RUNNING")
            facts = second.facts
            with pytest.raises(UsageError, match="runs in"):
                SlurmLab.start(LabSettings(nodes=2), folder)
        assert left_of(folder) == []
        assert not network.has_bridge(facts)
        assert down(folder) is False
    assert slurm_lab.run(["scontrol", "ping"])


@pytest.mark.parametrize("victim", ["owner", "keeper", "warden"])
def test_a_killed_owner_or_keeper_leaves_nothing(victim: str) -> None:
    """SIGKILL to the program that started the lab, to its keeper or to the keeper's warden ends the whole lab."""
    need_slurm()
    code = f"""
        import sys
        from pathlib import Path
        from holdfast.lab.settings import LabSettings
        from holdfast.lab.slurm_lab import SlurmLab
        lab = SlurmLab.start(LabSettings(nodes=2, netns={os.geteuid() == 0}), Path(sys.argv[1]))
        lab.until_job(lab.sbatch(["--nodes=2", "--wrap", "srun sleep 60"]), "RUNNING")
        print(lab.status()["pid"], lab.keeper.pid, flush=True)
        sys.stdin.read()
    """
    with short_folder() as folder:
        owner = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with owner:
            assert owner.stdout is not None
            said = owner.stdout.readline().split()
            assert said, "the owner did not bring the lab up"
            keeper, warden = map(int, said)
            assert left_of(folder)
            os.kill({"owner": owner.pid, "keeper": keeper, "warden": warden}[victim], signal.SIGKILL)
            for pid, what in ((keeper, "keeper"), (warden, "warden")):
                wait_gone(pid, what, limit_s=20) if pid != warden or victim == "owner" else None
            facts = read_facts(folder)
            wait_until(
                lambda: [p for p in left_of(folder) if not p.startswith(f"{owner.pid} ") and "defunct" not in p] == [],
                "nothing left",
                limit_s=20,
            )
            wait_until(lambda: not network.has_bridge(facts), "the bridge goes", limit_s=5)
            owner.kill()


def test_without_root_a_plain_lab_works() -> None:
    """A user without any right gets nodes, GPUs and jobs; --netns is refused with the reason."""
    need_slurm()
    code = """
        import sys
        from pathlib import Path
        from holdfast.lab.settings import LabSettings
        from holdfast.lab.slurm_lab import SlurmLab
        from holdfast.errors import UsageError
        try:
            SlurmLab.start(LabSettings(netns=True), Path(sys.argv[1]))
        except UsageError as error:
            print(error)
        with SlurmLab.start(LabSettings(nodes=2), Path(sys.argv[1])) as lab:
            job = lab.sbatch(["--nodes=2", "--gres=gpu:2", "--wrap", "srun id -u"])
            print(Path(lab.until_job(job, "COMPLETED")["StdOut"]).read_text().split())
            lab.crash("node02")
            print(lab.status()["nodes"]["node02"]["power"])
    """
    with short_folder() as folder:
        python, user = sys.executable, {}
        env = {**os.environ, "HOME": str(folder), "USER": "nobody", "PYTHONDONTWRITEBYTECODE": "1"}
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            python = python_for_all()
            env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run(
            [python, "-c", textwrap.dedent(code), str(folder / "lab")],
            capture_output=True,
            text=True,
            env=env,
            timeout=60,
            **user,  # type: ignore[call-overload]
        )
        uid = NOBODY if os.geteuid() == 0 else os.geteuid()
        assert done.stdout.splitlines() == [
            "--netns needs root; without it the lab runs as any user",
            f"['{uid}', '{uid}']",
            "off",
        ], done.stderr
        assert left_of(folder / "lab") == []


def test_a_daemon_that_does_not_start_says_why() -> None:
    """A mistake in the appended lines of slurm.conf comes back with the end of the daemon's words, and nothing is left."""
    need_slurm()
    with short_folder() as folder:
        began = time.monotonic()
        with pytest.raises(LinkError, match=r"slurmctld ended with 1(.|\n)*Invalid node names in partition main"):
            SlurmLab.start(LabSettings(nodes=1, extra_conf="PartitionName=main Nodes=nowhere"), folder)
        assert time.monotonic() - began < 20
        assert left_of(folder) == []
