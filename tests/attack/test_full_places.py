"""Disks that are full, and quotas, wherever something is kept: the last good state stays, and one sentence says why.

A small file system where root may mount one, else a limit of the file's size, which a process gets as EFBIG. A launcher
with a full job folder is in tests/launch/test_full_folder.py, a save in tests/checkpoint/test_store.py, the journal in
tests/adapters/test_journal_sqlite.py.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from attack_fixture import Attempt
from holdfast.adapters.notify import outbox as outbox_module
from holdfast.adapters.notify.outbox import _Line
from holdfast.cli import screen
from holdfast.client import reporter
from holdfast.client.reporter import Spool
from holdfast.errors import TemporaryOrderError, UserError
from holdfast.os import files


@pytest.fixture(params=["disk", "quota"])
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder in which a file of 6 kB has room, and one of 20 kB has not."""
    place = tmp_path / "small"
    place.mkdir()
    if request.param == "disk":
        mount = ["mount", "-t", "tmpfs", "-o", "size=12k", "none", str(place)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
        yield place
        subprocess.run(["umount", "-l", str(place)], check=True)
        return
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    yield place
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def torn(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """What appending was: it leaves what fitted."""
    del mode, durable
    with path.open("ab", buffering=0) as file:
        while data:
            data = data[file.write(data) :]


@pytest.mark.attempt(actor="A disk", asset="faults", removed="client.reporter.append_whole")
def test_a_full_disk_takes_no_event_along(attempt: Attempt, full: Path) -> None:
    """Have an event that did not fit into an agent's spool take the next one with it."""
    attempt.without(reporter, "append_whole", torn)
    path = full / "spool"
    spool = Spool(path)
    small = msgspec.json.encode({"id": "small"})
    spool.add(small)
    spool.add(msgspec.json.encode({"id": "large", "text": "x" * 20_000}))
    spool.delivered([])
    if attempt.is_open:  # room again
        os.truncate(path, 100)
    with path.open("ab") as file:
        file.write(small + b"\n")
    lines = path.read_bytes().splitlines()
    attempt.judge(succeeded=lines != [small, small])


@pytest.mark.attempt(actor="A disk", asset="notices", removed="adapters.notify.outbox.append_whole")
def test_a_full_disk_tears_no_notice(attempt: Attempt, full: Path) -> None:
    """Have a notice that did not fit into the outbox take the next one with it; its sender is told to try again."""
    attempt.without(outbox_module, "append_whole", torn)
    box = outbox_module.Outbox.__new__(outbox_module.Outbox)
    box._path, box._lines, box._compact_at = full / "outbox", 0, 1 << 30
    box._write([_Line(n=1, to="mail")])
    with pytest.raises(TemporaryOrderError, match=r"cannot be written: (No space|File too large)"):
        box._write([_Line(n=2, to="mail" + "x" * 20_000)])
    if attempt.is_open:
        os.truncate(box._path, 100)
    box._write([_Line(n=3, to="mail")])
    read = []
    for line in box._path.read_bytes().splitlines():
        try:
            read.append(msgspec.json.decode(line, type=_Line).n)
        except msgspec.DecodeError:
            continue
    attempt.judge(succeeded=read != [1, 3])


@pytest.mark.attempt(actor="A disk", asset="reports", removed="cli.screen.write_whole")
def test_a_full_disk_leaves_the_report_before(attempt: Attempt, full: Path) -> None:
    """Have yesterday's report emptied by today's, for which there is no room."""
    attempt.without(screen, "write_whole", lambda path, data, **_: path.write_bytes(data))
    page = full / "report.html"
    screen.save(page, "yesterday")
    with pytest.raises(UserError, match=r"cannot write .*report\.html: (No space|File too large)"):
        screen.save(page, "today" * 5000)
    attempt.judge(succeeded=page.read_text() != "yesterday")


def test_what_did_not_fit_is_not_left_behind(full: Path) -> None:
    """A file that could not be replaced leaves no half of itself, which would keep the disk full."""
    files.write_whole(full / "x", b"old")
    with pytest.raises(OSError, match=r"No space|File too large"):
        files.write_whole(full / "x", b"y" * 20_000)
    assert [path.name for path in full.iterdir()] == ["x"]
    assert (full / "x").read_bytes() == b"old"


def test_a_report_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    """Behind a link the file is replaced, who may read it stays, and a device is written to."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    screen.save(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    (tmp_path / "real").chmod(0o600)
    screen.save(tmp_path / "real", "newer")
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o600
    screen.save(Path("/dev/null"), "nothing")
    with pytest.raises(UserError, match="No such file or directory"):
        screen.save(tmp_path / "missing" / "x", "y")
