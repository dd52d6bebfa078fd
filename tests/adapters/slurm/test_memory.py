"""What the adapter remembers: generations, refused starts, whose exclusions are whose."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from holdfast.adapters.slurm.commands import Argv, control
from holdfast.adapters.slurm.looks import Looks, Reading
from holdfast.adapters.slurm.memory import FILE, Memory
from holdfast.adapters.slurm.node_output import nodes_of_text
from holdfast.adapters.slurm.output import SlurmJob
from holdfast.adapters.slurm.starts import REQUEUED_HELD, Starts, was_forgotten, was_refused
from holdfast.adapters.slurm.tool import Tool
from holdfast.adapters.slurm.views import node_view
from holdfast.model.cluster import NodeView
from holdfast.model.machine import MachineId

FIRST = SlurmJob(id="12", user="mei", name="train", command="/home/mei/train.sh", states=frozenset({"RUNNING"}))


def test_a_generation_goes_on_while_the_restart_count_grows() -> None:
    """A requeue resets the submit time and keeps the id: it is the same job."""
    memory = Memory()
    for count in (0, 0, 1, 2):
        seen = memory.seen(replace(FIRST, restart_count=count, submitted_at=1000.0 * count))
        assert seen.generation == 1


@pytest.mark.parametrize(
    "changed", [{"user": "ana"}, {"name": "eval"}, {"command": "/home/mei/other.sh"}, {"restart_count": 0}]
)
def test_another_owner_name_script_or_a_smaller_count_is_another_job(changed) -> None:
    """Ids are used again."""
    memory = Memory()
    memory.seen(replace(FIRST, restart_count=2))
    assert memory.seen(replace(FIRST, **{"restart_count": 2, **changed})).generation == 2


def test_a_job_that_returns_after_its_id_was_gone_is_another(tmp_path: Path) -> None:
    """Also when everything else is the same, and also after a restart of the controller."""
    memory = Memory(tmp_path)
    memory.seen(FIRST)
    memory.forget(memory.missing(set())[0])
    assert memory.missing(set()) == []
    assert Memory(tmp_path).seen(FIRST).generation == 2


def test_memory_outlives_the_controller_and_a_torn_line(tmp_path: Path) -> None:
    """Killed while it wrote, it knows everything but the torn line."""
    memory = Memory(tmp_path)
    entry = memory.seen(replace(FIRST, restart_count=1))
    entry.ours, entry.ended_at = ("node03",), 99.5
    memory.keep(entry)
    node = memory.node("node01")
    node.machine = 3
    memory.keep(node)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"job":{"id":"12","gener')
    again = Memory(tmp_path)
    assert (again.jobs["12"].restarts, again.jobs["12"].ours, again.jobs["12"].ended_at) == (1, ("node03",), 99.5)
    assert again.node("node01").machine == 3
    assert again.seen(replace(FIRST, restart_count=2)).generation == 1


def test_other_users_may_not_read_whose_jobs_there_were(tmp_path: Path) -> None:
    """Slurm may hide jobs (PrivateData); the file names users and scripts, new, after an update, and compacted."""
    path = tmp_path / FILE
    Memory(tmp_path).seen(FIRST)
    assert oct(path.stat().st_mode)[-3:] == "600"
    path.chmod(0o644)
    Memory(tmp_path)
    assert oct(path.stat().st_mode)[-3:] == "600"
    path.write_bytes(path.read_bytes() * 2000)
    Memory(tmp_path)
    assert len(path.read_bytes().splitlines()) == 1
    assert oct(path.stat().st_mode)[-3:] == "600"


def test_a_start_in_the_second_of_the_kill_was_refused() -> None:
    """FAILED with code 1 within a second, right after our own kill; anything else is the program's own failure."""
    memory = Memory()
    entry = memory.seen(replace(FIRST, restart_count=1))
    entry.ended_at = 1000.6
    ended = replace(
        FIRST, restart_count=1, states=frozenset({"FAILED"}), exit_code=1, started_at=1000.0, ended_at=1000.0
    )
    assert was_refused(ended, entry, wrote=None)
    assert not was_refused(ended, entry, wrote=True)
    next_second = replace(ended, started_at=1001.0, ended_at=1001.0)
    assert [was_refused(next_second, entry, wrote=known) for known in (False, None, True)] == [True, False, False]
    for other in (
        {"started_at": 1002.0, "ended_at": 1002.0},
        {"ended_at": 1003.0},
        {"exit_code": 2},
        {"signal": 11},
        {"restart_count": 0},
        {"states": frozenset({"RUNNING"})},
        {"batch": False},
    ):
        assert not was_refused(replace(ended, **other), entry, wrote=False), other


