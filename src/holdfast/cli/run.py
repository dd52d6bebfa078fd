"""`holdfast run`: torchrun's place, or a supervisor for any command: its options, its help, its mistakes.

A plain line never comes here: `cli.entry` reads it without the command-line library. Both end in `run_start`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from holdfast.cli.run_start import begin
from holdfast.errors import HoldfastError
from holdfast.launch.options import DEFAULT_PRELOAD, LEASE_S, RunOptions

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
    log_rules: Annotated[
        Path | None,
        typer.Option(help="HyperPod's log rules (YAML, JSON; a manifest too). Default: `log_rules` in holdfast.toml."),
    ] = None,
    rules: Annotated[list[Path] | None, typer.Option(help="A folder of the site's own catalogue rules.")] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="Where the job's framework saves: what is damaged is set aside before each start."),
    ] = None,
    job_dir: Annotated[Path | None, typer.Option(help="The job's folder. Default: ./holdfast-run-ID.")] = None,
    tee: Annotated[str, typer.Option(help="Ranks whose output is repeated here: `all`, `none`, `0,3`.")] = "auto",
    stop_grace_s: Annotated[float, typer.Option(help="Between a forwarded SIGTERM and SIGKILL.", min=0.0)] = 30.0,
    lease_s: Annotated[float, typer.Option(help="Attempt lease between the launchers.", min=0.5)] = LEASE_S,
) -> None:
    """Run a training command so that it comes back by itself."""
    begin(
        RunOptions(
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
            log_rules=str(log_rules) if log_rules is not None else "",
            rules=tuple(str(folder) for folder in rules or ()),
            checkpoints=str(checkpoints) if checkpoints is not None else "",
            job_dir=str(job_dir) if job_dir is not None else "",
            stop_grace_s=stop_grace_s,
            lease_s=lease_s,
        )
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
