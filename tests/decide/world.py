"""A small world that does what the engine orders: a scheduler, machines and launchers, without any faults of its own.

Used after a storm of random events: from then on everything works, and the engine must bring all of it to rest. Time
goes on only when nothing is left to do: then the earliest timer fires.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.decide import invariants
from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState
from holdfast.model.orders import OrderStatus
from holdfast.model.records import Authority, JobRecord, JobState, NodeState, slug

S = SchedulerState
OVER = {JobState.COMPLETED, JobState.GIVEN_UP, JobState.CANCELLED}


class World:
    """See the module's docstring."""

    def __init__(self, engine: Engine, now: float, count: int) -> None:
        self.braked: set[str] = set()
        """Proposals whose approval a full brake has refused since the last wait."""
        self.engine = engine
        self.now = now
        self.count = count
        self.machines = 0
        self.done: set[str] = set()
        """Ids of orders that had their effect: none may have it twice."""
        self.fresh: set[str] = set()
        """Jobs whose newest attempt makes progress."""

    # --- events ---

    def tell(self, kind: type, /, source: str = "world", **fields: Any) -> None:
        self.now += 0.01
        self.count += 1
        event = kind(id=f"w{self.count}", at=self.now, received_at=self.now, seq=self.count, source=source, **fields)
        self.engine.handle(event)
        invariants.check(self.engine.state, self.engine.index)

    def view(self, job: JobRecord, **fields: Any) -> None:
        self.tell(e.JobObserved, job=replace(job.view, **fields))

    def node_view(self, name: str, **fields: Any) -> None:
        node = self.engine.state.nodes.get(name)
        if node is not None:
            self.tell(e.NodeObserved, node=replace(node.view, **fields))

    # --- the whole way ---

    def calm(self, rounds: int = 3000) -> int:
        """Until nothing is left to do: the number of rounds it took."""
        self.tell(e.WatchBlind, blind=False)
        for name in list(self.engine.state.nodes):
            self.tell(e.NodeHeard, node=name)
        for number in range(rounds):
            if self.at_rest():
                return number
            if not (self.approve() or self.carry_out() or self.go_on() or self.tend()):
                self.wait()
        return rounds

    def at_rest(self) -> bool:
        state = self.engine.state
        jobs = all(
            job.state in OVER or (job.state is JobState.WATCHING and not job.incident) for job in state.jobs.values()
        )
        return jobs and not state.incidents

    def left(self) -> list[str]:
        """What keeps it from rest, for the message of a failed test."""
        state = self.engine.state
        lines = [
            f"job {name} {job.state} {job.incident} view={job.view.state} held_by={job.held_by!r} {job.story[-4:]}"
            for name, job in state.jobs.items()
            if job.state not in OVER and (job.state is not JobState.WATCHING or job.incident)
        ]
        lines += [
            f"incident {i.id} jobs={i.jobs_open} nodes={i.nodes_open} {i.story[-4:]}" for i in state.incidents.values()
        ]
        for incident in state.incidents.values():
            lines += [f"node {n} {state.nodes[n].state} {state.nodes[n].story[-4:]}" for n in incident.nodes_open]
        lines += [f"order {record.order}" for record in state.orders.values() if not isinstance(record.order, o.Notify)]
        return [*lines, f"timers {list(state.timers)}"]

    def approve(self) -> bool:
        for record in self.engine.proposed_orders():
            if record.order.id in self.braked:
                continue
            before = len(record.approvals)
            by = f"other-{before}"
            self.tell(e.OperatorCommand, command=e.Command.APPROVE, who="mei", by=by, order=record.order.id)
            if record.status is not o.OrderStatus.PROPOSED or len(record.approvals) > before:
                return True
            self.braked.add(record.order.id)  # time must pass first
        for job in list(self.engine.state.jobs.values()):
            if job.held_by and job.state is JobState.HELD:
                if job.view.state is S.HELD and job.held_by == "a person":
                    self.view(job, state=S.PENDING)
                else:
                    self.tell(e.OperatorCommand, command=e.Command.RELEASE, who="mei", job=job.key)
                return True
        return False

    def carry_out(self) -> bool:
        for record in list(self.engine.state.orders.values()):
            order = record.order
            if record.status is not OrderStatus.PENDING or order.id in self.done:
                continue
            self.done.add(order.id)
            self.effect(order)
            self.tell(e.OrderDone, order=order.id)
            return True
        return False

    def go_on(self) -> bool:
        """What schedulers and launchers do by themselves."""
        for name, job in list(self.engine.state.jobs.items()):
            if job.state in OVER:
                continue
            waits = job.state in {JobState.RELEASED, JobState.WAITING_FOR_NODES}
            if waits and (job.view.state is not S.RUNNING or name not in self.fresh):
                self.start(job)
                return True
            if job.state is JobState.RESTARTING:
                self.run(job)
                return True
            if job.state is JobState.PROVING and job.attempt is not None:
                step = max(job.durable_step, job.best_step) + 10
                number = job.attempt.number
                self.tell(e.FirstStepDone, job=job.key, attempt=number, step=step - 9, resumed_from=0)
                self.tell(e.StepReached, job=job.key, attempt=number, step=step + 1)
                self.tell(e.CheckpointSaved, job=job.key, attempt=number, step=step, durable=True)
                return True
            if self.engine.scope == "allocation" and job.state is JobState.HELD:
                self.start(job)
                return True
        return False

    def tend(self) -> bool:
        """What people and jobs do of themselves about faults that were only observed."""
        for incident in list(self.engine.state.incidents.values()):
            if not incident.would:
                continue
            for name in incident.nodes_open:
                node = self.engine.state.nodes[name]
                if node.state is NodeState.SUSPECT and not self.engine.index.orders_of.get(f"node:{name}"):
                    if node.view.alive is False:
                        self.node_view(name, alive=True)
                        return True
                    if node.view.drained:
                        self.node_view(name, drained=False, drain_reason="")
                    self.tell(e.OperatorCommand, command=e.Command.CONFIRM_HEALTHY, who="mei", node=name)
                    return True
            for key in incident.jobs_open:
                job = self.engine.state.jobs[slug(key)]
                attempt = job.attempt
                if job.state is JobState.WATCHING and job.incident == incident.id and attempt is not None:
                    step = max(job.durable_step, job.best_step, incident.step_before or 0) + 10
                    self.tell(e.CheckpointSaved, job=key, attempt=attempt.number, step=step, durable=True)
                    if job.incident == incident.id:
                        self.view(job, state=S.COMPLETED, nodes=())
                    return True
        return False

    def wait(self) -> None:
        """Nothing happens: the earliest timer fires. Jobs on draining nodes come to their end first."""
        for node in self.engine.state.nodes.values():
            for name in sorted(self.engine.index.jobs_on.get(node.name, ())) if node.incident else ():
                job = self.engine.state.jobs[name]
                if job.state in OVER or (job.state is JobState.WATCHING and not job.incident):
                    self.view(job, state=S.COMPLETED, nodes=())
                    return
        self.braked.clear()
        timers = self.engine.state.timers
        if not timers:
            return
        name = min(timers, key=lambda timer: timers[timer].due_at)
        self.now = max(self.now, timers[name].due_at)
        self.tell(e.TimerFired, timer=name)

    # --- effects ---

    def start(self, job: JobRecord) -> None:
        count = job.view.restart_count
        attempt = job.attempt
        if attempt is not None and count <= attempt.restart_count:
            count = attempt.restart_count + 1
        good = tuple(name for name in ("n1", "n2", "n3", "n4", "n5", "n6") if name not in job.excluded)[:3] or ("n7",)
        self.fresh.add(slug(job.key))
        if self.engine.scope == "cluster":
            self.view(job, state=S.RUNNING, restart_count=count, nodes=good)
        else:
            self.tell(e.LauncherAttached, job=job.key, restart_count=count, nodes=good, ranks=8, source="launcher:1")

    def run(self, job: JobRecord) -> None:
        count = job.view.restart_count
        number = job.attempt.number + 1 if job.attempt is not None else 0
        self.tell(
            e.LauncherAttached, job=job.key, restart_count=count, nodes=job.view.nodes, ranks=8, source="launcher:1"
        )
        self.tell(
            e.AttemptStarted, job=job.key, attempt=number, epoch=job.epoch + 1, restart_count=count,
            nodes=job.view.nodes, ranks=8, source="launcher:1",
        )  # fmt: skip

    def effect(self, order: o.AnyOrder) -> None:
        job = self.engine.state.jobs.get(slug(order.job)) if isinstance(order, o.JobOrder) else None
        attempt = job.attempt if job is not None else None
        match order:
            case o.RequeueHeld() if job is not None:
                self.fresh.discard(slug(job.key))
                self.view(
                    job, state=S.HELD, restart_count=max(job.view.restart_count, order.restart_count + 1), nodes=()
                )
            case o.ReleaseJob() if job is not None:
                self.view(job, state=S.PENDING)
            case o.SetExcluded() if job is not None:
                self.view(job, excluded=order.nodes)
            case o.GiveUp() if job is not None:
                self.view(job, state=S.CANCELLED)
            case o.StopAttempt() | o.SaveAndStop() if job is not None and attempt is not None:
                code = 85 if isinstance(order, o.SaveAndStop) else None
                self.tell(e.AttemptEnded, job=job.key, attempt=attempt.number, exit_code=code, signal=9, stopped=True)
                if job.authority is Authority.LAUNCHER and code is not None and self.engine.scope == "cluster":
                    self.tell(e.Escalated, job=job.key, attempt=attempt.number, why="saved", source="launcher:1")
            case o.RestartInPlace() if job is not None:
                self.tell(
                    e.AttemptStarted, job=job.key, attempt=order.attempt, epoch=order.epoch, in_place=1,
                    restart_count=job.view.restart_count, nodes=job.view.nodes, ranks=8, source="launcher:1",
                )  # fmt: skip
            case o.CaptureStacks() if job is not None:
                self.tell(e.StacksCaptured, job=job.key, attempt=order.attempt, source="launcher:1")
            case o.QuarantineNode() | o.RetireNode():
                self.node_view(order.node, drained=True, drain_reason="[holdfast] x")
            case o.ReturnNode():
                self.node_view(order.node, drained=False, drain_reason="")
            case o.RebootNode():
                self.machines += 1
                self.node_view(order.node, boot_id=f"boot{self.machines}", alive=True, jobs=())
            case o.ReplaceNode():
                self.machines += 1
                name = f"{self.machines}"
                self.node_view(order.node, boot_id=f"boot{name}", instance_id=f"machine{name}", alive=True, jobs=())
            case o.ValidateNode():
                self.tell(e.NodeValidated, node=order.node, passed=True, instance_id=order.instance_id)
            case _:
                pass


def empty_nodes(world: World) -> None:
    """Jobs that only the scheduler knew have ended."""
    for name, node in list(world.engine.state.nodes.items()):
        if node.view.jobs:
            world.node_view(name, jobs=())


def healthy_or_retired(world: World) -> bool:
    """Nodes in no incident are in service or with a person, or were drained by one."""
    return all(
        node.state
        in {NodeState.HEALTHY, NodeState.RETIRED, NodeState.SUSPECT, NodeState.QUARANTINED, NodeState.DRAINING}
        for node in world.engine.state.nodes.values()
    )


__all__ = ["JobKey", "JobView", "NodeView", "World", "empty_nodes", "healthy_or_retired"]