IDLE = (
    "NodeName=n1 Arch=x86_64 NodeAddr=n1 State=IDLE BootTime=2026-11-23T18:10:24 SlurmdStartTime=2026-11-23T18:37:10 "
)
OURS = "Reason=[holdfast] Xid 79 [root@2026-11-23T18:37:34]"
NEWER = "Reason=[holdfast] Xid 79 [root@2026-11-23T18:52:00]"


def node_of(memory: Memory, state: str, reason: str = OURS) -> NodeView:
    """The node as the engine is shown it."""
    (read,) = nodes_of_text(IDLE.replace("IDLE", state) + reason)
    node = memory.without_stale(memory.own_reason(read))
    return node_view(node, jobs=(), machine=MachineId("n1/1", "slurm"), boot="b")


def test_a_reason_that_a_node_bore_in_service_is_stale(tmp_path: Path) -> None:
    """RESUME of newer versions leaves our reason standing. A node that Slurm then loses is lost, not drained by us, and
    what Slurm drains is not ours to lift; also for a controller that was started anew. A new drain of ours is one."""
    memory = Memory(tmp_path)
    assert node_of(memory, "IDLE+DRAIN").drain_reason == "[holdfast] Xid 79"
    assert node_of(memory, "DOWN+NOT_RESPONDING").drained, "set down by us"
    assert not node_of(memory, "IDLE").drained
    for remembering in (memory, Memory(tmp_path)):
        lost = node_of(remembering, "DOWN+NOT_RESPONDING")
        assert (lost.alive, lost.drained, lost.drain_reason) == (False, False, "")
        theirs = node_of(remembering, "IDLE+DRAIN")
        assert (theirs.alive, theirs.drained, theirs.drain_reason) == (True, True, "")
        again = node_of(remembering, "IDLE+DRAIN", NEWER)
        assert (again.drained, again.drain_reason) == (True, "[holdfast] Xid 79")
        rebooting = node_of(remembering, "IDLE+REBOOT_REQUESTED", NEWER)
        assert not rebooting.drained
        assert node_of(remembering, "DOWN+DRAIN+REBOOT_ISSUED", NEWER).drain_reason == "[holdfast] Xid 79"


MARKED = "Reason=Action:Replace [root@2026-11-23T18:37:34] Comment=[holdfast] Xid 79"


def test_a_node_that_we_marked_in_hyperpods_words_is_ours(tmp_path: Path) -> None:
    """Our reason stands in the comment, and nobody has asked for a repair. Without that comment a person has."""
    seen = node_of(Memory(tmp_path), "ALLOCATED+FAIL", MARKED)
    assert (seen.drained, seen.drain_reason, seen.asked) == (True, "[holdfast] Xid 79", "")
    for theirs in (MARKED.partition(" Comment=")[0], MARKED.replace("[holdfast]", "rack 3")):
        seen = node_of(Memory(tmp_path), "ALLOCATED+FAIL", theirs)
        assert (seen.drain_reason, seen.asked) == ("Action:Replace", "replace")


