"""A journal whose files are damaged, cut off, taken away or exchanged, at rest and while a controller has it open.

Nobody attacks here: a power cut, a restore in the wrong place, a disk. The last good state stays, and one sentence says
what is wrong and what to do.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.journal_cases import entry
from tests.cli.test_audit import call, change, command, folder  # noqa: F401 - a fixture

from attack_fixture import Attempt, only_root, skip
from holdfast.adapters.journal import chain, open_journal, sqlite
from holdfast.errors import JournalDamagedError, JournalError, UsageError
from holdfast.ports import Entry, Touched


def url(path: Path) -> str:
    return f"sqlite:///{path}"


async def fill(path: Path, events: int = 40) -> None:
    """A journal of so many events, left as a killed controller leaves it: all of it in the write-ahead log."""
    journal = open_journal(url(path))
    await journal.acquire("a", lease_s=10, now=100)
    for seq in range(1, events + 1):
        await journal.append([entry(seq, node="x" * 300)])
    shutil.copy(path, path.with_name("killed.db"))
    shutil.copy(f"{path}-wal", path.with_name("killed.db-wal"))
    await journal.close()


async def seqs(path: Path) -> list[int]:
    journal = open_journal(url(path))
    try:
        return [one.seq for one in await journal.events(limit=10**6)]
    finally:
        await journal.close()


def cut(log: bytes, rng: random.Random) -> bytes:
    return log[: rng.randrange(len(log))]


def flip(log: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(32, len(log))
    return log[:at] + bytes([log[at] ^ 0xFF]) + log[at + 1 :]


def zero(log: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(log))
    return log[:at] + bytes(min(4096, len(log) - at)) + log[at + 4096 :]


@pytest.mark.parametrize("damage", [cut, flip, zero])
def test_a_damaged_log_ends_in_a_whole_batch(tmp_path: Path, damage) -> None:
    """A write-ahead log that is cut, changed or zeroed anywhere: what was stored before is there, and it is gone on from."""
    asyncio.run(fill(tmp_path / "journal.db"))
    rng = random.Random(7)
    log = (tmp_path / "killed.db-wal").read_bytes()
    for number in range(6):
        copy = tmp_path / f"copy{number}.db"
        shutil.copy(tmp_path / "killed.db", copy)
        copy.with_name(f"{copy.name}-wal").write_bytes(damage(log, rng))

        async def work(copy: Path = copy) -> None:
            stored = await seqs(copy)
            assert stored == list(range(1, len(stored) + 1))
            journal = open_journal(url(copy))
            await journal.acquire("b", lease_s=10, now=200)
            await journal.append([entry(len(stored) + 1)])
            await journal.close()
            assert len(await seqs(copy)) == len(stored) + 1

        asyncio.run(work())


def test_a_torn_journal_is_refused_as_it_is(tmp_path: Path) -> None:
    """A file that was cut off is refused by one sentence that says what to do, and nothing in it is changed."""
    path = tmp_path / "journal.db"
    asyncio.run(fill(path))
    whole = path.read_bytes()
    for size in (100, 5000, len(whole) // 2, len(whole) - 4096):
        path.write_bytes(whole[:size])
        with pytest.raises(JournalDamagedError) as told:
            open_journal(url(path))
        assert "restore a copy" in str(told.value) or "name another file" in str(told.value)
        assert "\n" not in str(told.value)
        assert path.read_bytes() == whole[:size]


@pytest.mark.attempt(actor="A disk", asset="the journal", removed="adapters.journal.sqlite.check_place")
@pytest.mark.parametrize("how", ["removed", "exchanged"])
def test_nothing_is_stored_in_a_journal_that_was_taken_away(attempt: Attempt, tmp_path: Path, how: str) -> None:
    """Take the journal's file away while it is open: what is stored then is lost with it, and nobody is told."""
    attempt.without(sqlite, "check_place", lambda _path, _opened: None)
    path, away = tmp_path / "journal.db", tmp_path / "away.db"
    asyncio.run(fill(tmp_path / "other.db", 3))

    async def work() -> bool:
        journal = open_journal(url(path))
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(1)])
        path.rename(away)
        if how == "exchanged":
            shutil.copy(tmp_path / "other.db", path)
        try:
            await journal.append([entry(2)])
        except JournalError:
            away.replace(path)
            await journal.append([entry(2)])  # as a controller does, which asks again and again
            assert [one.seq for one in await journal.events()] == [1, 2]
            return False
        finally:
            await journal.close()
        return True

    attempt.judge(succeeded=asyncio.run(work()))


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A journal on a file system that is mounted read-only."""
    only_root("mounts a file system")
    place = tmp_path / "mounted"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)], capture_output=True).returncode:
        skip("no file system can be mounted here")
    try:
        asyncio.run(fill(place / "journal.db", 5))
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        yield place / "journal.db"
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_read_only_journal_is_one_sentence(read_only: Path) -> None:
    """A controller on a read-only file system refuses to begin, and says that it is read-only."""
    with pytest.raises(JournalError) as told:
        open_journal(url(read_only))
    assert "\n" not in str(told.value)
    assert "Read-only file system" in str(told.value)


# --- the audit ---


@pytest.mark.attempt(actor="A disk", asset="the audit", removed="adapters.journal.chain._end_of")
@pytest.mark.parametrize("lost", ["missing", "unreadable", "an old one"])
def test_acts_go_on_where_the_audits_count_is_lost(attempt: Attempt, folder: Path, lost: str) -> None:  # noqa: F811
    """Have every act fail, by a count of the audit that is gone or of a restored table; `audit verify` tells of it."""
    attempt.without(chain, "_end_of", chain.head_of)
    told = call("audit", "verify", "--dir", str(folder))
    head = told.split("head ")[1].strip()
    if lost != "an old one":
        change(folder, "UPDATE meta SET value = 'xx' WHERE key = 'audit_head'")
        if lost == "missing":
            change(folder, "DELETE FROM meta WHERE key = 'audit_head'")
        said = call("audit", "verify", "--dir", str(folder), code=1)
        assert "count (meta.audit_head) is missing" in said
    else:
        change(folder, f"UPDATE meta SET value = '2:{'0' * 64}' WHERE key = 'audit_head'")
    path = folder / "controller" / "journal.db"

    async def act() -> bool:
        journal = open_journal(url(path))
        try:
            await journal.acquire("three", lease_s=10.0, now=1e9 + 1e9)
            await journal.append([Entry(command(13), [], Touched())])
        except JournalError:
            return False
        finally:
            await journal.close()
        return True

    went_on = asyncio.run(act())
    if went_on:
        said = call("audit", "verify", "--dir", str(folder), code=1)
        assert "broken: line 8 tells that the journal's own count was missing then" in said
        assert "9 lines fit" in call("audit", "verify", "--dir", str(folder), "--head", head)
    attempt.judge(succeeded=not went_on)


@pytest.mark.parametrize("count", ["kept", "lost"])
@pytest.mark.parametrize("line", ["x", "caf\u00e9", '{"number":6}'])
def test_a_last_line_that_was_changed_stops_no_act(folder: Path, line: str, count: str) -> None:  # noqa: F811
    """Acts go on behind it, and `audit verify` tells of it; with the audit's count gone, too."""
    change(folder, f"UPDATE audit SET line = '{line}' WHERE number = 7")
    if count == "lost":
        change(folder, "DELETE FROM meta WHERE key = 'audit_head'")

    async def act() -> None:
        journal = open_journal(url(folder / "controller" / "journal.db"))
        try:
            await journal.acquire("three", lease_s=10.0, now=2e9)
            await journal.append([Entry(command(13), [], Touched())])
        finally:
            await journal.close()

    asyncio.run(act())
    assert "broken: the line after line 6 was changed" in call("audit", "verify", "--dir", str(folder), code=1)


