"""`holdfast run`: torchrun's place, or a supervisor for any command: its options, its help, its mistakes.

A plain line never comes here: `cli.entry` reads it without the command-line library. Both end in `run_start`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import structs
from typer.core import TyperCommand

from holdfast.cli.run_start import begin
from holdfast.launch.options import (
    DEFAULT_PRELOAD,
    Option,
    RunOptions,
    count,
    names,
    options,
    path,
    paths,
    seconds,
)

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


def run_command(ctx: typer.Context, command: list[str], *, module: bool, **given: Any) -> None:
    """Run a training command so that it comes back by itself."""
    fields = {name: _field(option, given[name]) for name, option in options().items()}
    is_command = bool(ctx.meta.get(_COMMAND_MARK))
    begin(RunOptions(argv=tuple(command), is_command=is_command, is_module=module, **fields))


def _field(option: Option, value: Any) -> Any:
    """A value of the library as `RunOptions` has it."""
    if option.read is names:
        return names(value)
    if option.read is paths:
        return tuple(map(str, value or ()))
    return str(value or "") if option.read is path else value


def _parameters() -> Iterator[inspect.Parameter]:
    """The parameters of the command, as the library reads them."""
    one = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    yield one("ctx", annotation=typer.Context)
    about = "SCRIPT ARGS, or `-- COMMAND ARGS` for any command."
    yield one("command", annotation=Annotated[list[str], typer.Argument(help=about)])
    types: dict[Any, Any] = {count: int, seconds: float, str: str, names: str, path: Path, paths: list[Path]}
    usual: dict[str, Any] = {field.name: field.default for field in structs.fields(RunOptions)}
    usual["preload"] = ",".join(DEFAULT_PRELOAD)
    for name, option in options().items():
        default = usual[name] or None if option.read in {path, paths} else usual[name]
        kind = types[option.read] if default is not None else types[option.read] | None
        yield one(name, annotation=Annotated[kind, typer.Option(help=option.help, min=option.least)], default=default)
        if name == "nproc_per_node":
            flag = typer.Option("--module", "-m", help="SCRIPT is a module, as in `python -m`.")
            yield one("module", annotation=Annotated[bool, flag], default=False)


run_command.__dict__["__signature__"] = inspect.Signature(list(_parameters()))
run_command.__annotations__ = {one.name: one.annotation for one in _parameters()}
run.command(
    cls=_RunCommand, context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]}
)(run_command)
