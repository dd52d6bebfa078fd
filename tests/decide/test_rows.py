"""Every row of the tables, walked by events: the engine arrives where the row says, and what it awaits is pending.

`JOB_WALKS` and `NODE_WALKS` name for each way out a road into the state and what happens then. A row is walked when the
record stood there before the event, or when the event passes through it. A row that no events reach has no place in the
table.
"""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, NODES, Play, S
from tests.decide.test_state_machine import Chaos

from holdfast.decide import machine
from holdfast.decide.machine import JOB, JOBS, NODE
from holdfast.decide.machine import JobPlace as P
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.events import Command
from holdfast.model.evidence import Domain
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Limits, Mode, NodeRules
from holdfast.model.records import JobState, NodeState, slug
from holdfast.model.records import JobTrigger as T
from holdfast.model.records import NodeState as N
from holdfast.model.records import NodeTrigger as U

SPARE = ("n1", "n3", "n4", "n5")


def steps(*many):
    """One after the other."""

    def go(play):
        for step in many:
            step(play)
        return play

    return go


def mode(value):
    return lambda play: play.say(Command.SET_MODE, value=value)


def settle(play):
    if any(timer.startswith("settle:") for timer in play.engine.state.timers):
        play.settle()


def running(**policy):
    return lambda: Play(**policy).running()


def road(make, *many):
    return lambda: steps(*many)(make())


def newest(make):
    """A deed about the newest attempt."""
    return lambda play: make(play, play.attempt.number)


def proposed(play):
    orders = [record.order for record in play.engine.state.orders.values() if record.status is OrderStatus.PROPOSED]
    (found,) = [order.id for order in orders if isinstance(order, o.JobOrder)]
    return found


