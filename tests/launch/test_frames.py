"""Frames between launchers: what verifies, and what must not."""

from __future__ import annotations

import pytest

from holdfast.errors import WireError
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import AnyAsk, AnyReport, Beat, FrameCodec, Grant, RankEnded, StartRanks
from holdfast.launch.process import Exit

SPEC = AttemptSpec(attempt=1, epoch=2, nodes=("a", "b"), local_ranks=(2, 3), master_addr="h", master_port=1)


def ends(secret: bytes = b"s", nonces: bytes = b"n") -> tuple[FrameCodec, FrameCodec]:
    return FrameCodec(secret, nonces, is_leader=True), FrameCodec(secret, nonces, is_leader=False)


def parts(frame: bytes) -> tuple[bytes, bytes]:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 36
    return frame[4:36], frame[36:]


def test_asks_and_reports_arrive_as_they_were_sent():
    """Both directions carry every field."""
    leader, follower = ends()
    ask = StartRanks(spec=SPEC)
    assert follower.unpack(*parts(leader.pack(ask)), AnyAsk) == ask
    report = RankEnded(attempt=1, rank=4, exit=Exit(signal=11), at=5.0, tail=("a", "b"))
    assert leader.unpack(*parts(follower.pack(report)), AnyReport) == report


def test_a_frame_is_taken_once_and_in_order():
    """A repeated frame and one whose predecessor is missing do not verify."""
    leader, follower = ends()
    first, second = leader.pack(Grant(beat=1, lease_s=3.0)), leader.pack(Grant(beat=2, lease_s=3.0))
    follower.unpack(*parts(first), AnyAsk)
    with pytest.raises(WireError, match="does not verify"):
        follower.unpack(*parts(first), AnyAsk)
    follower.unpack(*parts(second), AnyAsk)
    _, late = ends()
    with pytest.raises(WireError, match="does not verify"):
        late.unpack(*parts(second), AnyAsk)


@pytest.mark.parametrize(("secret", "nonces"), [(b"other", b"n"), (b"s", b"other")])
def test_another_secret_or_connection_does_not_verify(secret: bytes, nonces: bytes):
    """Frames of another job, or recorded from another connection of this one, are refused."""
    leader, _ = ends()
    _, stranger = ends(secret, nonces)
    with pytest.raises(WireError, match="does not verify"):
        stranger.unpack(*parts(leader.pack(Grant(beat=1, lease_s=1.0))), AnyAsk)


def test_a_frame_cannot_be_sent_back():
    """What the leader said is not taken as the follower's word."""
    leader, _ = ends()
    with pytest.raises(WireError, match="does not verify"):
        leader.unpack(*parts(leader.pack(Beat(beat=1))), AnyReport)


def test_a_changed_byte_does_not_verify():
    """The payload is covered."""
    leader, follower = ends()
    mac, payload = parts(leader.pack(Grant(beat=1, lease_s=1.0)))
    with pytest.raises(WireError, match="does not verify"):
        follower.unpack(mac, payload[:-1] + bytes([payload[-1] ^ 1]), AnyAsk)


def test_the_layout_gives_consecutive_ranks():
    """Ranks are counted node by node, as torchrun does."""
    assert (list(SPEC.ranks_of("a")), list(SPEC.ranks_of("b")), list(SPEC.ranks_of("c"))) == ([0, 1], [2, 3, 4], [])
    assert [SPEC.node_of(rank) for rank in (0, 1, 2, 4, 5)] == ["a", "a", "b", "b", ""]
    assert SPEC.world_size == 5
