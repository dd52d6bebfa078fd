"""Looking at a Slurm cluster: one reading at a time, shared by all who wait for one.

`Looks.fresh` gives a reading that was begun after the call, so two hundred orders that wait for two hundred jobs cost
slurmctld one query per turn, not two hundred. `Looks.pulse` is the cheap look that tells whether anything changed.
Both are bounded by what they cost: see `client.py` for how often they are taken.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable

import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.adapters.slurm import commands
from holdfast.adapters.slurm.memory import Memory
from holdfast.adapters.slurm.node_output import SlurmNode, nodes_of_json, nodes_of_text, pulse_of_nodes
from holdfast.adapters.slurm.output import (
    ClusterFacts,
    JobEnd,
    SlurmJob,
    ends_of_sacct,
    facts_of_config,
    jobs_of_json,
    jobs_of_text,
    pulse_of_jobs,
    topology_of,
)
from holdfast.adapters.slurm.rest import Rest
from holdfast.adapters.slurm.tool import Tool
from holdfast.adapters.slurm.views import joined, state_of
from holdfast.adapters.tasks import end
from holdfast.errors import LinkError, OrderError, PermanentOrderError, WireError
from holdfast.model.cluster import ENDED

FACTS_EVERY_S = 300.0
REST_AGAIN_S = 30.0
"""slurmrestd that gave no answer is asked again after this long; Slurm's tools are asked meanwhile."""
SACCT_MAX = 500
"""Jobs that accounting is asked about at once."""
_log = structlog.get_logger("holdfast.slurm")
_NO_JSON = ("unrecognized option", "invalid option", "json", "serializer", "plugin")


class Reading(Struct, frozen=True, kw_only=True):
    """One look at everything."""

    at: float
    """Unix seconds when it was begun."""
    jobs: dict[str, SlurmJob]
    """By id; heterogeneous jobs by their leader's."""
    nodes: dict[str, SlurmNode]
    complete: bool = True


