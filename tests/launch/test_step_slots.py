"""Telemetry of a supervised step's tasks: its folder on each node, what the supervisor learns by it, and stacks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from holdfast.adapters.journal.reading import JournalReading
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import AnyReport, SlotBrief, SlotsSeen
from holdfast.launch.launcher_events import EventMaker
from holdfast.launch.place import JobPlace, telemetry_root
from holdfast.launch.step_slots import StepSlots, new_prefix, slots_folder
from holdfast.launch.watch import AttemptWatch
from holdfast.model.cluster import JobKey
from holdfast.model.events import (
    AnyEvent,
    AttemptStarted,
    CheckpointSaved,
    FindingSeen,
    FirstStepDone,
    StacksCaptured,
)
from holdfast.telemetry.slot import SlotError

RANK = """
import sys
import holdfast.telemetry as telemetry
for step in (1, 2, 3):
    with telemetry.step(step): pass
telemetry.checkpoint(2, durable=True)
def waits_for_its_end():
    print("done", flush=True)
    sys.stdin.read()
waits_for_its_end()
"""
TASK = """
import os, time
import holdfast.telemetry as telemetry
rank, attempt = int(os.environ["SLURM_PROCID"]), os.environ["HOLDFAST_ATTEMPT"]
def stuck():
    time.sleep(1000)
def all_reduce():
    time.sleep(1000)
with open("folder", "w") as file:
    file.write(os.environ["HOLDFAST_TELEMETRY_DIR"])
is_to_hang = not os.path.exists("enough")
open(f"up-{attempt}-{rank}", "w").close()
while not all(os.path.exists(name) for name in ("go", f"up-{attempt}-0", f"up-{attempt}-1")):
    time.sleep(0.01)
for step in range(1, 21):
    telemetry.step_begin(step)
    time.sleep(0.05)
    if is_to_hang and step == 15 + (rank == 0):
        all_reduce() if rank == 0 else stuck()
    telemetry.step_end(step)
telemetry.checkpoint(20, durable=True)
time.sleep(1)
"""


@pytest.fixture
def prefix() -> Iterator[str]:
    """Of folders that are gone afterwards."""
    made = new_prefix("77")
    yield made
    for folder in Path("/dev/shm").glob(f"{Path(made).name}*"):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def test_a_task_makes_its_nodes_folder_and_is_seen_there(prefix: str) -> None:
    """Without RANK the task's number counts. The folder is the user's alone, and is removed with the attempt; the stack is
    asked of a process of the step only, whatever a slot says."""
    env = {key: value for key, value in os.environ.items() if key != "RANK"}
    env |= {"HOLDFAST_TELEMETRY_DIR": slots_folder(prefix, 4), "SLURMD_NODENAME": "node7", "SLURM_PROCID": "3"}
    task = subprocess.Popen([sys.executable, "-c", RANK], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    told: list[AnyReport] = []
    try:
        assert task.stdout is not None
        assert task.stdout.readline() == b"done\n"
        folder = Path(slots_folder(prefix, 4, "node7"))
        assert folder.stat().st_mode & 0o777 == 0o700
        slots = StepSlots(prefix, "node7", told.append)
        slots.begin(4)
        slots.look()
        slots.look()
        (seen,) = told
        assert isinstance(seen, SlotsSeen)
        assert [(slot.rank, slot.ended, slot.durable) for slot in seen.slots] == [(3, 3, 2)]
        assert asyncio.run(slots.dump(4, 30.0, set)) == ()
        (stack,) = asyncio.run(slots.dump(4, 30.0, lambda: {task.pid}))
        assert (stack.rank, stack.frames[0][0]) == (3, "waits_for_its_end")
        other = StepSlots(prefix, "node8", told.append)
        other.begin(4)
        other.look()
        assert len(told) == 1, "another node's tasks were seen"
        slots.begin(5)
        assert not folder.exists()
    finally:
        task.kill()
        task.communicate()


def test_tasks_are_asked_to_save_and_stop_by_their_slots(prefix: str) -> None:
    """Of this attempt alone, also those that make their slot later; where no task has made the folder it is refused."""
    slots = StepSlots(prefix, "node7", lambda _: None)
    slots.begin(4)
    with pytest.raises(SlotError):
        slots.evacuate(4)
    folder = Path(slots_folder(prefix, 4, "node7"))
    folder.mkdir(mode=0o700)
    slots.evacuate(3)
    assert list(folder.iterdir()) == []
    slots.evacuate(4)
    env = {**os.environ, "HOLDFAST_TELEMETRY_DIR": str(folder), "SLURMD_NODENAME": "node7", "RANK": "3"}
    asked = "import holdfast.telemetry as t\nwith t.step(1): pass\nprint(t.evacuate_requested())"
    assert subprocess.run([sys.executable, "-c", asked], env=env, capture_output=True, check=True).stdout == b"True\n"


def test_a_task_that_ends_without_a_word_is_told_to_be_gone(prefix: str) -> None:
    """Also while nobody has taken leave of it; of a process that was never seen to run nothing is known."""
    env = {**os.environ, "HOLDFAST_TELEMETRY_DIR": slots_folder(prefix, 0), "SLURMD_NODENAME": "node7", "RANK": "3"}
    task = subprocess.Popen([sys.executable, "-c", RANK], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    told: list[AnyReport] = []
    try:
        assert task.stdout is not None
        assert task.stdout.readline() == b"done\n"
        slots, late = StepSlots(prefix, "node7", told.append), StepSlots(prefix, "node7", told.append)
        slots.begin(0)
        slots.look()
        task.kill()
        os.waitid(os.P_PID, task.pid, os.WEXITED | os.WNOWAIT)
        slots.look()
        slots.look()
        late.begin(0)
        late.look()
    finally:
        task.kill()
        task.communicate()
    assert [slot.is_gone for report in told if isinstance(report, SlotsSeen) for slot in report.slots] == [
        False,
        True,
        False,
    ]


def test_of_a_commands_rank_the_node_is_known_by_its_slot() -> None:
    """Eight tasks on two nodes: where rank 1 runs no layout of ours tells."""

    class Deaf:
        def __getattr__(self, _: str) -> object:
            return lambda *_, **__: False

    spec = AttemptSpec(
        attempt=0, epoch=1, nodes=("node1", "node2"), local_ranks=(1, 1), master_addr="node1", master_port=1
    )
    deaf: object = Deaf()
    watch = AttemptWatch(
        JobKey(cluster="c", id="7"), spec, events=EventMaker("s", "i", time.time), catalogue=lambda: deaf,  # type: ignore[arg-type, return-value]
        rhythm=deaf, slowdown=type("No", (), {"cleared": lambda _: []})(), restored=lambda: None,  # type: ignore[arg-type]
    )  # fmt: skip
    watch.slots_seen(SlotsSeen(attempt=0, at=1.0, slots=(SlotBrief(rank=1, phase="train"),)), "node1", 1.0, 1.0)
    assert [watch._node_of(rank) for rank in (0, 1, None)] == ["node1", "node1", ""]


def events(path: Path) -> list[AnyEvent]:
    """What the step's journal holds, oldest first."""
    reading = JournalReading(path)
    try:
        return asyncio.run(reading.events())
    finally:
        asyncio.run(reading.close())


