"""The one way in and out of a command: option sets taken as one parameter each, an answer printed as text or as JSON.

`answering` makes of a function that takes option sets and returns an `Answer` the command that typer runs: it adds
`--json`, and is the only place that asks for it. Used by the command modules; no time passes here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import get_type_hints

import typer
from msgspec import Struct
from rich.console import RenderableType

from holdfast.cli import screen
from holdfast.cli.options import JsonOption, OptionSet


class Answer(Struct, frozen=True):
    """What a command found. Only the form that is asked for is made."""

    form: Callable[[], object]
    """Makes the stable form of docs/json-forms.md."""
    shown: Callable[[], Iterable[RenderableType]]
    """Makes what people read: a text is a line of its own, all else is drawn by Rich."""
    exit_code: int = 0
    hint: str = ""
    """Follows what is shown, on standard error, so that a pipe does not get it."""


def give(answer: Answer, *, json: bool) -> None:
    """Print an answer and end with its exit code.

    Raises:
        typer.Exit: the exit code is not 0.
    """
    if json:
        screen.say_json(answer.form())
    else:
        for part in answer.shown():
            if isinstance(part, str):
                screen.say(part)
            else:
                screen.console().print(part)
        if answer.hint:
            screen.say(answer.hint, err=True)
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


def answering(function: Callable[..., Answer | None]) -> Callable[..., None]:
    """The command of a function: its option sets become options of their own, `--json` is added as the last.

    A function that returns None has done all that was to do, such as writing a file.
    """
    json_option = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption)
    return _command(function, (json_option,))


def taking(function: Callable[..., None]) -> Callable[..., None]:
    """The command of a function that prints by itself: its option sets become options of their own."""
    return _command(function, ())


def _command(function: Callable[..., Answer | None], more: tuple[inspect.Parameter, ...]) -> Callable[..., None]:
    signature = inspect.signature(function)
    hints = get_type_hints(function, include_extras=True)
    sets = {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, OptionSet)}
    taken: dict[str, inspect.Parameter] = {}
    for name, one in signature.parameters.items():
        if name in sets:
            fields = get_type_hints(sets[name], include_extras=True)
            for field in inspect.signature(sets[name]).parameters.values():
                kind = inspect.Parameter.KEYWORD_ONLY
                taken[field.name] = field.replace(kind=kind, annotation=fields[field.name])
        else:
            taken[name] = one.replace(annotation=hints[name])
    flat = inspect.Signature([*taken.values(), *more])

    def run(*words: object, **options: object) -> None:
        bound = flat.bind(*words, **options)
        bound.apply_defaults()
        given = bound.arguments
        json = bool(given.pop("json")) if more else False
        for name, kind in sets.items():
            given[name] = kind(**{field: given.pop(field) for field in kind.__struct_fields__})
        answer = function(**given)
        if answer is not None:
            give(answer, json=json)

    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.__annotations__ = {name: one.annotation for name, one in flat.parameters.items()}
    run.__dict__["__signature__"] = flat
    return run


def group(about: str) -> typer.Typer:
    """Commands under one word, which alone prints their help."""
    return typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
