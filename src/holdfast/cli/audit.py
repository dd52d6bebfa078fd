"""`holdfast audit export|verify`: the chain of what people and tokens did, as lines, and whether it is whole.

Reads the journal itself (`--dir`, `--journal`), since what a controller says of its own audit proves nothing, or files
that were exported. Asks no controller; no time passes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer
from sqlalchemy import Connection

from holdfast.adapters.journal import chain
from holdfast.cli.answer import Answer, answering, group
from holdfast.cli.json_forms import form
from holdfast.cli.options import ConfigOption, DirOption, JournalOption, OptionSet
from holdfast.cli.records import open_journal_file
from holdfast.errors import NotFoundError, UsageError
from holdfast.model.audit import ChainError, Head, followed, read_head
from holdfast.wiring.settings import cluster_folder

R = TypeVar("R")


class JournalAt(OptionSet, frozen=True):
    """Which journal."""

    journal: JournalOption = None
    cluster_dir: DirOption = None
    config: ConfigOption = None


app = group("What people and tokens did, in a chain of lines.")


@app.command()
@answering
def export(
    *,
    after: Annotated[int, typer.Option(min=0, metavar="NUMBER", help="Only lines behind this one.")] = 0,
    at: JournalAt,
) -> Answer:
    """Print the audit's lines, oldest first. Files that follow one another verify as one chain."""
    lines = _read(at, lambda connection: list(chain.lines(connection, after)))
    return Answer(lambda: form(lines=lines), lambda: lines)


@app.command()
@answering
def verify(
    *,
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Exported lines, in order.")] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head", metavar="NUMBER:HASH", help="A head that was noted earlier; may be given several times."
        ),
    ] = None,
    at: JournalAt,
) -> Answer:
    """Follow the chain and print its head. Ends with 1 at the first line that does not fit, and names it.

    Without FILE the journal's chain is followed, and compared with the journal's own count and events.
    """
    noted = [read_head(one) for one in head or []]
    try:
        if files:
            first, found = _followed(_lines_of(files), noted)
            if not found.number:
                raise UsageError("no line of an audit is in there, so nothing is proven")
        else:
            found = _read(at, chain.check)
            first, _ = _read(at, lambda connection: _followed(chain.lines(connection), noted))
    except NotFoundError as error:
        raise UsageError(f"{error}, so nothing is proven") from error
    except ChainError as error:
        said = str(error)
        return Answer(lambda: form(ok=False, wrong=said), lambda: [f"broken: {said}"], exit_code=1)
    fits = f"{found.number} lines fit"
    if first > 1:
        fits = f"lines {first} to {found.number} fit; lines 1 to {first - 1} are not among them"
    if files and not noted:
        fits = f"{fits}; without --head nothing proves the last line, nor that none came after it"
    return Answer(
        lambda: form(ok=True, first=first, number=found.number, hash=found.hash), lambda: [fits, f"head {found}"]
    )


def _followed(lines: Iterator[str], noted: list[Head]) -> tuple[int, Head]:
    """The number of the first line, and the head in which they end.

    Raises:
        ChainError: a line does not fit; a noted head is not among them; the journal's count was missing at some time,
            and no head was noted since.
    """
    wanted = set(noted) - {Head()}
    head = Head()
    first, lost = 0, 0
    for line, head in followed(lines):
        first = first or head.number
        lost = max([lost, *chain.lost_heads([line])])
        known = {one for one in wanted if one.number == head.number}
        wanted -= known
        if known - {head}:
            raise ChainError(f"line {head.number} is not the one that was noted: the chain up to it was made anew")
    if wanted:
        raise ChainError(
            f"line {min(one.number for one in wanted)} is missing, which was noted: the chain ends in {head.number}"
        )
    if lost and not any(one.number >= lost - 1 for one in noted):
        raise ChainError(
            f"line {lost} tells that the journal's own count was missing then: whether lines before it were cut off, "
            f"only a head that was noted elsewhere tells (--head, of line {lost - 1} or later)"
        )
    return first, head


def _lines_of(files: list[Path]) -> Iterator[str]:
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from error
        yield from text.splitlines()


def _read(at: JournalAt, work: Callable[[Connection], R]) -> R:
    name = at.journal
    if name is None:
        folder = cluster_folder(
            at.cluster_dir, at.config, otherwise="which journal? Give --dir CLUSTER_DIR, or --journal JOURNAL"
        )
        name = str(folder / "controller" / "journal.db")
    journal: Any = open_journal_file(name)

    async def ask() -> R:
        try:
            return cast("R", await journal.audited(work))
        finally:
            await journal.close()

    return asyncio.run(ask())