def stored(path: Path, kind: str) -> list[str]:
    """Events of a journal that is being written."""
    if not path.exists():
        return []
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return [row[0] for row in connection.execute("SELECT payload FROM events WHERE kind = ?", [kind])]
    except sqlite3.OperationalError:  # its tables are being made
        return []


def has_stacks_of_both(path: Path) -> bool:
    """In one capture."""
    told = [msgspec.json.decode(payload, type=StacksCaptured) for payload in stored(path, "stacks_captured")]
    return any({rank for group in event.groups for rank in group.ranks} == {0, 1} for event in told)


def submitted(lab: SlurmLab, folder: Path, task: str) -> tuple[Path, Path]:
    """A job of one supervised step, a task on each of two nodes; its output and the step's journal. `code` is its end."""
    folder.chmod(0o755)
    (folder / "task.py").write_text(task)
    out = folder / "job.out"
    script = (
        f"#!/bin/bash\nexport PATH={Path(sys.executable).parent}:$PATH\ncd {folder}\n"
        f"holdfast srun --auto-resume=1 --max-restarts=20 --job-dir {folder}/job --ntasks-per-node=1"
        f" {sys.executable} task.py\n"
        "echo code=$? >code.new\nmv code.new code\n"
    )
    lab.sbatch([f"--output={out}", "--exclusive", "--nodes=2"], script=script, cwd=folder)
    return out, folder / "job" / "step-0" / "journal.db"


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_hang_of_a_task_is_seen_by_its_telemetry(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Two tasks that print nothing: the one that is behind is named with its node, stacks are taken on both nodes, the
    step runs again, and its first step and durable checkpoint stand in the journal. No folder is left."""
    out, journal = submitted(slurm_lab, tmp_path, TASK)
    wait_until(lambda: stored(journal, "attempt_started"), "the engine judges", limit_s=120.0, logs=(out,))
    (tmp_path / "go").touch()
    # On a busy machine a hang may be cut short by a lease or be over before its stacks are in: then it hangs again.
    wait_until(lambda: has_stacks_of_both(journal), "stacks of both tasks", limit_s=120.0, logs=(out,))
    (tmp_path / "enough").touch()
    wait_until((tmp_path / "code").exists, "the step ends", limit_s=120.0, logs=(out,))
    assert (tmp_path / "code").read_text() == "code=0\n", out.read_text()
    told = events(journal)
    started = next(event for event in told if isinstance(event, AttemptStarted))
    hangs = [event.finding for event in told if isinstance(event, FindingSeen) and event.finding.rule == "hang.step"]
    assert (1, started.nodes[1]) in {(hang.place.rank, hang.place.node) for hang in hangs}
    assert all(f"no progress for {float(hang.captures['stuck_s']):.1f} s" in hang.summary for hang in hangs)
    last = max(event.attempt for event in told if isinstance(event, AttemptStarted))
    assert [event.step for event in told if isinstance(event, FirstStepDone) and event.attempt == last] == [1]
    assert [(e.step, e.durable) for e in told if isinstance(e, CheckpointSaved) and e.attempt == last] == [(20, True)]
    folder = Path((tmp_path / "folder").read_text())
    wait_until(lambda: not list(folder.parent.glob(folder.name.partition("-a")[0] + "*")), "folders", limit_s=60.0)


BETWEEN = """
import os, time
import holdfast.telemetry as telemetry
rank, attempt = int(os.environ["SLURM_PROCID"]), os.environ["HOLDFAST_ATTEMPT"]
with open(f"pid-{attempt}-{rank}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"pid-{attempt}-{rank}.new", f"pid-{attempt}-{rank}")
def all_reduce(step):
    open(f"at-{attempt}-{step}-{rank}", "w").close()
    while not os.path.exists(f"at-{attempt}-{step}-{1 - rank}"):
        time.sleep(0.01)
for step in range(1, 41):
    with telemetry.step(step):
        all_reduce(step)
        time.sleep(0.05)
    while attempt == "0" and rank == 1 and step == 30:
        telemetry.checkpoint(30, durable=True)
        time.sleep(0.01)
"""


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_step_whose_slurmstepd_is_killed_runs_again(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Slurm never tells srun of it, and the other task would wait for ever: that the process has gone is seen by its slot.

    The task dies between two steps, where a living one would be given time for an evaluation.
    """
    out, journal = submitted(slurm_lab, tmp_path, BETWEEN)
    wait_until((tmp_path / "at-0-31-0").exists, "the other task waits", limit_s=120.0, logs=(out,))
    wait_until(lambda: stored(journal, "checkpoint_saved"), "its node's slot is seen", limit_s=120.0, logs=(out,))
    task = psutil.Process(on_this_machine(int((tmp_path / "pid-0-1").read_text()), tmp_path))
    stepd = task.parent()
    assert stepd is not None
    assert stepd.name().startswith("slurmstepd")
    stepd.kill()
    with contextlib.suppress(psutil.NoSuchProcess):  # it may end with its slurmstepd
        task.kill()
    wait_until((tmp_path / "code").exists, "the step ends", limit_s=120.0, logs=(out,))
    assert (tmp_path / "code").read_text() == "code=0\n", out.read_text()
    told = events(journal)
    started = next(event for event in told if isinstance(event, AttemptStarted))
    (finding,) = [event.finding for event in told if isinstance(event, FindingSeen) and event.finding.attempt == 0]
    assert (finding.rule, finding.place.rank, finding.place.node) == ("hang.step", 1, started.nodes[1])
    assert "process ended without a word: rank 1" in finding.summary
    story = (tmp_path / "job" / "step-0" / "story.txt").read_text()
    assert f"on {started.nodes[1]}, rank 1" in story


def on_this_machine(pid: int, folder: Path) -> int:
    """A task's process id as it is outside its node's own process tree."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            ids = [
                line.split()[1:]
                for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
                if line.startswith("NSpid:")
            ]
            if (
                process.cwd() == str(folder)
                and ids
                and int(ids[0][-1]) == pid
                and process.cmdline()[-1:] == ["task.py"]
            ):
                return process.pid
    raise AssertionError(f"no process of this machine is task {pid}")


@pytest.mark.parametrize("kind", ["srun", "run"])
def test_the_epilog_removes_what_a_killed_launcher_has_left(kind: str, prefix: str) -> None:
    """Of this job alone: the folder of another job of the same user stays."""
    epilog = Path(__file__).parents[2] / "deploy" / "slurm" / "epilog.sh"
    token = secrets.token_hex(8)  # of a job whose number nothing else has: what others run here is not touched

    def folder(job: str) -> Path:
        if kind == "srun":
            return Path(slots_folder(prefix.replace("-77.", f"-{job}."), 0, "node1"))
        place = JobPlace(job=JobKey("here", job), job_dir=Path("job"), node="node1", nodes=("node1",))
        return telemetry_root(place, "ab12")[0]

    left, other = folder(token), folder(f"{token}0")
    left.mkdir()
    other.mkdir()
    try:
        environ = {"HOLDFAST": "/bin/true", "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_ID": token}
        subprocess.run(["/bin/sh", str(epilog)], env=environ, check=True, timeout=60)
        assert (left.exists(), other.exists()) == (False, True)
    finally:
        other.rmdir()
