"""`holdfast token create|list|revoke|ca`: who may read, report to and command a controller.

Changes the token book beside the controller (`DIR/controller/tokens`, or `--token-file`), which the controller reads
again within a second. A token is shown once, when it is made; the book holds its hash. The time is the machine's.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from holdfast.adapters.journal import open_journal
from holdfast.api.auth import NAME_MAX, SCOPE, Role, book_line, change_book, new_token, read_book
from holdfast.cli.answer import Answer, answering
from holdfast.cli.json_forms import fields_of, form
from holdfast.cli.operate import user
from holdfast.cli.options import ConfigOption, DirOption, OptionSet
from holdfast.cli.records import journal_path
from holdfast.cli.token_ca import CaOptions, made
from holdfast.errors import HoldfastError, NotFoundError, UsageError
from holdfast.wiring.settings import cluster_folder

UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
ROLES = ("viewer", "owner", "agent", "operator")

FileOption = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="The book, where it is not DIR/controller/tokens.")
]


class BookOptions(OptionSet, frozen=True):
    """Where the token book is."""

    token_file: FileOption = None
    journal: Annotated[
        str | None,
        typer.Option(
            "--journal",
            metavar="JOURNAL",
            envvar="HOLDFAST_JOURNAL",
            help="Whose audit the change goes to. Default: the journal beside the book.",
        ),
    ] = None
    cluster_dir: DirOption = None
    config: ConfigOption = None


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make, list and revoke tokens for the controller's API; make certificates for it.",
)


@app.command()
@answering
def create(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what it is for: shown in the audit.")],
    role: Annotated[
        str,
        typer.Option(help="viewer (read), owner (and command the own jobs), agent (report), operator (all of these)."),
    ] = "viewer",
    only: Annotated[str, typer.Option(metavar="SOURCE", help="For agents: the one source it may report as.")] = "",
    sees: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE",
            help="Reads, and commands, only these jobs: user:NAME, or project:NAME (Slurm's account, Kubernetes' "
            "namespace). May be given several times. Default: the whole cluster.",
        ),
    ] = None,
    expires: Annotated[
        str, typer.Option(metavar="TIME", help="Not accepted after this: 12h, 30d, 8w. Default: never.")
    ] = "",
    kept: BookOptions,
) -> Answer:
    """Make a token and print it, once. An owner's NAME is the user name that their jobs run under."""
    if not re.fullmatch(r"[A-Za-z0-9_.@+-]+", name) or len(name) > NAME_MAX:
        raise UsageError(f"NAME {name!r}: use at most {NAME_MAX} letters, digits and any of _ . @ + -")
    if role not in ROLES:
        raise UsageError(f"--role {role!r}: it is one of {', '.join(ROLES)}")
    if only and (role != "agent" or not re.fullmatch(r"(agent|launcher|drill):[A-Za-z0-9_.:-]+", only)):
        raise UsageError(f"--only {only!r}: it is for --role agent and reads like agent:node07")
    for one in sees or ():
        if role == "agent" or not SCOPE.fullmatch(one):
            raise UsageError(f"--sees {one!r}: write user:NAME or project:NAME; agents read nothing")
    now = time.time()
    until = now + _seconds(expires) if expires else 0.0
    book = _book(kept)
    token = new_token()
    line = book_line(
        token, Role(role), name, only=only, sees=sees or (), until=until, at=now, by=re.sub(r"\s", "_", user())
    )
    identity = line.split()[2][:12]
    said = {"name": name, "role": role, "id": identity, "only": only, "sees": list(sees or ()), "until": until}

    def with_it(lines: list[str]) -> list[str]:
        other = _other_case(name, lines)
        if other:
            raise UsageError(
                f"NAME {name!r}: the book has {other!r}, which differs in case alone; use that, or another"
            )
        _note(book, kept.journal, {"event": "token_created", "at": now, "who": user(), **said})
        return [*lines, line.rstrip("\n")]

    change_book(book, with_it)
    made = form(token=token, name=name, role=role, id=identity, **({"expires_at": until} if until else {}))
    hint = (
        f"{name} may use it as {role}; it is shown only now. `holdfast token revoke {identity}` ends it, "
        f"`holdfast token revoke {name}` every token of that name."
    )
    return Answer(lambda: made, lambda: [token], hint=hint)


