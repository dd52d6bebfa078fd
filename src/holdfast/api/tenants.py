"""What a token with a scope may see: its own jobs, and of everything else only what names no other job.

A scope is a list of `user:NAME` and `project:NAME` (Slurm's account, Kubernetes' namespace) in the token book. A token
without one sees the whole cluster. The guard of `auth.py` refuses a token with a scope on every route that does not say
that it keeps to scopes, so a new route is closed to them until it does. A job that the fleet does not know is not seen.
Free text of the cluster (stories, reasons) is left out rather than searched for names. No time passes here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from litestar import Request
from msgspec import structs

from holdfast.api.auth import Identity
from holdfast.controller.fleet import Fleet
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, NodeView
from holdfast.model.evidence import Diagnosis, Finding
from holdfast.model.records import IncidentRecord, JobRecord, NodeRecord, OrderRecord


class Scope:
    """One identity's view of the cluster, for one request."""

    def __init__(self, identity: Identity, fleet: Fleet) -> None:
        self._sees = frozenset(identity.sees)
        self._fleet = fleet

    @property
    def is_whole(self) -> bool:
        """Nothing is kept from this identity."""
        return not self._sees

    def has_job(self, key: JobKey | str) -> bool:
        """Is the job one that this identity sees? `1778`, `1778#2` or its key."""
        line = self._fleet.jobs.get(str(key))
        return self.is_whole or (line is not None and self._has(line.user, line.project))

    def has_page(self, job: str) -> bool:
        """Is the job seen, and do its incidents concern no other job? A page of it shows their lines as they are."""
        concerned = {key for line in self._fleet.incidents_of(job=job) for key in line.jobs}
        return self.has_job(job) and all(self.has_job(key) for key in concerned)

    def has_view(self, view: JobView) -> bool:
        """Is the job of this view one that this identity sees?"""
        return self.is_whole or self._has(view.user, view.project)

    def _has(self, user: str, project: str) -> bool:
        return f"user:{user}" in self._sees or f"project:{project}" in self._sees

    def names_of_jobs(self) -> list[str]:
        """The names of all jobs that are seen, sorted."""
        return sorted(name for name in self._fleet.jobs if self.has_job(name))

    def jobs(self, found: Iterable[JobRecord]) -> list[JobRecord]:
        """The jobs that are seen."""
        return [job for job in found if self.has_view(job.view)]

    def events(self, found: Iterable[e.AnyEvent]) -> list[e.AnyEvent]:
        """The events that are about a job that is seen."""
        return [event for event in found if self.has_event(event)]

    def has_event(self, event: e.AnyEvent) -> bool:
        """Is the event about a job that is seen?"""
        if isinstance(event, e.JobObserved):
            return self.has_view(event.job)
        job = event.finding.job if isinstance(event, e.FindingSeen) else getattr(event, "job", None)
        return self.is_whole or (job is not None and self.has_job(job))

    def orders(self, found: Iterable[OrderRecord]) -> list[OrderRecord]:
        """The orders that are about a job that is seen."""
        return [one for one in found if self.is_whole or self._has_order(one)]

    def _has_order(self, record: OrderRecord) -> bool:
        job = getattr(record.order, "job", None)
        return job is not None and self.has_job(job)

    def nodes(self, found: Iterable[NodeRecord]) -> list[NodeRecord]:
        """The nodes on which a job that is seen runs now, with their state and those jobs alone."""
        return list(found) if self.is_whole else [node for one in found if (node := self._node(one)) is not None]

    def _node(self, record: NodeRecord) -> NodeRecord | None:
        view = record.view
        jobs = tuple(job for job in view.jobs if self.has_job(job))
        if not jobs:
            return None
        seen = NodeView(
            name=view.name, group=view.group, alive=view.alive, drained=view.drained, jobs=jobs, gpus=view.gpus,
            topology=view.topology,
        )  # fmt: skip
        return NodeRecord(
            name=record.name, view=seen, state=record.state, since=record.since, silent=record.silent,
            heard=record.heard,
        )  # fmt: skip

    def incidents(self, found: Iterable[IncidentRecord]) -> list[IncidentRecord]:
        """The incidents of jobs that are seen; of those that concern other jobs too, without what may name these."""
        return list(found) if self.is_whole else [seen for one in found if (seen := self._incident(one)) is not None]

    def _incident(self, record: IncidentRecord) -> IncidentRecord | None:
        mine = [key for key in record.jobs if self.has_job(key)]
        if not mine:
            return None
        if len(mine) == len(record.jobs):
            return record
        others = len(record.jobs) - len(mine)
        return structs.replace(
            record,
            source="",
            drill="",
            jobs=mine,
            nodes=[],
            nodes_open=[],
            jobs_open=[key for key in record.jobs_open if key in mine],
            findings=[one for one in record.findings if self._has_finding(one)],
            diagnosis=_untold(record.diagnosis),
            observed=[],
            would=[],
            story=[f"It concerns {others} other {'job' if others == 1 else 'jobs'}, so its story is not shown."],
        )

    def _has_finding(self, finding: Finding) -> bool:
        return finding.job is not None and self.has_job(finding.job)

    def has_subject(self, subject: str) -> bool:
        """Is a series of this subject (`job:1778(0)/rank:3`, `node:n1`) one of a job that is seen?"""
        kind, _, name = subject.partition(":")
        return self.is_whole or (kind == "job" and self.has_job(name.partition("(")[0].partition("/")[0]))


def _untold(diagnosis: Diagnosis | None) -> Diagnosis | None:
    """The diagnosis in the words of its kind alone."""
    if diagnosis is None:
        return None
    return Diagnosis(cause=diagnosis.cause, domain=diagnosis.domain, confidence=diagnosis.confidence)


def scope_of(request: Request[Any, Any, Any]) -> Scope:
    """The scope of whoever asks, once the guard has let them in."""
    return Scope(request.state.identity, request.app.state.fleet)
