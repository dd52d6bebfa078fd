"""The controller of a stage, a process of its own: started, awaited until it answers, ended.

Owned by `stage.Stage`. Time is real: it waits for the controller to say that it is there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.drill.eyes import ControllerEyes
from holdfast.errors import LinkError, NotFoundError

_POLL_S = 0.05


class ControllerProcess:
    """`holdfast controller` on the journal of a cluster's folder.

    Args:
        cluster_dir: the cluster's folder; the controller's own is `controller` in it.
        up_limit_s: until it has replayed its journal and answers.
    """

    def __init__(self, cluster_dir: Path, up_limit_s: float) -> None:
        self._cluster_dir = cluster_dir
        self._up_limit_s = up_limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._eyes: ControllerEyes | None = None

    @property
    def eyes(self) -> ControllerEyes:
        """Its records and events. Raises LinkError while it is not up."""
        if self._eyes is None:
            raise LinkError("the stage's controller is not up")
        return self._eyes

    @property
    def pid(self) -> int | None:
        """None while there is none."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    async def start(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it; return when it has replayed its journal and answers.

        Args:
            words: what it is told beside `--dir`.
            env: added to this process's environment, of which what would mislead it is left out.

        Raises:
            LinkError: it did not answer in time; says its last word.
        """
        self._process = process = self._spawn([*words], env)
        self._eyes = await self._until_ready(process)

    def _spawn(self, words: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        folder = self._cluster_dir / "controller"
        folder.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "SLURM_"))}
        with (folder / "controller.log").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.main", "controller", "--dir", str(self._cluster_dir), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=kept | dict(env),
                start_new_session=True,
            )

    async def stop(self, *, sig: int = signal.SIGTERM, limit_s: float = 10.0) -> None:
        """End it; with SIGKILL as a crash would."""
        eyes, self._eyes = self._eyes, None
        if eyes is not None:
            await eyes.close()
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(sig)
        try:
            await asyncio.to_thread(process.wait, limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def _until_ready(self, process: subprocess.Popen[bytes]) -> ControllerEyes:
        deadline = time.monotonic() + self._up_limit_s
        problem = "it did not write controller.json"
        while process.poll() is None and time.monotonic() < deadline:
            try:
                eyes = ControllerEyes.of_folder(self._cluster_dir, pid=process.pid)
            except (LinkError, NotFoundError) as error:
                problem = str(error)
            else:
                if await eyes.is_ready():
                    return eyes
                await eyes.close()
            await asyncio.sleep(_POLL_S)
        log = self._cluster_dir / "controller" / "controller.log"
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise LinkError(f"the controller in {self._cluster_dir} did not start: {said[0] if said else problem}")