xid = lambda play: play.xid("n2")  # noqa: E731
crash = newest(lambda play, number: play.crash(number))
hang = newest(lambda play, number: play.hang(number))
end = newest(lambda play, number: play.ended(number))
other_xid = lambda play: play.xid("n3")  # noqa: E731
evacuate = lambda play: play.say(Command.EVACUATE, job=KEY)  # noqa: E731
release = lambda play: play.done(o.ReleaseJob)  # noqa: E731
held = steps(xid, lambda p: p.done(o.RequeueHeld), lambda p: p.job(state=S.HELD, restart_count=1, nodes=()), settle)
proving = steps(xid, lambda play: play.through_queue())
lacks_nodes = lambda play: play.job(state=S.PENDING, reason="Resources", lacks_nodes=True)  # noqa: E731
waiting = steps(lambda play: play.until_release(), release, lacks_nodes)
cluster, inside = running(), running(scope="allocation")
in_place = steps(crash, end, settle)
proving_inside = steps(crash, lambda play: play.restart_in_place())
attached = lambda **policy: lambda: steps(lambda play: play.attach())(Play(scope="allocation", **policy))  # noqa: E731
plain_proving = steps(
    lambda play: play.job(state=S.FAILED, exit_code=1),
    settle,
    lambda play: play.done(o.RequeueHeld),
    lambda play: play.job(state=S.HELD, restart_count=1, nodes=()),
    release,
    lambda play: play.job(state=S.RUNNING, nodes=NODES),
)
JOB_ROADS = {
    "watching": cluster,
    "left_alone_inside": road(inside, mode("observe"), crash),
    "attached_inside": attached(),
    "attached_without_restarts": attached(limits=Limits(max_in_place=0)),
    "looking": road(cluster, hang),
    "looking_inside": road(inside, hang),
    "looking_again": road(cluster, proving, hang),
    "asking_inside": road(inside, mode("advise"), crash),
    "asking_in_place": road(inside, crash, mode("advise"), end, settle),
    "asking_to_save": road(running(mode=Mode.ADVISE, evacuate_on_trend=True), lambda p: p.xid("n2", predicts=True)),
    "asking_again": road(lambda: Play().plain(), plain_proving, mode("advise"), other_xid),
    "deciding": road(cluster, crash, end),
    "deciding_inside": road(inside, crash, end),
    "stopping": road(cluster, crash),
    "stopping_inside": road(inside, crash),
    "stopping_again": road(cluster, proving, other_xid),
    "evacuating": road(cluster, evacuate),
    "evacuating_inside": road(inside, evacuate),
    "in_place": road(cluster, in_place),
    "in_place_inside": road(inside, in_place),
    "held": road(cluster, held),
    "released": road(cluster, lambda play: play.until_release()),
    "released_and_held": road(cluster, lambda play: play.until_release(), lambda play: play.say(Command.HOLD, job=KEY)),
    "waiting": road(cluster, waiting),
    "restarting": road(
        cluster,
        lambda play: play.until_release(),
        release,
        lambda play: play.job(state=S.PENDING),
        lambda play: play.job(state=S.RUNNING, nodes=SPARE),
    ),
    "restarting_inside": road(inside, xid, end, settle, lambda play: play.attach(restart_count=1)),
    "proving": road(cluster, proving),
    "proving_inside": road(inside, proving_inside),
    "completed": road(lambda: Play().plain(), lambda play: play.job(state=S.COMPLETED, exit_code=0)),
    "given_up": road(
        cluster, lambda play: play.say(Command.GIVE_UP, job=KEY), lambda play: play.job(state=S.CANCELLED)
    ),
    "cancelled": road(lambda: Play().plain(), lambda play: play.job(state=S.CANCELLED)),
}
JOB_DEEDS = {
    "advise_and_evacuate": steps(mode("advise"), evacuate),
    "advise_and_fault": steps(mode("advise"), other_xid),
    "advise_and_look_again": steps(mode("advise"), lambda play: play.fire("job:")),
    "approved": lambda play: play.say(Command.APPROVE, order=proposed(play)),
    "attached": lambda play: play.attach(restart_count=play.j.view.restart_count, nodes=SPARE),
    "cancelled": lambda play: play.job(state=S.CANCELLED),
    "completed": lambda play: play.job(state=S.COMPLETED, exit_code=0),
    "ended": end,
    "ended_well": newest(lambda play, number: play.ended(number, exit_code=0, signal=None, stopped=False)),
    "escalated": newest(lambda p, number: p.do(e.Escalated, job=KEY, attempt=number, why="x", source="launcher:7")),
    "excluded": lambda play: play.done(o.SetExcluded),
    "failed": lambda play: play.job(state=S.FAILED, exit_code=1),
    "fault": other_xid,
    "forgotten": lambda play: play.do(e.JobVanished, job=KEY),
    "given_up": lambda play: play.say(Command.GIVE_UP, job=KEY),
    "hang": hang,
    "held_and_let_go": steps(lambda play: play.job(state=S.HELD), lambda play: play.job(state=S.PENDING)),
    "hold": lambda play: play.say(Command.HOLD, job=KEY),
    "lacks_nodes": lacks_nodes,
    "launcher_left": lambda play: play.do(e.LauncherLapsed, job=KEY, left=True, exit_code=1),
    "look_again": lambda play: play.fire("job:"),
    "observe_and_crash": steps(mode("observe"), crash),
    "observe_and_end": steps(mode("observe"), end, settle),
    "observe_and_fault": steps(mode("observe"), other_xid),
    "progress": newest(lambda play, number: play.step(number, 500)),
    "queued_and_approved": steps(
        lambda play: play.job(state=S.PENDING), lambda play: play.say(Command.APPROVE, order=proposed(play))
    ),
    "queued_observe_and_crash": steps(lambda play: play.job(state=S.PENDING), mode("observe"), crash),
    "rejected": lambda play: play.say(Command.REJECT, order=proposed(play)),
    "release_fails": lambda play: play.fail(o.ReleaseJob),
    "requeue_fails": lambda play: play.fail(o.RequeueHeld),
    "requeued": lambda play: play.done(o.RequeueHeld),
    "requeued_by_others": lambda p: p.job(state=S.PENDING, restart_count=p.j.view.restart_count + 1, nodes=()),
    "settled": lambda play: play.settle(),
    "started": newest(lambda p, number: p.start(number + 1, in_place=1, restart_count=p.j.view.restart_count)),
    "stop_fails": lambda play: play.fail(o.StopAttempt),
    "trend": lambda play: play.finding("nccl.timeout", job=KEY, node="n2", domain=Domain.NETWORK, predicts=True),
}
JOB_WALKS = {
    (P.ASKING, T.ASK): ("asking_to_save", "fault"),
    (P.ASKING, T.COMPLETED): ("asking_inside", "ended_well"),
    (P.ASKING, T.CANCEL): ("asking_inside", "cancelled"),
    (P.ASKING, T.GIVE_UP): ("asking_inside", "given_up"),
    (P.ASKING, T.STOP): ("asking_inside", "approved"),
    (P.ASKING, T.FALSE_ALARM): ("asking_inside", "rejected"),
    (P.ASKING, T.ADOPT): ("asking_inside", "requeued_by_others"),
    (P.ASKING, T.STARTED): ("asking_inside", "started"),
    (P.ASKING, T.ATTEMPT_OVER): ("asking_inside", "ended"),
    (P.ASKING, T.RESTART_IN_PLACE): ("asking_in_place", "approved"),
    (P.ASKING, T.LEAVE): ("asking_in_place", "rejected"),
    (P.ASKING, T.EVACUATE): ("asking_to_save", "approved"),
    (P.ASKING, T.PROVE_AGAIN): ("asking_again", "rejected"),
    (P.CANCELLED, T.REVIVED): ("cancelled", "lacks_nodes"),
    (P.COMPLETED, T.REVIVED): ("completed", "lacks_nodes"),
    (P.DECIDING, T.COMPLETED): ("deciding", "completed"),
    (P.DECIDING, T.CANCEL): ("deciding", "cancelled"),
    (P.DECIDING, T.ATTEMPT_OVER): ("deciding", "launcher_left"),
    (P.DECIDING, T.RESTART_IN_PLACE): ("deciding", "settled"),
    (P.DECIDING, T.FALSE_ALARM): ("deciding", "observe_and_fault"),
    (P.DECIDING, T.STOP): ("deciding", "fault"),
    (P.DECIDING, T.ADOPT): ("deciding", "requeued_by_others"),
    (P.DECIDING, T.LEAVE): ("deciding_inside", "observe_and_end"),
    (P.DECIDING, T.ASK): ("deciding", "advise_and_fault"),
    (P.DECIDING, T.GIVE_UP): ("deciding", "given_up"),
    (P.DECIDING, T.STARTED): ("deciding", "started"),
    (P.DECIDING, T.HOLD): ("released_and_held", "requeued"),
    (P.DECIDING, T.EVACUATE): ("asking_to_save", "queued_and_approved"),
    (P.EVACUATING, T.COMPLETED): ("evacuating_inside", "ended_well"),
    (P.EVACUATING, T.CANCEL): ("evacuating", "cancelled"),
    (P.EVACUATING, T.GIVE_UP): ("evacuating", "given_up"),
    (P.EVACUATING, T.STOP): ("evacuating", "fault"),
    (P.EVACUATING, T.ATTEMPT_OVER): ("evacuating", "ended"),
    (P.EVACUATING, T.ASK): ("evacuating", "advise_and_fault"),
    (P.EVACUATING, T.PROVE_AGAIN): ("evacuating", "observe_and_fault"),
    (P.EVACUATING, T.FALSE_ALARM): ("evacuating", "observe_and_crash"),
    (P.EVACUATING, T.ADOPT): ("evacuating", "requeued_by_others"),
    (P.EVACUATING, T.STARTED): ("evacuating", "started"),
    (P.EVACUATING, T.LEAVE): ("evacuating_inside", "queued_observe_and_crash"),
    (P.GIVEN_UP, T.REVIVED): ("given_up", "requeued_by_others"),
    (P.HELD, T.COMPLETED): ("held", "completed"),
    (P.HELD, T.CANCEL): ("held", "cancelled"),
    (P.HELD, T.GIVE_UP): ("held", "given_up"),
    (P.HELD, T.RUNS): ("held", "failed"),
    (P.HELD, T.ADOPT): ("held", "lacks_nodes"),
    (P.HELD, T.STARTED): ("held", "started"),
    (P.HELD, T.RELEASE): ("held", "excluded"),
    (P.IN_PLACE, T.COMPLETED): ("in_place", "completed"),
    (P.IN_PLACE, T.CANCEL): ("in_place", "cancelled"),
    (P.IN_PLACE, T.GIVE_UP): ("in_place", "given_up"),
    (P.IN_PLACE, T.STOP): ("in_place", "fault"),
    (P.IN_PLACE, T.ASK): ("in_place", "advise_and_fault"),
    (P.IN_PLACE, T.ATTEMPT_OVER): ("in_place", "launcher_left"),
    (P.IN_PLACE, T.ADOPT): ("in_place", "requeued_by_others"),
    (P.IN_PLACE, T.STARTED): ("in_place", "started"),
    (P.IN_PLACE, T.LEAVE): ("in_place_inside", "look_again"),
    (P.LOOKING, T.COMPLETED): ("looking_inside", "ended_well"),
    (P.LOOKING, T.CANCEL): ("looking", "cancelled"),
    (P.LOOKING, T.GIVE_UP): ("looking", "given_up"),
    (P.LOOKING, T.STOP): ("looking", "fault"),
    (P.LOOKING, T.ATTEMPT_OVER): ("looking", "ended"),
    (P.LOOKING, T.ASK): ("looking", "advise_and_fault"),
    (P.LOOKING, T.FALSE_ALARM): ("looking", "progress"),
    (P.LOOKING, T.ADOPT): ("looking", "requeued_by_others"),
    (P.LOOKING, T.STARTED): ("looking", "started"),
    (P.LOOKING, T.EVACUATE): ("asking_to_save", "approved"),
    (P.LOOKING, T.PROVE_AGAIN): ("looking_again", "progress"),
    (P.PROVING, T.STOP): ("proving", "fault"),
    (P.PROVING, T.COMPLETED): ("proving_inside", "ended_well"),
    (P.PROVING, T.PROVEN): ("proving", "ended_well"),
    (P.PROVING, T.CANCEL): ("proving", "cancelled"),
    (P.PROVING, T.GIVE_UP): ("proving", "given_up"),
    (P.PROVING, T.LOOK): ("proving", "hang"),
    (P.PROVING, T.ATTEMPT_OVER): ("proving", "escalated"),
    (P.PROVING, T.ASK): ("proving", "advise_and_fault"),
    (P.PROVING, T.EVACUATE): ("proving", "advise_and_evacuate"),
    (P.PROVING, T.ADOPT): ("proving", "requeued_by_others"),
    (P.RELEASED, T.RUNS): ("released", "attached"),
    (P.RELEASED, T.HOLD): ("released", "release_fails"),
    (P.RELEASED, T.COMPLETED): ("released", "completed"),
    (P.RELEASED, T.CANCEL): ("released", "cancelled"),
    (P.RELEASED, T.GIVE_UP): ("released", "given_up"),
    (P.RELEASED, T.STOP): ("released", "hold"),
    (P.RELEASED, T.ATTEMPT_OVER): ("released", "failed"),
    (P.RELEASED, T.WAIT): ("released", "look_again"),
    (P.RELEASED, T.STARTED): ("released", "started"),
    (P.RESTARTING, T.STARTED): ("restarting", "started"),
    (P.RESTARTING, T.ATTEMPT_OVER): ("restarting", "fault"),
    (P.RESTARTING, T.COMPLETED): ("restarting", "completed"),
    (P.RESTARTING, T.CANCEL): ("restarting", "cancelled"),
    (P.RESTARTING, T.GIVE_UP): ("restarting", "given_up"),
    (P.RESTARTING, T.STOP): ("restarting", "look_again"),
    (P.RESTARTING, T.ASK): ("restarting", "advise_and_look_again"),
    (P.RESTARTING, T.ADOPT): ("restarting", "requeued_by_others"),
    (P.STOPPING, T.COMPLETED): ("stopping_inside", "ended_well"),
    (P.STOPPING, T.CANCEL): ("stopping", "cancelled"),
    (P.STOPPING, T.GIVE_UP): ("stopping", "given_up"),
    (P.STOPPING, T.ATTEMPT_OVER): ("stopping", "ended"),
    (P.STOPPING, T.ASK): ("stopping", "advise_and_fault"),
    (P.STOPPING, T.FALSE_ALARM): ("stopping", "observe_and_fault"),
    (P.STOPPING, T.ADOPT): ("stopping", "requeued_by_others"),
    (P.STOPPING, T.STARTED): ("stopping", "started"),
    (P.STOPPING, T.LEAVE): ("stopping_inside", "stop_fails"),
    (P.STOPPING, T.PROVE_AGAIN): ("stopping_again", "requeue_fails"),
    (P.WAITING_FOR_NODES, T.COMPLETED): ("waiting", "completed"),
    (P.WAITING_FOR_NODES, T.CANCEL): ("waiting", "cancelled"),
    (P.WAITING_FOR_NODES, T.GIVE_UP): ("waiting", "given_up"),
    (P.WAITING_FOR_NODES, T.STOP): ("waiting", "hold"),
    (P.WAITING_FOR_NODES, T.ATTEMPT_OVER): ("waiting", "failed"),
    (P.WAITING_FOR_NODES, T.RUNS): ("waiting", "attached"),
    (P.WAITING_FOR_NODES, T.STARTED): ("waiting", "started"),
    (P.WAITING_FOR_NODES, T.HOLD): ("waiting", "held_and_let_go"),
    (P.WATCHING, T.COMPLETED): ("watching", "forgotten"),
    (P.WATCHING, T.CANCEL): ("watching", "cancelled"),
    (P.WATCHING, T.GIVE_UP): ("watching", "given_up"),
    (P.WATCHING, T.STOP): ("watching", "fault"),
    (P.WATCHING, T.LOOK): ("watching", "hang"),
    (P.WATCHING, T.ATTEMPT_OVER): ("watching", "escalated"),
    (P.WATCHING, T.ASK): ("watching", "advise_and_fault"),
    (P.WATCHING, T.EVACUATE): ("watching", "advise_and_evacuate"),
    (P.WATCHING, T.LEAVE): ("left_alone_inside", "ended"),
    (P.LOOKING, T.RESTART_IN_PLACE): ("attached_inside", "trend"),
    (P.LOOKING, T.LEAVE): ("attached_without_restarts", "trend"),
    (P.RESTARTING, T.LEAVE): ("restarting_inside", "look_again"),
}
"""Row of a job and what happened -> the road into the row and the deed."""
JOB_STORMS = {(P.RESTARTING, T.LOOK): ("cluster", 452, 201), (P.PROVING, T.LEAVE): ("allocation", 110, 12)}
"""Rows that only random events are known to reach: scope, seed and number of events."""

