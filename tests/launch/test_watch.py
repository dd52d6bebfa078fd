"""What the ends of ranks mean for their attempt."""

from __future__ import annotations

import signal
import time

import pytest

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.errors import EXIT_RESTART_ME
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import Exit, RankEnded
from holdfast.launch.launcher_events import EventMaker
from holdfast.launch.watch import LEAVE_S, OWN_SIGNAL_S, AttemptWatch
from holdfast.model.cluster import JobKey


class Deaf:
    """A detector that never says anything."""

    def __getattr__(self, _: str) -> object:
        return lambda *_, **__: False


def watching() -> AttemptWatch:
    spec = AttemptSpec(attempt=0, epoch=1, nodes=("n1", "n2"), local_ranks=(1, 1), master_addr="n1", master_port=1)
    deaf: object = Deaf()
    return AttemptWatch(
        JobKey(cluster="c", id="7"), spec, events=EventMaker("s", "i", time.time), catalogue=read_catalogue,
        rhythm=deaf, slowdown=type("No", (), {"cleared": lambda _: []})(), restored=lambda: None,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("leaving", [True, False])
def test_a_rank_that_falls_over_on_its_way_out_is_no_fault(leaving: bool) -> None:
    """Asked to save and stop, one rank aborts in its last destructor, the other says that the state is saved.

    The attempt asks to be started again; nobody restarts it in place, on the node that it was to leave.
    """
    watch = watching()
    watch.ends.leaving = leaving
    aborted = RankEnded(attempt=0, rank=1, exit=Exit(signal=6), at=1.0)
    assert bool(watch.rank_ended(aborted, "n2")) is not leaving
    watch.rank_ended(RankEnded(attempt=0, rank=0, exit=Exit(code=EXIT_RESTART_ME), at=1.1), "n1")
    assert watch.ends.due(100.0, is_over=True) == []
    assert watch.outcome() == (Exit(code=EXIT_RESTART_ME) if leaving else Exit(signal=6))


@pytest.mark.parametrize("is_over", [True, False])
def test_a_rank_that_falls_over_before_anything_is_saved_is_a_fault(is_over: bool) -> None:
    """Nobody says that the state is saved: the other rank is gone too, or hangs in a collective and is not waited for.

    The leader is told of the fault by then, so that the engine ends the attempt and knows the cause.
    """
    watch = watching()
    watch.ends.leaving = True
    aborted = RankEnded(attempt=0, rank=1, exit=Exit(signal=6), at=1.0)
    assert watch.rank_ended(aborted, "n2") == []
    assert watch.ends.due(100.0) == []
    assert watch.ends.due(100.0 + (0.1 if is_over else LEAVE_S), is_over=is_over) == [(aborted, "n2")]
    assert watch.ends.due(200.0) == []
    assert watch.rank_ended(aborted, "n2")
    assert watch.outcome() == Exit(signal=6)
    assert watch.cause == "rank 1 ended with signal 6"


@pytest.mark.parametrize("how", [Exit(signal=signal.SIGTERM), Exit(code=128 + signal.SIGTERM)])
def test_a_rank_that_sigterm_ended_is_a_fault_only_when_no_launcher_gets_one(how: Exit) -> None:
    """A scheduler that ends the job signals all processes, in any order; a person's kill of one rank is a fault."""
    ended = RankEnded(attempt=0, rank=1, exit=how, at=1.0)
    watch = watching()
    assert watch.rank_ended(ended, "n2") == []
    assert watch.ends.is_doubtful
    assert watch.ends.due(100.0) == []
    assert watch.ends.due(100.0 + OWN_SIGNAL_S) == [(ended, "n2")]
    assert not watch.ends.is_doubtful
    assert watch.rank_ended(ended, "n2")

    watch = watching()
    assert watch.rank_ended(ended, "n2") == []
    watch.stop_asked = True  # the launcher's own signal
    assert [watch.rank_ended(*late) for late in watch.ends.due(100.0, is_over=True)] == [[]]
