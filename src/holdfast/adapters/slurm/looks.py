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
from holdfast.adapters.slurm.memory import JobEntry, Memory
from holdfast.adapters.slurm.node_output import SlurmNode, nodes_of_json, nodes_of_text
from holdfast.adapters.slurm.output import (
    ClusterFacts,
    JobEnd,
    SlurmJob,
    ends_of_sacct,
    facts_of_config,
    jobs_of_json,
    jobs_of_text,
    pulse_of,
)
from holdfast.adapters.slurm.rest import Rest
from holdfast.adapters.slurm.tool import Tool
from holdfast.adapters.slurm.views import joined, state_of
from holdfast.adapters.tasks import end
from holdfast.errors import LinkError, OrderError, PermanentOrderError, WireError
from holdfast.model.cluster import ENDED, SchedulerState

FACTS_EVERY_S = 300.0
REST_AGAIN_S = 30.0
"""slurmrestd that gave no answer is asked again after this long; Slurm's tools are asked meanwhile."""
SACCT_MAX = 500
"""Jobs that accounting is asked about at once."""
SACCT_EVERY_S = 10.0
"""Accounting is asked again about jobs that are out of sight after this long."""
NARROW_S = 300.0
"""slurmrestd that shows less than Slurm's tools is looked at again after this long."""
_log = structlog.get_logger("holdfast.slurm")
UNSEEN = "not shown by Slurm, or hidden from Holdfast (PrivateData)"
_NO_JSON = ("unrecognized option", "invalid option", "json", "serializer", "plugin")


class Reading(Struct, frozen=True, kw_only=True):
    """One look at everything."""

    at: float
    """Unix seconds when it was begun."""
    jobs: dict[str, SlurmJob]
    """By id; heterogeneous jobs by their leader's."""
    nodes: dict[str, SlurmNode]
    complete: bool = True


def _end_of(job: SlurmJob) -> str:
    """One word of Slurm's that says how it ended."""
    return "+".join(sorted(job.states))


def _remembered(entry: JobEntry) -> SlurmJob:
    """What is left of a job that this process has not seen."""
    return SlurmJob(
        id=entry.id,
        name=entry.name,
        user=entry.user,
        command=entry.command,
        restart_count=entry.restarts,
        states=frozenset(entry.over.split("+")) - {""},
        ended_at=entry.over_at,
    )


def _ended(before: SlurmJob, end: JobEnd, entry: JobEntry) -> SlurmJob:
    """The job as accounting says that it ended."""
    return replace(
        before,
        states=end.states,
        exit_code=end.exit_code,
        signal=end.signal,
        ended_at=end.at,
        restart_count=entry.restarts,
        command=entry.command,
    )


