"""`holdfast srun --auto-resume=1` against a real Slurm: ranks and nodes lost, output, signals, a terminal, requeues.

Times are measured by `benchmarks/slurm_steps.py`; tests share their machine and set no limit.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from holdfast.adapters.slurm.output import node_names
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from slurm_fixture import need_slurm, short_folder

pytestmark = pytest.mark.cluster

# Each task says when it began and then does what WORK says of its attempt.
TASK = r"""
import os, signal, sys, time
rank, attempt = int(os.environ["SLURM_PROCID"]), int(os.environ["HOLDFAST_ATTEMPT"])
print(f"began rank={rank} node={os.environ['SLURMD_NODENAME']} attempt={attempt} at={time.time():.4f}", flush=True)
"""
LIMIT_S = 90.0


class Step:
    """A batch job on the lab whose script runs one or more supervised steps."""

    def __init__(self, lab: SlurmLab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.out = folder / "job.out"
        self.job = ""

    def submit(self, commands: str, *sbatch: str) -> None:
        script = f"#!/bin/bash\nexport PATH={Path(sys.executable).parent}:$PATH\ncd {self.folder}\n{commands}\n"
        args = [f"--output={self.out}", "--open-mode=append", "--exclusive", *sbatch]
        self.job = self.lab.sbatch(args, script=script, cwd=self.folder)

    def text(self) -> str:
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def until(self, what: str, pattern: str, count: int = 1) -> re.Match[str]:
        """Wait until the output holds `count` matches; the last of them."""
        found: list[re.Match[str]] = []

        def there() -> bool:
            found[:] = re.finditer(pattern, self.text(), re.MULTILINE)
            return len(found) >= count

        wait_until(there, f"{what}; the output is\n{self.text()[-3000:]}", limit_s=LIMIT_S, logs=(self.out,))
        return found[count - 1]

    def began(self, attempt: int, tasks: int) -> dict[int, tuple[str, float]]:
        """Rank -> (node, time) of an attempt's tasks, once all have begun."""
        pattern = rf"^began rank=(\d+) node=(\S+) attempt={attempt} at=([\d.]+)$"
        self.until(f"attempt {attempt}", pattern, tasks)
        return {int(m[1]): (m[2], float(m[3])) for m in re.finditer(pattern, self.text(), re.MULTILINE)}

    def watched(self, step: int = 0, nodes: int = 1) -> None:
        """Wait until the watchers of this many nodes have joined."""
        log = self.folder / "job" / f"step-{step}" / "logs"
        wait_until(
            lambda: len(list(log.glob("watcher-*.log"))) >= nodes,
            f"{nodes} watchers in {log}",
            limit_s=LIMIT_S,
            logs=(),
        )

    def code(self) -> int:
        """What `echo code=$?` of the script said."""
        return int(self.until("the step's exit code", r"^code=(\d+)$")[1])

    def judged(self, step: int = 0) -> None:
        """Wait until the engine of the step runs: ranks come before it."""
        path = self.folder / "job" / f"step-{step}" / "journal.db"
        wait_until(lambda: _events(path) >= 4, f"events in {path}", limit_s=LIMIT_S, logs=(self.out,))


def _events(path: Path) -> int:
    if not path.exists():
        return 0
    engine = sa.create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    try:
        with engine.connect() as connection:
            return int(connection.execute(sa.text("SELECT count(*) FROM events")).scalar_one())
    except sa.exc.OperationalError:  # its tables are being made
        return 0
    finally:
        engine.dispose()


@pytest.fixture
def step(slurm_lab: SlurmLab, tmp_path: Path) -> Step:
    tmp_path.chmod(0o755)
    return Step(slurm_lab, tmp_path)


def task_file(step: Step, body: str) -> str:
    path = step.folder / "task.py"
    path.write_text(TASK + body)
    return f"{sys.executable} {path}"


def holdfast(step: Step, *words: str) -> str:
    return f"holdfast srun --auto-resume=1 --job-dir {step.folder}/job {' '.join(words)}\necho code=$?"