def _other_case(name: str, lines: list[str]) -> str:
    """The name in the book that differs from this one in case alone; empty: there is none."""
    names = [words[1] for line in lines if len(words := line.split()) > 2 and not line.lstrip().startswith("#")]
    return next((one for one in names if one != name and one.casefold() == name.casefold()), "")


@app.command("list")
@answering
def list_tokens(
    *,
    kept: BookOptions,
) -> Answer:
    """List the tokens of the book. With id, name, role, when and by whom it was made, when it ends. Never the token."""
    lines = read_book(_book(kept))
    forms = [
        fields_of(line.identity, "id name role only sees")
        | {"made_at": line.at or None, "made_by": line.by, "expires_at": line.identity.until or None}
        for line in lines
    ]
    now = time.time()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("id", "name", "role", "only", "sees", "made", "by", "ends"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "id")
    for line in lines:
        who = line.identity
        ends = "never" if not who.until else "over" if who.until <= now else _day(who.until)
        table.add_row(
            *map(Text, (who.id, who.name, who.role, who.only, ", ".join(who.sees), _day(line.at), line.by, ends))
        )
    return Answer(lambda: form(tokens=forms), lambda: [table])


@app.command()
@answering
def revoke(
    *,
    which: Annotated[str, typer.Argument(metavar="NAME|ID", help="A name (all its tokens), or one token's id.")],
    kept: BookOptions,
) -> Answer:
    """End a token. The controller refuses it, and sessions opened with it, within a second."""
    book = _book(kept)
    read_book(book)
    gone: list[str] = []
    unsaid = ""

    def without(lines: list[str]) -> list[str]:
        nonlocal unsaid
        left: list[str] = []
        for line in lines:
            words = line.split()
            named = len(words) > 2 and not words[0].startswith("#") and which in {words[1], words[2][:12]}
            (gone if named else left).append(words[2][:12] if named else line)
        if not gone:
            raise NotFoundError(f"no token of {which!r} in {book}: `holdfast token list` shows them")
        if not any(line.strip() and not line.lstrip().startswith("#") for line in left):
            raise UsageError(f"this is the last token of {book}: make another one first, or nobody could come in")
        try:
            _note(book, kept.journal, {"event": "token_revoked", "at": time.time(), "who": user(), "ids": gone})
        except HoldfastError as error:  # a token that must not be used any longer waits for no journal
            unsaid = f"not in the audit: {error}"
        return left

    change_book(book, without)
    return Answer(lambda: form(revoked=gone), lambda: [f"revoked: {', '.join(gone)}"], hint=unsaid)


def _note(book: Path, name: str | None, act: dict[str, object]) -> None:
    """Write an act into the audit of the journal that is named, or lies beside the book; nowhere when there is none.

    Raises:
        NotFoundError: the journal that is named is not there: none is made, nobody would look for the act in it.
        RefusedError: it may not be written by this user.
        JournalError: it cannot be written.
        UsageError: a kind of journal that is not known, or whose driver is not installed.
    """
    beside = book.absolute().with_name("journal.db")
    if name is None and not beside.exists():
        return
    if name is not None:
        journal_path(name, only_read=False)
    url = name or str(beside)
    if "://" not in url:
        url = f"sqlite:///{Path(url).absolute()}"

    async def note() -> None:
        journal = open_journal(url)
        try:
            await journal.note(act)
        finally:
            await journal.close()

    asyncio.run(note())


@app.command()
@answering
def ca(
    *,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Host names and addresses of the controller.")
    ] = None,
    wanted: CaOptions,
) -> Answer:
    """Make certificates by the site's own authority. Makes the authority, too, where there is none yet.

    Called again, it renews: the controller serves the new certificate without a restart.
    """
    return made(names or [], wanted)


def _book(at: BookOptions) -> Path:
    if at.token_file is not None:
        return at.token_file
    folder = cluster_folder(
        at.cluster_dir, at.config, otherwise="which book? Give --dir CLUSTER_DIR, or --token-file FILE"
    )
    book = folder / "controller" / "tokens"
    if not book.exists():
        raise NotFoundError(f"there is no {book}: the controller makes it when it first starts")
    return book


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,6})([mhdw])", text.strip())
    if match is None or not int(match[1]):
        raise UsageError(f"--expires {text!r}: write a number and m, h, d or w, such as 30d")
    return int(match[1]) * UNITS[match[2]]


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(at)) if at else ""
