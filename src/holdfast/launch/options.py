"""What `holdfast run` was asked for, and what follows from the machine: ranks per node, script or command.

Made by `cli.run`, read everywhere in the launcher. Nothing here changes after the start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.errors import UsageError

LEASE_S = 2.25
"""Of a follower. Nine beats: it forgives 2 s of silence, as a lease of 3 s with a beat a second does."""
DEFAULT_PRELOAD = ("torch", "torch.distributed", "holdfast.telemetry")


class RunOptions(Struct, frozen=True, kw_only=True):
    """The command line of `holdfast run`.

    `argv` is the script (or module) with its arguments, or the command when `is_command`.
    """

    argv: tuple[str, ...]
    is_command: bool = False
    is_module: bool = False
    nnodes: int = 0
    """0: as many as the allocation has."""
    nproc_per_node: str = "1"
    standbys: str = "auto"
    preload: tuple[str, ...] = DEFAULT_PRELOAD
    tee: str = "auto"
    max_restarts: int | None = None
    """Restarts in place without progress before it gives up; 0: none at all. None: the policy's number."""
    policy: str = ""
    log_rules: str = ""
    """File of HyperPod's log rules; empty: none."""
    rules: tuple[str, ...] = ()
    """Folders of the site's own catalogue rules."""
    checkpoints: str = ""
    """Folder that the job's framework saves in, checked before each start; empty: not known."""
    job_dir: str = ""
    stop_grace_s: float = 30.0
    """Between a forwarded SIGTERM and SIGKILL."""
    lease_s: float = LEASE_S
    follower_wait_s: float = 600.0
    """How long the leader waits for its followers at the start, and a follower for a leader that it lost."""

    def local_ranks(self, environ: Mapping[str, str]) -> int:
        """Ranks to start on this node; 1 in command mode.

        Raises:
            UsageError: neither a positive number nor `cpu`, `gpu`, `auto`.
        """
        asked = self.nproc_per_node.strip().lower()
        if asked == "cpu":
            return os.cpu_count() or 1
        if asked in {"gpu", "auto"}:
            gpus = count_gpus(environ)
            if gpus == 0 and asked == "gpu":
                raise UsageError("--nproc-per-node gpu: no GPU is visible on this node; give a number or `cpu`")
            return gpus or os.cpu_count() or 1
        if not asked.isdecimal() or int(asked) < 1:
            raise UsageError(f"--nproc-per-node {self.nproc_per_node!r}: give a number from 1, `cpu`, `gpu` or `auto`")
        return int(asked)

    def standby_count(self, local_ranks: int) -> int:
        """Standbys to keep on this node.

        Raises:
            UsageError: neither a number nor `auto`.
        """
        if self.is_command or not (self.is_module or self.argv[0].endswith(".py")):
            return 0
        if self.standbys == "auto":
            return local_ranks
        if not self.standbys.isdecimal():
            raise UsageError(f"--standbys {self.standbys!r}: give a number or `auto`")
        return int(self.standbys)

    def teed_ranks(self, world: range) -> frozenset[int]:
        """Ranks of `world` whose output is repeated on the launcher's own.

        Raises:
            UsageError: not `all`, `none`, `auto` or ranks such as `0,3`.
        """
        if self.tee == "all" or (self.tee == "auto" and self.is_command):
            return frozenset(world)
        if self.tee == "none":
            return frozenset()
        chosen = "0" if self.tee == "auto" else self.tee
        parts = [part.strip() for part in chosen.split(",")]
        if not all(part.isdecimal() for part in parts):
            raise UsageError(f"--tee {self.tee!r}: give `all`, `none` or ranks such as `0,3`")
        return frozenset(int(part) for part in parts) & frozenset(world)

    def rank_argv(self) -> list[str]:
        """The command line of a rank that starts cold."""
        if self.is_command:
            return list(self.argv)
        return [sys.executable, "-u", *(["-m"] if self.is_module else []), *self.argv]

    def check(self) -> None:
        """Refuse at once what would fail later on every rank.

        Raises:
            UsageError: nothing to run, or a script that is not there.
        """
        if not self.argv:
            raise UsageError("nothing to run: give a script (holdfast run train.py) or a command (holdfast run -- CMD)")
        if not self.is_command and not self.is_module and not Path(self.argv[0]).exists():
            raise UsageError(f"{self.argv[0]}: no such script (put a command behind `--`: holdfast run -- CMD)")


def count_gpus(environ: Mapping[str, str]) -> int:
    """GPUs that a rank here would see: CUDA_VISIBLE_DEVICES if set, else the driver's device files."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdecimal()])
