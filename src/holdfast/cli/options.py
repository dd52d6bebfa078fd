"""The options that several commands share, each defined once: which controller or journal, which settings, which form.

Used by the command modules. An option set is taken as one parameter by a function that `answer.answering` wraps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import typer
from msgspec import Struct

S = TypeVar("S", bound=Struct)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings, in place of the usual holdfast.toml.")
]
AgentConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", envvar="HOLDFAST_AGENT_CONFIG", help="agent.toml. Default: /etc/holdfast/agent.toml, if any."
    ),
]
DirOption = Annotated[
    Path | None, typer.Option("--dir", metavar="CLUSTER_DIR", help="The embedded cluster in this folder.")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The controller's address, such as http://127.0.0.1:8470.")
]
JournalOption = Annotated[
    str | None,
    typer.Option(
        "--journal",
        metavar="JOURNAL",
        help="Read this journal (a file, or postgresql://...) directly: needs no controller, nor a live one.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a stable form as JSON: docs/json-forms.md.")]


class OptionSet(Struct, frozen=True):
    """Options that are taken as one parameter: each field is an option of the command (`answer.answering`)."""

    def fill(self, kind: type[S], **more: object) -> S:
        """Make a `kind` of the fields that it has in common with these options, and of `more`, which wins."""
        shared = set(self.__struct_fields__) & set(kind.__struct_fields__)
        return kind(**({name: getattr(self, name) for name in shared} | more))


class ControllerOptions(OptionSet, frozen=True):
    """Which controller."""

    cluster_dir: DirOption = None
    url: UrlOption = None
    config: ConfigOption = None


class Where(OptionSet, frozen=True):
    """Where to read: a controller, or a journal whose controller may be dead."""

    cluster_dir: DirOption = None
    url: UrlOption = None
    journal: JournalOption = None
    config: ConfigOption = None
