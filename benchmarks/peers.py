"""Measure one thing the same way under every launcher: from a rank's death to the first new step.

Called by `recovery.py`. The training script, its arguments and the fault are the same; only the launcher differs.
The first new step is the first progress line whose step is not larger than one seen before: the script went back to
its checkpoint, so the line can only come from the new attempt.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

PROGRESS = re.compile(rb"step (\d+)/")
LIMIT_S = 60.0


class NotBackError(RuntimeError):
    """The job made no new step in time, or its launcher gave up."""


@dataclass(frozen=True)
class Launcher:
    """A name and its command line; `{script}` is replaced by the script and its arguments."""

    name: str
    argv: tuple[str, ...]
    settle_s: float = 0.0
    """How long the job runs on after its steady state before the fault (standbys must be warm)."""


def here(tool: str) -> str:
    """A console script of this environment."""
    return str(Path(sys.executable).with_name(tool))


def launchers(ranks: int, port: int) -> list[Launcher]:
    """What a user would pick, and Holdfast."""
    rendezvous = ("--nnodes", "1", "--nproc-per-node", str(ranks), "--max-restarts", "10")
    # The plain, static rendezvous: with c10d's, restarted gloo ranks now and then read addresses of dead ones.
    master = ("--master-addr", "127.0.0.1", "--master-port", str(port))
    return [
        Launcher("torchrun", (here("torchrun"), *rendezvous, *master)),
        Launcher("ft_launcher", (here("ft_launcher"), "--ignore-missing-fault-tol-cfg", *rendezvous, *master)),
        Launcher("holdfast run, cold", (here("holdfast"), "run", "--nproc-per-node", str(ranks), "--standbys", "0")),
        Launcher(
            "holdfast run, warm standbys",
            (here("holdfast"), "run", "--nproc-per-node", str(ranks), "--standbys", "auto"),
            settle_s=8.0,
        ),
    ]


class Run:
    """One job under one launcher; its progress lines are stamped as they come."""

    def __init__(self, launcher: Launcher, script: list[str], folder: Path) -> None:
        self.steps: list[tuple[float, int]] = []
        self.tail: list[bytes] = []
        self.new = threading.Condition()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*launcher.argv, *script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            now = time.monotonic()
            with self.new:
                self.tail = [*self.tail[-30:], line]
                if found := PROGRESS.search(line):
                    self.steps.append((now, int(found[1])))
                self.new.notify_all()
        with self.new:
            self.new.notify_all()

    def wait(self, what: str, ready) -> float:
        """Wait until `ready(steps)` gives a time."""
        deadline = time.monotonic() + LIMIT_S
        with self.new:
            while (at := ready(self.steps)) is None:
                left = deadline - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self.new.wait(0.2)):
                    raise NotBackError(f"{what} not reached: " + self.tail[-1].decode(errors="replace").strip()[:100])
                self.new.wait(min(left, 0.5))
        return at

    def rank(self, number: int) -> int:
        """Pid of the newest process with this RANK."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if process.environ().get("RANK") == str(number) and "gpt_torch" in " ".join(process.cmdline()):
                    found.append((process.create_time(), process.pid))
            except psutil.Error:
                continue
        if not found:
            raise RuntimeError(f"no process with RANK={number}")
        return max(found)[1]

    def close(self) -> None:
        """End everything that the launcher started."""
        family = [self.process.pid]
        with contextlib.suppress(psutil.Error):
            family += [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def death_to_first_step(launcher: Launcher, script: list[str], *, at_step: int, rank: int, sig: int) -> float:
    """Seconds from the signal to the first new step."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        run = Run(launcher, [arg.replace("{folder}", name) for arg in script], folder)
        try:
            run.wait("steady state", lambda steps: next((at for at, step in steps if step >= at_step), None))
            if launcher.settle_s:
                time.sleep(launcher.settle_s)
            last = run.steps[-1][1]
            # between two checkpoints, so that the new attempt must go back
            run.wait("mid interval", lambda steps: next((at for at, s in steps if s > last and s % 10 == 5), None))
            victim = run.rank(rank)
            died = time.monotonic()
            os.kill(victim, sig)
            seen = max(step for _, step in run.steps)
            at = run.wait(
                "first new step", lambda steps: next((at for at, step in steps if at > died and step <= seen - 1), None)
            )
            return at - died
        finally:
            run.close()