def test_a_killed_rank_brings_a_new_step_in_the_same_allocation(step: Step) -> None:
    """kill -9 of a rank: the diagnosis cannot blame the program, so the step is run again at once, on the same nodes."""
    task = task_file(
        step,
        """
while attempt == 0 and rank == 1 and not os.path.exists("go"):
    time.sleep(0.002)
if attempt == 0 and rank == 1:
    print(f"killed at={time.time():.4f}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.2 if attempt else 60)
""",
    )
    step.submit(holdfast(step, "-N2 -n4", task), "--nodes=2")
    before = step.began(0, 4)
    step.watched()
    step.judged()
    story = step.folder / "job" / "step-0" / "story.txt"
    wait_until(story.exists, "the story begins with the first attempt", limit_s=LIMIT_S, logs=(step.out,))
    assert story.read_text() == "No incident so far.\n"
    (step.folder / "go").touch()
    after = step.began(1, 4)
    wait_until(lambda: "signal 9" in story.read_text(), "the story goes on", limit_s=LIMIT_S, logs=(step.out,))
    assert step.code() == 0
    assert {node for node, _ in after.values()} == {node for node, _ in before.values()}
    assert "rank 1 on node01 ended with signal 9" in step.text()


def test_a_lost_node_is_replaced_by_a_spare_and_let_go(step: Step, netns_lab: SlurmLab) -> None:
    """Power off with a spare in the allocation: a new step on good nodes; the dead node ends nothing later."""
    task = task_file(step, "\ntime.sleep(9 if attempt else 60)\n")
    step.submit(holdfast(step, "--spares=1 --ntasks-per-node=2", task), "--nodes=3")
    before = step.began(0, 4)
    step.watched(nodes=2)
    step.judged()
    victim = before[3][0]
    netns_lab.node("crash", victim)
    after = step.began(1, 4)
    assert victim not in {node for node, _ in after.values()}
    # The scheduler notices the dead node 6 s after its last word on this lab; the step outlives that.
    assert step.code() == 0
    assert netns_lab.job(step.job)["JobState"] in {"RUNNING", "COMPLETING", "COMPLETED"}
    assert f"{victim} is lost" in step.text()


@pytest.mark.soak
def test_a_spare_that_is_lost_is_let_go(step: Step, netns_lab: SlurmLab) -> None:
    """Power off of the node that the step does not use: Slurm gives it up, and the same attempt goes on to its end."""
    task = task_file(
        step,
        """
while not os.path.exists("go"):
    time.sleep(0.01)
""",
    )
    step.submit(holdfast(step, "--spares=1 --ntasks-per-node=1", task), "--nodes=3")
    used = {node for node, _ in step.began(0, 2).values()}
    step.watched(nodes=2)
    step.judged()
    (spare,) = set(node_names(netns_lab.job(step.job)["NodeList"])) - used
    netns_lab.crash(spare)
    wait_until(
        lambda: netns_lab.node_states()[spare].startswith("down"), "given up", limit_s=60, logs=(netns_lab.ctld_log,)
    )
    seen = netns_lab.job(step.job)
    assert (seen["JobState"], seen["Restarts"], seen["NumNodes"]) == ("RUNNING", "0", "2")
    (step.folder / "go").touch()
    assert step.code() == 0
    assert f"{spare}, which the step does not use now, is lost" in step.text()
    assert "attempt=1" not in step.text()


def test_a_step_waits_for_a_slurmctld_that_is_away(step: Step) -> None:
    """A rank dies while slurmctld is down, so that srun cannot ask for a step: the same attempt waits, and begins when
    slurmctld is back. No restart is spent, and the script keeps its allocation."""
    task = task_file(
        step,
        """
while attempt == 0 and not os.path.exists("go"):
    time.sleep(0.01)
if attempt == 0 and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.2 if attempt else 60)
""",
    )
    step.submit(holdfast(step, "--max-restarts=1 -N2 -n2", task), "--nodes=2")
    step.began(0, 2)
    step.watched()
    step.judged()
    step.lab.daemons.stop("slurmctld")  # SIGTERM: it saves its state, in which the job is
    try:
        (step.folder / "go").touch()
        step.until("srun's refusal", r"^srun: error: Unable to confirm allocation", 2)
        assert "code=" not in step.text()
    finally:
        step.lab.daemons.start_ctld()
    step.began(1, 2)
    assert step.code() == 0
    assert "waiting for slurmctld" in step.text()


