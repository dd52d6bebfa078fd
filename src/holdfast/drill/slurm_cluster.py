"""A real Slurm with an agent on every node, for a stage: slurmctld, slurmd, srun and the Slurm adapter are real.

Made by `stage`. A job is a batch script whose one step runs `holdfast run` on every node, as a user would write it. The
lab and the controller end when this process ends, however that happens. Time is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time

from holdfast.drill.clusters import StageSettings, in_every_job
from holdfast.drill.kinds import SLURM, Kind
from holdfast.drill.queues import SlurmQueue
from holdfast.drill.site_settings import SiteConfig
from holdfast.errors import LinkError, RefusedError
from holdfast.lab.keeper import MARK
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until

SHARED_MIB = 32
NEEDS_ROOT = frozenset({"network_cut", "disk_full", "shared_full"})
"""Kinds that need networks, or file systems, that only root can make."""
DAEMON_S = 15.0


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
        await asyncio.to_thread(self._lab.daemons.stop, "slurmctld", sig=signal.SIGKILL)

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
        await asyncio.to_thread(self._lab.daemons.start_ctld)

    async def stop_accounting(self) -> None:
        """End slurmdbd."""
        await asyncio.to_thread(self._lab.daemons.stop, "slurmdbd")

    async def start_accounting(self) -> None:
        """Undo `stop_accounting`."""
        await asyncio.to_thread(self._lab.daemons.start_dbd)

    async def fill_shared(self) -> None:
        """Leave no space on the file system that all nodes share."""
        await asyncio.to_thread(self._lab.fill_shared)

    async def free_shared(self) -> None:
        """Undo `fill_shared`."""
        await asyncio.to_thread(self._lab.free_shared)


class SlurmCluster:
    """See `clusters.Cluster`."""

    name = SLURM
    boot_s, up_limit_s, agents = 0.5, 60.0, True

    def __init__(self, settings: StageSettings) -> None:
        self._settings = settings
        self._lab: SlurmLab | None = None

    @property
    def lab(self) -> SlurmLab:
        """The Slurm."""
        if self._lab is None:
            raise LinkError("the stage is not open")
        return self._lab

    @property
    def breaker(self) -> SlurmBreaker:
        """See Cluster."""
        return SlurmBreaker(self.lab)

    @property
    def queue(self) -> SlurmQueue:
        """See Cluster."""
        folder, facts = self._settings.folder, self.lab.facts
        exports = {
            "HOLDFAST_CONTROLLER_FILE": f"{folder}/controller/controller.json",
            "HOLDFAST_TOKEN_FILE": f"{folder}/controller/agent-token",
            **in_every_job(folder),
        }
        if not facts.settings.netns:
            exports["HOLDFAST_NODE_ADDRESS"] = "127.0.0.1"
        # Slurm's tools get almost no environment, and a job has theirs.
        exports |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        return SlurmQueue(SiteConfig(env=exports), folder / "jobs", facts.conf, SLURM)

    async def open(self, boot_s: float, up_limit_s: float) -> list[str]:
        """See Cluster."""
        wanted, root = self._settings, os.geteuid() == 0
        settings = LabSettings(
            nodes=wanted.nodes + wanted.spares,
            netns=root,
            dbd=wanted.accounting,
            agents=True,
            boot_s=boot_s,
            shared_mib=SHARED_MIB if root else 0,
        )
        self._lab = lab = await asyncio.to_thread(SlurmLab.start, settings, wanted.folder, limit_s=up_limit_s)
        site = wanted.folder / "etc" / "holdfast.toml"
        # A power cycle, as a BMC has it: `scontrol reboot` cannot help a node that does not answer.
        programs = {"reboot_program": "power-cycle", "replace_program": "replace-node"}
        lines = [f"{key} = {json.dumps([f'{wanted.folder}/bin/{name}'])}" for key, name in programs.items()]
        site.write_text("\n".join(["[slurm]", *lines]) + "\n", encoding="utf-8")
        listen = f"{lab.facts.ctld_address}:0"
        return ["--cluster", f"slurm:{lab.facts.conf}", "--config", str(site), "--listen", listen]

    async def until_up(self, limit_s: float) -> None:
        """See Cluster: `open` has seen to it."""

    async def close(self) -> None:
        """See Cluster."""
        lab, self._lab = self._lab, None
        if lab is not None:
            await asyncio.to_thread(lab.end)

    def environment(self) -> dict[str, str]:
        """See Cluster."""
        return {MARK: str(self._settings.folder), "PATH": self.lab.env()["PATH"]}

    def places(self) -> dict[str, str]:
        """See Cluster."""
        scratch = self.lab.node_dir(self.lab.facts.names[0]) / "tmp"
        return {"{scratch}": str(scratch), "{shared}": f"{self._settings.folder}/shared/job-$SLURM_JOB_ID"}
