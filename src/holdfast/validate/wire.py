"""What the leader of a fleet run and its workers say to each other: lines of JSON over TCP, after a mutual proof.

Both ends prove that they know the run's secret (HMAC-SHA256 over the other's nonce) before anything is asked. A worker
runs nothing but the steps of `registry`. Pure but for the streams that are handed in.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import LinkError
from holdfast.validate.registry import Options
from holdfast.validate.results import StepResult

LINE_MAX = 16 << 20
HELLO_S = 20.0


class Hello(Struct, frozen=True, kw_only=True):
    """A worker introduces itself."""

    node: str
    rank: int
    boot: str
    """The kernel's boot id: nodes that share one share a machine."""
    address: str = ""
    gpu: str = ""
    cpu: str = ""
    instance: str = ""
    nonce: str = ""
    proof: str = ""


class Ask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The leader asks for a step, or for the end."""

    number: int = 0
    step: str = ""
    options: Options = Options()
    limit_s: float = 0.0
    leave: bool = False


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker tells something on the way, the end of a step, or only that it lives."""

    number: int = 0
    told: dict[str, float | str] = {}
    result: StepResult | None = None


def proof(secret: str, *words: object) -> str:
    """What only who knows the secret can say."""
    return hmac.new(secret.encode(), "|".join(map(str, words)).encode(), hashlib.sha256).hexdigest()


async def say(writer: asyncio.StreamWriter, message: object) -> None:
    """Send one line."""
    writer.write(msgspec.json.encode(message) + b"\n")
    await writer.drain()


async def hear(reader: asyncio.StreamReader, kind: type[Any]) -> Any:
    """Take one line as a value of `kind`. Raises LinkError at the stream's end or for nonsense."""
    try:
        line = await reader.readline()
    except (OSError, ValueError) as error:
        raise LinkError(f"the line broke: {error}") from error
    if not line:
        raise LinkError("the other end closed the connection")
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise LinkError(f"the other end said what is no message: {error}") from error


async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str) -> Hello:
    """The leader's side of the introduction. Raises LinkError for a stranger."""
    nonce = secrets.token_hex(16)
    try:
        async with asyncio.timeout(HELLO_S):
            await say(writer, {"nonce": nonce})
            hello: Hello = await hear(reader, Hello)
            expected = proof(secret, "worker", nonce, hello.node, hello.rank)
            if not hmac.compare_digest(expected, hello.proof):
                raise LinkError("a stranger knocked: it does not know this run's secret")
            await say(writer, {"proof": proof(secret, "leader", hello.nonce)})
    except (TimeoutError, OSError) as error:
        raise LinkError(f"a worker did not introduce itself: {error}") from error
    return hello


async def introduce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, hello: Hello) -> None:
    """The worker's side. Raises LinkError when the leader does not know the secret."""
    nonce = secrets.token_hex(16)
    try:
        async with asyncio.timeout(HELLO_S):
            asked = (await hear(reader, dict[str, str]))["nonce"]
            mine = proof(secret, "worker", asked, hello.node, hello.rank)
            await say(writer, msgspec.structs.replace(hello, nonce=nonce, proof=mine))
            told = (await hear(reader, dict[str, str])).get("proof", "")
    except (TimeoutError, OSError, KeyError) as error:
        raise LinkError(f"the leader did not answer: {error}") from error
    if not hmac.compare_digest(told, proof(secret, "leader", nonce)):
        raise LinkError("who answers is not this run's leader")