fence = steps(xid, lambda play: play.done(o.QuarantineNode))
replaced = steps(
    lambda play: play.done(o.ReplaceNode), lambda play: play.node("n2", boot_id="boot-b", instance_id="machine-b")
)
silent = lambda play: play.do(e.NodeSilent, node="n2", for_s=30.0)  # noqa: E731
idle = lambda **policy: lambda: Play(**policy).nodes()  # noqa: E731
OURS = {"drained": True, "drain_reason": "[holdfast] x"}
NODE_ROADS = {
    "healthy": idle(),
    "suspect": road(idle(mode=Mode.ADVISE), xid),
    "quarantined": road(idle(), xid),
    "quarantined_too_often": road(idle(node=NodeRules(lemon_offences=1)), xid),
    "drained": road(idle(), lambda play: play.say(Command.DRAIN, node="n2"), lambda play: play.done(o.QuarantineNode)),
    "repairing": road(idle(), fence),
    "validating": road(idle(), fence, replaced),
    "retired": road(idle(), fence, replaced, lambda play: play.fail(o.ValidateNode)),
}
NODE_ROADS |= {f"silent_{name}": road(make, silent) for name, make in NODE_ROADS.items()}
NODE_DEEDS = {
    "checked_and_returned": steps(
        lambda play: play.do(e.NodeValidated, node="n2", passed=True), lambda play: play.done(o.ReturnNode)
    ),
    "drained_by_hand": lambda play: play.say(Command.DRAIN, node="n2"),
    "fence_fails": lambda play: play.fail(o.QuarantineNode),
    "fenced": lambda play: play.done(o.QuarantineNode),
    "heard": lambda play: play.do(e.NodeHeard, node="n2"),
    "reboot_asked": lambda play: play.say(Command.REBOOT, node="n2"),
    "replaced": replaced,
    "silent": silent,
    "swapped": lambda play: play.node("n2", boot_id="b2", instance_id="m2", **OURS),
    "taken_back": steps(
        lambda play: play.node("n2", **OURS), lambda play: play.node("n2", drained=False, drain_reason="")
    ),
    "time_is_up": lambda play: play.fire("node:"),
    "xid": xid,
}
NODE_WALKS = {
    (N.HEALTHY, U.SILENT): ("healthy", "silent"),
    (N.HEALTHY, U.SUSPECT): ("healthy", "xid"),
    (N.SUSPECT, U.QUARANTINE): ("suspect", "drained_by_hand"),
    (N.HEALTHY, U.QUARANTINE): ("healthy", "swapped"),
    (N.QUARANTINED, U.FENCED): ("quarantined", "fenced"),
    (N.DRAINING, U.CHECK): ("drained", "swapped"),
    (N.VALIDATING, U.CLEARED): ("validating", "taken_back"),
    (N.SUSPECT, U.SILENT): ("suspect", "silent"),
    (N.SUSPECT, U.CLEARED): ("suspect", "swapped"),
    (N.QUARANTINED, U.SILENT): ("quarantined", "silent"),
    (N.QUARANTINED, U.CLEARED): ("quarantined", "swapped"),
    (N.DRAINING, U.REPAIR): ("drained", "xid"),
    (N.QUARANTINED, U.SUSPECT): ("quarantined", "fence_fails"),
    (N.DRAINING, U.SILENT): ("drained", "silent"),
    (N.DRAINING, U.CLEARED): ("drained", "taken_back"),
    (N.REPAIRING, U.SILENT): ("repairing", "silent"),
    (N.REPAIRING, U.CLEARED): ("repairing", "taken_back"),
    (N.REPAIRING, U.CHECK): ("repairing", "replaced"),
    (N.REPAIRING, U.RETIRE): ("repairing", "time_is_up"),
    (N.VALIDATING, U.SILENT): ("validating", "silent"),
    (N.VALIDATING, U.RETIRE): ("validating", "xid"),
    (N.VALIDATING, U.RETURN): ("validating", "checked_and_returned"),
    (N.RETIRED, U.SILENT): ("retired", "silent"),
    (N.RETIRED, U.CLEARED): ("retired", "taken_back"),
    (N.RETIRED, U.CHECK): ("retired", "swapped"),
    (N.VALIDATING, U.FAILED_CHECK): ("retired", "reboot_asked"),
    (N.UNKNOWN, U.HEARD_HEALTHY): ("silent_healthy", "swapped"),
    (N.UNKNOWN, U.HEARD_SUSPECT): ("silent_suspect", "swapped"),
    (N.UNKNOWN, U.HEARD_QUARANTINED): ("silent_quarantined", "swapped"),
    (N.UNKNOWN, U.HEARD_DRAINING): ("silent_drained", "swapped"),
    (N.UNKNOWN, U.HEARD_REPAIRING): ("silent_repairing", "swapped"),
    (N.UNKNOWN, U.HEARD_VALIDATING): ("silent_validating", "swapped"),
    (N.UNKNOWN, U.HEARD_RETIRED): ("silent_retired", "swapped"),
    (N.DRAINING, U.RETIRE): ("quarantined_too_often", "fenced"),
}