class Looks:
    """See the module. With `rest`, jobs and nodes come from slurmrestd as long as it answers."""

    def __init__(self, tool: Tool, memory: Memory, rest: Rest | None = None) -> None:
        self.tool = tool
        self.memory = memory
        self.rest = rest
        self.facts = ClusterFacts()
        self.nodes: dict[str, SlurmNode] = {}
        """As last seen."""
        self.cost_s = 0.0
        """What the last full look took."""
        self.pulse_s = 0.0
        """What the last cheap look took."""
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
        self._unseen: set[str] = set()
        """Jobs that are out of sight, although nobody said that they ended."""
        self._sacct_at = 0.0

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
        at, begun, checked = time.time(), time.monotonic(), False
        if not self.facts.name or begun - self._facts_at > FACTS_EVERY_S:
            await self._read_facts(begun)
            checked = self.facts.hides_jobs
        (jobs, complete, by_rest), nodes = await asyncio.gather(self._jobs(), self._nodes())
        found = self._by_id(jobs)
        if by_rest and (checked or self._is_short(found)):
            found, complete = await self._compare(found)
        if complete:
            await self._explain_missing(found)
        for job in found.values():
            state = state_of(job)
            if state is not SchedulerState.UNKNOWN:
                self.memory.note_end(job, _end_of(job) if state in ENDED else "")
        self.cost_s = time.monotonic() - begun
        self._last = found
        self.nodes = {node.name: self.memory.without_stale(self.memory.own_reason(node)) for node in nodes}
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

    def _by_id(self, jobs: list[SlurmJob]) -> dict[str, SlurmJob]:
        return {job.id: self.memory.corrected(job) for job in joined(jobs)}

    async def _jobs(self) -> tuple[list[SlurmJob], bool, bool]:
        """All jobs, whether those are all, and whether slurmrestd told them."""
        if (document := await self._by_rest(Rest.jobs)) is not None:
            return jobs_of_json(document), True, True
        return *await self._jobs_by_tools(), False

    async def _jobs_by_tools(self) -> tuple[list[SlurmJob], bool]:
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
        await self._check_nodes()
        self._facts_at = now

    def _is_short(self, found: dict[str, SlurmJob]) -> bool:
        """Is a job missing that Slurm cannot have forgotten yet, and that has not been asked after?"""
        late = time.time() - self.facts.min_job_age_s
        missing = (entry for entry in self.memory.missing(set(found)) if entry.id not in self._unseen)
        return any(not entry.over or entry.over_at > late for entry in missing)

    async def _compare(self, found: dict[str, SlurmJob]) -> tuple[dict[str, SlurmJob], bool]:
        """What slurmrestd tells, or what the tools tell where they see jobs that it does not.

        slurmrestd runs as an ordinary user, from whom PrivateData hides the jobs of others.
        """
        jobs, complete = await self._jobs_by_tools()
        by_tools = self._by_id(jobs)
        hidden = [job.ref for job in by_tools.values() if job.id not in found and state_of(job) not in ENDED]
        again = await self._by_rest(Rest.jobs) if hidden else None
        if again is not None:  # one that was submitted between the two looks is not hidden
            shown = self._by_id(jobs_of_json(again))
            hidden = [job.ref for job in by_tools.values() if job.id not in shown and state_of(job) not in ENDED]
        if not hidden:
            return found, True
        self._rest_again_at = time.monotonic() + NARROW_S
        _log.warning(
            "slurmrestd does not show all jobs: Slurm's tools are asked. Give its user the AdminLevel Operator, "
            "or take jobs out of PrivateData",
            hidden=len(hidden), jobs=sorted(hidden)[:5], again_in_s=NARROW_S,
        )  # fmt: skip
        return by_tools, complete

    async def _explain_missing(self, found: dict[str, SlurmJob]) -> None:
        """Jobs that were there and are not shown: how they ended, as far as anybody says so.

        Slurm forgets a job no earlier than MinJobAge after its end, so one that is missing sooner is out of our sight,
        not gone. One that had not ended is unknown until accounting, or a look that shows it, says what became of it.
        """
        missing = self.memory.missing(set(found))
        if any(entry.id not in self._unseen for entry in missing if not entry.over):
            await self._read_facts(time.monotonic())  # PrivateData may have been set just now
        ends, is_told = await self._ends_of([e.id for e in missing if not e.over and e.id not in self._told])
        for entry in missing:
            before = self._last.get(entry.id) or _remembered(entry)
            end = ends.get(entry.id)
            if state_of(before) in ENDED:
                if time.time() < before.ended_at + self.facts.min_job_age_s:
                    found[entry.id] = before
                    continue
            elif end is not None and state_of(ended := _ended(before, end, entry)) in ENDED:
                found[entry.id] = ended
                self._told.add(entry.id)
                self._unseen.discard(entry.id)
                continue
            elif end is not None or not is_told or self.facts.hides_jobs:
                self._keep_unseen(entry, before, found)
                continue
            self._told.discard(entry.id)
            self._unseen.discard(entry.id)
            self.memory.forget(entry)
        self._unseen -= {job_id for job_id in found if found[job_id].states}

    def _keep_unseen(self, entry: JobEntry, before: SlurmJob, found: dict[str, SlurmJob]) -> None:
        if entry.id not in self._unseen:
            _log.warning(
                "a job is no longer shown, and nobody says that it ended: its state is unknown", job=before.ref
            )
        self._unseen.add(entry.id)
        self.memory.note_away(entry)
        found[entry.id] = replace(before, states=frozenset(), reason=UNSEEN, description="")

    async def _ends_of(self, asked: list[str]) -> tuple[dict[str, JobEnd], bool]:
        """What accounting says of these jobs, and whether it could be asked (where there is one)."""
        if not asked or not self.facts.accounting:
            return {}, True
        is_known = set(asked) <= self._unseen
        if is_known and time.monotonic() - self._sacct_at < SACCT_EVERY_S:
            return {}, False
        self._sacct_at = time.monotonic()
        try:
            return ends_of_sacct(await self.tool.text(commands.ends(asked[:SACCT_MAX]))), True
        except OrderError as error:
            _log.warning("accounting cannot be asked how jobs ended", why=str(error))
            return {}, False

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
            return pulse_of("jobs", jobs), pulse_of("nodes", nodes)
        return await asyncio.gather(
            self.tool.run(commands.PULSE_JOBS, again=False), self.tool.run(commands.PULSE_NODES, again=False)
        )
