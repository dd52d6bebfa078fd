"""A real Slurm with agents, a controller and a training job, brought up and taken down as one thing.

The counterpart of `stage` for `holdfast drill run --on slurm` and `holdfast demo --on slurm`: the same drills, the same
eyes, but slurmctld, slurmd, srun and the Slurm adapter in between. The job is a batch script whose one step runs
`holdfast run` on every node, as a user would write it. The lab and the controller end when this process ends, however
that happens. Time is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

from msgspec import Struct

from holdfast.drill.controlled import ControlledStage
from holdfast.drill.kinds import SLURM, Kind
from holdfast.drill.submission import batch_script, comment
from holdfast.drill.training import TrainingJob
from holdfast.errors import LinkError, NotFoundError, RefusedError
from holdfast.lab.keeper import MARK
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from holdfast.model.cluster import JobKey, RecoverySpec

SHARED_MIB = 32
NEEDS_ROOT = frozenset({"network_cut", "disk_full", "shared_full"})
"""Kinds that need networks, or file systems, that only root can make."""
DAEMON_S = 15.0


class SlurmStageSettings(Struct, frozen=True, kw_only=True):
    """What is brought up."""

    folder: Path
    """The lab's folder; its name must be short, see `lab.settings`. Kept when the stage is closed."""
    nodes: int = 3
    spares: int = 1
    """Nodes more than `nodes`; Slurm itself makes no difference."""
    policy: Path | None = None
    boot_s: float = 0.5
    accounting: bool = True
    defaults: bool = False
    """Slurm's own times, which are long, in place of the lab's quick ones."""
    up_limit_s: float = 60.0


def lacking_on_slurm(kind: Kind) -> str:
    """Why a kind of fault cannot be had on a Slurm lab of this user; empty when it can."""
    if kind.name in NEEDS_ROOT and os.geteuid() != 0:
        return "needs root on a Slurm lab"
    return kind.lacking(SLURM)


class SlurmBreaker:
    """See `ports.SchedulerFaultPort`."""

    def __init__(self, lab: SlurmLab) -> None:
        self._lab = lab

    async def kmsg(self, node: str, text: str) -> None:
        """Append a line to the node's kernel log."""
        await asyncio.to_thread(self._lab.kmsg, node, text)

    async def power_off(self, node: str) -> None:
        """End everything on the node at once."""
        await asyncio.to_thread(self._lab.crash, node)

    async def power_on(self, node: str) -> None:
        """Boot a node that is off."""
        await asyncio.to_thread(self._lab.start_node, node)

    async def cut(self, node: str) -> None:
        """Cut the node off the network."""
        await asyncio.to_thread(self._lab.node, "cut", node)

    async def heal(self, node: str) -> None:
        """Undo `cut`."""
        await asyncio.to_thread(self._lab.node, "heal", node)

    async def fill_disk(self, node: str) -> None:
        """Leave no space on the node's scratch file system."""
        await asyncio.to_thread(self._lab.node, "disk", node, full=True)

    async def free_disk(self, node: str) -> None:
        """Undo `fill_disk`; a node that has gone took it along."""
        with contextlib.suppress(RefusedError):
            await asyncio.to_thread(self._lab.node, "disk", node, full=False)

    async def kill_slurmd(self, node: str) -> None:
        """SIGKILL the node's slurmd; its job goes on."""
        await asyncio.to_thread(self._lab.kill_slurmd, node)

    async def start_slurmd(self, node: str) -> None:
        """Undo `kill_slurmd`."""
        await asyncio.to_thread(self._lab.start_node, node)

    async def reboot(self, node: str) -> None:
        """Power the node off and on again."""
        await asyncio.to_thread(self._lab.node, "reboot", node)

    async def kill_scheduler(self) -> None:
        """SIGKILL slurmctld, once it has written down that the job runs."""
        await asyncio.to_thread(self._until_saved)
        await asyncio.to_thread(self._lab.stop_ctld, sig=signal.SIGKILL)

    def _until_saved(self) -> None:
        # slurmctld writes its state some seconds late; what it forgets of a job's start is not the drill's subject.
        running = self._lab.run(["squeue", "-h", "-t", "RUNNING", "-o", "%S"]).split()
        saved = self._lab.folder / "state" / "job_state"
        started = max((time.mktime(time.strptime(at, "%Y-%m-%dT%H:%M:%S")) for at in running), default=0.0)
        wait_until(
            lambda: saved.exists() and saved.stat().st_mtime > started, "slurmctld saves its state", limit_s=DAEMON_S
        )

    async def start_scheduler(self) -> None:
        """Undo `kill_scheduler`; returns when it answers."""
        await asyncio.to_thread(self._lab.start_ctld)

    async def stop_accounting(self) -> None:
        """End slurmdbd."""
        await asyncio.to_thread(self._lab.stop_dbd)

    async def start_accounting(self) -> None:
        """Undo `stop_accounting`."""
        await asyncio.to_thread(self._lab.start_dbd)

    async def fill_shared(self) -> None:
        """Leave no space on the file system that all nodes share."""
        await asyncio.to_thread(self._lab.fill_shared)

    async def free_shared(self) -> None:
        """Undo `fill_shared`."""
        await asyncio.to_thread(self._lab.free_shared)