def place(play):
    """The row in which the job stands."""
    job = play.engine.state.jobs.get(slug(KEY))
    if job is None:
        return None
    orders = [r for r in play.engine.state.orders.values() if isinstance(r.order, o.JobOrder) and r.order.job == KEY]
    asked = any(record.status is OrderStatus.PROPOSED for record in orders)
    return machine.place_of(job.state, asked=asked, lives=job.alive and not job.in_queue)


@pytest.fixture
def walked(monkeypatch):
    """Rows that were walked: state, trigger, next state."""
    found, moves = set(), []
    real, send = machine.move, Play.send

    def move(table, state, trigger, **story):
        target = real(table, state, trigger, **story)
        moves.append((state, trigger, target))
        found.add((state, trigger, target))
        return target

    def sent(play, event):
        before = place(play)
        moves.clear()
        orders = send(play, event)
        jobs = [made for made in moves if isinstance(made[0], P)]
        if jobs and before is not None and JOBS[before].shown is JOBS[jobs[0][0]].shown:
            found.add((before, *jobs[0][1:]))  # a proposal or attempt may have ended just before the move
        return orders

    monkeypatch.setattr(machine, "move", move)
    monkeypatch.setattr(Play, "send", sent)
    return found


def awaited(play):
    """Is what the job's row awaits pending: one of its orders, its timer, or a person?"""
    now = place(play)
    job = play.engine.state.jobs.get(slug(KEY))
    if job is None or job.over or (job.state is JobState.WATCHING and not job.incident):
        return True
    if job.state is JobState.HELD and (job.held_by or play.scope == "allocation"):
        return True
    open_now = [r for r in play.engine.state.orders.values() if isinstance(r.order, JOBS[now].orders)]
    if now is P.ASKING:
        return any(record.status is OrderStatus.PROPOSED for record in open_now)
    timers = play.engine.state.timers
    return bool(open_now) or job.timer in timers or f"settle:{job.incident}" in timers


