"""Frames of a connection: what verifies, and what must not; too large a frame; who does not know the secret."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from msgspec import Struct

from holdfast.errors import WireError
from holdfast.os.frames import FRAME_MAX, NONCE_BYTES, FrameCodec, Frames, meet


class Word(Struct, frozen=True, tag=True):
    """One kind of message."""

    text: str


class Number(Struct, frozen=True, tag=True):
    """Another."""

    value: float


def ends(secret: bytes = b"s", nonces: bytes = b"n") -> tuple[FrameCodec, FrameCodec]:
    return FrameCodec(secret, nonces, is_leader=True), FrameCodec(secret, nonces, is_leader=False)


def parts(frame: bytes) -> tuple[bytes, bytes]:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 36
    return frame[4:36], frame[36:]


def test_both_directions_carry_every_field():
    """What is unpacked is what was packed, of any of the kinds that are named."""
    leader, follower = ends()
    assert follower.unpack(*parts(leader.pack(Word("a"))), Word | Number) == Word("a")
    assert leader.unpack(*parts(follower.pack(Number(5.0))), Word | Number) == Number(5.0)


def test_a_frame_is_taken_once_and_in_order():
    """A repeated frame and one whose predecessor is missing do not verify."""
    leader, follower = ends()
    first, second = leader.pack(Word("1")), leader.pack(Word("2"))
    follower.unpack(*parts(first), Word)
    with pytest.raises(WireError, match="does not verify"):
        follower.unpack(*parts(first), Word)
    follower.unpack(*parts(second), Word)
    _, late = ends()
    with pytest.raises(WireError, match="does not verify"):
        late.unpack(*parts(second), Word)


@pytest.mark.parametrize(("secret", "nonces"), [(b"other", b"n"), (b"s", b"other")])
def test_another_secret_or_connection_does_not_verify(secret: bytes, nonces: bytes):
    """Frames under another secret, or recorded from another connection under this one, are refused."""
    leader, _ = ends()
    _, stranger = ends(secret, nonces)
    with pytest.raises(WireError, match="does not verify"):
        stranger.unpack(*parts(leader.pack(Word("a"))), Word)


def test_a_frame_cannot_be_sent_back():
    """What the leader said is not taken as the follower's word."""
    leader, _ = ends()
    with pytest.raises(WireError, match="does not verify"):
        leader.unpack(*parts(leader.pack(Word("a"))), Word)


def test_a_changed_byte_does_not_verify():
    """The payload is covered."""
    leader, follower = ends()
    mac, payload = parts(leader.pack(Word("a")))
    with pytest.raises(WireError, match="does not verify"):
        follower.unpack(mac, payload[:-1] + bytes([payload[-1] ^ 1]), Word)


def test_a_message_of_another_form_is_refused():
    """It verifies, and still is not what was waited for."""
    leader, follower = ends()
    with pytest.raises(WireError, match="does not decode"):
        follower.unpack(*parts(leader.pack(Word("a"))), Number)


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], ...]]:
    """The two ends of a connection on this machine, the one that listened first."""
    came: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
    server = await asyncio.start_server(lambda reader, writer: came.set_result((reader, writer)), "127.0.0.1")
    there = await asyncio.open_connection(*server.sockets[0].getsockname())
    here = await came
    try:
        yield here, there
    finally:
        for _, writer in (here, there):
            writer.close()
        server.close()


async def met(leader: bytes, follower: bytes) -> list[str]:
    """Both ends meet, each says one word; what each hears, or why it hears nothing."""

    async def end(streams, secret: bytes, *, is_leader: bool) -> str:
        frames = await meet(*streams, secret, is_leader=is_leader)
        await frames.send(Word("leader" if is_leader else "follower"))
        try:
            return (await frames.receive(Word)).text
        except WireError as error:
            return str(error)

    async with connected() as (here, there):
        return await asyncio.gather(end(here, leader, is_leader=True), end(there, follower, is_leader=False))


def test_two_ends_that_know_the_secret_hear_each_other():
    """Their nonces are exchanged first."""
    assert asyncio.run(met(b"s", b"s")) == ["follower", "leader"]


def test_neither_end_takes_a_frame_of_one_that_does_not_know_the_secret():
    """The proof is mutual."""
    assert asyncio.run(met(b"s", b"other")) == ["a frame does not verify (another secret, or a repeated frame)"] * 2


def test_too_large_a_frame_is_refused_before_it_is_read():
    """Its length is enough."""

    async def work() -> None:
        async with connected() as (here, (_, writer)):
            writer.write((FRAME_MAX + 1).to_bytes(4, "big") + bytes(32))
            frames = Frames(*here, FrameCodec(b"s", bytes(2 * NONCE_BYTES), is_leader=True))
            with pytest.raises(WireError, match=f"a frame of {FRAME_MAX + 1} bytes"):
                await frames.receive(Word)

    asyncio.run(work())


def test_a_connection_that_ends_in_the_middle_of_a_frame_ends_the_reading():
    """What was cut off is not taken."""

    async def work() -> None:
        async with connected() as (here, (_, writer)):
            leader, _ = ends()
            writer.write(leader.pack(Word("a"))[:-1])
            writer.close()
            with pytest.raises(EOFError):
                await Frames(*here, ends()[1]).receive(Word)

    asyncio.run(work())