def test_our_comment_on_a_node_that_a_person_returned_is_stale(tmp_path: Path) -> None:
    """Who then writes Action:Replace asks for it, also of a controller that was started anew."""
    memory = Memory(tmp_path)
    assert not node_of(memory, "IDLE", MARKED).drained
    for remembering in (memory, Memory(tmp_path)):
        assert node_of(remembering, "IDLE+FAIL", MARKED.replace("37:34", "52:00")).asked == "replace"


class Commands:
    """Tool and looks of `Starts`: every command is written down, and every job has gone at the next look."""

    def __init__(self) -> None:
        self.ran: list[Argv] = []

    async def run(self, argv: Argv) -> None:
        self.ran.append(argv)

    async def fresh(self) -> Reading:
        return Reading(at=99.0, jobs={}, nodes={})


HELD = replace(FIRST, states=frozenset({"PENDING"}), priority=0, restart_count=1)
OURS = replace(HELD, reason="JobHeldUser", description=REQUEUED_HELD)
PLAIN = replace(HELD, reason="JobHeldAdmin")
WAITING = replace(HELD, priority=7, reason="Priority")
RUNS = replace(HELD, priority=7, states=frozenset({"RUNNING"}))


@pytest.mark.parametrize(
    ("looks", "released"),
    [
        pytest.param([OURS], True, id="the release is forgotten"),
        pytest.param([WAITING, RUNS, OURS], True, id="the run, too"),
        pytest.param([RUNS, PLAIN], True, id="our hold was a plain one"),
        pytest.param([replace(OURS, reason="JobHeldAdmin")], False, id="held by an administrator over our hold"),
        pytest.param([WAITING, PLAIN], False, id="held after our release"),
        pytest.param([RUNS, WAITING, PLAIN], False, id="held after slurmctld has forgotten the start"),
        pytest.param([RUNS, replace(HELD, reason="JobHeldUser")], False, id="held by its owner"),
        pytest.param([WAITING, PLAIN, OURS], False, id="a person's hold was forgotten, too"),
    ],
)
def test_only_a_forgotten_release_is_made_again(looks: list[SlurmJob], released: bool) -> None:
    """What people hold stays held, whatever slurmctld forgets."""

    async def work() -> list[Argv]:
        commands, memory = Commands(), Memory()
        entry = memory.seen(OURS)
        entry.released, entry.released_at = 1, 50.0
        starts = Starts(cast("Tool", commands), cast("Looks", commands), memory, on_change=lambda: None)
        for number, job in enumerate(looks):
            starts.look(Reading(at=60.0 + number, jobs={job.id: job}, nodes={}))
            await asyncio.sleep(0)
        await starts.close()
        return commands.ran

    assert (control("release", "12") in asyncio.run(work())) is released


def test_a_forgotten_release_is_our_own_hold_on_the_run_that_we_released() -> None:
    """A look from before the release, another's hold, a further requeue and a run that was seen to fail are none."""
    memory = Memory()
    held = replace(FIRST, states=frozenset({"PENDING"}), priority=0, restart_count=1, description=REQUEUED_HELD)
    entry = memory.seen(held)
    entry.released, entry.released_at = 1, 50.0
    assert was_forgotten(held, entry, 51.0)
    assert not was_forgotten(held, entry, 49.0)
    plain = replace(held, description="", reason="JobHeldAdmin")
    assert not was_forgotten(plain, entry, 51.0)
    assert not was_forgotten(replace(held, reason="JobHeldAdmin"), entry, 51.0), "an administrator's hold over ours"
    entry.ran = True
    assert was_forgotten(plain, entry, 51.0), "ours was a plain one, as of a job that Slurm had queued"
    assert not was_forgotten(replace(plain, reason="JobHeldUser"), entry, 51.0), "its owner's"
    assert not was_forgotten(replace(held, restart_count=2), entry, 51.0)
    memory.note_end(held, "COMPLETED")
    assert was_forgotten(held, entry, 51.0), "Slurm runs a job again whose success it forgot"
    memory.note_end(held, "FAILED")
    assert not was_forgotten(held, entry, 51.0)
