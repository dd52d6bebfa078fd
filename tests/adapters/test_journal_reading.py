"""Reading a journal's file that is damaged, cut short, of another version, or being written: what is left, and what is said."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.adapters.journal_cases import entry, node_record, run
from tests.report.histories import BEGIN, a_year

from holdfast.adapters.journal import open_journal
from holdfast.adapters.journal.reading import JournalReading
from holdfast.errors import JournalDamagedError, JournalError
from holdfast.model.events import PolicyLoaded
from holdfast.model.records import Touched
from holdfast.ports import Entry, Sample

ROOT = Path(__file__).resolve().parents[2]
PAGE = 4096
EVENTS, INCIDENTS, JOBS, NODES = 299, 400, 8, 64


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "journal.db"

    async def write() -> None:
        jobs, nodes, found = a_year(1, incidents=INCIDENTS, nodes=NODES, jobs=JOBS)
        journal = open_journal(f"sqlite:///{path}")
        await journal.acquire("x", lease_s=10, now=0)
        await journal.append(
            [
                Entry(
                    PolicyLoaded(id=f"e{n}", at=BEGIN, seq=n, toml=""),
                    [],
                    Touched(jobs=jobs, nodes=nodes, incidents=found) if n == 1 else Touched(),
                )
                for n in range(1, EVENTS + 1)
            ]
        )
        await journal.add_samples([Sample("step", "job:1(0)", BEGIN + n, float(n)) for n in range(50)])
        await journal.close()

    run(write)
    return path


def read_all(path: Path) -> tuple[dict[str, int], list[str]]:
    """How many of each kind could be read, and what was said."""

    async def work() -> tuple[dict[str, int], list[str]]:
        reading = JournalReading(path)
        found = {
            "jobs": len(await reading.jobs()),
            "nodes": len(await reading.nodes()),
            "incidents": len(await reading.incidents(limit=10**6)),
            "events": len(await reading.events(limit=10**6)),
            "samples": len(await reading.samples("step", "job:1(0)*")),
        }
        notes = reading.take_notes()
        await reading.close()
        return found, notes

    return run(work)


WHOLE = {"jobs": JOBS, "nodes": NODES, "incidents": INCIDENTS, "events": EVENTS, "samples": 50}


def test_a_whole_journal_is_read_as_the_store_reads_it(whole: Path) -> None:
    """Every record equals the one that the store gives, in the same order, and nothing is said."""

    async def work() -> None:
        reading, store = JournalReading(whole), open_journal(f"sqlite:///{whole}")
        assert await reading.jobs() == await store.jobs()
        assert await reading.nodes(node="node003") == await store.nodes(node="node003")
        assert await reading.incidents(limit=7) == await store.incidents(limit=7)
        assert await reading.incidents(open_only=True) == await store.incidents(open_only=True)
        assert await reading.incidents(node="node003", limit=2) == await store.incidents(node="node003", limit=2)
        assert await reading.orders() == await store.orders()
        assert await reading.orders(node="node003") == await store.orders(node="node003")
        assert await reading.brakes() == await store.brakes()
        assert await reading.events(after=290, kind="policy_loaded") == await store.events(
            after=290, kind="policy_loaded"
        )
        assert await reading.samples("step") == await store.samples("step")
        with pytest.raises(JournalError, match="cannot be chosen by 'colour'"):
            await reading.events(colour="red")
        await reading.close()
        await store.close()

    run(work)
    assert read_all(whole) == (WHOLE, [])
    assert [path.name for path in whole.parent.iterdir()] == [whole.name]


def schema_pages(path: Path) -> set[int]:
    """Pages, from 0, that hold the list of tables: the first, and the leaves below it once it has grown."""
    page = path.read_bytes()[:PAGE]
    if page[100] != 5:
        return {0}
    cells = (
        int.from_bytes(page[at : at + 2], "big") for at in range(112, 112 + 2 * int.from_bytes(page[103:105], "big"), 2)
    )
    return {
        0,
        int.from_bytes(page[108:112], "big") - 1,
        *(int.from_bytes(page[at : at + 4], "big") - 1 for at in cells),
    }


@pytest.mark.parametrize("seed", range(12))
def test_around_damaged_pages_the_rest_is_read(whole: Path, tmp_path: Path, seed: int) -> None:
    """Three pages of noise anywhere but in the list of tables: it ends, most is there, and what is missing was named."""
    path = tmp_path / "journal.db"
    shutil.copy(whole, path)
    draw = random.Random(seed)
    pages = path.stat().st_size // PAGE
    with path.open("r+b") as file:
        file.seek(
            PAGE * draw.choice([at for at in range(2, pages - 3) if not schema_pages(path) & {at, at + 1, at + 2}])
        )
        file.write(draw.randbytes(3 * PAGE))
    before = path.read_bytes()
    found, notes = read_all(path)
    for name, count in WHOLE.items():
        if found[name] < count:
            assert any(name in note for note in notes), (name, found, notes)
    assert sum(found.values()) > 0.4 * sum(WHOLE.values())
    assert path.read_bytes() == before


def test_a_file_that_was_cut_short_gives_what_is_left(whole: Path, tmp_path: Path) -> None:
    """Half of the file: the sentence says how many bytes are there, and each kind that lost rows is named."""
    path = tmp_path / "journal.db"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size // PAGE // 2 * PAGE])
    found, notes = read_all(path)
    assert found["events"] == EVENTS
    assert any("cut short" in note for note in notes)
    assert any("incidents could be read" in note for note in notes)


def changed(whole: Path, tmp_path: Path, *statements: str) -> Path:
    path = tmp_path / "journal.db"
    shutil.copy(whole, path)
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def test_an_older_version_is_read_as_far_as_both_agree_and_not_upgraded(whole: Path, tmp_path: Path) -> None:
    """Without series store and with fewer columns: said, and the file is as it was."""
    path = changed(
        whole,
        tmp_path,
        "UPDATE alembic_version SET version_num = '0000'",
        "DROP TABLE samples",
        "DROP INDEX incidents_closed_at",
        "DROP TABLE event_incidents",
    )
    found, notes = read_all(path)
    assert found == WHOLE | {"samples": 0}
    assert notes == [
        "The journal is of the older version 0000 (here: 0002), read as far as both agree.",
        "The journal has no samples: what rests on them is not in this report.",
    ]
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0000",)
    connection.close()


def test_rows_of_a_newer_version_are_counted(whole: Path, tmp_path: Path) -> None:
    """Events of a kind that is not known here, and a record with a state of another time, are left out and told."""
    path = changed(
        whole,
        tmp_path,
        "UPDATE alembic_version SET version_num = '9999'",
        """UPDATE events SET payload = '{"event":"moon_landing","id":"x","at":1}' WHERE seq > 295""",
        """UPDATE nodes SET payload = '{"name":"node003","view":{"name":"node003"},"state":"asleep"}' WHERE name = 'node003'""",
    )
    found, notes = read_all(path)
    assert found == WHOLE | {"events": EVENTS - 4, "nodes": NODES - 1}
    assert notes[0].startswith("The journal is of the newer version 9999")
    assert any(note.startswith("4 events of the journal could not be understood") for note in notes)
    assert any(note.startswith("1 nodes of the journal") and "asleep" in note for note in notes)


def test_missing_events_are_counted(whole: Path, tmp_path: Path) -> None:
    """A hole in the numbers is not an error of the report: it is told."""
    path = changed(whole, tmp_path, "DELETE FROM events WHERE seq IN (7, 8, 100)")
    assert read_all(path) == (
        WHOLE | {"events": EVENTS - 3},
        ["3 of 299 events after the newest snapshot are missing."],
    )


def test_what_is_no_journal_is_one_sentence(tmp_path: Path) -> None:
    """Text, and somebody else's database."""
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is no journal " * 500)
    with pytest.raises(JournalDamagedError, match="is not a journal"):
        JournalReading(path)
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(JournalDamagedError, match="not a Holdfast journal"):
        JournalReading(path)


