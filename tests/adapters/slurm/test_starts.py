"""Starts that Slurm refuses or forgets: how they are told from crashes and holds, and that they are asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from msgspec.structs import replace

from holdfast.adapters.slurm.commands import Argv, control
from holdfast.adapters.slurm.looks import Looks, Reading
from holdfast.adapters.slurm.memory import Memory
from holdfast.adapters.slurm.output import SlurmJob
from holdfast.adapters.slurm.starts import REQUEUED_HELD, Starts, was_forgotten, was_refused
from holdfast.adapters.slurm.tool import Tool
from holdfast.errors import PermanentOrderError

FIRST = SlurmJob(id="12", user="mei", name="train", command="/home/mei/train.sh", states=frozenset({"RUNNING"}))
HELD = replace(FIRST, states=frozenset({"PENDING"}), priority=0, restart_count=1, description=REQUEUED_HELD)


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


class Commands:
    """Tool and looks of `Starts`: every command is written down, and every job has gone at the next look."""

    def __init__(self) -> None:
        self.ran: list[Argv] = []

    async def run(self, argv: Argv) -> None:
        self.ran.append(argv)

    async def fresh(self) -> Reading:
        return Reading(at=99.0, jobs={}, nodes={})


OURS = replace(HELD, reason="JobHeldUser")
PLAIN = replace(HELD, description="", reason="JobHeldAdmin")
WAITING = replace(HELD, description="", priority=7, reason="Priority")
RUNS = replace(HELD, description="", priority=7, states=frozenset({"RUNNING"}))


@pytest.mark.parametrize(
    ("looks", "released"),
    [
        pytest.param([OURS], True, id="the release is forgotten"),
        pytest.param([WAITING, RUNS, OURS], True, id="the run, too"),
        pytest.param([RUNS, PLAIN], True, id="our hold was a plain one"),
        pytest.param([replace(OURS, reason="JobHeldAdmin")], False, id="held by an administrator over our hold"),
        pytest.param([WAITING, PLAIN], False, id="held after our release"),
        pytest.param([RUNS, WAITING, PLAIN], False, id="held after slurmctld has forgotten the start"),
        pytest.param([RUNS, replace(PLAIN, reason="JobHeldUser")], False, id="held by its owner"),
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
    entry = memory.seen(HELD)
    entry.released, entry.released_at = 1, 50.0
    assert was_forgotten(HELD, entry, 51.0)
    assert not was_forgotten(HELD, entry, 49.0)
    assert not was_forgotten(PLAIN, entry, 51.0)
    assert not was_forgotten(replace(HELD, reason="JobHeldAdmin"), entry, 51.0), "an administrator's hold over ours"
    entry.ran = True
    assert was_forgotten(PLAIN, entry, 51.0), "ours was a plain one, as of a job that Slurm had queued"
    assert not was_forgotten(replace(PLAIN, reason="JobHeldUser"), entry, 51.0), "its owner's"
    assert not was_forgotten(replace(HELD, restart_count=2), entry, 51.0)
    memory.note_end(HELD, "COMPLETED")
    assert was_forgotten(HELD, entry, 51.0), "Slurm runs a job again whose success it forgot"
    memory.note_end(HELD, "FAILED")
    assert not was_forgotten(HELD, entry, 51.0)


def test_a_release_that_slurm_refuses_to_make_again_is_tried_once_and_shown() -> None:
    """The hold is the engine's to decide on; a look that tried again would bring the next look at once, for ever."""

    class Refusing:
        async def run(self, argv: Sequence[str]) -> bytes:
            told.append(" ".join(argv))
            raise PermanentOrderError("Access/permission denied")

    async def work() -> list[bool]:
        memory, changed = Memory(), asyncio.Event()
        entry = memory.seen(HELD)
        entry.released, entry.released_at = 1, 50.0
        starts = Starts(Refusing(), None, memory, on_change=changed.set)  # type: ignore[arg-type]
        reading = Reading(at=51.0, jobs={"12": HELD}, nodes={})
        starts.look(reading)
        mending = [starts.is_mending(HELD)]
        async with asyncio.timeout(60):
            await changed.wait()
        starts.look(reading)
        return [*mending, starts.is_mending(HELD)]

    told: list[str] = []
    assert asyncio.run(work()) == [True, False]
    assert told == ["scontrol release 12"]
