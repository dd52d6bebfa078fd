"""From a simulated run to its judges: the happenings of its world as deeds, its journal as steps, and the verdict.

`fuzz.py`, the command line and the tests call `complaints_about`. Times are those of the run; no time passes here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from holdfast.adapters.policy_files import packaged_presets
from holdfast.decide.engine import Engine
from holdfast.model.cluster import JobKey
from holdfast.model.events import AnyEvent
from holdfast.model.orders import AnyOrder
from holdfast.model.policy import PolicySet
from holdfast.model.records import IncidentRecord, JobRecord, NodeRecord
from holdfast.model.wire import encode, kind_of
from holdfast.sim.checkers import Complaint, judged
from holdfast.sim.checkers.hostile import about_the_liar
from holdfast.sim.checkers.journal import Replayed, Told, as_stored, job_name
from holdfast.sim.checkers.observe import observes
from holdfast.sim.faults import WARNING
from holdfast.sim.history import (
    PERSON,
    SCHEDULER,
    AnyDeed,
    BeatTaken,
    Cancelled,
    Drained,
    Faulted,
    FaultsOver,
    Held,
    History,
    Lied,
    NodeMended,
    OrderTook,
    Resumed,
    RunBegan,
    Step,
    Wrote,
)
from holdfast.sim.record import Fault, Happening, SimResult

_EFFECTS = frozenset(
    {
        "job_requeued",
        "job_released",
        "job_excluded",
        "job_ended",
        "node_drained",
        "node_resumed",
        "node_repair",
        "node_retired",
    }
)
"""Words that are the effect of the order they name."""
_ALSO: Mapping[str, tuple[str, ...]] = {
    "node.lost": ("scheduler.node_fail",),
    WARNING: ("nvidia.xid.95",),
    "check.fabric_port_down": ("nccl.ib.port",),
    "straggler.rank": ("exit.restart_me",),
}
"""Causes that name the same fault as well: the scheduler's word for a node that went away under a job, a rank's for the
link that its agent sees down, and the exit of a job that its launcher has saved and stopped for it."""


def complaints_about(result: SimResult, *, engine: type[Engine] = Engine) -> list[Complaint]:
    """Everything that is wrong with a run of this engine; empty: nothing."""
    said = [Complaint("engine_refuses_nothing", text) for text in result.refused]
    history = history_of(result)
    if not observes(history):
        excused = about_the_liar(history)
        said += [Complaint("comes_to_rest", text) for text in result.unrest if not excused(text)]
    policies = history.policies
    return said + judged(history, lambda events, told: replayed(events, policies, engine, told))


def history_of(result: SimResult) -> History:
    """The run as its judges see it."""
    deeds = _Deeds(result)
    return structs.replace(
        result,
        steps=[Step(entry.event, tuple(entry.orders)) for entry in result.entries()],
        deeds=[deed for happening in result.truth for deed in deeds.of(happening)],
    )


def replayed(
    events: Sequence[AnyEvent], policies: PolicySet, kind: type[Engine] = Engine, told: Told = as_stored
) -> Replayed:
    """A fresh engine with the journal's events: its orders, and the records that it came to."""
    engine = kind(policies, presets=packaged_presets())
    orders: list[list[AnyOrder]] = []
    made: list[list[AnyOrder]] = []
    records: dict[str, JobRecord | NodeRecord | IncidentRecord] = {}
    for event in events:
        orders.append(engine.handle(told(event, made)))
        touched = engine.touched()
        made.append([*orders[-1], *(record.order for record in touched.orders)])
        records |= {f"job:{job_name(job.key)}": job for job in touched.jobs}
        records |= {f"node:{node.name}": node for node in touched.nodes}
        records |= {f"incident:{incident.id}": incident for incident in touched.incidents}
    return Replayed(orders, {name: encode(record) for name, record in records.items()})


