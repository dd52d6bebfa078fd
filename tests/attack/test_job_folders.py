"""A user whose job writes where a root agent reads: links, second names, pipes, devices, and names of a container.

The agent reads logs that jobs write. It may read everything, and what it reads it tells: a line of somebody else's file
would reach whoever placed its name.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from attack_fixture import STRANGER, Attempt, skip
from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.probes.check import LogFile
from holdfast.adapters.slurm import open_files
from holdfast.adapters.slurm.open_files import OpenJob
from holdfast.adapters.tail import Tailer, open_plainly
from holdfast.agent import job_logs, slurm_output
from holdfast.agent.job_logs import LogWatch
from holdfast.agent.slurm_output import SlurmOutput
from holdfast.detect.matcher import Matcher
from parsers import ParserInside

SECRET = b"RuntimeError: CUDA error: out of memory secret-of-somebody\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="reads what a user may not, which only root does")


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return read_matcher(read_catalogue())


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The attacker's folder."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, STRANGER, STRANGER)
    return folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of root's that the attacker may not read."""
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    return file


def plant(theirs: Path, secret: Path, how: str) -> Path:
    """A log's name that leads to the secret; its link is the attacker's."""
    log = theirs / "job.log"
    match how:
        case "link":
            log.symlink_to(secret)
            os.lchown(log, STRANGER, STRANGER)
        case "folder":
            (theirs / "logs").symlink_to(secret.parent)
            os.lchown(theirs / "logs", STRANGER, STRANGER)
            log = theirs / "logs" / "secret"
        case "hard link":
            os.link(secret, log)
    return log


def told(events: list[object]) -> bool:
    return "secret-of-somebody" in repr(events)


# --- output of Slurm's jobs ---


def follow(matcher: Matcher, path: Path, swap=lambda: None) -> list[object]:
    """What the agent tells of a job of the attacker's that writes this file."""
    events: list[object] = []

    async def body() -> None:
        reader = SlurmOutput(
            node="n1",
            source="agent:n1",
            parser=ParserInside(matcher),
            clock=SystemClock(),
            report=events.append,
            look=list,
        )
        reader._tailer.start()
        job = OpenJob(job_id="7", cluster="c", node="n1", files=(str(path),), users=frozenset({STRANGER}))
        reader.take([job])
        swap()
        reader._tailer.drain()
        for _ in range(2):
            reader.take([job])
        reader._tailer.drain()
        reader._tailer.close()

    asyncio.run(body())
    return events


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node", asset="files that root reads", removed="agent.slurm_output.is_of"
)
@needs_root
@pytest.mark.parametrize("how", ["link", "folder", "hard link"])
def test_a_jobs_log_leads_to_no_file_of_another(
    attempt: Attempt, matcher: Matcher, theirs: Path, secret: Path, how: str
) -> None:
    """From the begin: the job has the file open under this name, and puts another one there before the agent opens it."""
    attempt.without(slurm_output, "is_of", lambda _opened, _users: True)
    attempt.judge(succeeded=told(follow(matcher, plant(theirs, secret, how))))


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node", asset="files that root reads", removed="agent.slurm_output.is_of"
)
@needs_root
@pytest.mark.parametrize("how", ["link", "hard link"])
def test_a_jobs_log_is_not_exchanged_later(
    attempt: Attempt, matcher: Matcher, theirs: Path, secret: Path, how: str
) -> None:
    """The agent follows a log over its rotation: what comes in its place is the same user's, or is not read."""
    attempt.without(slurm_output, "is_of", lambda _opened, _users: True)
    log = theirs / "job.log"
    log.write_text("a line\n")
    os.chown(log, STRANGER, STRANGER)

    def swap() -> None:
        log.unlink()
        plant(theirs, secret, how)

    attempt.judge(succeeded=told(follow(matcher, log, swap)))


