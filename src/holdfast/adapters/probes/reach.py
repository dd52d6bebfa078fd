"""What sources reach the node through: its reading processes, its tools, its folders. One per agent or command.

Two reading processes, so that a file system that does not answer keeps nobody from the GPUs. No time passes here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.adapters.probes.check import Mode, Profile, Reading
from holdfast.adapters.probes.dcgm_output import PolicyLines
from holdfast.adapters.probes.follower import Follower
from holdfast.adapters.probes.reader import Reader
from holdfast.os import programs

T = TypeVar("T")

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
        profile: what the node should have.
        exporter: address of a dcgm-exporter, empty: none.
        emulated: the node is an embedded one: what belongs to the machine underneath is not its own.
        dcgm_policy: follow `dcgmi policy --reg`.
        fabric_provider: libfabric's name of the fabric that the loopback is made through.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        root: Path = Path("/"),
        profile: Profile | None = None,
        exporter: str = "",
        emulated: bool = False,
        dcgm_policy: bool = False,
        fabric_provider: str = "efa",
    ) -> None:
        self.env = {"PATH": programs.DEFAULT_PATH} | dict(env)
        self.root = root
        self.profile = profile or Profile()
        self.exporter = exporter
        self.emulated = emulated
        self.dcgm_policy = dcgm_policy
        self.fabric_provider = fabric_provider
        self.policy_lines = PolicyLines()
        self._followers: dict[tuple[str, ...], Follower] = {}
        self.kernel_log = Path("/dev/kmsg")
        self.site_checks = ""
        """Folder of the site's own checks; empty: none."""
        self.site_off: tuple[str, ...] = ()
        """Those of its files that are switched off."""
        self.mode = Mode.PERIODIC
        self.job = ""
        self.gpus = Reader(self.env)
        self.files = Reader(self.env)

    async def read(self, what: str, kind: type[T], limit_s: float, **args: object) -> Reading:
        """Have files read, as values of `kind`; what does not fit has failed."""
        return fitted(await self.files.ask(what, limit(limit_s), root=str(self.root), **args), kind)

    async def run(self, argv: tuple[str, ...], limit_s: float, name: str = "") -> programs.Ran | Reading:
        """Run a tool; the reading of one that is not here, hung or could not be started. `name`: for people."""
        path, name = self.where(argv[0]), name or argv[0]
        if not path:
            return Reading(absent=f"there is no {name}")
        ran = await self.run_at((path, *argv[1:]), limit(limit_s))
        if ran.hung:
            return Reading(hung=True, failed=f"{name} did not end within {limit(limit_s):g} s", seconds=ran.seconds)
        return ran if ran.is_started else Reading(failed=f"{name} could not be started: {ran.err}")

    async def run_at(self, argv: tuple[str, ...], limit_s: float) -> programs.Ran:
        """Run the tool at this path."""
        return await programs.run(programs.Command(argv=argv, env=self.env), limit_s)

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
