"""What the viewing commands read from: a live controller's API, or a journal whose controller may be dead.

Both are the reading half of `ports.Journal`, so that every view and report works on either. A journal, in a file or in
PostgreSQL, is read as of one moment and left as it is; what of it cannot be read is said on standard error, or in the
report. Called by the command modules; no time passes here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.cli import screen
from holdfast.cli.options import Where
from holdfast.errors import NotFoundError, RefusedError, UsageError
from holdfast.model import story
from holdfast.model.policy import PolicySet
from holdfast.model.records import BrakeRecord, JobRecord
from holdfast.os.files import is_on_read_only
from holdfast.ports import Entry
from holdfast.report import gather
from holdfast.wiring.settings import find_controller

R = TypeVar("R")


class Records(gather.Records, Protocol):
    """The reading half of `ports.Journal`; each method as documented there."""

    async def brakes(self) -> list[BrakeRecord]:
        """The brake of every group."""

    async def close(self) -> None:
        """Let go of it."""


class History(Records, Protocol):
    """A journal read directly, which also holds what each event led to."""

    async def entries(self, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        """Events with seq > after and the orders they led to."""


def read(where: Where, work: Callable[[Records], Awaitable[R]]) -> R:
    """Open, let `work` read, close.

    Raises:
        UsageError, LinkError, RefusedError, ConfigError: see `config.find_controller`.
        NotFoundError: there is no such journal.
        JournalDamagedError: it is no journal, or too damaged to tell its tables.
        JournalError: it cannot be opened.
    """
    # Not returned through the task: asyncio looks its signal handler up at the end, and Python's `signal` then writes
    # out the handler, the task in it and the task's whole result, only to drop the text (256 MB for a year of them).
    found: list[R] = []

    async def run() -> None:
        records = await _open(where)
        try:
            found.append(await work(records))
            for note in notes_of(records):
                screen.say(f"holdfast: {note}", err=True)
        finally:
            await records.close()

    asyncio.run(run())
    return found[0]


async def policies_of(records: Records, file: Path | None = None) -> PolicySet:
    """The policies of this file, else the newest that a controller told the journal of, else the defaults.

    Raises:
        ConfigError: see `adapters.policy_files.read_policy`.
    """
    presets = packaged_presets()
    return read_policy(file, presets)[0] if file is not None else await gather.policies_in(records, presets)


async def job_named(records: Records, said: str) -> JobRecord:
    """The job that a person means by `1778`, `1778(1)`, `1778#2`, or an array's task, `12_2`.

    Schedulers reuse ids: the bare id means the newest job of that id, `1778#1` an earlier one.

    Raises:
        NotFoundError: there is none; names some that there are.
    """
    name = said.partition("(")[0]
    known = await records.jobs()
    found = [record for record in known if name in {str(record.key), record.key.id, record.view.task or None}]
    if not found:
        raise screen.missing("job", name, [str(record.key) for record in known])
    exact = [record for record in found if str(record.key) == name and "#" in name]
    return max(exact or found, key=lambda record: record.key.generation)


def notes_of(records: Records) -> list[str]:
    """What of a journal's file could not be read, handed over once: who takes it shows it."""
    take = getattr(records, "take_notes", None)
    return take() if take is not None else []


def writer_of(records: Records, now: float) -> list[str]:
    """A sentence when somebody may be writing the journal's file that is read, else nothing."""
    holder, until = getattr(records, "holder", ""), getattr(records, "lease_until", 0.0)
    if not holder or until < now:
        return []
    return [f"{holder} is writing this journal: all of this is as of event {getattr(records, 'last_seq', 0)}."]


def launcher_gone(records: Records, job: JobRecord, now: float) -> str:
    """What to say of a job whose launcher has died without a word; empty: it lives, has left, or a controller leads.

    A launcher's own journal is what shows it: the lease in it is renewed while the launcher lives, and given back when
    it leaves.
    """
    holder, until = getattr(records, "holder", ""), getattr(records, "lease_until", 0.0)
    if job.over or holder != f"launcher:{job.key}" or until >= now:
        return ""
    last = getattr(records, "last_at", 0.0)
    again = f" with --job-dir {job.view.job_dir}" if job.view.job_dir else ""
    return (
        f"gone: it wrote last at {story.clock(last)}, and its lease ran out at {story.clock(until)}, "
        f"{screen.age(until, now)} ago; where no controller leads the job, start the same command again{again} to go on"
    )


async def _open(where: Where) -> Records:
    if where.journal is not None:
        if where.cluster_dir is not None or where.url is not None:
            raise UsageError("--journal reads a file and --dir or --url a controller: give one of them")
        path = journal_path(where.journal)
        if path is None:
            return open_journal_file(where.journal)
        from holdfast.adapters.journal.reading import JournalReading  # noqa: PLC0415 - a controller is read without it

        return JournalReading(path)
    link = find_controller(cluster_dir=where.cluster_dir, url=where.url, config=where.config)
    from holdfast.cli.remote import RemoteRecords  # noqa: PLC0415 - a journal is read without an HTTP client

    return RemoteRecords(link)


def open_journal_file(name: str) -> History:
    """Open a journal that must exist: a path, or a journal URL. What is not a journal is left as it is.

    Raises:
        NotFoundError: there is no such file, or no journal in that database.
        RefusedError: it may not be read and written (SQLite writes beside a journal even to read it).
        JournalError: see `adapters.journal.open_journal`.
    """
    from holdfast.adapters.journal import is_postgres, need_driver, open_journal  # noqa: PLC0415 - slow to import

    if is_postgres(name):
        need_driver()
        from holdfast.adapters.journal.reading_postgres import PostgresReading  # noqa: PLC0415 - an extra

        return PostgresReading(name)
    path = journal_path(name, only_read=False)
    if path is None:
        return open_journal(name)
    options = name.partition("?")[2]
    return open_journal(f"sqlite:///{path}{'?' + options if options else ''}")


def journal_path(name: str, *, only_read: bool = True) -> Path | None:
    """The SQLite file that a name means; None for a journal of another kind. Raises as `open_journal_file` says."""
    if "://" in name and not name.startswith("sqlite:///"):
        return None
    path = Path(name.removeprefix("sqlite:///").partition("?")[0]).expanduser()
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where a folder above may not be read
        path /= "journal.db"
    try:
        size = path.stat().st_size
    except PermissionError as error:
        raise RefusedError(f"the journal {path} may not be read by you: ask its owner, or use --url") from error
    except OSError:
        raise NotFoundError(f"there is no journal {path}") from None
    is_fixed = is_on_read_only(path)
    if is_fixed and not only_read:
        raise RefusedError(
            f"the journal {path} is on a read-only file system, and this command writes beside it: copy it, with its "
            "-wal file, to a folder that can be written, and name the copy"
        )
    if not os.access(path, os.R_OK if is_fixed else os.R_OK | os.W_OK):
        raise RefusedError(f"the journal {path} may not be opened by you: ask its owner, copy it, or use --url")
    if size == 0:
        raise NotFoundError(f"{path} is empty: it is not a journal")
    return path.absolute()
