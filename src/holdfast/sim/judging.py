"""From a simulated run to its judges: the happenings of its world as deeds, its journal as steps, and the verdict.

`fuzz.py`, the command line and the tests call `complaints_about`. Times are those of the run; no time passes here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.adapters.policy_files import packaged_presets
from holdfast.decide.engine import Engine
from holdfast.model.cluster import JobKey
from holdfast.model.events import AnyEvent
from holdfast.model.orders import AnyOrder
from holdfast.model.policy import PolicySet
from holdfast.model.policy_toml import parse_policy
from holdfast.model.records import IncidentRecord, JobRecord, NodeRecord
from holdfast.model.wire import encode, kind_of
from holdfast.sim.checkers import Complaint, judged
from holdfast.sim.checkers.journal import Replayed, job_name
from holdfast.sim.checkers.observe import observes
from holdfast.sim.faults import WARNING
from holdfast.sim.history import (
    PERSON,
    SCHEDULER,
    AnyDeed,
    Cancelled,
    Drained,
    Faulted,
    FaultsOver,
    Held,
    History,
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
        said += [Complaint("comes_to_rest", text) for text in result.unrest]
    policies = history.policies
    return said + judged(history, lambda events: replayed(events, policies, engine))


def history_of(result: SimResult) -> History:
    """The run as its judges see it."""
    return History(
        steps=[Step(entry.event, tuple(entry.orders)) for entry in result.entries()],
        orders=result.orders,
        incidents=result.incidents,
        jobs=result.jobs,
        nodes=result.nodes,
        brakes=result.brakes,
        deeds=_Deeds(result).all(),
        policies=parse_policy(result.options.policy, "", packaged_presets()),
        ended_at=result.ended_at,
        final=result.world,
    )


def replayed(events: Sequence[AnyEvent], policies: PolicySet, kind: type[Engine] = Engine) -> Replayed:
    """A fresh engine with the journal's events: its orders, and the records that it came to."""
    engine = kind(policies, presets=packaged_presets())
    orders: list[list[AnyOrder]] = []
    records: dict[str, JobRecord | NodeRecord | IncidentRecord] = {}
    for event in events:
        orders.append(engine.handle(event))
        touched = engine.touched()
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
        self._keys |= {str(job.key): job.key for job in result.world.jobs}
        self._machines: dict[str, str] = {}
        self._let: dict[str, str] = {}
        """Job -> the order or person that let it start next."""
        self._epochs: dict[str, int] = {}
        self._runs: dict[tuple[str, str], int] = {}
        """(job, attempt number) -> epoch of the run that it belongs to."""
        self._made: list[AnyDeed] = []

    def all(self) -> list[AnyDeed]:
        """All of them, in order."""
        for happening in self._result.truth:
            if happening.order and happening.what in _EFFECTS:
                self._took(happening)
            if happening.what.startswith("node_"):
                self._of_node(happening)
            elif happening.what.startswith(("job_", "attempt_", "checkpoint")):
                self._of_job(happening)
            elif happening.what == "fault":
                self._of_fault(happening)
            elif happening.what == "calm":
                # The run ends as soon as all is at rest, so it has always had the time it needed.
                bound_s = max(0.0, self._result.ended_at - happening.at)
                self._made.append(FaultsOver(at=happening.at, bound_s=bound_s))
        return self._made

    def _key(self, name: str) -> JobKey | None:
        """The job's key; jobs that no journal knows (their id was used again) are told from their name."""
        if not name:
            return None
        if name not in self._keys:
            plain, _, generation = name.partition("#")
            self._keys[name] = JobKey(self._result.world.cluster, plain, int(generation or 1))
        return self._keys[name]

    def _took(self, happening: Happening) -> None:
        self._made.append(
            OrderTook(
                at=happening.at,
                order=happening.order,
                kind=self._kinds.get(happening.order, ""),
                job=self._key(happening.job),
                node=happening.node,
                instance_id=self._machines.get(happening.node, ""),
            )
        )

    def _of_node(self, one: Happening) -> None:
        node, at, machine = one.node, one.at, self._machines.get(one.node, "")
        match one.what:
            case "node_up":
                self._machines[node] = one.detail.partition(" ")[0]
            case "node_drained":
                self._made.append(Drained(at=at, node=node, by=_by(one), reason=one.detail))
            case "node_resumed":
                self._made.append(Resumed(at=at, node=node, by=_by(one)))
            case "node_mended":
                self._made.append(NodeMended(at=at, node=node, instance_id=machine, by=_by(one)))
            case _:
                pass

    def _of_job(self, one: Happening) -> None:
        key = self._key(one.job)
        if key is None:
            return
        match one.what:
            case "job_released":
                self._let[one.job] = _by(one)
            case "job_held":
                self._made.append(Held(at=one.at, job=key, by=_by(one)))
            case "job_requeued":
                if not one.order:
                    self._let[one.job] = _by(one)
            case "job_started":
                self._began(one, key, self._let.pop(one.job, SCHEDULER))
            case "attempt_started":
                self._attempt(one, key)
            case "checkpoint":
                step, _, attempt = one.detail.partition(" ")
                epoch = self._runs.get((one.job, attempt), self._epochs.get(one.job, 0))
                self._made.append(Wrote(at=one.at, job=key, epoch=epoch, step=int(step)))
            case "job_ended":
                if one.detail == "cancelled":
                    self._made.append(Cancelled(at=one.at, job=key, by=_by(one)))
            case _:
                pass

    def _began(self, one: Happening, key: JobKey, by: str) -> None:
        epoch = self._epochs[one.job] = self._epochs.get(one.job, 0) + 1
        self._made.append(RunBegan(at=one.at, job=key, epoch=epoch, nodes=one.nodes, by=by))

    def _attempt(self, one: Happening, key: JobKey) -> None:
        """The first attempt of a start is that start's run; each further one is restarted in place."""
        epoch = self._epochs.get(one.job, 0)
        if epoch in {self._runs[name] for name in self._runs if name[0] == one.job}:
            self._began(one, key, one.order or "launcher")
        self._runs[one.job, one.detail] = self._epochs.get(one.job, 0)

    def _of_fault(self, one: Happening) -> None:
        fault = self._faults.get(one.fault)
        if fault is None:
            return
        rules = (fault.cause, *_ALSO.get(fault.cause, ())) if fault.cause else ()
        node = one.node or fault.node
        self._made.append(
            Faulted(at=one.at, fault=fault.id, kind=fault.kind, rules=rules, node=node, job=self._key(one.job))
        )


def _by(one: Happening) -> str:
    """Whose doing, in the judges' words."""
    if one.order:
        return one.order
    if one.who.startswith("operator") or one.who == "owner":
        return f"{PERSON}{one.who}"
    return one.who or SCHEDULER