def test_a_node_that_falls_silent_is_left_within_the_lease(step: Step, netns_lab: SlurmLab) -> None:
    """A cut node says nothing, not even that it is gone: its own watcher ends its tasks before the step runs elsewhere."""
    task = task_file(
        step,
        """
path = f"alive-{attempt}-{rank}"
while attempt == 0:
    with open(path + ".new", "w") as file:
        file.write(str(time.time()))
    os.replace(path + ".new", path)
    time.sleep(0.05)
time.sleep(0.2)
""",
    )
    step.submit(holdfast(step, "--spares=1 --ntasks-per-node=1", task), "--nodes=3")
    before = step.began(0, 2)
    step.watched(nodes=2)
    step.judged()
    netns_lab.node("cut", before[1][0])
    after = step.began(1, 2)
    began = min(at for _, at in after.values())
    assert before[1][0] not in {node for node, _ in after.values()}
    assert float((step.folder / "alive-0-1").read_text()) < began
    assert step.code() == 0


def watcher_of(step: Step, node: str) -> int:
    """The process that watches a node for this step."""
    found = [
        one.pid
        for one in psutil.process_iter(["cmdline", "environ"])
        if "holdfast.launch.step_watch" in (one.info["cmdline"] or ())
        and f"{step.folder}/job/step-0" in one.info["cmdline"]
        and (one.info["environ"] or {}).get("SLURMD_NODENAME") == node
    ]
    return found[-1]


STOPPED_S = 4.5
"""Twice a watcher's lease."""