class Looks:
    """See the module. With `rest`, jobs and nodes come from slurmrestd as long as it answers."""

    def __init__(self, tool: Tool, memory: Memory, rest: Rest | None = None) -> None:
        self.tool = tool
        self.memory = memory
        self.rest = rest
        self.facts = ClusterFacts()
        self.topology: dict[str, str] = {}
        self.nodes: dict[str, SlurmNode] = {}
        """As last seen."""
        self.cost_s = 0.0
        """What the last full look took."""
        self.pulse_s = 0.0
        """What the last cheap look took."""
        self.count = 0
        self.rest_count = 0
        """Answers of slurmrestd."""
        self._facts_at = 0.0
        self._rest_again_at = 0.0
        self._json = True
        self._nodes_json = False
        self._running: asyncio.Task[Reading] | None = None
        self._queued: asyncio.Task[Reading] | None = None
        self._last: dict[str, SlurmJob] = {}
        self._told: set[str] = set()

    async def fresh(self) -> Reading:
        """A reading begun after this call.

        Raises:
            LinkError: the cluster cannot be read.
        """
        if self._queued is None:
            self._queued = asyncio.create_task(self._next(self._running), name="look at slurm")
        return await asyncio.shield(self._queued)

    async def close(self) -> None:
        """End the looks under way: a tool that is only just being started when its loop ends would hold it for ever."""
        tasks = [task for task in (self._running, self._queued) if task is not None]
        self._queued = None
        await end(tasks)

    async def _next(self, before: asyncio.Task[Reading] | None) -> Reading:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._queued = self._queued, None
        try:
            return await self._read()
        except (OrderError, WireError) as error:
            raise LinkError(f"Slurm cannot be read: {error}") from error
        finally:
            self._running = None

    async def _read(self) -> Reading:
        at, begun = time.time(), time.monotonic()
        if not self.facts.name or begun - self._facts_at > FACTS_EVERY_S:
            await self._read_facts(begun)
        (jobs, complete), nodes = await asyncio.gather(self._jobs(), self._nodes())
        found = {job.id: job for job in joined(jobs)}
        if complete:
            await self._ends_of_missing(found)
        self.cost_s = time.monotonic() - begun
        self.count += 1
        self._last = found
        self.nodes = {node.name: self.memory.without_stale(node) for node in nodes}
        return Reading(at=at, jobs=found, nodes=self.nodes, complete=complete)

    async def _by_rest(self, ask: Callable[[Rest], Awaitable[bytes]]) -> bytes | None:
        """What slurmrestd answers; None where there is none, or while it is away: then the tools are asked."""
        if self.rest is None or time.monotonic() < self._rest_again_at:
            return None
        try:
            document = await ask(self.rest)
        except LinkError as error:
            self._rest_again_at = time.monotonic() + REST_AGAIN_S
            _log.warning("Slurm's tools are asked in slurmrestd's place", why=str(error), again_in_s=REST_AGAIN_S)
            return None
        self.rest_count += 1
        return document

    async def _jobs(self) -> tuple[list[SlurmJob], bool]:
        if (document := await self._by_rest(Rest.jobs)) is not None:
            return jobs_of_json(document), True
        if self._json:
            try:
                return jobs_of_json(await self.tool.run(commands.JOBS, again=False)), True
            except PermanentOrderError as error:
                if not any(word in str(error).casefold() for word in _NO_JSON):
                    raise
                _log.warning("squeue gives no JSON here: its text is read", why=str(error))
                self._json = False
        jobs, doubtful = jobs_of_text(await self.tool.text(commands.JOBS_TEXT, again=False))
        if doubtful:
            _log.warning("records of jobs are ambiguous and are not believed", jobs=doubtful)
        return jobs, not doubtful

    async def _nodes(self) -> list[SlurmNode]:
        if (document := await self._by_rest(Rest.nodes)) is not None:
            return nodes_of_json(document)
        if self._nodes_json:
            return nodes_of_json(await self.tool.run(commands.NODES_JSON, again=False))
        return nodes_of_text(await self.tool.text(commands.NODES, again=False))

    async def _check_nodes(self) -> None:
        """The cheap text is believed as long as it names the same nodes, in the same states, as the JSON does."""
        try:
            told = nodes_of_json(await self.tool.run(commands.NODES_JSON, again=False))
        except (OrderError, WireError):
            return  # before 23.02 there is none
        cheap = {node.name: node.states for node in nodes_of_text(await self.tool.text(commands.NODES, again=False))}
        lost = [node.name for node in told if node.name not in cheap or not node.states & cheap[node.name]]
        self._nodes_json = bool(lost)
        if lost:
            _log.warning("the text form of nodes is not what it was: their JSON is read", nodes=lost[:5])

    async def _read_facts(self, now: float) -> None:
        self.facts = facts_of_config(await self.tool.text(commands.CONFIG, again=False))
        try:
            self.topology = topology_of(await self.tool.text(commands.TOPOLOGY))
        except OrderError:
            self.topology = {}
        await self._check_nodes()
        self._facts_at = now

    async def _ends_of_missing(self, found: dict[str, SlurmJob]) -> None:
        """Jobs that ended and were forgotten between two looks: accounting knows how they ended. Told once each."""
        missing = self.memory.missing(set(found))
        asked = [entry.id for entry in missing if entry.id not in self._told]
        ends: dict[str, JobEnd] = {}
        if asked and self.facts.accounting:
            try:
                ends = ends_of_sacct(await self.tool.text(commands.ends(asked[:SACCT_MAX])))
            except OrderError as error:
                _log.warning("accounting cannot be asked how jobs ended", why=str(error))
        for entry in missing:
            end = ends.get(entry.id)
            before = self._last.get(entry.id) or SlurmJob(id=entry.id, name=entry.name, user=entry.user)
            if end is None or state_of(before) in ENDED:
                self._told.discard(entry.id)
                self.memory.forget(entry)
                continue
            ended = replace(
                before,
                states=end.states,
                exit_code=end.exit_code,
                signal=end.signal,
                ended_at=end.at,
                restart_count=entry.restarts,
                command=entry.command,
            )
            if state_of(ended) in ENDED:
                found[entry.id] = ended
                self._told.add(entry.id)

    async def pulse(self) -> bytes:
        """A digest that differs when jobs or nodes changed in a way that matters.

        Raises:
            LinkError: the cluster cannot be read.
        """
        begun = time.monotonic()
        try:
            parts = await self._pulse_parts()
        except (OrderError, WireError) as error:
            raise LinkError(f"Slurm cannot be read: {error}") from error
        self.pulse_s = time.monotonic() - begun
        return hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()

    async def _pulse_parts(self) -> tuple[bytes, bytes]:
        jobs, nodes = await asyncio.gather(self._by_rest(Rest.jobs), self._by_rest(Rest.nodes))
        if jobs is not None and nodes is not None:
            return pulse_of_jobs(jobs), pulse_of_nodes(nodes)
        return await asyncio.gather(
            self.tool.run(commands.PULSE_JOBS, again=False), self.tool.run(commands.PULSE_NODES, again=False)
        )
