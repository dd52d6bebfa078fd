"""What the viewing commands read from: a live controller's API, or a journal file whose controller may be dead.

Both are the reading half of `ports.Journal`, so that every view and report works on either. Called by the command
modules; no time passes here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from holdfast.cli.config import find_controller
from holdfast.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.ports import Sample

R = TypeVar("R")


class Records(Protocol):
    """The reading half of `ports.Journal`; each method as documented there."""

    async def jobs(self, *, job: str = "") -> list[JobRecord]:
        """All jobs, or one."""

    async def nodes(self, *, node: str = "") -> list[NodeRecord]:
        """All nodes, or one."""

    async def brakes(self) -> list[BrakeRecord]:
        """The brake of every group."""

    async def incidents(
        self, *, incident: str = "", open_only: bool = False, limit: int = 1000
    ) -> list[IncidentRecord]:
        """Newest first."""

    async def orders(self, *, incident: str = "", pending_only: bool = False, limit: int = 1000) -> list[OrderRecord]:
        """Newest first."""

    async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
        """Points of a series in order of time."""

    async def close(self) -> None:
        """Let go of it."""


class Where(Struct, frozen=True):
    """What the person said about where to read: the four options of every viewing command."""

    cluster_dir: Path | None = None
    url: str | None = None
    journal: str | None = None
    config: Path | None = None


def read(where: Where, work: Callable[[Records], Awaitable[R]]) -> R:
    """Open, let `work` read, close.

    Raises:
        UsageError, LinkError, RefusedError, ConfigError: see `config.find_controller`.
        NotFoundError: there is no such journal.
        JournalError: the journal is damaged or cannot be opened.
    """

    async def run() -> R:
        records = await _open(where)
        try:
            return await work(records)
        finally:
            await records.close()

    return asyncio.run(run())


async def _open(where: Where) -> Records:
    if where.journal is not None:
        if where.cluster_dir is not None or where.url is not None:
            raise UsageError("--journal reads a file and --dir or --url a controller: give one of them")
        return open_journal_file(where.journal)
    link = find_controller(cluster_dir=where.cluster_dir, url=where.url, config=where.config)
    from holdfast.cli.remote import RemoteRecords  # noqa: PLC0415 - a journal is read without an HTTP client

    return RemoteRecords(link)


def open_journal_file(name: str) -> Records:
    """Open a journal that must exist: a path, or a journal URL. What is not a journal is left as it is.

    Raises:
        NotFoundError: there is no such file.
        RefusedError: it may not be read and written (SQLite writes beside a journal even to read it).
        JournalError: see `adapters.journal.open_journal`.
    """
    from holdfast.adapters.journal import open_journal  # noqa: PLC0415 - SQLAlchemy is slow to import

    if "://" in name and not name.startswith("sqlite:///"):
        return open_journal(name)
    path = Path(name.removeprefix("sqlite:///").partition("?")[0]).expanduser()
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where a folder above may not be read
        path /= "journal.db"
    try:
        size = path.stat().st_size
    except PermissionError as error:
        raise RefusedError(f"the journal {path} may not be read by you: ask its owner, or use --url") from error
    except OSError:
        raise NotFoundError(f"there is no journal {path}") from None
    if not os.access(path, os.R_OK | os.W_OK):
        raise RefusedError(f"the journal {path} may not be opened by you: ask its owner, copy it, or use --url")
    if size == 0:
        raise NotFoundError(f"{path} is empty: it is not a journal")
    options = name.partition("?")[2]
    return open_journal(f"sqlite:///{path.absolute()}{'?' + options if options else ''}")
