"""Frames of one TCP connection between two processes that share a secret: authenticated, in order, of bounded size.

A frame is `length(4) | HMAC-SHA256(32) | payload`. The HMAC covers direction, a counter and the payload under a key
made for this connection from the secret and both ends' nonces: a frame that was recorded, repeated, dropped or
reordered does not verify, and one that does not verify ends the connection. Used by the launchers of a job and the
nodes of a validation. No clock: whoever calls sets the time limit.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from holdfast.errors import WireError

FRAME_MAX = 16 * 1024 * 1024
FIRST_FRAME_MAX = 64 * 1024
"""Of an end that has not proved yet that it knows the secret: it introduces itself, and no more."""
NONCE_BYTES = 16
HEAD_BYTES = 36

T = TypeVar("T")


class FrameCodec:
    """One end of a connection: packs what it says and verifies what it hears.

    Args:
        secret: what both ends know.
        nonces: the leader's and then the follower's, fresh for this connection.
        is_leader: which end this is.
    """

    def __init__(self, secret: bytes, nonces: bytes, *, is_leader: bool) -> None:
        self._key = hmac.new(secret, b"holdfast link 1" + nonces, hashlib.sha256).digest()
        self._out = b"L" if is_leader else b"F"
        self._in = b"F" if is_leader else b"L"
        self._sent = 0
        self._received = 0

    def pack(self, message: Struct) -> bytes:
        """The next frame of ours."""
        payload = msgspec.msgpack.encode(message)
        frame = len(payload).to_bytes(4, "big") + self._mac(self._out, self._sent, payload) + payload
        self._sent += 1
        return frame

    def unpack(self, mac: bytes, payload: bytes, form: type[T]) -> T:
        """Verify and decode the next frame of theirs.

        Raises:
            WireError: it is not the other end's next frame, or not of this form.
        """
        if not hmac.compare_digest(mac, self._mac(self._in, self._received, payload)):
            raise WireError("a frame does not verify (another secret, or a repeated frame)")
        self._received += 1
        try:
            return msgspec.msgpack.decode(payload, type=form)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise WireError(f"a frame does not decode: {error}") from error

    def _mac(self, direction: bytes, number: int, payload: bytes) -> bytes:
        return hmac.new(self._key, direction + number.to_bytes(8, "big") + payload, hashlib.sha256).digest()


class Frames:
    """Either end of a connection whose nonces have been exchanged (`meet`)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, codec: FrameCodec) -> None:
        self._reader = reader
        self._writer = writer
        self._codec = codec
        self._is_known = False

    def post(self, message: Struct) -> None:
        """Write one frame, and wait neither for its way nor for a word that the connection is broken."""
        self._writer.write(self._codec.pack(message))

    async def send(self, message: Struct) -> None:
        """Write one frame. Raises OSError when the connection is broken."""
        self.post(message)
        await self._writer.drain()

    async def receive(self, form: Any) -> Any:
        """Read one frame.

        Raises:
            WireError: it is too large, or does not verify or decode.
            EOFError: the other end has closed.
            OSError: the connection is broken.
        """
        head = await self._reader.readexactly(HEAD_BYTES)
        length = int.from_bytes(head[:4], "big")
        limit = FRAME_MAX if self._is_known else FIRST_FRAME_MAX
        if length > limit:
            raise WireError(f"a frame of {length} bytes; at most {limit} are taken")
        message = self._codec.unpack(head[4:], await self._reader.readexactly(length), form)
        self._is_known = True
        return message

    def close(self) -> None:
        """End the connection."""
        self._writer.close()


async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, *, is_leader: bool) -> Frames:
    """Exchange fresh nonces with the other end. Its first frame proves that it knows the secret.

    Raises:
        EOFError: the other end has closed.
        OSError: the connection is broken.
    """
    ours = secrets.token_bytes(NONCE_BYTES)
    writer.write(ours)
    await writer.drain()
    theirs = await reader.readexactly(NONCE_BYTES)
    return Frames(
        reader, writer, FrameCodec(secret, ours + theirs if is_leader else theirs + ours, is_leader=is_leader)
    )
