"""Seventeen bugs that an engine could have, planted one at a time: the judges of simulation must find each of them.

`planted(name)` is a context in which the engine has that bug. They are made at the seams where the real thing would be
forgotten or confused; the engine's own invariants are switched off meanwhile, so that only the judges can find them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from holdfast.decide import engine, incidents, jobs, nodes, operators, repair, restart
from holdfast.decide.records import incident as incident_record
from holdfast.decide.records import job as job_record
from holdfast.decide.records.turn import Timers, Turn
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import SchedulerState
from holdfast.model.events import Command
from holdfast.model.orders import OrderStatus
from holdfast.model.records import JobRecord, JobState, NodeRecord
from holdfast.sim.checkers import Complaint
from holdfast.sim.judging import complaints_about
from holdfast.sim.options import changed, draw
from holdfast.sim.run import simulate

Planted = Callable[[], contextlib.AbstractContextManager[object]]


def _forgotten_fence() -> contextlib.AbstractContextManager[object]:
    """The quarantine is believed to be ordered, and never is."""
    real = Turn.ask

    def ask(self: Turn, order: o.AnyOrder, *rest: Any) -> OrderStatus:
        return OrderStatus.PENDING if isinstance(order, o.QuarantineNode) else real(self, order, *rest)

    return patch.object(Turn, "ask", ask)


def _double_requeue() -> contextlib.AbstractContextManager[object]:
    """One fault, two requeues."""
    real = restart.entered_requeue

    def entered(turn: Turn, job: JobRecord, incident: Any, why: str) -> None:
        real(turn, job, incident, why)
        again = turn.outgoing.make(
            o.RequeueHeld, incident=incident.id, job=job.key, restart_count=job.view.restart_count + 1, why=why
        )
        turn.outgoing.orders.append(again)

    return patch.object(restart, "entered_requeue", entered)


def _lost_timer() -> contextlib.AbstractContextManager[object]:
    """The end of settling is noted, and nobody is told to wake the engine."""
    real = Timers.start

    def start(self: Timers, name: str, after_s: float, incident: str = "") -> None:
        real(self, name, after_s, incident)
        if name.startswith("settle:"):
            self.outgoing.orders.pop()

    return patch.object(Timers, "start", start)


def _brake_blocks_recovery() -> contextlib.AbstractContextManager[object]:
    """A brake that has counted a quarantine stops releases, too."""
    real = restart.release

    def release(turn: Turn, job: JobRecord) -> None:
        if not any(brake.recent or brake.tripped_at for brake in turn.state.brakes.values()):
            real(turn, job)

    return patch.object(restart, "release", release)


def _stale_drain() -> contextlib.AbstractContextManager[object]:
    """The node counts as returned, and its drain stays."""
    return patch.object(repair, "give_back", repair.returned)


def _budget_not_reset() -> contextlib.AbstractContextManager[object]:
    """Progress does not give the retries back."""
    return patch.object(job_record, "reset_budgets", lambda _job: False)


def _restart_onto_bad_node() -> contextlib.AbstractContextManager[object]:
    """The job is kept off nothing."""
    return patch.object(restart, "exclude", lambda _turn, _job, _names: None)


def _admins_drain_taken() -> contextlib.AbstractContextManager[object]:
    """Every drain is taken for our own."""
    return patch.object(nodes, "is_ours", lambda _view: True)


def _restart_after_cancel() -> contextlib.AbstractContextManager[object]:
    """A cancel is taken for a failure."""
    real = jobs._ended

    def ended(turn: Turn, job: JobRecord) -> None:
        if job.view.state is SchedulerState.CANCELLED:
            job.view = replace(job.view, state=SchedulerState.FAILED)
        real(turn, job)

    return patch.object(jobs, "_ended", ended)


def _replay_acts_twice() -> contextlib.AbstractContextManager[object]:
    """A new controller orders once more what was done long ago."""
    real = engine._HANDLERS[e.ControllerStarted]

    def started(turn: Turn, event: e.ControllerStarted) -> None:
        real(turn, event)
        for node in turn.state.nodes.values():
            if node.offences and not turn.in_allocation:
                turn.orders.issue(
                    turn.outgoing.make(o.QuarantineNode, node=node.name, instance_id=node.instance_id, why="again")
                )

    return patch.dict(engine._HANDLERS, {e.ControllerStarted: started})


def _incident_never_closed() -> contextlib.AbstractContextManager[object]:
    """A node's side is settled, and the incident goes on waiting for it."""

    def settled(turn: Turn, incident: Any, node: NodeRecord, why: str) -> None:
        if node.incident == incident.id:
            node.incident = ""
        turn.tell(incident, f"{node.name}: {why}")

    return patch.object(incident_record, "node_settled", settled)


