"""A real Slurm lab with a real controller, on which schedules are played one after another, and what can be broken there."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.errors import HoldfastError, LinkError
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from holdfast.lab.wire import ask
from slurm_keeper import Kept

from .record import FINAL, TASK, Line, read_lines
from .schedule import NODES, Job

LIMIT_S = 120.0
"""Of every wait: generous, because other work may have the machine."""
REST_S = 0.4
"""Between two looks for rest, each of some commands."""
SLURMD_TIMEOUT_S = 6
POLICY = """\
[waits]
settle_s = 0.05
order_s = 3.0
[limits]
max_same_fingerprint = 99
max_restarts_per_node = 99
[node]
validate = false
lemon_offences = 1000
flap_hold_s = 0.1
[brake]
max_nodes = 8
max_percent = 100.0
window_s = 5.0
"""
"""No brake and no memory of earlier schedules may keep Holdfast from fencing a healthy node."""
ENDS = {"completed", "given_up", "cancelled"}


class Site:
    """A lab and its controller; ends with the block of `open_site`."""

    def __init__(self, lab: SlurmLab, kept: Kept) -> None:
        self.lab = lab
        self.kept = kept
        self.accounting = lab.facts.settings.dbd
        self.is_evidence = False
        """Its folder stays when it ends."""
        (lab.folder / "jobs" / "task").write_text(TASK)

    # --- jobs ---

    def submit(self, job: Job, folder: Path) -> str:
        """Queue it; its tasks write to `folder/NAME.lines`."""
        folder.mkdir(parents=True, exist_ok=True)
        wishes = [f"--job-name={job.name}", f"--nodes={job.nodes}", "--ntasks-per-node=1", "--exclusive"]
        wishes += ["--requeue" if job.requeue else "--no-requeue", f"--output={folder}/{job.name}.%j.out"]
        if job.limit:
            comment = f'{{"APS": {{"auto_resume_mode": "requeue", "max_requeue_times": {job.limit}}}}}'
            wishes.append(f"--comment={comment}")
        fails = {"fails once": "once", "fails": "always"}.get(job.shape, "never")
        steps = round(job.work_s * 10)
        task = f"bash {self.lab.folder}/jobs/task {folder}/{job.name}.lines $SLURMD_NODENAME {steps} {fails}"
        launch = {"step": f"{shlex.join([sys.executable, '-m', 'holdfast'])} srun --auto-resume=1 --spares 1 "}
        prefix = launch.get(job.shape, "srun --kill-on-bad-exit=1 " if job.nodes > 1 else "")
        line = f"exec {prefix}bash -c {shlex.quote(task)}" if prefix else f"exec {task}"
        return self.lab.sbatch(
            wishes,
            script=f"#!/bin/bash\n{line}\n",
            cwd=folder,
            HOLDFAST_CONTROLLER_FILE=f"{self.kept.folder}/controller/controller.json",
            HOLDFAST_TOKEN_FILE=f"{self.kept.folder}/controller/agent-token",
        )

    def lines(self, job: Job, folder: Path) -> tuple[Line, ...]:
        path = folder / f"{job.name}.lines"
        return tuple(read_lines(path.read_text())) if path.exists() else ()

    def last_word(self, job_id: str) -> tuple[str, int]:
        """Slurm's word about a job: its state and its restarts; of accounting where slurmctld has forgotten it."""
        try:
            fields = self.lab.job(job_id)
        except LinkError as error:
            if "Invalid job id" not in str(error):
                raise
        else:
            return fields["JobState"], int(fields["Restarts"])
        if self.accounting:
            # A job that slurmctld forgot before its end stays there as it last was.
            said = self.lab.run(["sacct", "-X", "-n", "-P", "-j", job_id, "-o", "State"]).split()
            return next((state for state in said if state in FINAL), ""), 0
        return "", 0

    def nodes(self) -> dict[str, tuple[str, str]]:
        """State and reason of each node."""
        found = {}
        for line in self.lab.run(["scontrol", "show", "node", "-o"]).splitlines():
            fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
            reason = line.partition(" Reason=")[2]
            found[fields["NodeName"]] = fields["State"], reason.rpartition(" [")[0] or reason
        return found

    def drain(self, node: str, reason: str) -> None:
        """As an administrator does; tried again while slurmctld is away."""
        self._until(lambda: self.lab.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"]))

    def _until(self, does: Callable[[], object]) -> None:
        def done() -> bool:
            with contextlib.suppress(HoldfastError):
                does()
                return True
            return False

        wait_until(done, "Slurm takes a command", limit_s=LIMIT_S, logs=(self.lab.ctld_log,))

    # --- rest ---

    def unrest(self, jobs: dict[str, Job], drained: str) -> str:
        """What still moves: a job, or a node that is not in service again. Empty: nothing does."""
        for job_id, job in jobs.items():
            state, _ = self.last_word(job_id)
            if state and (state not in FINAL or (job.limit and self.kept.state(job_id) not in ENDS)):
                return f"job {job_id} is {state}, in Holdfast's eyes {self.kept.state(job_id) or 'unknown'}"
        for name, (state, reason) in self.nodes().items():
            if name != drained and state != "IDLE":
                return f"{name} is {state} ({reason})"
        for node in self.kept.get("nodes"):
            if node["name"] != drained and node.get("state", "healthy") != "healthy":
                return f"{node['name']} is {node['state']} in Holdfast's eyes"
        return ""

    def until_rest(self, jobs: dict[str, Job], drained: str) -> str:
        """Wait until nothing moves; returns what does after the limit."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                moves = self.unrest(jobs, drained)
            except HoldfastError as error:
                moves = str(error)
            if not moves or time.monotonic() > deadline:
                return moves
            time.sleep(REST_S)

    # --- faults ---

    def ways(self, kind: str, node: str) -> tuple[Callable[[], object], Callable[[], object]]:
        """How a fault begins, and how it ends."""
        subject, _, how = kind.partition(" ")
        lab = self.lab
        if kind == "node off":
            return (lambda: lab.crash(node)), (lambda: self._switch_on(node))
        if kind == "node stopped":
            return (lambda: lab.node("hang", node)), (lambda: lab.node("unhang", node))
        if subject == "slurmd":
            if how == "killed":
                return (lambda: lab.kill_slurmd(node)), (lambda: lab.start_node(node))
            return (lambda: lab.node("kill", node, sig=int(signal.SIGSTOP))), (
                lambda: lab.node("kill", node, sig=int(signal.SIGCONT))
            )
        if how.startswith("killed"):
            start = {
                "slurmctld": lab.daemons.start_ctld,
                "slurmdbd": lab.daemons.start_dbd,
                "munged": lab.daemons.start_munge,
            }
            return (lambda: lab.daemons.stop(subject, sig=signal.SIGKILL)), (lambda: self._until(start[subject]))
        return (lambda: self._signal(subject, signal.SIGSTOP)), (lambda: self._signal(subject, signal.SIGCONT))

    def _signal(self, daemon: str, sig: int) -> None:
        ask(self.lab.folder, "signal", name=daemon, sig=int(sig))

    def _switch_on(self, node: str) -> None:
        if self.lab.status()["nodes"][node]["power"] != "on":  # the controller may have cycled its power
            self.lab.start_node(node)

    def saved_at(self) -> float:
        """When slurmctld last saved its jobs, by the machine's clock."""
        return (self.lab.folder / "state" / "job_state").stat().st_mtime


@contextlib.contextmanager
def open_site(*, accounting: bool = False, prefix: str = "", first_job: int = 1) -> Iterator[Site]:
    """Bring a site up, and end it; its folder stays when something went wrong."""
    settings = LabSettings(
        nodes=NODES,
        netns=os.geteuid() == 0,
        dbd=accounting,
        prefix=prefix,
        gpus=0,
        boot_s=0.3,
        slurmd_timeout_s=SLURMD_TIMEOUT_S,
        # Labs that run beside each other share /dev/shm, where a job's number stands in names.
        extra_conf=f"FirstJobId={first_job}",
    )
    folder = Path(tempfile.mkdtemp(prefix="hf-sched-"))
    folder.chmod(0o755)
    with contextlib.ExitStack() as ending:
        lab = ending.enter_context(SlurmLab.start(settings, folder, limit_s=LIMIT_S))
        programs = {"reboot_program": "power-cycle", "replace_program": "replace-node"}
        config = "".join(f'{key} = ["{folder}/bin/{name}"]\n' for key, name in programs.items())
        kept = Kept(lab, folder / "kept", POLICY, f"[slurm]\n{config}")
        kept.listen = f"{lab.facts.ctld_address}:0"
        ending.callback(kept.end)
        kept.start(LIMIT_S)
        site = Site(lab, kept)
        yield site
    if not site.is_evidence:
        shutil.rmtree(folder)
