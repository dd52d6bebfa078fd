"""The step of watchers: a small process of ours on every node of a supervised step, started by srun beside the user's.

Used by `step_nodes`. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping, Sequence

from holdfast.errors import PermanentOrderError
from holdfast.launch import process
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.process import Child
from holdfast.launch.step_slots import ENV_PREFIX

_LEAVE_S = 1.0
_LEAVE_LOST_S = 0.1


class Watchers:
    """The step of watchers, started beside the user's and again when it ends.

    Args:
        place: the supervisor's.
        base: environment of the job.
        telemetry: what the names of the tasks' folders of slots begin with; told in the environment, which is private.
        voice: for people.
    """

    def __init__(self, place: JobPlace, base: Mapping[str, str], telemetry: str, voice: Voice) -> None:
        self._place = place
        # srun takes defaults for its options from these; the batch job's are not the watchers'.
        self._base = {
            key: value
            for key, value in base.items()
            if not key.startswith("SLURM_")
            or key in {"SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME"}
        } | {ENV_PREFIX: telemetry}
        self._voice = voice
        self._children: list[Child] = []
        self.is_closed = False

    def start(self, nodes: Sequence[str]) -> None:
        """Start one watcher on each of these nodes."""
        count = len(nodes)
        argv = [
            "srun", f"--jobid={self._place.job.id}", "--overlap", f"--nodes={count}", f"--ntasks={count}",
            "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}", "--cpus-per-task=1", "--mem=0", "--gres=none",
            "--cpu-bind=none", "--mpi=none", "--input=none", "--kill-on-bad-exit=0", "--wait=0", "--quiet",
            "--job-name=holdfast-watch", "--export=ALL", sys.executable, "-m", "holdfast.launch.step_watch",
            str(self._place.job_dir), self._place.job.id,
        ]  # fmt: skip
        with contextlib.suppress(OSError), (self._place.job_dir / "logs" / "watchers.log").open("ab") as log:
            try:
                child = process.spawn(argv, env=self._base, stdout=log.fileno(), stderr=log.fileno())
            except PermanentOrderError as error:
                self._voice.say(f"nodes cannot be watched: {error}")
                return
            self._children.append(child)

    @property
    def is_running(self) -> bool:
        """A step of watchers has been started and not ended."""
        return any(child.exit is None for child in self._children)

    async def close(self, *, is_whole: bool) -> None:
        """They were told to leave; what has not is ended with its step.

        Args:
            is_whole: no node is lost; the srun of a watcher on a lost node would not end by itself.
        """
        self.is_closed = True
        for child in self._children:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_S if is_whole else _LEAVE_LOST_S):
                    await child.exited.wait()
            if child.exit is None:
                child.send(signal.SIGKILL)
