"""How commands speak: consoles that never obey text from outside, ages, folded node sets, states in words and colour.

Called by the command modules. The clock is read in one place, `now`, so that tests can set it.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from stat import S_IMODE
from typing import Any

import msgspec
import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress, ProgressColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from holdfast.errors import NotFoundError, UserError
from holdfast.model import plain_text
from holdfast.model.orders import OrderStatus
from holdfast.model.records import UNHEARD, IncidentRecord, JobState, NodeState
from holdfast.model.toml_lines import nearest
from holdfast.os.files import write_whole

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

STYLES: dict[str, str] = {
    JobState.WATCHING: "green",
    JobState.COMPLETED: "green",
    JobState.GIVEN_UP: "red",
    JobState.CANCELLED: "dim",
    NodeState.HEALTHY: "green",
    NodeState.SUSPECT: "yellow",
    NodeState.QUARANTINED: "red",
    NodeState.RETIRED: "red",
    NodeState.UNKNOWN: "magenta",
    UNHEARD: "magenta",
    OrderStatus.DONE: "green",
    OrderStatus.FAILED: "red",
    OrderStatus.PROPOSED: "bold yellow",
    OrderStatus.PENDING: "yellow",
    "recovered": "green",
    "open": "yellow",
    "good": "green",
    "damaged": "red",
}
"""Colour only repeats what the word says. States that are on their way somewhere are yellow."""


class PlainConsole(Console):
    """A Rich console that prints text as text: no markup, no emoji codes, no control characters from outside."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See Rich; what it yields is cleaned."""
        for segment in super().render(renderable, options):
            if not segment.control and plain_text.UNSAFE.search(segment.text):
                yield Segment(plain_text.UNSAFE.sub("", segment.text), segment.style)
            else:
                yield segment


def console() -> Console:
    """Standard output, as wide as the terminal (`COLUMNS` wins), 80 when it is a pipe."""
    return PlainConsole(soft_wrap=False)


def now() -> float:
    """Unix seconds, for ages."""
    return time.time()


clean, printable = plain_text.clean, plain_text.printable


def pretty(form: object) -> bytes:
    """A stable form as JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(form), indent=2)


def say_json(form: object) -> None:
    """Print a stable form."""
    typer.echo(pretty(form).decode())


def say(line: str, *, err: bool = False) -> None:
    """Print one line of text."""
    typer.echo(printable(line), err=err)


def progress(*columns: ProgressColumn) -> Progress:
    """A bar on standard error, where somebody watches; nothing of it stays."""
    shown = columns or Progress.get_default_columns()
    return Progress(*shown, console=PlainConsole(stderr=True), transient=True, disable=not sys.stderr.isatty())


def state(word: str) -> Text:
    """A state in its own word, coloured too."""
    return Text(word.replace("_", " "), style=STYLES.get(word, "yellow"))


def outcome(incident: IncidentRecord) -> Text:
    """`open`, or how it ended."""
    return state(incident.outcome or "open")


Cell = Text | str | int | None


def table(
    *headings: str,
    rows: Iterable[Iterable[Cell]] = (),
    title: str = "",
    right: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> Table:
    """A table in the house style.

    Args:
        headings: names of the columns; an empty one is a column without a name.
        rows: text is cleaned, None is a dash.
        title: printed above, on the left.
        right: columns whose cells are numbers.
        keep: columns that are never broken over lines.
    """
    made = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=Text(title, style="bold") if title else None,
        title_justify="left",
    )
    for heading in headings:
        made.add_column(
            Text(heading),
            justify="right" if heading in right else "left",
            overflow="fold",
            no_wrap=heading in keep,
        )
    for cells in rows:
        made.add_row(
            *(cell if isinstance(cell, Text) else Text("-" if cell is None else clean(str(cell))) for cell in cells)
        )
    return made


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Names and values below each other; empty values are left out."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True, style="dim")
    made.add_column(overflow="fold")
    for name, value in rows:
        if value:
            made.add_row(Text(name), value if isinstance(value, Text) else Text(clean(value)))
    return made


def age(at: float, at_now: float) -> str:
    """`3 s`, `12 min`, `5 h`, `9 d` since then; a dash for a time that is not known."""
    if not at:
        return "-"
    return span(max(0.0, at_now - at))


def span(seconds: float) -> str:
    """A duration in its largest fitting unit."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} d"


def missing(kind: str, name: str, known: Sequence[str]) -> NotFoundError:
    """`no node "nod07"; did you mean "node07"?`. Numbers and ids have no nearest one worth naming."""
    near = nearest(name, known) if kind == "node" else None
    if near is not None:
        hint = f'; did you mean "{near}"?'
    else:
        none = f"there are no {kind}s, or your token or user may see none"
        hint = f"; `holdfast {kind}s` lists them" if known else f"; {none}"
    return NotFoundError(f'no {kind} "{name}"{hint}')


def fold(names: Iterable[str]) -> str:
    """Node names folded as ClusterShell and Slurm write them: `node[01-04,07]`. Odd names stay as they are."""
    known = sorted(set(names))
    plain = [name for name in known if _PLAIN_NAME.fullmatch(name)]
    odd = [clean(name) for name in known if not _PLAIN_NAME.fullmatch(name)]
    if len(plain) > 1:
        from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # noqa: PLC0415 - only needed for several nodes

        plain = [str(NodeSet.fromlist(plain, resolver=RESOLVER_NOGROUP))]
    return ",".join([*plain, *odd])


def save(path: Path, text: str | bytes) -> None:
    """Write a page or report. A disk that is full leaves the one before as it is.

    Raises:
        UserError: it cannot be written.
    """
    data = text if isinstance(text, bytes) else text.encode()
    try:
        place = path.resolve()
        if place.exists() and not place.is_file():
            place.write_bytes(data)  # /dev/stdout, a pipe
        else:
            write_whole(place, data, mode=S_IMODE(place.stat().st_mode) if place.exists() else 0o666)
    except RuntimeError as error:  # of `resolve`
        raise UserError(f"cannot write {path}: its links lead round in a circle") from error
    except OSError as error:
        raise UserError(f"cannot write {path}: {_why_not(path, error)}") from error


def _why_not(path: Path, error: OSError) -> str:
    """The reason in words that name what to change: a page is made beside the one before, which it then replaces."""
    folder = path.absolute().parent
    match error.errno:
        case errno.EBUSY:
            return "it is mounted by itself, so that no new page can take its place: mount its folder, or name another"
        case errno.EACCES | errno.EPERM | errno.EROFS if folder.is_dir() and not os.access(folder, os.W_OK):
            return f"its folder {folder} may not be written by you ({error.strerror})"
    return error.strerror or str(error)