def test_every_row_has_its_walk():
    """Each way out of each state is walked below: the table has no row that events do not reach."""
    rows = {(state, trigger) for table in (JOB, NODE) for state, moves in table.items() for trigger in moves}
    walks = JOB_WALKS.keys() | JOB_STORMS.keys() | NODE_WALKS.keys()
    assert walks == rows


@pytest.mark.parametrize(("state", "trigger"), list(JOB_WALKS), ids=str)
def test_a_row_of_a_job_is_walked(walked, state, trigger):
    """The events lead there and out again, and what is awaited then is pending."""
    way, deed = JOB_WALKS[state, trigger]
    play = JOB_ROADS[way]()
    assert awaited(play)
    walked.clear()
    JOB_DEEDS[deed](play)
    assert (state, trigger, JOB[state][trigger]) in walked
    assert awaited(play)


@pytest.mark.parametrize(("state", "trigger"), list(JOB_STORMS), ids=str)
def test_a_rare_row_of_a_job_is_walked(walked, state, trigger):
    """As above, by a storm of random events whose invariants say that something is awaited."""
    scope, seed, count = JOB_STORMS[state, trigger]
    Chaos(seed, scope).run(count)
    assert (state, trigger, JOB[state][trigger]) in walked


@pytest.mark.parametrize(("state", "trigger"), list(NODE_WALKS), ids=str)
def test_a_row_of_a_node_is_walked(walked, state, trigger):
    """The events lead there and out again; a node in repair or under check awaits an order or its timer."""
    way, deed = NODE_WALKS[state, trigger]
    play = NODE_ROADS[way]()
    walked.clear()
    NODE_DEEDS[deed](play)
    assert (state, trigger, NODE[state][trigger]) in walked
    node = play.n()
    orders = [r.order for r in play.engine.state.orders.values() if isinstance(r.order, o.NodeOrder)]
    if node.phase in {NodeState.QUARANTINED, NodeState.REPAIRING, NodeState.VALIDATING}:
        assert node.timer in play.engine.state.timers or any(order.node == node.name for order in orders)
