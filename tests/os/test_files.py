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
    with pytest.raises(BlockingIOError, match="holder unknown"), locked(path, wait_s=0.05):
        pytest.fail("two hold it")

    def on_wait() -> None:
        told.append("waits")
        os.close(holder)

    with locked(path, wait_s=None, on_wait=on_wait):
        assert told == ["waits"]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("pid {dead} on {here}\n", "holder unknown"),
        ("pid 1 on {here}\n", "pid 1 on {here}"),
        ("pid {dead} on node07\n", "taken last by pid {dead} on node07"),
        ("pid 99999999999999 on {here}\n", "holder unknown"),
        ("", "holder unknown"),
    ],
)
def test_only_a_process_that_lives_is_named_as_the_holder(tmp_path: Path, written: str, told: str) -> None:
    """A dead one's name stays in the file until the next holder writes its own, and would send people to the wrong process."""
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitpid(dead, 0)
    names = {"dead": dead, "here": os.uname().nodename}
    path = tmp_path / "lock"
    path.write_text(written.format(**names))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(BlockingIOError) as refused, locked(path):
            pytest.fail("two hold it")
    assert refused.value.strerror == told.format(**names)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "second name"])
def test_what_is_no_file_of_a_lock_is_refused(tmp_path: Path, kind: str) -> None:
    """By one sentence, also where a lock is not needed: nobody has such a thing there by accident."""
    path, other = tmp_path / "lock", tmp_path / "other"
    other.write_text("kept")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(other)
    else:
        path.hardlink_to(other)
    with pytest.raises(OSError), locked(path, needed=False):
        pytest.fail("no lock is held")
    assert other.read_text() == "kept"


def test_who_needs_no_lock_goes_on_where_it_is_another_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's folder that a group shares: its next launcher may be another user's. What belongs to the folder's owner counts."""
    path, others = tmp_path / "lock", tmp_path.stat()
    path.touch()
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with locked(path):
        pass
    monkeypatch.setattr(Path, "stat", lambda _self: os.stat_result((*others[:4], 54322, *others[5:])))
    monkeypatch.setattr(os, "fstat", lambda _fd: os.stat_result((0o100600, 0, 0, 1, 54323, 0, 0, 0, 0, 0)))
    with locked(path, needed=False):
        pass
    with pytest.raises(PermissionError, match="another user"), locked(path):
        pytest.fail("no lock is held")


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