def _wrong_cause() -> contextlib.AbstractContextManager[object]:
    """A GPU's fault is told as the job's."""
    real = incidents.diagnose

    def diagnose(*given: Any) -> Any:
        made = real(*given)
        return replace(made, cause="exit.code.1", summary="exit code 1") if made.cause.startswith("nvidia.") else made

    return patch.object(incidents, "diagnose", diagnose)


def _partial_exclusion() -> contextlib.AbstractContextManager[object]:
    """Of several bad nodes the job is kept off the first only."""
    real = restart.exclude

    def exclude(turn: Turn, job: JobRecord, names: Any) -> None:
        if not job.excluded:
            real(turn, job, list(names)[:1])

    return patch.object(restart, "exclude", exclude)


def _findings_dropped_while_held() -> contextlib.AbstractContextManager[object]:
    """While a job is held in the queue, no finding is heard: of that job's nodes or of others."""
    real = engine._HANDLERS[e.FindingSeen]

    def seen(turn: Turn, event: e.FindingSeen) -> None:
        if not any(job.state is JobState.HELD for job in turn.state.jobs.values()):
            real(turn, event)

    return patch.dict(engine._HANDLERS, {e.FindingSeen: seen})


def _failed_checks_return() -> contextlib.AbstractContextManager[object]:
    """A node that has failed its checks is taken for one that has passed."""
    real = repair.validated

    def validated(turn: Turn, node: NodeRecord, **said: Any) -> None:
        real(turn, node, **{**said, "passed": True})

    return patch.object(repair, "validated", validated)


def _hold_ignored() -> contextlib.AbstractContextManager[object]:
    """A person asks for a hold, and it is forgotten."""
    real = operators._ON_JOBS[Command.HOLD]

    def hold(turn: Turn, event: e.OperatorCommand, job: JobRecord) -> None:
        real(turn, event, job)
        job.held_by = ""

    return patch.dict(operators._ON_JOBS, {Command.HOLD: hold})


def _queue_hold_ignored() -> contextlib.AbstractContextManager[object]:
    """A job that a person holds in the queue is released all the same."""
    real = jobs._held_by_person

    def held(turn: Turn, job: JobRecord) -> None:
        real(turn, job)
        job.held_by = ""
        restart.go_on_from_hold(turn, job)

    return patch.object(jobs, "_held_by_person", held)


MUTANTS: dict[str, Planted] = {
    "forgotten fence": _forgotten_fence,
    "double requeue": _double_requeue,
    "lost timer": _lost_timer,
    "brake that blocks recovery": _brake_blocks_recovery,
    "stale drain": _stale_drain,
    "budget not reset": _budget_not_reset,
    "restart onto a bad node": _restart_onto_bad_node,
    "an admin's drain taken for ours": _admins_drain_taken,
    "restart after a cancel": _restart_after_cancel,
    "replay acts twice": _replay_acts_twice,
    "incident never closed": _incident_never_closed,
    "wrong cause in the story": _wrong_cause,
    "partial exclusion": _partial_exclusion,
    "findings dropped while held": _findings_dropped_while_held,
    "failed checks return the node": _failed_checks_return,
    "a person's hold ignored": _hold_ignored,
    "a hold in the queue ignored": _queue_hold_ignored,
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The engine has this bug."""
    with MUTANTS[name]():
        yield


def complaints(seed: int) -> list[Complaint]:
    """What the judges say of a seed of the swarm; the engine's own invariants are off."""
    return complaints_about(simulate(changed(draw(seed), check=False)))


def caught_by(name: str, seeds: Iterable[int]) -> tuple[int, frozenset[str]]:
    """The first seed by which the planted bug is found, and the judges that found it; -1: none of these."""
    with planted(name):
        for seed in seeds:
            said = complaints(seed)
            if said:
                return seed, frozenset(one.judge for one in said)
    return -1, frozenset()
