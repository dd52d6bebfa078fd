"""The commands that both labs have: how a lab is ended, shown, used from a shell, and its nodes broken and mended.

Used by `lab` and `lab_kubernetes`, which say what differs. No time passes here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import typer
from msgspec import Struct
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli import screen
from holdfast.cli.answer import Answer, answering, taking
from holdfast.cli.json_forms import Form, form
from holdfast.errors import EXIT_FAILED
from holdfast.lab.settings import cache_folder

L = TypeVar("L")

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node: node03.")]
LineArgument = Annotated[str, typer.Argument(metavar="LINE", help='"NVRM: Xid (PCI:0000:b9:00): 79, ..."')]


class Kind(Struct, Generic[L], frozen=True, kw_only=True):
    """What differs between a lab of Slurm and one of Kubernetes."""

    name: str
    """Of its group of commands; its default folder is named after it."""
    called: str
    shows: str
    """Help of `status`."""
    attach: Callable[[Path], L]
    end: Callable[[Path], bool]
    """Says whether one ran."""
    form: Callable[[L], Form]
    shown: Callable[[Form], list[RenderableType]]
    is_broken: Callable[[Form], bool]
    """Is a daemon or a node not up?"""
    env: Callable[[L], dict[str, str]]
    nodes: Mapping[str, tuple[str, Callable[[L, str], str]]]
    """Command of a node -> its help, and what does it and says what came of it."""
    kmsg: Callable[[L, str, str], Path]
    """Writes a line to a node's kernel log, and says where that is."""

    def folder(self, given: Path | None) -> Path:
        """The lab's folder: what was given, else the one in the user's cache, or in the machine's when root."""
        return (given or cache_folder(f"{self.name}-lab", shared=True)).expanduser().resolve()

    def at(self, given: Path | None) -> L:
        """The lab that runs there. Raises what `attach` raises."""
        return self.attach(self.folder(given))

    def answer(self, app: typer.Typer, name: str, function: Callable[..., Answer], about: str = "") -> None:
        """Add a command that answers, with `lab_dir` as an option."""
        self._add(app, name, function, answering, about)

    def act(self, app: typer.Typer, name: str, function: Callable[..., str], about: str = "") -> None:
        """Add a command that does something and says what came of it, with `lab_dir` as an option."""

        @wraps(function)
        def said(*words: Any, **options: Any) -> None:
            screen.say(function(*words, **options))

        self._add(app, name, said, taking, about)

    def _add(self, app: typer.Typer, name: str, function: Any, wrap: Callable[[Any], Any], about: str) -> None:
        where = f"The lab's folder. Default: ~/.cache/holdfast/{self.name}-lab; root's: below /var/cache."
        function.__annotations__["lab_dir"] = Annotated[Path | None, typer.Option("--dir", metavar="DIR", help=where)]
        function.__doc__ = about or function.__doc__
        app.command(name)(wrap(function))

    def up(self, lab: L, head: str, given: Path | None, folder: Path, then: str) -> Answer:
        """What is said of a lab that has come up: how to use it, and how to end it."""
        where = f" --dir {shlex.quote(str(folder))}" if given is not None else ""
        use, end = f'  eval "$(holdfast lab {self.name} env{where})"; {then}', f"  holdfast lab {self.name} down{where}"
        return Answer(lambda: self.form(lab), lambda: [f"{self.called} up: {head}; {folder}", use, end])

    def add_common(self, app: typer.Typer) -> None:
        """Add `down`, `status` and `env`."""

        def down(*, lab_dir: Path | None = None) -> Answer:
            folder = self.folder(lab_dir)
            ran = self.end(folder)
            said = f"{self.called} in {folder} is down" if ran else f"no {self.called} ran in {folder}"
            return Answer(lambda: form(dir=str(folder), ran=ran), lambda: [said])

        def status(*, lab_dir: Path | None = None) -> Answer:
            found = self.form(self.at(lab_dir))
            return Answer(lambda: found, lambda: self.shown(found), EXIT_FAILED if self.is_broken(found) else 0)

        def env(*, lab_dir: Path | None = None) -> Answer:
            found = self.env(self.at(lab_dir))
            lines = [f"export {name}={shlex.quote(value)}" for name, value in found.items()]
            return Answer(lambda: form(env=found), lambda: lines)

        use = f'eval "$(holdfast lab {self.name} env)"'
        about = (
            "End a lab and every process in it. One that was killed half-way is cleared away, too. Its folder stays."
        )
        self.answer(app, "down", down, about)
        self.answer(app, "status", status, f"Show {self.shows}. Exit code 1 when a daemon or a node is not up.")
        self.answer(app, "env", env, f"Print what a shell needs to use the lab. Use: {use}.")

    def add_nodes(self, app: typer.Typer) -> None:
        """Add a command for each of `nodes`."""

        def add(name: str, about: str, act: Callable[[L, str], str]) -> None:
            def command(node: NodeArgument, *, lab_dir: Path | None = None) -> str:
                return act(self.at(lab_dir), node)

            self.act(app, name, command, about)

        for name, (about, act) in self.nodes.items():
            add(name, about, act)

    def add_kmsg(self, app: typer.Typer) -> None:
        """Add `kmsg`."""

        def kmsg(node: NodeArgument, line: LineArgument, *, lab_dir: Path | None = None) -> str:
            """Append a line to the node's kernel log, which its agent reads."""
            return f"written to {self.kmsg(self.at(lab_dir), node, line)}"

        self.act(app, "kmsg", kmsg)


def daemons_table(found: Form) -> Table:
    """Daemons with their process ids, or how they ended."""
    rows = (
        (name, daemon["pid"] or Text(f"ended with {daemon['code']}", style="red"))
        for name, daemon in found["daemons"].items()
    )
    return screen.table("daemon", "pid", rows=rows, keep=("daemon",))
