"""What sources reach the node through: its reading processes, its tools, its folders. One per agent or command.

Two reading processes, so that a file system that does not answer keeps nobody from the GPUs. No time passes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.adapters.probes.check import Mode, NodeConfig, Reading, Source
from holdfast.adapters.probes.dcgm_output import PolicyLines
from holdfast.adapters.probes.follower import Follower
from holdfast.adapters.probes.reader import Reader
from holdfast.os import programs

T = TypeVar("T")


class _Tried(Protocol):
    """What was read of one try."""

    @property
    def error(self) -> str:
        """Why it gave no figure; empty: it did."""


Measured = TypeVar("Measured", bound=_Tried)

LIMIT_S: ContextVar[float | None] = ContextVar("holdfast_probe_limit_s", default=None)
"""The time limit that agent.toml gives the source that is being read, in place of its own."""


def limit(own_s: float) -> float:
    """The limit that holds now."""
    return LIMIT_S.get() or own_s


class Reach:
    """See the module.

    Args:
        env: environment of everything that is started.
        root: where `/sys` and `/proc` are; another folder holds a copy of another machine's.
        emulated: the node is an embedded one: what belongs to the machine underneath is not its own.
    """

    def __init__(self, env: Mapping[str, str], *, root: Path = Path("/"), emulated: bool = False) -> None:
        self.env = {"PATH": programs.DEFAULT_PATH} | dict(env)
        self.root = root
        self.emulated = emulated
        self.config = NodeConfig()
        """Set, as `mode` is, by who looks."""
        self.mode = Mode.PERIODIC
        self.policy_lines = PolicyLines()
        self._followers: dict[tuple[str, ...], Follower] = {}
        self.kernel_log = Path("/dev/kmsg")
        self.job = ""
        self.gpus = Reader(self.env)
        self.files = Reader(self.env)

    async def read(self, what: str, kind: type[T], limit_s: float, **args: object) -> Reading:
        """Have files read, as values of `kind`; what does not fit has failed."""
        args = {"root": str(self.root), "job": self.job, **args}
        return fitted(await self.files.ask(what, limit(limit_s), **args), kind)

    async def run(self, argv: tuple[str, ...], limit_s: float, name: str = "") -> programs.Ran | Reading:
        """Run a tool; the reading of one that is not here, hung or could not be started. `name`: for people."""
        path, name = self.where(argv[0]), name or argv[0]
        if not path:
            return Reading(absent=f"there is no {name}")
        ran = await programs.run(programs.Command(argv=(path, *argv[1:]), env=self.env), limit(limit_s))
        if ran.hung:
            return Reading(hung=True, failed=f"{name} did not end within {limit(limit_s):g} s")
        return ran if ran.is_started else Reading(failed=f"{name} could not be started: {ran.err}")

    def where(self, name: str) -> str:
        """Path of a tool; empty when it is not here."""
        return programs.where(name, self.env["PATH"])

    def follower(self, argv: tuple[str, ...]) -> Follower:
        """A tool that runs on."""
        return self._followers.setdefault(argv, Follower(argv, self.env))

    async def close(self) -> None:
        """End the reading processes and the tools that run on."""
        for follower in self._followers.values():
            await follower.close()
        await self.gpus.close()
        await self.files.close()


def fitted(reading: Reading, kind: type[T]) -> Reading:
    """The reading with its facts as a value of `kind`."""
    if reading.absent or reading.failed:
        return reading
    try:
        return msgspec.structs.replace(reading, facts=msgspec.convert(reading.facts, kind))
    except msgspec.ValidationError as error:
        return msgspec.structs.replace(reading, facts=None, failed=f"it gave nonsense: {error}")


START_S, TRIES = 0.25, 20


async def with_itself(
    serve: tuple[str, ...],
    ask: tuple[str, ...],
    read: Callable[[str, str], Measured],
    env: Mapping[str, str],
    limit_s: float,
) -> tuple[Measured, programs.Ran]:
    """Both ends of a program on this machine; what the asking one printed. The serving one ends with it."""
    server = asyncio.create_task(programs.run(programs.Command(argv=serve, env=env), TRIES * limit_s))
    tried = 0
    try:
        while True:
            await asyncio.sleep(START_S)  # it does not say when it listens
            ran = await programs.run(programs.Command(argv=ask, env=env), limit_s)
            found, tried = read(ran.out, ran.err), tried + 1
            if not found.error or ran.hung or server.done() or tried == TRIES:
                return found, ran
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


READ_LIMIT_S = 5.0
"""For files of /sys and /proc."""


def files(name: str, about: str, needs: str, kind: type[Any], every_s: float | None = None) -> Source:
    """A source that is files, read by the reading process under the source's name, as values of `kind`."""

    async def read(reach: Reach) -> Reading:
        return await reach.read(name, kind, READ_LIMIT_S)

    return Source(name=name, about=about, needs=needs, limit_s=READ_LIMIT_S, read=read, every_s=every_s)


def tool(
    name: str,
    about: str,
    needs: str,
    argv: Callable[[Reach], tuple[str, ...]],
    limit_s: float,
    every_s: float | None = None,
    called: str = "",
) -> Callable[[Callable[[programs.Ran], Reading]], Source]:
    """Make a function that understands what a tool printed a source. `called`: the tool's name for people."""

    def source(understood: Callable[[programs.Ran], Reading]) -> Source:
        async def read(reach: Reach) -> Reading:
            ran = await reach.run(argv(reach), limit_s, called)
            return ran if isinstance(ran, Reading) else understood(ran)

        return Source(name=name, about=about, needs=needs, limit_s=limit_s + 5.0, read=read, every_s=every_s)

    return source
