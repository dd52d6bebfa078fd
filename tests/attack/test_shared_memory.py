"""Neighbours on a node, in /dev/shm: they read slots, plant names, and find what a killed launcher has left."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from attack_fixture import STRANGER, Attempt, Stranger, only_root
from holdfast.adapters.slurm.open_files import OpenJob
from holdfast.agent import job_slots
from holdfast.launch import slot_folder
from holdfast.telemetry import slot, writer

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root can")


def others_can_read(path: Path) -> bool:
    """As another user would, who asks the kernel."""
    reader = os.fork()
    if not reader:
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        try:
            path.read_bytes()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(reader, 0)[1] == 0


def open_to_all(folder: Path) -> None:
    for above in (folder, *folder.parents):
        if above != Path("/") and above.stat().st_uid == os.geteuid():
            above.chmod(above.stat().st_mode | 0o055)


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="a job's figures",
    removed="telemetry.writer.os.open",
)
@needs_root
def test_slots_are_not_read_by_neighbours(attempt: Attempt, tmp_path: Path) -> None:
    """A rank's slot and its stacks are its user's alone, whatever the folder and the umask allow."""
    plain = os.open
    attempt.without(
        os, "open", lambda path, flags, mode=0o777, **more: plain(path, flags, 0o644 if mode == 0o600 else mode, **more)
    )
    open_to_all(tmp_path)
    umask = os.umask(0)
    try:
        writer.open_slot(str(tmp_path), 3)
    finally:
        os.umask(umask)
    readable = [others_can_read(tmp_path / name) for name in ("rank-00003.slot", "rank-00003.stacks")]
    attempt.judge(succeeded=any(readable))


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="a user's files",
    removed="telemetry.writer.os.open, telemetry.writer._remove",
)
def test_a_planted_link_does_not_have_a_file_overwritten(attempt: Attempt, tmp_path: Path) -> None:
    """The temporary name is known before: what lies there is not written through."""
    plain = os.open

    def open_(path, flags, mode=0o777, **more):
        return plain(path, flags & ~os.O_EXCL & ~os.O_NOFOLLOW, mode, **more)

    attempt.without(os, "open", open_)
    if attempt.is_open:
        attempt.without(writer, "_remove", lambda path: None)
    precious = tmp_path / "precious"
    precious.write_text("mine\n")
    slots = tmp_path / "slots"
    slots.mkdir()
    (slots / f"rank-00000.slot.{os.getpid()}.new").symlink_to(precious)
    (slots / "rank-00000.stacks").symlink_to(precious)
    writer.open_slot(str(slots), 0)
    attempt.judge(succeeded=precious.read_bytes() != b"mine\n")


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="a job's figures",
    removed="telemetry.writer.S_ISDIR, telemetry.writer.os.lstat",
)
@pytest.mark.parametrize("how", ["folder", "link"])
def test_a_folder_made_before_by_another_is_not_used(
    attempt: Attempt, stranger: Stranger, tmp_path: Path, how: str
) -> None:
    """Who guessed the name owns the folder, and would read what we write, or put it elsewhere."""
    attempt.without(writer, "S_ISDIR", lambda _mode: True)
    folder = tmp_path / "slots"
    if how == "folder":
        if attempt.is_open:
            attempt.without(writer.os, "lstat", lambda _path: os.stat("/"))
        folder.mkdir()
        stranger.owns(folder)
    else:
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    try:
        writer.make_folder(str(folder))
    except PermissionError:
        attempt.judge(succeeded=False)
    else:
        attempt.judge(succeeded=True)


def a_slot(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made = writer.open_slot(str(folder), 0)
    made.step_begin(step)
    return Path(made.path)


def job(folder: Path) -> OpenJob:
    users = frozenset({STRANGER})
    return OpenJob(job_id="7", telemetry=(str(folder),), writers=frozenset({os.getpid()}), users=users)


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="other jobs' slots",
    removed="agent.job_slots.read_slot",
)
@needs_root
def test_an_agent_reads_no_other_users_slot_for_a_job(attempt: Attempt, tmp_path: Path) -> None:
    """A job names the folder of somebody else's job: in its own namespace its processes bear any number."""
    plain = slot.read_slot
    attempt.without(job_slots, "read_slot", lambda path, _owners: plain(path))
    a_slot(tmp_path / "theirs", 41)
    attempt.judge(succeeded=bool(job_slots.read_slots(job(tmp_path / "theirs"))))


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="other jobs' slots",
    removed="agent.job_slots.open_folder",
)
@needs_root
def test_an_agent_follows_no_link_to_a_folder_of_slots(attempt: Attempt, tmp_path: Path) -> None:
    """A look that follows links may be led to a file system that does not answer, and then hangs for ever."""
    attempt.without(job_slots, "open_folder", lambda path, below: os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    made = a_slot(tmp_path / "real", 41)
    os.chown(made, STRANGER, STRANGER)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.lchown(tmp_path / "link", STRANGER, STRANGER)
    attempt.judge(succeeded=bool(job_slots.read_slots(job(tmp_path / "link"))))


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="other jobs' slots",
    removed="agent.job_slots.os.open",
)
def test_a_slot_that_is_a_pipe_or_a_link_is_not_asked_to_save(attempt: Attempt, tmp_path: Path) -> None:
    """The byte that asks is written to the slot that was looked at, not to what its name stands for a moment later."""
    plain = os.open
    attempt.without(os, "open", lambda path, flags, *more, **named: plain(path, flags & ~os.O_NOFOLLOW, *more, **named))
    other = a_slot(tmp_path / "other", 1)
    slots = tmp_path / "slots"
    slots.mkdir()
    (slots / "rank-00001.slot").symlink_to(other)
    os.mkfifo(slots / "rank-00002.slot")
    slot.request_evacuate(slots)
    attempt.judge(succeeded=slot.read_slot(other).evacuate)


