"""The answer of `/v1/state`: everything at a glance, as bytes that are kept and renewed where commits touched them.

On a large cluster the records are megabytes of JSON. They are read from the journal and written as JSON when somebody
asks for the first time; after that only those that a commit has touched since the last answer are. When more than
`NAMED_MAX` were touched and nobody has asked, nothing is kept any longer. Called by `routes_state.py`. Time passes
while the journal reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.api import reads
from holdfast.api.tenants import Scope
from holdfast.controller import Controller
from holdfast.model.answers import StateAnswer
from holdfast.model.records import JobRecord, NodeRecord
from holdfast.ports import Entry

INCIDENTS_IN_STATE = 100
NAMED_MAX = 1000
"""When more has changed, all is dropped and read anew: a question that names thousands is no quicker."""


class WholeState:
    """See the module. It listens to the controller from the first question on."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._jobs: dict[str, dict[str, bytes]] = {}
        """By id, then by the whole key: several clusters may know the same id."""
        self._nodes: dict[str, bytes] = {}
        self._old_jobs: set[str] = set()
        self._old_nodes: set[str] = set()
        self._lock = asyncio.Lock()
        self._listens = False
        self._loaded = False
        """Everything that was touched before the last answer is in what is kept."""
        self._dropped = 0
        """How often all of it was dropped."""

    def take(self, entries: Sequence[Entry]) -> None:
        """Note what a commit has touched; a listener of the controller."""
        for entry in entries:
            self._old_jobs.update(str(job.key) for job in entry.touched.jobs)
            self._old_nodes.update(node.name for node in entry.touched.nodes)
        if max(len(self._old_jobs), len(self._old_nodes)) > NAMED_MAX:
            self._drop()

    def _drop(self) -> None:
        for kept in (self._jobs, self._nodes, self._old_jobs, self._old_nodes):
            kept.clear()
        self._loaded = False
        self._dropped += 1

    async def json(self) -> bytes:
        """A `StateAnswer` as JSON. Records may be newer than its `seq`, never older.

        Raises:
            JournalError: the journal cannot be read.
        """
        controller, journal = self._controller, self._controller.journal
        async with self._lock:
            seq = controller.seq
            incidents = await journal.incidents(limit=INCIDENTS_IN_STATE)
            brakes = await journal.brakes()
            await self._renew()  # last: what is kept may be dropped whenever something else is waited for
            jobs = b",".join(record for records in self._jobs.values() for record in records.values())
            nodes = b",".join(self._nodes.values())
        encode = msgspec.json.encode
        return b'{"seq":%d,"health":%b,"jobs":[%b],"nodes":[%b],"incidents":%b,"brakes":%b}' % (
            seq, encode(controller.health()), jobs, nodes, encode(incidents), encode(brakes),
        )  # fmt: skip

    async def part(self, scope: Scope) -> StateAnswer:
        """What of it is in a scope, which has no brake; read anew for each question, and of a scope there is little.

        Raises:
            JournalError: the journal cannot be read.
        """
        controller, journal = self._controller, self._controller.journal
        mine = scope.names_of_jobs()
        jobs = scope.jobs(await journal.jobs(job=mine)) if mine else []
        names = sorted({node for job in jobs for node in job.view.nodes})
        nodes = scope.nodes(await journal.nodes(node=names)) if names else []
        incidents = await reads.incidents(journal, scope, limit=INCIDENTS_IN_STATE)
        return StateAnswer(controller.seq, controller.health(), jobs, nodes, incidents, [])

    async def _renew(self) -> None:
        journal = self._controller.journal
        if not self._listens:
            self._controller.listeners.append(self.take)
            self._listens = True
        dropped = self._dropped
        jobs, self._old_jobs = self._old_jobs, set()
        nodes, self._old_nodes = self._old_nodes, set()
        loaded, self._loaded = self._loaded, False
        if loaded:
            # What is not read to the end leaves `_loaded` unset, so that the next answer reads everything.
            self._keep(await journal.jobs(job=sorted(jobs)) if jobs else (), ())
            self._keep((), await journal.nodes(node=sorted(nodes)) if nodes else ())
        if not loaded or self._dropped != dropped:
            dropped = self._dropped
            self._keep(await journal.jobs(), await journal.nodes())
        self._loaded = self._dropped == dropped

    def _keep(self, jobs: Iterable[JobRecord], nodes: Iterable[NodeRecord]) -> None:
        encode = msgspec.json.encode
        for job in jobs:
            self._jobs.setdefault(str(job.key), {})[f"{job.key.cluster} {job.key}"] = encode(job)
        for node in nodes:
            self._nodes[node.name] = encode(node)
