"""What the ends of ranks mean for their attempt."""

from __future__ import annotations

import pytest

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.errors import EXIT_RESTART_ME
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import Exit, RankEnded
from holdfast.launch.watch import LEAVE_S, AttemptWatch
from holdfast.model.cluster import JobKey


class Deaf:
    """A detector that never says anything."""

    def __getattr__(self, _: str) -> object:
        return lambda *_, **__: False


def watching() -> AttemptWatch:
    spec = AttemptSpec(attempt=0, epoch=1, nodes=("n1", "n2"), local_ranks=(1, 1), master_addr="n1", master_port=1)
    deaf: object = Deaf()
    return AttemptWatch(
        JobKey(cluster="c", id="7"), spec, source="s", event_id=lambda: "i", catalogue=read_catalogue,
        rhythm=deaf, slowdown=type("No", (), {"cleared": lambda _: []})(), restored=lambda: None,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("leaving", [True, False])
def test_a_rank_that_falls_over_on_its_way_out_is_no_fault(leaving: bool) -> None:
    """Asked to save and stop, one rank aborts in its last destructor, the other says that the state is saved.

    The attempt asks to be started again; nobody restarts it in place, on the node that it was to leave.
    """
    watch = watching()
    watch.leaving = leaving
    aborted = RankEnded(attempt=0, rank=1, exit=Exit(signal=6), at=1.0)
    assert bool(watch.rank_ended(aborted, "n2")) is not leaving
    watch.rank_ended(RankEnded(attempt=0, rank=0, exit=Exit(code=EXIT_RESTART_ME), at=1.1), "n1")
    assert watch.fallen(100.0, is_over=True) == []
    assert watch.outcome() == (Exit(code=EXIT_RESTART_ME) if leaving else Exit(signal=6))


@pytest.mark.parametrize("is_over", [True, False])
def test_a_rank_that_falls_over_before_anything_is_saved_is_a_fault(is_over: bool) -> None:
    """Nobody says that the state is saved: the other rank is gone too, or hangs in a collective and is not waited for.

    The leader is told of the fault by then, so that the engine ends the attempt and knows the cause.
    """
    watch = watching()
    watch.leaving = True
    aborted = RankEnded(attempt=0, rank=1, exit=Exit(signal=6), at=1.0)
    assert watch.rank_ended(aborted, "n2") == []
    assert watch.fallen(100.0) == []
    assert watch.fallen(100.0 + (0.1 if is_over else LEAVE_S), is_over=is_over) == [(aborted, "n2")]
    assert watch.fallen(200.0) == []
    assert watch.rank_ended(aborted, "n2")
    assert watch.outcome() == Exit(signal=6)
    assert watch.cause == "rank 1 ended with signal 6"