def stands_by_a_stopped_watcher(step: Step, lab: SlurmLab, port: int) -> None:
    """One watcher is stopped for longer than its lease while its node and slurmd are well: the step stays on its nodes."""
    shown = lab.run(["scontrol", "--oneliner", "show", "node", "node02"])
    assert " Port=" not in shown
    assert re.search(rf"^SlurmdPort\s*= {port}$", lab.run(["scontrol", "show", "config"]), re.MULTILINE)
    task = task_file(
        step,
        """
while not os.path.exists("go"):
    time.sleep(0.01)
""",
    )
    step.submit(holdfast(step, "--spares=1 --ntasks-per-node=1", task), "--nodes=3")
    before = {node for node, _ in step.began(0, 2).values()}
    step.watched(nodes=2)
    step.judged()
    victim = before.difference({"node01"}).pop()
    pid = watcher_of(step, victim)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert not threading.Event().wait(STOPPED_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    step.until("the lease's end", rf"the watcher of {victim} has not answered|{victim} is lost")
    (step.folder / "go").touch()
    assert step.code() == 0
    assert "is lost" not in step.text()
    used = set(re.findall(r"^began rank=\d+ node=(\S+)", step.text(), re.MULTILINE))
    assert used == before


def test_a_watchers_silence_alone_moves_no_step(step: Step, netns_lab: SlurmLab) -> None:
    """Where the site has a SlurmdPort of its own, which `scontrol show node` does not print."""
    stands_by_a_stopped_watcher(step, netns_lab, netns_lab.facts.node_port(1))


@pytest.mark.soak
def test_a_watchers_silence_alone_moves_no_step_at_the_default_port(tmp_path: Path) -> None:
    """The same with Slurm's own SlurmdPort, 6818."""
    need_slurm(netns=True)
    tmp_path.chmod(0o755)
    settings = LabSettings(nodes=3, netns=True, boot_s=0.3, extra_conf="SlurmdPort=6818")
    with short_folder() as place, SlurmLab.start(settings, place) as lab:
        stands_by_a_stopped_watcher(Step(lab, tmp_path), lab, 6818)


def test_an_error_of_the_program_stops_and_keeps_its_exit_code(step: Step) -> None:
    """As HyperPod: what the owner must mend is not run again, the script sees srun's own code, and the reason is said."""
    task = task_file(step, "\nraise ValueError('batch is empty')\n")
    step.submit(holdfast(step, "-N1 -n1", task), "--nodes=1")
    assert step.code() == 1
    text = step.text()
    assert "not run again" in text
    assert "ValueError: batch is empty" in text
    assert text.count("began rank=0") == 1


def test_policy_can_say_otherwise(step: Step) -> None:
    """With a policy whose ladder restarts applications, the same error brings a new step."""
    (step.folder / "policy.toml").write_text('[ladders]\napplication = ["restart_in_place", "stop"]\n')
    task = task_file(step, "\nif attempt == 0:\n    raise ValueError('once')\n")
    step.submit(holdfast(step, "--policy policy.toml -N1 -n1", task), "--nodes=1")
    step.began(1, 1)
    assert step.code() == 0


def test_where_the_site_observes_a_step_ends_by_itself(step: Step) -> None:
    """A rank that dies is told with its cause; nothing is run again, and the script sees srun's own code."""
    (step.folder / "policy.toml").write_text('mode = "observe"\n')
    (step.folder / "site.toml").write_text('policy = "policy.toml"\n')
    # Slurm may lose what a task printed in the moment in which it was killed.
    task = task_file(
        step, "\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    step.submit(f"export HOLDFAST_CONFIG={step.folder}/site.toml\n{holdfast(step, '-N1 -n1', task)}", "--nodes=1")
    step.began(0, 1)
    (step.folder / "go").touch()
    assert step.code() == 137
    text = step.text()
    assert "signal 9" in text
    assert text.count("began rank=0") == 1
    assert (step.folder / "job/step-0/epoch").read_text().strip() == "1"


def test_output_files_are_appended_to_read_and_kept_per_attempt(step: Step) -> None:
    """`%x_%j_%t` of the user stands; the second attempt truncates nothing, and each attempt's part lies in its folder."""
    task = task_file(
        step,
        """
print(f"line of {rank} in {attempt}", flush=True)
if attempt == 0 and rank == 1:
    print("NCCL WARN Error: misaligned address in step 3", flush=True)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.3 if attempt else 60)
""",
    )
    step.submit(holdfast(step, "-N1 -n2 -o 'out_%x_%j_%t.log'", task), "--nodes=1", "--job-name=train")
    assert step.code() == 0
    out = step.folder / f"out_train_{step.job}_1.log"
    lines = re.findall(r"line of 1 in \d", out.read_text())
    assert lines == ["line of 1 in 0", "line of 1 in 1"]
    logs = step.folder / "job" / "step-0" / "logs"
    assert "line of 1 in 0" in (logs / "attempt-0" / out.name).read_text()
    assert "line of 1 in 0" not in (logs / "attempt-1" / out.name).read_text()
    assert "line of 1 in 1" in (logs / "attempt-1" / out.name).read_text()


def test_hardware_told_by_a_ranks_output_leaves_its_node(step: Step) -> None:
    """An uncorrectable memory error printed by the task that fails first: the step goes to a spare, not back there."""
    task = task_file(
        step,
        """
if rank == 0:
    open("up", "w").close()
while not os.path.exists("up"):
    time.sleep(0.01)
if attempt == 0 and rank == 1:
    print("RuntimeError: CUDA error: uncorrectable ECC error encountered", file=sys.stderr, flush=True)
    sys.exit(1)
time.sleep(0.2 if attempt else 60)
""",
    )
    step.submit(holdfast(step, "-N2 --tasks-per-node 1 --msg-timeout 9 --spares=1", task), "--nodes=3")
    before = step.began(0, 2)
    after = step.began(1, 2)
    assert step.code() == 0
    assert before[1][0] not in {node for node, _ in after.values()}


def test_signals_stdin_and_a_terminal_reach_the_tasks(step: Step) -> None:
    """SIGUSR1 to us arrives in the task, stdin is read there, and --pty gives a terminal with srun's exit code."""
    catch = step.folder / "catch.py"
    catch.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (print('task got USR1', flush=True), sys.exit(7)))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    supervised = f"holdfast srun --auto-resume=1 --job-dir {step.folder}/job -n1 -N1"
    step.submit(
        f"echo from stdin | {supervised} cat\n"
        f"{supervised} --max-restarts=0 {sys.executable} {catch} &\n"
        "pid=$!\nuntil grep -q ^ready job.out; do sleep 0.05; done\nkill -USR1 $pid\nwait $pid\necho usr=$?\n"
        f"script -qec '{supervised} --max-restarts=0 --pty bash -c \"tty; exit 5\"' /dev/null\necho code=$?",
        "--nodes=1",
    )
    assert step.code() == 5
    text = step.text()
    assert re.search(r"^from stdin$", text, re.MULTILINE)
    assert "task got USR1" in text
    assert "usr=7" in text
    assert "/dev/pts/" in text


@pytest.mark.parametrize("words", ["-N1 -n1", "-N2 -n2 -l", "-N2 -n2 -o out_%t.log"])
def test_a_cancelled_step_is_not_run_again(step: Step, words: str) -> None:
    """`scancel JOB.STEP` is a person's word: srun's code comes back and nothing is started."""
    begun = step.folder / "begun"
    task = task_file(step, f"\nopen('{begun}-%d-%d' % (attempt, rank), 'w').close()\ntime.sleep(60)\n")
    step.submit(holdfast(step, words, task), "--nodes=2")
    tasks = 2 if "-n2" in words else 1
    wait_until(lambda: len(list(step.folder.glob("begun-0-*"))) == tasks, "tasks", limit_s=LIMIT_S, logs=(step.out,))
    number = next(
        line
        for line in step.lab.run(["squeue", "-h", "-s", "-j", step.job, "-o", "%i %j"]).splitlines()
        if "python" in line
    ).split()[0]
    step.lab.run(["scancel", number])
    assert step.code() != 0
    assert not list(step.folder.glob("begun-1-*"))


def test_without_a_spare_the_job_comes_back_elsewhere(step: Step, netns_lab: SlurmLab) -> None:
    """The owner's right is enough: requeued, called back at once without the lost node, and the dead node holds nothing up."""
    task = task_file(step, "\ntime.sleep(60 if attempt == 0 else 0.2)\n")
    step.submit(
        "echo run=${SLURM_RESTART_COUNT:-0} nodes=$SLURM_JOB_NUM_NODES\n" + holdfast(step, "--ntasks-per-node=1", task),
        "--nodes=2",
        "--requeue",
    )
    before = step.began(0, 2)
    step.watched()
    netns_lab.node("crash", before[1][0])
    again = step.until("the second run", r"^run=1 nodes=(\d+)$")
    assert again[1] == "2"
    after = step.began(1, 2)
    assert before[1][0] not in {node for node, _ in after.values()}
    assert step.code() == 0
    assert netns_lab.job(step.job)["Restarts"] == "1"
    # By the supervisor, whose machine runs: another recall job of a watcher's would take a node that the job may need.
    assert not list(step.folder.rglob("called-back-*"))


def test_no_allocation_and_misspelt_options_get_one_sentence(slurm_lab: SlurmLab) -> None:
    """Refused before anything is started, with the way to mend it."""
    import subprocess

    program = str(Path(sys.executable).with_name("holdfast"))
    for words, said in (
        (["--auto-resume=1", "true"], "needs an allocation"),
        (["--auto_resume=1", "true"], "write --auto-resume=1"),
        (["--auto-resume=true", "true"], "write --auto-resume=1"),
    ):
        done = subprocess.run(
            [program, "srun", *words], env=slurm_lab.env(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_plain_srun_is_srun_itself(slurm_lab: SlurmLab) -> None:
    """Without --auto-resume=1 every argument, and the exit code, is srun's."""
    import subprocess

    program = str(Path(sys.executable).with_name("holdfast"))
    argv = [program, "srun", "-N2", "-l", "bash", "-c", "echo $SLURM_PROCID; exit 9"]
    done = subprocess.run(argv, env=slurm_lab.env(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 9
    assert sorted(done.stdout.split()) == ["0", "0:", "1", "1:"]