class _Deeds:
    """Turns happenings into deeds, with what must be remembered between them."""

    def __init__(self, result: SimResult) -> None:
        self._result = result
        self._faults: dict[str, Fault] = {fault.id: fault for fault in result.faults}
        self._kinds = {record.order.id: kind_of(record.order) for record in result.orders}
        self._keys: dict[str, JobKey] = {str(job.key): job.key for job in result.jobs}
        self._keys |= {str(job.key): job.key for job in result.final.jobs}
        self._machines: dict[str, str] = {}
        self._let: dict[str, str] = {}
        """Job -> the order or person that let it start next."""
        self._epochs: dict[str, int] = {}
        self._attempted: dict[str, int] = {}
        """Job -> epoch of its newest run that has made an attempt."""

    def of(self, one: Happening) -> Iterator[AnyDeed]:
        """The deeds of the next happening."""
        at, node, by, key = one.at, one.node, _by(one), self._key(one.job)
        machine = self._machines.get(node, "")
        if one.order and one.what in _EFFECTS:
            kind = self._kinds.get(one.order, "")
            yield OrderTook(at=at, order=one.order, kind=kind, job=key, node=node, instance_id=machine)
        match one.what:
            case "node_up":
                self._machines[node] = one.detail.partition(" ")[0]
            case "node_drained":
                yield Drained(at=at, node=node, by=by, reason=one.detail)
            case "node_resumed":
                yield Resumed(at=at, node=node, by=by)
            case "node_mended":
                yield NodeMended(at=at, node=node, instance_id=machine, by=by)
            case "fault":
                fault = self._faults[one.fault]
                rules = (fault.cause, *_ALSO.get(fault.cause, ())) if fault.cause else ()
                yield Faulted(at=at, fault=fault.id, kind=fault.kind, rules=rules, node=node or fault.node, job=key)
            case "lie":
                yield Lied(at=at, source=one.who)
            case "lie_taken":
                yield BeatTaken(at=at, node=node, job_id=one.job)
            case "calm":
                # The run ends as soon as all is at rest, so it has always had the time it needed.
                yield FaultsOver(at=at, bound_s=max(0.0, self._result.ended_at - at))
            case _ if key is not None:
                yield from self._of_job(one, key, by)

    def _key(self, name: str) -> JobKey | None:
        """The job's key; jobs that no journal knows (their id was used again) are told from their name."""
        if not name:
            return None
        if name not in self._keys:
            plain, _, generation = name.partition("#")
            self._keys[name] = JobKey(self._result.final.cluster, plain, int(generation or 1))
        return self._keys[name]

    def _of_job(self, one: Happening, key: JobKey, by: str) -> Iterator[AnyDeed]:
        match one.what:
            case "job_held" if not one.order:
                yield Held(at=one.at, job=key, by=by)
            case "job_released":
                self._let[one.job] = by
            case "job_requeued" if not one.order:
                self._let[one.job] = by
            case "job_started":
                yield self._began(one, key, self._let.pop(one.job, SCHEDULER))
            case "attempt_started":
                # The first attempt of a start is that start's run; each further one is restarted in place.
                if self._attempted.get(one.job) == self._epochs.get(one.job, 0):
                    yield self._began(one, key, "launcher")
                self._attempted[one.job] = self._epochs.get(one.job, 0)
            case "checkpoint":
                epoch = self._epochs.get(one.job, 0)
                yield Wrote(at=one.at, job=key, epoch=epoch, step=int(one.detail))
            case "job_ended" if one.detail == "cancelled":
                yield Cancelled(at=one.at, job=key, by=by)

    def _began(self, one: Happening, key: JobKey, by: str) -> RunBegan:
        epoch = self._epochs[one.job] = self._epochs.get(one.job, 0) + 1
        return RunBegan(at=one.at, job=key, epoch=epoch, nodes=one.nodes, by=by)


def _by(one: Happening) -> str:
    """Whose doing, in the judges' words."""
    if one.order:
        return one.order
    if one.who.startswith("operator") or one.who == "owner":
        return f"{PERSON}{one.who}"
    return one.who or SCHEDULER
