"""`holdfast run`: torchrun's place, or a supervisor for any command. Wires the launcher's parts together.

The only module that joins `launch` (which leads the ranks) with `controller` and `decide` (which decide).
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from typer.core import TyperCommand

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.controller import Controller, Settings
from holdfast.decide.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.launch.options import DEFAULT_PRELOAD, RunOptions
from holdfast.launch.program import launch
from holdfast.ports import Journal, Notifier, Orchestrator

run = typer.Typer(add_completion=False, rich_markup_mode=None)
_COMMAND_MARK = "holdfast.run.is_command"


class _RunCommand(TyperCommand):
    """Notes whether `--` stood before what is to be run, which click takes away."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        count = len(ctx.params.get("command") or ())
        ctx.meta[_COMMAND_MARK] = 0 < count < len(given) and given[len(given) - count - 1] == "--"
        return rest


@run.command(
    cls=_RunCommand,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
def run_command(
    ctx: typer.Context,
    command: Annotated[list[str], typer.Argument(help="SCRIPT ARGS, or `-- COMMAND ARGS` for any command.")],
    nnodes: Annotated[int, typer.Option(help="Nodes an attempt takes; 0: all of the allocation.", min=0)] = 0,
    nproc_per_node: Annotated[str, typer.Option(help="Ranks per node: a number, `gpu`, `cpu` or `auto`.")] = "1",
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as in `python -m`.")] = False,
    standbys: Annotated[
        str, typer.Option(help="Warm spare interpreters per node: `auto` (one per rank) or N.")
    ] = "auto",
    preload: Annotated[str, typer.Option(help="Modules that standbys import.")] = ",".join(DEFAULT_PRELOAD),
    max_restarts: Annotated[
        int | None, typer.Option(help="Restarts in place without progress; 0: none. Default: the policy's.", min=0)
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="Policy file (TOML).")] = None,
    job_dir: Annotated[Path | None, typer.Option(help="The job's folder. Default: ./holdfast-run-ID.")] = None,
    tee: Annotated[str, typer.Option(help="Ranks whose output is repeated here: `all`, `none`, `0,3`.")] = "auto",
    stop_grace_s: Annotated[float, typer.Option(help="Between a forwarded SIGTERM and SIGKILL.", min=0.0)] = 30.0,
    lease_s: Annotated[float, typer.Option(help="Attempt lease between the launchers.", min=0.5)] = 3.0,
) -> None:
    """Run a training command so that it comes back by itself."""
    options = RunOptions(
        argv=tuple(command),
        is_command=bool(ctx.meta.get(_COMMAND_MARK)),
        is_module=module,
        nnodes=nnodes,
        nproc_per_node=nproc_per_node,
        standbys=standbys,
        preload=tuple(name.strip() for name in preload.split(",") if name.strip()),
        tee=tee,
        max_restarts=max_restarts,
        policy=str(policy) if policy is not None else "",
        job_dir=str(job_dir) if job_dir is not None else "",
        stop_grace_s=stop_grace_s,
        lease_s=lease_s,
    )
    raise typer.Exit(start(options))


def start(options: RunOptions) -> int:
    """Run with the controller and engine of this package; returns the exit code."""
    _quiet_logs()
    presets = packaged_presets()
    policies, _ = read_policy(Path(options.policy) if options.policy else None, presets)

    def engine(state: bytes | None) -> Engine:
        if state is None:
            return Engine(policies, scope="allocation", presets=presets)
        return Engine.restore(state, policies, presets=presets)

    def make_controller(
        journal: Journal, orchestrator: Orchestrator, notifiers: list[Notifier], holder: str
    ) -> Controller:
        return Controller(
            journal,
            engine,
            orchestrator,
            [],
            notifiers,
            SystemClock(),
            holder=holder,
            scope="allocation",
            settings=Settings(watch=False),
        )

    return launch(options, os.environ, policies=policies, make_controller=make_controller)


def _quiet_logs() -> None:
    """The launcher speaks for itself on stderr; the controller inside it is heard from warnings on."""
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper("%H:%M:%S"), renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def main() -> None:
    """`python -m holdfast.cli.run`."""
    try:
        run()
    except HoldfastError as error:
        sys.stderr.write(f"holdfast run: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
