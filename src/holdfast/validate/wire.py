"""What the leader of a fleet run and its workers say to each other, in frames under the run's secret (`os.frames`).

A worker runs nothing but the steps of `registry`. Time: an introduction has HELLO_S.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from holdfast.errors import LinkError, WireError
from holdfast.os.frames import Frames, meet
from holdfast.validate.registry import Options
from holdfast.validate.results import StepResult

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


class Welcome(Struct, frozen=True):
    """The leader's answer to `Hello`."""


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


async def hear(frames: Frames, kind: type[Any]) -> Any:
    """Take one frame as a value of `kind`. Raises LinkError at the connection's end or for what does not verify."""
    try:
        return await frames.receive(kind)
    except EOFError as error:
        raise LinkError("the other end closed the connection") from error
    except (OSError, WireError) as error:
        raise LinkError(f"the line broke: {error}") from error


async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str) -> tuple[Hello, Frames]:
    """The leader's side of the introduction. Raises LinkError for a stranger."""
    try:
        async with asyncio.timeout(HELLO_S):
            frames = await meet(reader, writer, secret.encode(), is_leader=True)
            hello: Hello = await frames.receive(Hello)
            await frames.send(Welcome())
    except (TimeoutError, OSError, EOFError, WireError) as error:
        raise LinkError(f"a worker did not introduce itself: {error}") from error
    return hello, frames


async def introduce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, hello: Hello) -> Frames:
    """The worker's side. Raises LinkError when the leader does not know the secret."""
    try:
        async with asyncio.timeout(HELLO_S):
            frames = await meet(reader, writer, secret.encode(), is_leader=False)
            await frames.send(hello)
            await frames.receive(Welcome)
    except WireError as error:
        raise LinkError("who answers is not this run's leader") from error
    except EOFError as error:
        raise LinkError("the other end closed the connection") from error
    except (TimeoutError, OSError) as error:
        raise LinkError(f"the leader did not answer: {error}") from error
    return frames
