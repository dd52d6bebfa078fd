"""`holdfast srun`: srun, and with `--auto-resume=1` srun under supervision. Wires `launch.step` to the controller.

Every argument that is not one of ours is srun's and is passed on as it is; without `--auto-resume=1` this process
becomes srun.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import structs
from typer.core import TyperCommand

from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.adapters.slurm.steps import take_own
from holdfast.cli.answer import taking
from holdfast.cli.ending import become_srun
from holdfast.cli.options import OptionSet
from holdfast.cli.run_start import site_policy, site_settings
from holdfast.errors import UsageError
from holdfast.launch.step import StepOptions, launch_step
from holdfast.model.policy import PolicySet
from holdfast.model.toml_lines import nearest
from holdfast.wiring.judgement import Judgement

DEFAULT_POLICY = "auto-resume"
srun = typer.Typer(add_completion=False, rich_markup_mode=None)


class _SrunCommand(TyperCommand):
    """Takes our options from among srun's and leaves the rest in its order."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] in (["--help"], ["-h"]):
            return super().parse_args(ctx, args)
        taken = take_own(args)
        return super().parse_args(ctx, [*taken.own, "--", *taken.rest])


class SrunOptions(OptionSet, frozen=True):
    """Our own options among srun's."""

    auto_resume: Annotated[
        int, typer.Option(help="1: run the step again in its allocation when it fails; 0: plain srun.")
    ] = 0
    spares: Annotated[
        int | None, typer.Option(help="Nodes kept free for that. Default: those that the step does not take.", min=0)
    ] = None
    policy: Annotated[
        str | None,
        typer.Option(help=f"A preset's name, or a policy file (TOML). Default: {DEFAULT_POLICY}, in the site's mode."),
    ] = None
    max_restarts: Annotated[
        int | None, typer.Option(help="Restarts without progress; 0: none. Default: the policy's.", min=0)
    ] = None
    job_dir: Annotated[Path | None, typer.Option(help="The job's folder. Default: ./holdfast-run-ID.")] = None


@srun.command(cls=_SrunCommand, context_settings={"help_option_names": ["-h", "--help"]})
@taking
def srun_command(
    arguments: Annotated[list[str], typer.Argument(metavar="SRUN_ARGUMENTS", help="As srun takes them.")],
    given: SrunOptions,
) -> None:
    """Run srun; with --auto-resume=1, bring its step back on healthy nodes of the same allocation."""
    if not given.auto_resume:
        become_srun(arguments)
    presets = packaged_presets()
    policies, name = _policy(given.policy, presets) if given.policy is not None else _in_the_sites_mode(presets)
    options = given.fill(StepOptions, argv=tuple(arguments), policy=name, job_dir=str(given.job_dir or ""))
    raise typer.Exit(launch_step(options, os.environ, Judgement(known=(policies, presets))))


def _policy(asked: str, presets: dict[str, str]) -> tuple[PolicySet, str]:
    """The policies, and the name to ask for; a file's policy holds without a name."""
    if asked in presets:
        return read_policy(None, presets)[0], asked
    if Path(asked).is_file():
        return read_policy(Path(asked), presets)[0], ""
    near = nearest(asked, list(presets))
    hint = f"did you mean {near}?" if near else f"presets are {', '.join(sorted(presets))}"
    raise UsageError(f"--policy {asked}: neither a preset nor a file; {hint}")


def _in_the_sites_mode(presets: dict[str, str]) -> tuple[PolicySet, str]:
    """The default policy; where holdfast.toml names one, in its mode: observe leaves a step to itself."""
    policies = read_policy(None, presets)[0]
    settings = site_settings()
    file = site_policy(settings) if settings is not None else ""
    if file:
        site = read_policy(Path(file), presets)[0].for_group(os.environ.get("SLURM_JOB_PARTITION", ""))
        ours = structs.replace(policies.named[DEFAULT_POLICY], mode=site.mode, modes=site.modes)
        policies = structs.replace(policies, named={**policies.named, DEFAULT_POLICY: ours})
    return policies, DEFAULT_POLICY