HOLDER = """
import pathlib, sys, holdfast.launch.slot_folder as slot_folder
held = slot_folder.claim(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def killed_launcher(memory: Path) -> Path:
    """A folder of a launcher that was killed with everything around it, its guard too."""
    folder = memory / f"holdfast-{os.getuid()}-7-node01-abc"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    slot_folder.sweep(memory)
    assert folder.is_dir(), "a living launcher's folder was removed"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    return folder


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="the node's memory",
    removed="launch.slot_folder.is_free",
)
def test_slots_of_a_killed_launcher_are_gone_with_the_next_start(attempt: Attempt, tmp_path: Path) -> None:
    """What is left behind tells a neighbour nothing, but fills the node's memory: it is gone once anybody starts again."""
    attempt.without(slot_folder, "is_free", lambda _folder: False)
    folder = killed_launcher(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    a_slot(folder / "a0", 5)
    slot_folder.sweep(tmp_path)
    attempt.judge(succeeded=folder.exists())


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="a user's files",
    removed="launch.slot_folder.foreign, launch.slot_folder.is_free, launch.slot_folder.shutil.rmtree",
)
@pytest.mark.parametrize("how", ["another's", "a link", "no lock"])
def test_a_sweep_removes_nothing_else(attempt: Attempt, stranger: Stranger, tmp_path: Path, how: str) -> None:
    """A name of ours on a folder of somebody else, or on a link to a folder of mine, has nothing removed."""
    attempt.without(slot_folder, "foreign", lambda _found: "")
    if attempt.is_open:
        attempt.without(slot_folder, "is_free", lambda _folder: True)
    memory, folder = tmp_path / "shm", tmp_path / "shm" / f"holdfast-{os.getuid()}-9-node01-x"
    memory.mkdir()
    real = tmp_path / "real" if how == "a link" else folder
    real.mkdir()
    (real / "precious").touch()
    if how != "no lock":
        (real / slot_folder.LOCK).touch()
    if how == "a link":
        folder.symlink_to(real)
        if attempt.is_open:
            attempt.without(slot_folder.shutil, "rmtree", lambda path, **_named: (path / "precious").unlink())
    elif how == "another's":
        stranger.owns(folder)
    slot_folder.sweep(memory)
    attempt.judge(succeeded=not (real / "precious").exists())