@needs_root
def test_a_jobs_own_log_is_read(matcher: Matcher, theirs: Path) -> None:
    """What all of this must not break, also behind a link of the user's own making."""
    log = theirs / "job.log"
    log.write_bytes(SECRET)
    os.chown(log, STRANGER, STRANGER)
    link = theirs / "link.log"
    link.symlink_to(log)
    os.lchown(link, STRANGER, STRANGER)
    assert told(follow(matcher, log))
    assert told(follow(matcher, link))


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node", asset="the node", removed="agent.slurm_output.open_regular"
)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_log_that_is_no_file_is_not_opened(attempt: Attempt, matcher: Matcher, tmp_path: Path, kind: str) -> None:
    """To open a watchdog's device is to start it: a minute later the node is down. A pipe never ends."""
    attempt.without(slurm_output, "open_regular", lambda path: open_plainly(str(path)))
    log = Path("/dev/zero") if kind == "device" else tmp_path if kind == "folder" else tmp_path / "job.log"
    if kind == "pipe":
        os.mkfifo(log)
    reader = SlurmOutput(
        node="n1", source="agent:n1", parser=ParserInside(matcher), clock=SystemClock(), report=print, look=list
    )
    users = frozenset({log.stat().st_uid})
    reader._files[str(log)] = slurm_output._Followed(None, None, 0.0, users)
    try:
        opened = reader._open(str(log))
    except OSError:
        attempt.judge(succeeded=False)
    else:
        os.close(opened)
        attempt.judge(succeeded=True)


# --- names that a container sees ---


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node",
    asset="files that root reads",
    removed="adapters.slurm.open_files.seen_here",
)
def test_a_containers_name_is_not_this_machines(attempt: Attempt, tmp_path: Path) -> None:
    """`/out.log` in a job's container, or in its private /tmp, is another file here: that of somebody else."""
    attempt.without(open_files, "seen_here", lambda path, _root, _identity: path)
    here = tmp_path / "out.log"
    here.write_bytes(SECRET)
    root = tmp_path / "root"
    inside = Path(f"{root}{here}")
    inside.parent.mkdir(parents=True)
    inside.write_text("the container's own\n")
    found = inside.stat()
    name = open_files.seen_here(str(here), root, (found.st_dev, found.st_ino))
    assert name is not None
    attempt.judge(succeeded=Path(name).read_bytes() == SECRET)


def test_a_name_that_nothing_here_stands_for_is_left_out(tmp_path: Path) -> None:
    """Neither this machine nor the process's root has the file any more: it was moved or removed meanwhile."""
    assert open_files.seen_here(str(tmp_path / "gone"), tmp_path, (1, 2)) is None


# --- further logs of agent.toml, whose patterns lead into users' folders ---


def watch(matcher: Matcher, pattern: str, write=lambda: None) -> list[object]:
    found: list[object] = []

    async def body() -> None:
        logs = [LogFile(path=pattern, kind="output")]
        reader = LogWatch(
            logs,
            identity=SimpleNamespace(name="n1"),
            parser=ParserInside(matcher),
            clock=SystemClock(),
            on_finding=found.append,
        )
        reader._first = False  # what a file holds is news
        reader._tailer.start()
        reader.find()
        write()
        reader._tailer.drain()
        reader._tailer.close()

    asyncio.run(body())
    return found


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node", asset="files that root reads", removed="agent.job_logs.open_log"
)
@needs_root
@pytest.mark.parametrize("how", ["link", "folder", "hard link"])
def test_a_watched_pattern_leads_to_no_file_of_another(
    attempt: Attempt, matcher: Matcher, theirs: Path, secret: Path, how: str
) -> None:
    """`/scratch/*/logs/*.log` names what users place there."""
    attempt.without(job_logs, "open_log", lambda path: open_plainly(str(path)))
    plant(theirs, secret, how)
    pattern = f"{theirs}/logs/*" if how == "folder" else f"{theirs}/*.log"
    attempt.judge(succeeded=told(watch(matcher, pattern)))


