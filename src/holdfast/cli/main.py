"""The `holdfast` command: finds the command's module only when it is called, and turns errors into one sentence.

Called by the console script. Command modules are imported lazily, so that help and shell completion stay quick.
"""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast import __version__
from holdfast.cli.ending import spoken

RUN = "Run and understand jobs"
WATCH = "See and steer a cluster"
PROVE = "Prove that recovery works"
SERVE = "Run the services"

COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("holdfast.cli.demo:demo", PROVE, "A real training job survives real faults on this machine."),
    "run": ("holdfast.cli.run:run", RUN, "Run a training command so that it comes back by itself."),
    "srun": ("holdfast.cli.srun:srun", RUN, "Run a Slurm step so that it comes back in its allocation."),
    "explain": ("holdfast.cli.explain:explain", RUN, "Say why a job failed, from any log file."),
    "stragglers": ("holdfast.cli.stragglers:stragglers", RUN, "Name who kept the others waiting, from recorded steps."),
    "top": ("holdfast.cli.top:top", WATCH, "The overview in a terminal, kept up to date."),
    "jobs": ("holdfast.cli.cluster_views:jobs", WATCH, "List jobs and the state of their recovery."),
    "job": ("holdfast.cli.cluster_views:job", WATCH, "Show one job: attempts, story, incidents."),
    "nodes": ("holdfast.cli.cluster_views:nodes", WATCH, "List nodes and their state."),
    "node": ("holdfast.cli.node:app", WATCH, "Show or steer one node: drain, return, reboot, replace."),
    "brakes": ("holdfast.cli.cluster_views:brakes", WATCH, "List brakes, and what rests on one reporter's word."),
    "incidents": ("holdfast.cli.cluster_views:incidents", WATCH, "List incidents."),
    "incident": ("holdfast.cli.cluster_views:incident", WATCH, "Show one incident: timeline, diagnosis, story."),
    "orders": ("holdfast.cli.orders:orders", WATCH, "List orders, also those that wait for approval."),
    "approve": ("holdfast.cli.orders:approve", WATCH, "Approve a proposed order."),
    "reject": ("holdfast.cli.orders:reject", WATCH, "Reject a proposed order."),
    "report": ("holdfast.cli.report:report", PROVE, "Timelines, MTTD, MTTR, goodput; page, PDF, JSON and more."),
    "simulate": ("holdfast.cli.simulate:app", PROVE, "What would come of it: months of a cluster in seconds."),
    "drill": ("holdfast.cli.drill:app", PROVE, "Break things on purpose and measure the recovery."),
    "policy": ("holdfast.cli.policy:app", WATCH, "Check or show a policy file."),
    "catalogue": ("holdfast.cli.catalogue:app", RUN, "List, test and lint the rules that logs are matched by."),
    "checkpoints": ("holdfast.cli.checkpoints:app", RUN, "List and verify checkpoints."),
    "check": ("holdfast.cli.check:check", SERVE, "Check this node's health; exit codes as Nagios has them."),
    "validate": ("holdfast.cli.validate:app", SERVE, "Say whether nodes are fit to train; find the odd one."),
    "doctor": ("holdfast.cli.doctor:doctor", SERVE, "What of this machine Holdfast can use; what is missing."),
    "controller": ("holdfast.cli.controller:controller", SERVE, "Run the controller."),
    "token": ("holdfast.cli.token:app", SERVE, "Tokens and certificates for the controller's API."),
    "audit": ("holdfast.cli.audit:app", SERVE, "What people and tokens did, in a chain that shows changes."),
    "notify": ("holdfast.cli.notify:app", SERVE, "Notices to people: try the destinations."),
    "slurm-exporter": ("holdfast.cli.slurm_exporter:slurm_exporter", SERVE, "Serve Slurm's figures to Prometheus."),
    "notify-slurm": (
        "holdfast.cli.notify_slurm:notify_slurm",
        SERVE,
        "Tell the controller of a change, from a script of Slurm.",
    ),
    "agent": ("holdfast.cli.agent:agent", SERVE, "Run the agent of a node."),
    "cluster": ("holdfast.cli.cluster:app", SERVE, "Run an embedded cluster of real processes on this machine."),
    "lab": ("holdfast.cli.lab:app", SERVE, "A real Slurm or Kubernetes on this machine, to break it."),
}
"""Command -> where it lives, its panel in the help, its one-line help."""

BEGIN = """\
Holdfast keeps large training jobs running. Where to begin:

  See it work        holdfast demo
  You train models   holdfast run --nproc-per-node 8 train.py     (in place of torchrun)
                     holdfast explain slurm-4711.out              (why did it fail?)
  You run a cluster  holdfast doctor                              (what can be used here?)
  You test recovery  holdfast drill list                          (break it on purpose)

`holdfast --help` lists every command, `holdfast COMMAND --help` explains one.
"""


def load(name: str) -> TyperCommand | TyperGroup:
    """Import a command's module and give its command, also to the docs."""
    target, panel, _ = COMMANDS[name]
    module_name, attribute = target.split(":")
    found: Any = getattr(importlib.import_module(module_name), attribute)
    if isinstance(found, typer.Typer):
        command = typer.main.get_command(found)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = getattr(found, "context_settings", None)
        single.command(context_settings=settings)(found)
        command = typer.main.get_command(single)
    if not isinstance(command, TyperCommand | TyperGroup):
        raise TypeError(f"{target} is not a typer command")
    command.name = name
    command.rich_help_panel = panel
    return command


class LazyGroup(TyperGroup):
    """Lists commands from the table and imports one only when it is invoked or completed."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:  # noqa: ARG002 - as above
        """A stand-in that carries only the help line: enough for the list."""
        if cmd_name not in COMMANDS:
            return None
        _, panel, line = COMMANDS[cmd_name]
        return TyperCommand(cmd_name, help=line, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The real command."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


app = typer.Typer(
    cls=LazyGroup,
    name="holdfast",
    help="Keeps large training jobs running: finds the fault, says why, fences the node, resumes the job, proves it.",
    rich_markup_mode=None,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Keeps large training jobs running: finds the fault, says why, fences the node, resumes the job, proves it."""
    del version
    if ctx.invoked_subcommand is None:
        typer.echo(BEGIN, nl=False)


def main() -> None:
    """Run the command line and exit. Errors of Holdfast become one sentence and their exit code."""
    with spoken():
        app()


if __name__ == "__main__":
    main()