# --- the scripts that sites install on nodes ---

SLURM = Path(__file__).parents[2] / "deploy" / "slurm"


def task_prolog(attempt: Attempt, memory: Path, tmp_path: Path) -> str:
    text = (SLURM / "task_prolog.sh").read_text()
    check = '[ "$(/usr/bin/stat -c \'%u %a %F\' "$dir" 2>/dev/null)" = "$uid 700 directory" ]'
    text = attempt.text(text, check, "true").replace("/dev/shm", str(memory))
    script = tmp_path / "task_prolog.sh"
    script.write_text(text)
    told = subprocess.run(
        ["/bin/sh", str(script)], env={"SLURM_JOB_ID": "7"}, capture_output=True, text=True, check=True
    )
    return told.stdout


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="a job's figures",
    removed="deploy/slurm/task_prolog.sh",
)
@pytest.mark.parametrize("how", ["folder", "link"])
def test_a_task_prolog_takes_no_planted_folder(attempt: Attempt, stranger: Stranger, tmp_path: Path, how: str) -> None:
    """The name is known to all: who makes it before, as a folder or as a link to one of mine, gets no slots there."""
    if how == "folder":
        only_root("only root gives a folder away in truth, and a shell asks the kernel")
    memory = tmp_path / "shm"
    memory.mkdir()
    folder = memory / f"holdfast-telemetry-{os.getuid()}-7"
    if how == "folder":
        folder.mkdir()
        stranger.owns(folder)
    else:
        (tmp_path / "mine").mkdir()
        folder.symlink_to(tmp_path / "mine")
    attempt.judge(succeeded="HOLDFAST_TELEMETRY_DIR" in task_prolog(attempt, memory, tmp_path))


@pytest.mark.attempt(
    actor="A user of the same machine, in /dev/shm, /tmp and caches",
    asset="a user's files",
    removed="deploy/slurm/epilog.sh",
)
def test_an_epilog_removes_its_jobs_folders_and_no_links_target(attempt: Attempt, tmp_path: Path) -> None:
    """It runs as root where all may write: a link under such a name is removed, and not what it leads to."""
    memory, precious = tmp_path / "shm", tmp_path / "precious"
    memory.mkdir()
    precious.mkdir()
    (precious / "file").touch()
    names = ("holdfast-telemetry-1000-7", "holdfast-telemetry-1000-7.ab-a0.node01", "holdfast-1000-7-node01-ab")
    for name in names[1:]:
        (memory / name).mkdir()
    (memory / names[0]).symlink_to(precious)
    others = [memory / name for name in ("holdfast-1000-71-node01-ab", "holdfast-telemetry-1000-71", "other")]
    for other in others:
        other.mkdir()
    text = (SLURM / "epilog.sh").read_text()
    text = attempt.text(text, '-$SLURM_JOB_ID"', '-$SLURM_JOB_ID/"').replace("/dev/shm", str(memory))
    script = tmp_path / "epilog.sh"
    script.write_text(text)
    environ = {"SLURM_JOB_UID": "1000", "SLURM_JOB_ID": "7", "HOLDFAST": "/bin/true"}
    subprocess.run(["/bin/sh", str(script)], env=environ, check=True, capture_output=True)
    assert all(other.is_dir() for other in others)
    if not attempt.is_open:
        assert not any((memory / name).exists() or (memory / name).is_symlink() for name in names)
    attempt.judge(succeeded=not (precious / "file").exists())
