"""Which nodes a job is kept off, and when it may use them again.

`recovery.py`, `findings.py` and `restart.py` exclude; `engine.py` calls `readmit` when nodes came to count as clean. An
exclusion outlives neither its reason nor the patience of a job that waits for nodes because of it. The only time is
the event's.
"""

from __future__ import annotations

from holdfast.decide.proof import incident_of
from holdfast.decide.turn import Turn
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.cluster import NodeView
from holdfast.model.evidence import Remedy
from holdfast.model.policy import Mode
from holdfast.model.records import IncidentRecord, JobRecord, JobState, NodeState, slug

_IN_QUEUE = frozenset({JobState.HELD, JobState.RELEASED, JobState.WAITING_FOR_NODES})
_UNFENCED = frozenset({NodeState.SUSPECT, NodeState.QUARANTINED})


def exclude(turn: Turn, job: JobRecord, names: list[str] | tuple[str, ...]) -> None:
    """Keep the job off these nodes."""
    new = [name for name in names if name not in job.excluded]
    if new:
        job.excluded = (*job.excluded, *new)
        observes = turn.mode(turn.policy_of(job), job.view.partition, Remedy.REQUEUE, job.incident) is Mode.OBSERVE
        turn.tell(job, f"It {'would be' if observes else 'is'} kept off {story.listed(new)}.")


def is_known(turn: Turn, name: str) -> bool:
    """Return whether the scheduler itself has named this node. No other is given out, and none can be excluded."""
    node = turn.state.nodes.get(name)
    return node is not None and node.view != NodeView(name=name)


def exclude_unfenced(turn: Turn, job: JobRecord) -> None:
    """Known bad, and not drained yet (ordered, or held back by the brake): the scheduler would still give it out."""
    known = turn.state.nodes
    names = {name for brake in turn.state.brakes.values() for name in brake.waiting}
    for incident in turn.state.incidents.values():
        names.update(name for name in incident.nodes_open if known[name].phase in _UNFENCED)
    exclude(turn, job, sorted(name for name in names if is_known(turn, name)))


def outdated(job: JobRecord) -> set[str]:
    """Nodes that we had the scheduler keep it off, and that are fit for it again."""
    return (set(job.excluded_asked) - set(job.excluded)) & set(job.view.excluded)


def ask(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    """Have the scheduler keep it off exactly these nodes."""
    turn.withdraw(job.about, "other nodes are to be left by now", o.SetExcluded)
    job.excluded_asked = tuple(sorted(job.excluded))
    turn.touch(job)
    turn.issue(
        turn.make(
            o.SetExcluded,
            incident=incident.id,
            remedy=Remedy.REQUEUE,
            job=job.key,
            nodes=job.excluded_asked,
            why=incident.diagnosis.summary if incident.diagnosis is not None else "",
        )
    )


def readmit(turn: Turn, names: list[str]) -> None:
    """These nodes are clean: jobs in the queue that we kept off them may use them again, or would wait for ever."""
    if turn.in_allocation:
        return
    waiting = {slug(key) for incident in turn.state.incidents.values() for key in incident.jobs_open}
    for name in sorted(waiting):
        job = turn.state.jobs[name]
        if job.state in _IN_QUEUE:
            _allow(turn, job, [node for node in names if node in job.excluded])


def allow_healthy(turn: Turn, job: JobRecord) -> None:
    """It has waited for long: a node that only thin evidence speaks against is better than none."""
    known = turn.state.nodes
    _allow(turn, job, [name for name in job.excluded if name in known and known[name].state is NodeState.HEALTHY])


def _allow(turn: Turn, job: JobRecord, names: list[str]) -> None:
    incident = incident_of(turn, job)
    if not names or incident is None:
        return
    job.excluded = tuple(name for name in job.excluded if name not in names)
    turn.tell_all(incident, job, f"it may use {story.listed(names)} again.")
    if outdated(job):
        ask(turn, job, incident)
