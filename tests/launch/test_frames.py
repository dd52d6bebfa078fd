"""What leader and nodes say to each other: every message survives the wire, and ranks are counted as torchrun does."""

from __future__ import annotations

import msgspec

from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import AnyAsk, AnyReport, RankEnded, StartRanks
from holdfast.launch.process import Exit

SPEC = AttemptSpec(attempt=1, epoch=2, nodes=("a", "b"), local_ranks=(2, 3), master_addr="h", master_port=1)


def test_asks_and_reports_arrive_as_they_were_sent():
    """Both kinds of message carry every field."""
    ask = StartRanks(spec=SPEC)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ask), type=AnyAsk) == ask
    report = RankEnded(attempt=1, rank=4, exit=Exit(signal=11), at=5.0, tail=("a", "b"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=AnyReport) == report


def test_the_layout_gives_consecutive_ranks():
    """Ranks are counted node by node, as torchrun does."""
    assert (list(SPEC.ranks_of("a")), list(SPEC.ranks_of("b")), list(SPEC.ranks_of("c"))) == ([0, 1], [2, 3, 4], [])
    assert [SPEC.node_of(rank) for rank in (0, 1, 2, 4, 5)] == ["a", "a", "b", "b", ""]
    assert SPEC.world_size == 5
