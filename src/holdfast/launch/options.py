"""What `holdfast run` was asked for, and what follows from the machine: ranks per node, script or command.

Made by `cli.run`, read everywhere in the launcher. Nothing here changes after the start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, get_args, get_type_hints

from msgspec import Struct

from holdfast.errors import UsageError

LEASE_S = 2.25
"""Of a follower. Nine beats: it forgives 2 s of silence, as a lease of 3 s with a beat a second does."""
DEFAULT_PRELOAD = ("torch", "torch.distributed", "holdfast.telemetry")


Value = str | int | float | tuple[str, ...]


def count(text: str) -> int | None:
    """A number that is not negative."""
    return int(text) if text.isascii() and text.isdecimal() else None


def seconds(text: str) -> float | None:
    """A number without sign and exponent."""
    whole, _, part = text.partition(".")
    return float(text) if count(whole) is not None and (not part or count(part) is not None) else None


def names(text: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def path(text: str) -> str | None:
    """A path as `pathlib` writes it."""
    return str(Path(text)) if text else None


def paths(text: str) -> tuple[str, ...] | None:
    """One of several paths; the option is given for each."""
    return (str(Path(text)),) if text else None


class Option(Struct, frozen=True):
    """An option of `holdfast run`. `read` gives None for a value that is not a plain one."""

    help: str
    read: Callable[[str], Value | None] = str
    least: float | None = None


class RunOptions(Struct, frozen=True, kw_only=True):
    """The command line of `holdfast run`. `cli.run` and `command_line` make its options of the fields that have one.

    `argv` is the script (or module) with its arguments, or the command when `is_command`.
    """

    argv: tuple[str, ...]
    is_command: bool = False
    nnodes: Annotated[int, Option("Nodes an attempt takes; 0: all of the allocation.", count, 0)] = 0
    nproc_per_node: Annotated[str, Option("Ranks per node: a number, `gpu`, `cpu` or `auto`.")] = "1"
    is_module: bool = False
    standbys: Annotated[str, Option("Warm spare interpreters per node: `auto` (one per rank) or N.")] = "auto"
    preload: Annotated[tuple[str, ...], Option("Modules that standbys import.", names)] = DEFAULT_PRELOAD
    max_restarts: Annotated[
        int | None, Option("Restarts in place without progress; 0: none. Default: the policy's.", count, 0)
    ] = None
    policy: Annotated[str, Option("Policy file (TOML).", path)] = ""
    log_rules: Annotated[
        str, Option("HyperPod's log rules (YAML, JSON; a manifest too). Default: `log_rules` in holdfast.toml.", path)
    ] = ""
    rules: Annotated[tuple[str, ...], Option("A folder of the site's own catalogue rules.", paths)] = ()
    checkpoints: Annotated[
        str, Option("Where the job's framework saves: what is damaged is set aside before each start.", path)
    ] = ""
    job_dir: Annotated[str, Option("The job's folder. Default: ./holdfast-run-ID.", path)] = ""
    tee: Annotated[str, Option("Ranks whose output is repeated here: `all`, `none`, `0,3`.")] = "auto"
    stop_grace_s: Annotated[float, Option("Between a forwarded SIGTERM and SIGKILL.", seconds, 0.0)] = 30.0
    lease_s: Annotated[float, Option("Attempt lease between the launchers.", seconds, 0.5)] = LEASE_S
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


def options() -> dict[str, Option]:
    """Each field of `RunOptions` that is an option of the command, in order."""
    hints = get_type_hints(RunOptions, include_extras=True).items()
    return {name: args[1] for name, hint in hints if len(args := get_args(hint)) > 1 and isinstance(args[1], Option)}


def count_gpus(environ: Mapping[str, str]) -> int:
    """GPUs that a rank here would see: CUDA_VISIBLE_DEVICES if set, else the driver's device files."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdecimal()])
