"""Starts that Slurm refuses or forgets: how they are told from crashes and holds, and that they are asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.adapters.slurm.looks import Reading
from holdfast.adapters.slurm.memory import Memory
from holdfast.adapters.slurm.output import SlurmJob
from holdfast.adapters.slurm.starts import REQUEUED_HELD, Starts, was_forgotten, was_refused
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


def test_a_forgotten_release_is_our_own_hold_on_the_run_that_we_released() -> None:
    """A look from before the release, another's hold, a further requeue and a run that was seen to fail are none."""
    memory = Memory()
    entry = memory.seen(HELD)
    entry.released, entry.released_at = 1, 50.0
    assert was_forgotten(HELD, entry, 51.0)
    assert not was_forgotten(HELD, entry, 49.0)
    by_hold = replace(HELD, description="", reason="JobHeldAdmin")
    assert not was_forgotten(by_hold, entry, 51.0)
    entry.ran = True
    assert was_forgotten(by_hold, entry, 51.0), "nobody can hold a run that has begun"
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
