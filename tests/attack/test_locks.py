"""Another user at the files that Holdfast locks: whoever may read one may hold it, and whoever may plant one leads us to it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.attack.test_shared_memory import needs_root, open_to_all

from attack_fixture import STRANGER, Attempt, Stranger, only_root
from holdfast.checkpoint import claim as claim_module
from holdfast.checkpoint.claim import LOCK_FILE, claim
from holdfast.os import files
from holdfast.os.files import locked

ACTOR = "A user of the same machine, at lock files"
ELSEWHERE = json.dumps({"job": "/jobs/other", "pid": 7, "host": "node07"})
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


@pytest.mark.attempt(actor=ACTOR, asset="a job's checkpoints", removed="checkpoint.claim._why_not")
def test_a_planted_writer_does_not_stop_a_job_from_saving(
    attempt: Attempt, stranger: Stranger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Place a `.writer` that names a job on another host, and hold it, so that the victim's job saves nothing."""
    only_root("only root gives one of two files away")
    attempt.without(claim_module, "_why_not", lambda _lock, _path: "")
    path = tmp_path / LOCK_FILE
    path.write_text(ELSEWHERE)
    stranger.owns(path)
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        taken = [claim(tmp_path, tmp_path / "job") for _ in range(2)]
    said = f"holdfast.checkpoint: {path} is no lock of this job (it belongs to another user (uid {STRANGER})), so"
    assert attempt.is_open or capsys.readouterr().err.count(said) == 1
    attempt.judge(succeeded=None not in taken)


@needs_root
@pytest.mark.attempt(actor=ACTOR, asset="a job's checkpoints", removed="checkpoint.claim.LOCK_MODE")
@pytest.mark.parametrize("made", ["now", "by an older version"])
def test_nobody_else_can_hold_a_writers_lock(attempt: Attempt, tmp_path: Path, made: str) -> None:
    """Hold the lock of a folder in which another user's job was on another host, so that the next job saves nothing."""
    attempt.without(claim_module, "LOCK_MODE", 0o644)
    open_to_all(tmp_path)
    path = tmp_path / LOCK_FILE
    if made != "now":
        path.touch(0o644)
    job = os.fork()
    if not job:
        claim(tmp_path, tmp_path / "first")
        os._exit(0)
    os.waitpid(job, 0)
    path.write_text(ELSEWHERE)
    with held_by_stranger(path):
        attempt.judge(succeeded=claim(tmp_path, tmp_path / "second") is not None)


@pytest.mark.attempt(
    actor=ACTOR, asset="a user's files", removed="checkpoint.claim._why_not", each=("second name", "another file")
)
@pytest.mark.parametrize("kind", ["second name", "another file"])
def test_a_job_writes_into_no_other_file(attempt: Attempt, tmp_path: Path, kind: str) -> None:
    """Have a file of the victim's overwritten by the name of who saves, through a second name or a new one."""
    attempt.without(claim_module, "_why_not", lambda _lock, _path: "")
    precious, path = tmp_path / "precious", tmp_path / LOCK_FILE
    precious.write_text(PLANTED)
    if kind == "second name":
        path.hardlink_to(precious)
    else:
        precious.rename(path)
    assert claim(tmp_path, None) is None
    attempt.judge(succeeded=path.read_text() != PLANTED)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_writers_lock_that_is_no_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """Saves go on without the lock, and one line says so."""
    path = tmp_path / LOCK_FILE
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "precious")
    assert [claim(tmp_path, None) for _ in range(2)] == [None, None]
    told = {"folder": "Is a directory", "pipe": "it is no ordinary file", "link": "it is a link"}[kind]
    said = capsys.readouterr().err
    assert (said.count("\n"), f"({told}), so nothing keeps another job" in said) == (1, True)
    assert not (tmp_path / "precious").exists()


def test_a_writer_of_another_host_counts_only_while_its_lock_is_held(tmp_path: Path) -> None:
    """A held one is told to another job, not to the next attempt of its own; an unheld one is free at once."""
    path, job = tmp_path / LOCK_FILE, tmp_path / "other"
    path.write_text(json.dumps({"job": str(job), "pid": 7, "host": "node07"}))
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert str(claim(tmp_path, tmp_path / "job")) == f"the job of {job} (process 7 on node07)"
        assert claim(tmp_path, job) is None
        assert json.loads(path.read_text())["host"] == "node07"
    assert claim(tmp_path, tmp_path / "job") is None
    assert json.loads(path.read_text())["job"] == str(tmp_path / "job")
