"""Files that are written as a whole, and locks on files."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from holdfast.os.files import locked, write_whole


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """The new content stands, nothing is left beside it, and what a killed writer left does not matter."""
    path = tmp_path / "state.json"
    (tmp_path / ".state.json.new").write_bytes(b"half of an earlier o")
    for data in (b"one", b"two"):
        write_whole(path, data, durable=data == b"two")
        assert (path.read_bytes(), os.listdir(tmp_path)) == (data, ["state.json"])


def test_a_private_file_is_private_from_its_beginning(tmp_path: Path) -> None:
    """Its permissions are those asked for, whatever the file before had."""
    path = tmp_path / "token"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_whole(path, b"new", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_refuses_leaves_the_file_before(tmp_path: Path) -> None:
    """The error is the caller's to tell."""
    path = tmp_path / "state.json"
    path.write_bytes(b"one")
    (tmp_path / ".state.json.new").mkdir()
    with pytest.raises(OSError):
        write_whole(path, b"two")
    assert path.read_bytes() == b"one"


def test_a_lock_that_is_held_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    """At once, with the file and the process; free again after its holder, also after one that failed."""
    path = tmp_path / "lock"
    with locked(path), pytest.raises(BlockingIOError) as refused, locked(path):
        pytest.fail("two hold it")
    told = f"pid {os.getpid()} on {os.uname().nodename}"
    assert (refused.value.strerror, refused.value.filename) == (told, str(path))
    with pytest.raises(ZeroDivisionError), locked(path):
        raise ZeroDivisionError
    with locked(path):
        assert path.read_text() == told + "\n"


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    """As long as it takes, and that is told once; or until a deadline."""
    path = tmp_path / "lock"
    told: list[str] = []
    holder = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError, match="pid unknown"), locked(path, wait_s=0.05):
        pytest.fail("two hold it")

    def on_wait() -> None:
        told.append("waits")
        os.close(holder)

    with locked(path, wait_s=None, on_wait=on_wait):
        assert told == ["waits"]


def test_where_a_file_system_has_no_locks_only_who_needs_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre without `flock`, some NFS."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path / "lock", needed=False):
        pass
    with pytest.raises(OSError, match="No locks available"), locked(tmp_path / "lock"):
        pytest.fail("no lock is held")