def test_a_reading_stands_still_while_a_controller_writes(tmp_path: Path) -> None:
    """What is appended after the first look is not seen, holds nobody up, and the holder of the lease is named."""
    path = tmp_path / "journal.db"

    async def work() -> None:
        store = open_journal(f"sqlite:///{path}")
        await store.acquire("controller@host", lease_s=10, now=100)
        await store.append([entry(1, nodes=[node_record("n1")])])
        reading = JournalReading(path)
        assert (reading.holder, reading.lease_until, reading.last_seq) == ("controller@host", 110.0, 1)
        await store.append([entry(2, nodes=[node_record("n2")])])
        assert [node.name for node in await reading.nodes()] == ["n1"]
        assert len(await reading.events()) == 1
        later = JournalReading(path)
        assert len(await later.nodes()) == 2
        for each in (reading, later, store):
            await each.close()

    run(work)


def left_by_a_killed_writer(path: Path) -> int:
    """A journal whose newest events lie in the log beside the file; returns the newest event that was acknowledged."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.adapters.journal_writer", f"sqlite:///{path}"], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    try:
        said = [writer.stdout.readline() for _ in range(5)]
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    return int(said[-1])


def test_what_a_killed_writer_committed_is_read(tmp_path: Path) -> None:
    """SIGKILL while it appends: everything that it acknowledged is there, though it lies in the log beside the file."""
    path = tmp_path / "journal.db"
    acknowledged = left_by_a_killed_writer(path)

    async def work() -> None:
        reading = JournalReading(path)
        assert reading.last_seq >= acknowledged > 0
        assert [event.seq for event in await reading.events(limit=10**6)] == list(range(1, reading.last_seq + 1))
        assert reading.take_notes() == []
        await reading.close()

    run(work)


@pytest.fixture
def fixed(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes a read-only file system of these files, which only root may mount."""
    folder = tmp_path / "fixed"
    folder.mkdir()

    def make(*files: Path) -> Path:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip("only root may mount a read-only file system")
        for file in files:
            shutil.copy(file, folder)
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        return folder / files[0].name

    yield make
    subprocess.run(["umount", "-l", folder], capture_output=True, check=False)


def test_a_journal_on_a_read_only_file_system_is_read(whole: Path, fixed: Callable[..., Path]) -> None:
    """All of it, though SQLite cannot write beside it."""
    assert read_all(fixed(whole)) == (WHOLE, [])


def test_on_a_read_only_file_system_what_a_killed_writer_left_in_its_log_is_read(
    tmp_path: Path, fixed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a copy, which is gone afterwards: the log may hold nearly all of the journal."""
    path = tmp_path / "journal.db"
    acknowledged = left_by_a_killed_writer(path)
    kept = fixed(path, Path(f"{path}-wal"))
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))

    async def work() -> None:
        reading = JournalReading(kept)
        assert reading.last_seq >= acknowledged
        assert len(await reading.events(limit=10**6)) == reading.last_seq
        assert len(list((tmp_path / "copies").iterdir())) == 1
        await reading.close()

    run(work)
    assert list((tmp_path / "copies").iterdir()) == []