def test_lines_that_have_changed_places_are_told_as_that(folder: Path) -> None:  # noqa: F811
    """Two lines of the audit that were swapped are not a missing line."""
    journal = folder / "controller" / "journal.db"
    with sqlite3.connect(journal) as connection:
        lines = dict(connection.execute("SELECT number, line FROM audit WHERE number IN (3, 4)"))
    change(folder, "UPDATE audit SET number = 103 WHERE number = 3", "UPDATE audit SET number = 3 WHERE number = 4",
           "UPDATE audit SET number = 4 WHERE number = 103")  # fmt: skip
    assert len(lines) == 2
    said = call("audit", "verify", "--dir", str(folder), code=1)
    assert "broken: line 3 stands behind line 4: lines have changed places" in said


def test_an_export_that_begins_in_the_middle_says_so(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    """`audit verify FILE` names the lines that it has seen, and the ones before them that it has not."""
    part = tmp_path / "part"
    part.write_text(call("audit", "export", "--after", "4", "--dir", str(folder)))
    assert "lines 5 to 7 fit; lines 1 to 4 are not among them" in call("audit", "verify", str(part))
    assert os.path.getsize(part)


def test_files_that_prove_nothing_are_no_broken_chain_and_no_fit(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    """A missing and an empty file end with 2; without a noted head the last line is said not to be proven."""
    (tmp_path / "empty").touch()
    for name in ("none", "empty"):
        with pytest.raises(UsageError):
            call("audit", "verify", str(tmp_path / name))
    (tmp_path / "all").write_text(call("audit", "export", "--dir", str(folder)))
    assert "without --head nothing proves the last line" in call("audit", "verify", str(tmp_path / "all"))