@needs_root
def test_links_of_root_and_users_own_files_are_read(
    matcher: Matcher, theirs: Path, secret: Path, tmp_path: Path
) -> None:
    """As kubelet's /var/log/containers, whose names are links of root's."""
    (theirs / "own.log").write_bytes(SECRET)
    os.chown(theirs / "own.log", STRANGER, STRANGER)
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / "pod.log").symlink_to(secret)
    assert told(watch(matcher, f"{theirs}/own.log"))
    assert told(watch(matcher, f"{tmp_path}/containers/*.log"))


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node",
    asset="files that root reads",
    removed="adapters.tail.Tailer._open_file",
)
def test_a_rotated_file_is_opened_by_the_same_rule(attempt: Attempt, tmp_path: Path) -> None:
    """A restarted reader looks for what it had read, beside the file: that name may have been planted, too."""
    refused: list[str] = []

    def refuse(path: str) -> int:
        refused.append(path)
        raise PermissionError(path)

    log, old = tmp_path / "job.log", tmp_path / "job.log.1"
    log.write_bytes(b"first\n")

    async def body() -> list[bytes]:
        got: list[bytes] = []
        first = Tailer(lambda _path, _data: None, force_poll=True)
        first.start()
        first.add(log)
        position = first.position(log)
        first.close()
        log.rename(old)
        with old.open("ab") as file:
            file.write(SECRET)
        log.write_bytes(b"new\n")
        second = Tailer(lambda _path, data: got.append(data), force_poll=True, open_file=refuse)
        attempt.without(second, "_open_file", open_plainly)
        second.start()
        try:
            second.add(log, position=position)
        finally:
            second.close()
        return got

    attempt.judge(succeeded=SECRET in b"".join(asyncio.run(body())))


JOB = """
export SLURM_JOB_ID=7 SLURM_CLUSTER_NAME=c SLURMD_NODENAME=n1
unshare -m sh -c 'mount --bind {inside} {shown}; exec setpriv --reuid={user} --regid={user} --clear-groups sh -c "
    exec >{shown}/out.log; echo of the container; touch {inside}/ready; read line"'
true
"""


@pytest.mark.attempt(
    actor="A job, towards the root agent of its node",
    asset="files that root reads",
    removed="adapters.slurm.open_files.seen_here",
)
@needs_root
@pytest.mark.skipif(not all(map(shutil.which, ("unshare", "setpriv", "bash"))), reason="needs util-linux and bash")
def test_a_real_job_in_a_mount_namespace_of_its_own(attempt: Attempt, tmp_path: Path) -> None:
    """Its /tmp/out.log is read below its own root; on the host the same name is a file of somebody else."""
    attempt.without(open_files, "seen_here", lambda path, _root, _identity: path)
    inside, shown = tmp_path / "inside", tmp_path / "shown"
    for folder in (inside, shown):
        folder.mkdir()
        os.chown(folder, STRANGER, STRANGER)
    for above in (tmp_path, *tmp_path.parents):
        if above != Path("/") and above.stat().st_uid == 0:
            above.chmod(above.stat().st_mode | 0o011)
    (shown / "out.log").write_bytes(SECRET)
    shutil.copy(shutil.which("bash"), tmp_path / "slurmstepd")
    script = JOB.format(inside=inside, shown=shown, user=STRANGER)
    step = subprocess.Popen(
        ["slurmstepd: [7.0]", "-c", script],
        executable=tmp_path / "slurmstepd",
        stdin=subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
    )
    try:
        deadline = time.monotonic() + 20
        while not (inside / "ready").exists():
            if step.poll() is not None:
                skip("this machine gives no mount namespace")
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (job,) = [job for job in open_files.open_jobs(conf="") if job.node == "n1" and job.cluster == "c"]
        assert job.users == {STRANGER}
        (path,) = job.files
        read = Path(path).read_bytes()
    finally:
        step.communicate(b"\n")
    assert read in {SECRET, b"of the container\n"}
    attempt.judge(succeeded=read == SECRET)
