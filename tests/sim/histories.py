"""Histories made by hand: a journal and deeds, written down one after the other, for the judges' own tests."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, NodeView, RecoverySpec, SchedulerState, WorldView
from holdfast.model.evidence import Diagnosis, Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Role
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Brake, Limits, Policy, PolicySet
from holdfast.model.records import IncidentRecord, JobRecord, JobState, NodeRecord, NodeState, OrderRecord
from holdfast.sim.history import (
    Deed,
    Drained,
    Faulted,
    FaultsOver,
    History,
    OrderTook,
    Resumed,
    RunBegan,
    Step,
    Wrote,
)

JOB = JobKey("c", "7")
OLD, NEW = "machine-1", "machine-2"


class Tale:
    """Tells a history: each call goes one second on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.history = History(policies=PolicySet(site=Policy(limits=Limits(max_requeues=2), brake=Brake(max_nodes=1))))
        self.incident = IncidentRecord(id="i1", opened_at=0.0)

    def event(self, kind: type, /, *orders: o.AnyOrder, **fields: Any) -> e.AnyEvent:
        """An event, and the orders it led to."""
        self.now += 1.0
        seq = len(self.history.steps) + 1
        made = kind(id=f"e{seq}", at=self.now, received_at=self.now, seq=seq, **fields)
        given = tuple(replace(order, cause=seq) for order in orders)
        self.history.steps.append(Step(made, given))
        self.history.orders += [OrderRecord(order, OrderStatus.DONE, self.now, self.now) for order in given]
        return made

    def deed(self, kind: type[Deed], /, **fields: Any) -> None:
        """Something truly happens, now."""
        self.now += 0.1
        self.history.deeds.append(kind(at=self.now, **fields))

    def took(self, order: o.AnyOrder, **fields: Any) -> None:
        """The order has its effect."""
        job, node = getattr(order, "job", None), getattr(order, "node", "")
        kind = order.__struct_config__.tag
        self.deed(OrderTook, order=order.id, kind=kind, job=job, node=node, **fields)

    def node(self, name: str, **fields: Any) -> None:
        """The scheduler shows a node."""
        view = NodeView(name=name, **{"group": "gpu", "alive": True, "instance_id": OLD, **fields})
        self.event(e.NodeObserved, node=view)

    def job(self, state: SchedulerState, **fields: Any) -> None:
        """The scheduler shows the job."""
        view = JobView(key=JOB, state=state, recovery=RecoverySpec(), partition="gpu", **fields)
        self.event(e.JobObserved, job=view)


def order(kind: type, name: str, /, **fields: Any) -> Any:
    """An order of incident i1; `Tale.event` fills in its cause."""
    about: dict[str, Any] = {"job": JOB} if issubclass(kind, o.JobOrder) else {"node": "n1", "instance_id": OLD}
    return kind(id=name, cause=0, incident="i1", **{**about, **fields})


QUARANTINE = order(o.QuarantineNode, "c1", why="Xid 74")
REQUEUE = order(o.RequeueHeld, "c2", restart_count=0)
EXCLUDE = order(o.SetExcluded, "c3", nodes=("n1",))
RELEASE = order(o.ReleaseJob, "c4", epoch=2)
REPLACE = order(o.ReplaceNode, "c5")
CHECK = order(o.ValidateNode, "c6", instance_id=NEW)
RETURN = order(o.ReturnNode, "c7", instance_id=NEW)
XID = Finding(
    id="f1",
    rule="nvidia.xid.74",
    at=1008.0,
    domain=Domain.HARDWARE,
    role=Role.ROOT,
    remedy=Remedy.REPLACE,
    place=Place(node="n1", gpu=3),
    summary="Xid 74",
    evidence=(Evidence(EvidenceKind.LOG, "NVRM: Xid 74"),),
)


def good() -> Tale:
    """Xid 74 on n1 under job 7: fenced, requeued, released elsewhere, replaced, returned. Nothing is wrong with it."""
    tale = Tale()
    tale.event(e.ControllerStarted, epoch=1)
    for name in ("n1", "n2", "n3", "n4"):
        tale.node(name)
    tale.deed(RunBegan, job=JOB, epoch=1, nodes=("n1", "n2"), by="scheduler")
    tale.job(SchedulerState.RUNNING, nodes=("n1", "n2"))
    tale.event(e.CheckpointSaved, job=JOB, attempt=0, step=10, durable=True)
    tale.deed(Wrote, job=JOB, epoch=1, step=10)
    tale.deed(Faulted, fault="gpu-1", kind="gpu", rules=("nvidia.xid.74",), node="n1", job=JOB)
    fault_at = tale.now
    tale.event(e.FindingSeen, QUARANTINE, REQUEUE, finding=replace(XID, at=fault_at))
    tale.took(QUARANTINE, instance_id=OLD)
    tale.deed(Drained, node="n1", by="c1", reason="[holdfast] Xid 74")
    tale.event(e.OrderDone, order="c1")
    tale.node("n1", drained=True, drain_reason="[holdfast] Xid 74")
    tale.took(REQUEUE)
    tale.event(e.OrderDone, EXCLUDE, order="c2")
    tale.took(EXCLUDE)
    tale.event(e.OrderDone, RELEASE, REPLACE, order="c3")
    tale.took(RELEASE)
    tale.event(e.OrderDone, order="c4")
    tale.deed(RunBegan, job=JOB, epoch=2, nodes=("n2", "n3"), by="c4")
    tale.job(SchedulerState.RUNNING, nodes=("n2", "n3"), restart_count=1)
    tale.event(e.CheckpointSaved, job=JOB, attempt=1, step=20, durable=True)
    tale.deed(Wrote, job=JOB, epoch=2, step=20)
    tale.took(REPLACE, instance_id=OLD)
    tale.node("n1", drained=True, drain_reason="[holdfast] Xid 74", instance_id=NEW)
    tale.event(e.OrderDone, CHECK, order="c5")
    tale.event(e.NodeValidated, RETURN, node="n1", passed=True, instance_id=NEW)
    tale.event(e.OrderDone, order="c6")
    tale.took(RETURN, instance_id=NEW)
    tale.deed(Resumed, node="n1", by="c7")
    tale.event(e.OrderDone, order="c7")
    tale.node("n1", instance_id=NEW)
    tale.deed(FaultsOver, bound_s=100.0)
    return end(tale, fault_at)


def end(tale: Tale, fault_at: float) -> Tale:
    """The records of the end, and the scheduler's last word."""
    history = tale.history
    view = JobView(key=JOB, state=SchedulerState.RUNNING, nodes=("n2", "n3"), recovery=RecoverySpec(), restart_count=1)
    tale.incident = IncidentRecord(
        id="i1",
        opened_at=fault_at + 1.0,
        jobs=[JOB],
        nodes=["n1"],
        findings=[replace(XID, at=fault_at)],
        diagnosis=Diagnosis(cause="nvidia.xid.74", domain=Domain.HARDWARE, summary="Xid 74", nodes=("n1",)),
        closed_at=tale.now,
        outcome="recovered",
        story=["Diagnosis: Xid 74 (domain hardware)."],
    )
    history.incidents = [tale.incident]
    history.jobs = [JobRecord(key=JOB, view=view, state=JobState.WATCHING)]
    history.nodes = [NodeRecord(name="n1", view=NodeView(name="n1"), state=NodeState.HEALTHY)]
    history.final = WorldView(cluster="c", at=tale.now, jobs=(view,))
    history.ended_at = tale.now + 200.0
    return tale