class SlurmStage(ControlledStage):
    """See the module. All methods but `open` need an open stage."""

    cluster_name = SLURM

    def __init__(self, settings: SlurmStageSettings) -> None:
        super().__init__(
            settings.folder,
            nodes=settings.nodes,
            spares=settings.spares,
            policy=settings.policy,
            up_limit_s=settings.up_limit_s,
        )
        self.settings = settings
        self._lab: SlurmLab | None = None
        self._breaker: SlurmBreaker | None = None

    # --- what there is ---

    @property
    def lab(self) -> SlurmLab:
        """The Slurm."""
        if self._lab is None:
            raise LinkError("the stage is not open")
        return self._lab

    @property
    def breaker(self) -> SlurmBreaker:
        """See ControlledStage."""
        return SlurmBreaker(self.lab)

    def job_dir(self, key: JobKey) -> Path:
        """A job's folder, on the file system that the nodes share."""
        return self.folder / "jobs" / key.id

    # --- up and down ---

    async def open(self) -> None:
        """Start Slurm, an agent on every node, and the controller; return when all answer.

        Raises:
            UsageError: packages are missing; says how to get them.
            LinkError: something did not start; holds the end of its log.
        """
        wanted, root = self.settings, os.geteuid() == 0
        settings = LabSettings(
            nodes=wanted.nodes + wanted.spares,
            netns=root,
            dbd=wanted.accounting,
            defaults=wanted.defaults,
            agents=True,
            boot_s=wanted.boot_s,
            shared_mib=SHARED_MIB if root else 0,
        )
        self._lab = await asyncio.to_thread(SlurmLab.start, settings, self.folder, limit_s=wanted.up_limit_s)
        await self.start_controller()
        await self._until_agents(wanted.up_limit_s)

    async def close(self) -> None:
        """See ControlledStage."""
        await self.stop_controller()
        lab, self._lab = self._lab, None
        if lab is not None:
            await asyncio.to_thread(lab.end)

    def _controller_words(self) -> list[str]:
        lab = self.lab
        site = self.folder / "etc" / "holdfast.toml"
        # A power cycle, as a BMC has it: `scontrol reboot` cannot help a node that does not answer.
        programs = {"reboot_program": "power-cycle", "replace_program": "replace-node"}
        lines = [f"{key} = {json.dumps([str(self.folder / 'bin' / name)])}" for key, name in programs.items()]
        site.write_text("\n".join(["[slurm]", *lines]) + "\n", encoding="utf-8")
        listen = f"{lab.facts.ctld_address}:0"
        return ["--cluster", f"slurm:{lab.facts.conf}", "--config", str(site), "--listen", listen]

    def _mark(self) -> dict[str, str]:
        # The mark makes the lab's keeper end the controller too, should our own process be killed.
        return {MARK: str(self.folder), "PATH": self.lab.env()["PATH"]}

    # --- jobs ---

    async def submit(self, job: TrainingJob, *, recovery: RecoverySpec | None = None) -> JobKey:
        """Queue a training job, open to drills; returns its key."""
        script = self.script(job)
        options = [f"--nodes={job.nodes}", "--ntasks-per-node=1", f"--job-name={job.name}"]
        options += ["--exclusive", "--requeue", "--open-mode=append"]
        options += [f"--output={self.folder}/jobs/slurm-%j.out", f"--comment={comment(recovery)}"]
        job_id = await asyncio.to_thread(self.lab.sbatch, options, script=script)
        return JobKey(SLURM, job_id)

    def script(self, job: TrainingJob) -> str:
        """The batch script: what a user would write, with the places of this lab."""
        lab, folder = self.lab, str(self.folder)
        places = {"{scratch}": str(lab.node_dir(lab.facts.names[0]) / "tmp"), "{shared}": f"{folder}/shared"}
        argv = job.argv()
        for mark, place in places.items():
            argv = [word.replace(mark, f"{place}/job-$SLURM_JOB_ID" if mark == "{shared}" else place) for word in argv]
        exports = {
            "HOLDFAST_CONTROLLER_FILE": f"{folder}/controller/controller.json",
            "HOLDFAST_TOKEN_FILE": f"{folder}/controller/agent-token",
            # PyTorch makes this folder below /tmp otherwise: nothing of a stage lies outside its own.
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache/torchinductor",
        }
        if not lab.facts.settings.netns:
            exports["HOLDFAST_NODE_ADDRESS"] = "127.0.0.1"
        return batch_script(argv, folder=f"{folder}/jobs", exports=exports)

    async def cancel(self, key: JobKey, *, limit_s: float = 30.0) -> None:
        """End a job for good and wait until its nodes are free."""
        with contextlib.suppress(LinkError, NotFoundError):
            await asyncio.to_thread(self.lab.run, ["scancel", "--signal=KILL", "--full", key.id])
        with contextlib.suppress(LinkError):
            await asyncio.to_thread(self.lab.run, ["scancel", key.id])

        def is_over() -> bool:
            try:
                return not self.lab.run(["squeue", "-h", "-j", key.id, "-o", "%T"]).strip()
            except LinkError:
                return True  # forgotten already

        await asyncio.to_thread(
            wait_until, is_over, f"job {key} does not end", limit_s=limit_s, logs=(self.lab.ctld_log,)
        )
