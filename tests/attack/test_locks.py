"""Another user at the files that Holdfast locks: whoever may read one may hold it, and whoever may plant one leads us to it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.attack.test_shared_memory import needs_root, open_to_all

from attack_fixture import STRANGER, Attempt, Stranger, only_root
from holdfast.os import files
from holdfast.os.files import locked

ACTOR = "A user of the same machine, at lock files"
PLANTED = "mine, and not to be touched"


@contextmanager
def held_by_stranger(path: Path) -> Iterator[bool]:
    """Another user takes a shared lock, as whoever may read a file can; whether they got it."""
    said, says = os.pipe()
    waits, go = os.pipe()
    holder = os.fork()
    if not holder:
        try:
            os.close(go)
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.write(says, b"held")
            os.read(waits, 1)
        finally:
            os._exit(0)
    os.close(says)
    os.close(waits)
    try:
        yield os.read(said, 4) == b"held"
    finally:
        os.close(go)
        os.close(said)
        os.waitpid(holder, 0)


@needs_root
@pytest.mark.attempt(actor=ACTOR, asset="a job, a controller, a cluster", removed="os.files.LOCK_MODE")
@pytest.mark.parametrize("made", ["now", "by an older version"])
def test_nobody_else_can_hold_a_lock(attempt: Attempt, tmp_path: Path, made: str) -> None:
    """Hold the lock of another user's job, controller or cluster, so that it does not start."""
    attempt.without(files, "LOCK_MODE", 0o644)
    open_to_all(tmp_path)
    path = tmp_path / ".epoch.lock"
    if made != "now":
        path.touch()
        path.chmod(0o666)
    with locked(path):
        pass
    assert attempt.is_open or path.stat().st_mode & 0o777 == 0o600
    with held_by_stranger(path):
        try:
            with locked(path):
                attempt.judge(succeeded=False)
        except BlockingIOError:
            attempt.judge(succeeded=True)


@pytest.mark.attempt(actor=ACTOR, asset="a user's files", removed="os.files._open_lock", each=("link", "second name"))
@pytest.mark.parametrize("kind", ["link", "second name"])
def test_no_other_file_is_written_for_a_lock(attempt: Attempt, tmp_path: Path, kind: str) -> None:
    """Have a file of the victim's overwritten by a link, or a second name, where a lock is taken."""
    attempt.without(files, "_open_lock", lambda path: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))
    precious, path = tmp_path / "precious", tmp_path / "lock"
    precious.write_text(PLANTED)
    if kind == "link":
        path.symlink_to(precious)
    else:
        path.hardlink_to(precious)
    with suppress(OSError), locked(path):
        pass
    attempt.judge(succeeded=precious.read_text() != PLANTED)


@pytest.mark.attempt(actor=ACTOR, asset="a job, a controller, a cluster", removed="os.files._open_lock")
def test_a_lock_of_another_user_is_not_taken(attempt: Attempt, stranger: Stranger, tmp_path: Path) -> None:
    """Place a lock's file before its user does, to hold it whenever one likes."""
    attempt.without(files, "_open_lock", lambda path: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))
    path = tmp_path / "lock"
    path.touch()
    only_root("only root gives one of two files away")
    stranger.owns(path)
    try:
        with locked(path):
            attempt.judge(succeeded=True)
    except PermissionError:
        attempt.judge(succeeded=False)
