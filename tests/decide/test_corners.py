"""Words in the wrong order, orders that fail, launchers that are faster than their reports: the less travelled ways."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import NODE_KIND, JobKey, JobView, RecoverySpec, SchedulerState
from holdfast.model.evidence import Diagnosis, Domain, EvidenceKind, Remedy, Role
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Brake, Limits, Mode, Trouble
from holdfast.model.records import Authority, JobState, Mark, NodeState

S = SchedulerState
R = Remedy


def held(play: Play) -> Play:
    """Requeued because of n2, held, nothing excluded yet."""
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    return play


# --- orders that fail -------------------------------------------------------------------------------------------------


def test_a_job_whose_exclusion_failed_stays_held(play):
    """Released without it, it could start on the bad node again: a person is told, and the scheduler asked once more."""
    held(play)
    assert kinds(play.fail(o.SetExcluded, "slurm_update error: Invalid node name")) == []
    assert play.state is JobState.HELD
    assert "7(0) could not be kept off n2" in play.notices()
    assert kinds(play.fire("job:")) == ["SetExcluded"]
    assert kinds(play.done(o.SetExcluded)) == ["ReleaseJob"]


def test_a_job_whose_exclusion_failed_goes_on_when_a_person_releases_it(play):
    """Their word counts."""
    held(play)
    play.fail(o.SetExcluded, "no such feature")
    play.job(state=S.PENDING)
    assert play.state is JobState.RELEASED


def test_an_exclusion_that_failed_is_not_needed_once_its_node_is_clean(play):
    """Its reason is gone: the job is released without it."""
    held(play)
    play.fail(o.SetExcluded, "no such feature")
    play.say(e.Command.CONFIRM_HEALTHY, node="n2")
    assert kinds(play.fire("job:")) == ["ReleaseJob"]


def test_nodes_that_the_scheduler_does_not_know_are_left_out_of_an_exclusion_that_it_refused(play):
    """It gives out none of them; the bad ones that it knows are all excluded before the job starts."""
    play.xid("ghost1", job=KEY, attempt=0)
    play.xid("n2")
    play.xid("n3")
    play.do(e.Escalated, job=KEY, attempt=0, why="no rung", exclude_nodes=("ghost2",), source="launcher:7")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    assert {"ghost2", "n2", "n3"} <= set(play.open(o.SetExcluded).nodes)
    orders = play.fail(o.SetExcluded, "slurm_update error: Invalid node name specified")
    assert kinds(orders) == ["SetExcluded"]
    assert play.open(o.SetExcluded).nodes == ("n2", "n3")
    assert kinds(play.done(o.SetExcluded)) == ["ReleaseJob"]


def queued_when_n9_fails(play: Play) -> Play:
    """Released without n2, and not started yet, when a further node is known as bad and is not drained."""
    play.node("n9")
    play.until_release("n2")
    play.done(o.ReleaseJob)
    play.job(state=S.PENDING, excluded=("n2",))
    play.xid("n9")
    order = play.open(o.QuarantineNode, node="n9").id
    play.do(e.OrderFailed, order=order, why="no permission", permanent=True)
    return play


def test_an_exclusion_of_a_queued_job_that_fails_is_told_and_tried_again(play):
    """Nothing holds the job meanwhile: people must know that it may start there."""
    queued_when_n9_fails(play)
    assert kinds(play.fail(o.SetExcluded, "slurm_update error: Access/permission denied")) == []
    assert "7(0) could not be kept off n2 and n9" in play.notices()
    assert play.state is JobState.RELEASED
    assert kinds(play.fire("job:")) == ["SetExcluded"]
    play.job(excluded=("n2", "n9"))
    play.done(o.SetExcluded)
    assert kinds(play.fire("job:")) == []


def test_a_queued_jobs_exclusion_goes_on_without_names_that_the_scheduler_does_not_know(play):
    """One of them must not let the job start on the others."""
    queued_when_n9_fails(play)
    play.xid("n3")
    play.do(e.NodeVanished, node="n9")
    assert kinds(play.fail(o.SetExcluded, "slurm_update error: Invalid node name specified")) == []
    assert play.j.excluded == ("n2",)
    assert "could not be kept off" not in " ".join(play.notices())


def test_a_job_whose_only_excluded_node_left_the_cluster_is_released(play):
    """The scheduler refuses the name and cannot give the node out either: nothing is left to hold the job for."""
    held(play)
    play.do(e.NodeVanished, node="n2")
    assert kinds(play.fail(o.SetExcluded, "slurm_update error: Invalid node name specified")) == ["ReleaseJob"]
    assert play.j.excluded == ()


def test_a_release_that_fails_is_told_and_tried_again(play):
    """Held until it works."""
    held(play)
    play.done(o.SetExcluded)
    assert kinds(play.fail(o.ReleaseJob, "slurmctld says no")) == []
    assert play.state is JobState.HELD
    assert "7(0) could not be released" in play.notices()
    assert kinds(play.fire("job:"))[-1] in {"ReleaseJob", "SetExcluded"}


def test_a_requeue_that_is_refused_leaves_a_running_job_running(play):
    """--no-requeue: better on a suspect node than killed for nothing; people are told."""
    play.xid("n2")
    assert kinds(play.fail(o.RequeueHeld, "job may not be requeued")) == []
    assert play.state is JobState.WATCHING
    assert "7(0) could not be requeued" in play.notices()


def test_a_requeue_that_is_refused_for_an_ended_job_is_the_end():
    """There is nothing to keep."""
    play = Play().plain()
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    orders = play.fail(o.RequeueHeld, "job may not be requeued")
    assert kinds(orders) == ["GiveUp"]
    assert not play.open(o.GiveUp).cancel
    assert play.state is JobState.GIVEN_UP


def test_giving_up_that_fails_changes_nothing_more(play):
    """The job is over for us."""
    play.say(e.Command.GIVE_UP, job=KEY)
    assert kinds(play.fail(o.GiveUp, "no permission")) == []
    assert play.state is JobState.GIVEN_UP


def test_a_temporary_failure_keeps_the_order_open(play):
    """Same id, later."""
    play.xid("n2")
    order = play.open(o.RequeueHeld)
    play.fail(o.RequeueHeld, "time-out", permanent=False)
    assert play.open(o.RequeueHeld) == order
    assert order in play.fire("order:")
    play.done(o.RequeueHeld)
    assert not any(timer.startswith("order:") for timer in play.engine.state.timers)


def test_a_failed_stop_inside_leaves_the_allocation(inside):
    """Ranks that cannot be ended here are ended by leaving."""
    inside.crash()
    assert kinds(inside.fail(o.StopAttempt, "follower does not answer")) == ["Escalate"]


# --- words in the wrong order -----------------------------------------------------------------------------------------


def test_a_launcher_that_has_left_has_no_nodes_excluded(inside):
    """Somebody released its job, which waits without the node: whom the scheduler gives it is not a launcher's to say."""
    inside.do(e.NodeGone, node="n2", evidence="reset")
    inside.fail(o.StopAttempt)
    inside.job(state=S.HELD)
    inside.job(state=S.PENDING)
    assert (inside.state, inside.j.excluded) == (JobState.RELEASED, ("n2",))
    assert "SetExcluded" not in kinds(inside.fire("job:"))


def test_a_launcher_faster_than_its_reports(play):
    """The new attempt's start arrives before the old one's end: the decision is made up for, and counted once."""
    play.crash()
    play.start(1, in_place=1)
    assert play.state is JobState.PROVING
    assert play.j.in_place == 1
    assert play.incident.diagnosis.cause == "exit.signal.11"
    assert Mark.REQUEUED in play.incident.marks
    play.ended(0)
    assert play.state is JobState.PROVING


def test_an_attempt_that_starts_while_our_requeue_is_under_way_is_only_noted(play):
    """It will be stopped by the requeue."""
    play.xid("n2")
    play.start(1, in_place=1)
    assert play.state is JobState.STOPPING
    assert play.attempt.incident == play.incident.id
    play.through_queue()
    assert play.state is JobState.PROVING
    assert play.attempt.number == 2


def test_an_attempt_that_starts_while_another_proves_is_noted(inside):
    """The program's own restarts are none of ours."""
    inside.crash()
    inside.restart_in_place()
    assert kinds(inside.start(2, in_place=2)) == []
    assert inside.state is JobState.PROVING
    assert inside.attempt.number == 2


def test_an_attempt_may_be_the_first_thing_heard_of_a_job():
    """The controller was just started; the launcher's words come before the scheduler's view."""
    play = Play().nodes()
    play.start(3, epoch=4, restart_count=1)
    assert play.j.view.nodes == NODES
    assert play.attempt.number == 3
    play.attach(restart_count=1)
    assert play.j.authority is Authority.LAUNCHER


def test_an_attempt_of_an_older_run_is_not_taken_for_a_new_one(play):
    """Restart count 0 after restart count 1."""
    held(play)
    play.start(5, restart_count=0)
    assert [attempt.number for attempt in play.j.attempts] == [0]


def test_the_end_of_an_attempt_nobody_knows(play):
    """Of a run before our time."""
    assert kinds(play.ended(7)) == []


def test_an_attempt_that_ends_well_while_it_was_being_stopped(inside):
    """The hang was none after all: it ran to its end before the stop came."""
    inside.hang()
    inside.fire("job:")
    assert kinds(inside.ended(0, exit_code=0, signal=None, stopped=False)) == []
    assert inside.state is JobState.COMPLETED


def test_an_attempt_that_ends_well_is_proof_for_the_controller_too(play):
    """Whether the whole job has completed, the scheduler will say."""
    play.crash()
    play.restart_in_place()
    play.ended(1, exit_code=0, signal=None, stopped=False)
    assert play.state is JobState.WATCHING
    assert play.closed[0].outcome == "recovered"
    play.job(state=S.COMPLETED, exit_code=0)
    assert play.state is JobState.COMPLETED


def test_steps_of_an_older_attempt_tell_how_far_it_had_come(inside):
    """The step before the fault may be told late."""
    inside.crash()
    inside.restart_in_place()
    inside.step(0, 140)
    assert inside.incident.step_before == 140
    inside.first_step(1, 101, resumed_from=100)
    assert inside.incident.lost_steps == 40


def test_an_attempt_of_a_job_given_up_ends_with_the_job():
    """Nobody else tells of its end: without a launcher it is over when the scheduler says so, not when it starts again."""
    play = Play().plain()
    assert not play.attempt.ended_at
    play.do(e.OperatorCommand, command=e.Command.GIVE_UP, who="ada", why="enough", job=KEY)
    assert play.state is JobState.GIVEN_UP
    assert not play.attempt.ended_at
    play.job(state=S.CANCELLED)
    assert play.attempt.ended_at == play.now


def test_a_durable_checkpoint_tells_how_far_it_had_come(play):
    """Its step was completed, though the last word of steps is older."""
    play.step(0, 116)
    play.checkpoint(0, 120)
    play.crash()
    assert play.incident.step_before == 120


def test_a_checkpoint_that_is_told_after_the_fault_counts_as_reached(play):
    """Saved just before the end, told just after it: the job cannot have resumed beyond what it had reached."""
    play.step(0, 180)
    play.crash()
    play.checkpoint(0, 200)
    assert play.incident.step_before == 200
    play.checkpoint(0, 190)
    assert play.incident.step_before == 200


def test_a_first_step_told_twice(inside):
    """The first word counts."""
    inside.first_step(0, 50, resumed_from=7)
    assert inside.attempt.first_step == 1


def test_evidence_of_an_attempt_whose_incident_is_closed(play):
    """Lines that were flushed late, after the restart was proven."""
    play.crash()
    play.restart_in_place()
    play.checkpoint(1, 200)
    play.crash(1)
    play.ended(1)
    assert len(play.engine.open_incidents()) == 1
    assert kinds(play.crash(0, rank=7)) == []


def test_an_escalation_may_know_the_cause_better(play):
    """The controller had no evidence but an exit; the launcher's diagnosis is taken over."""
    play.finding("nccl.remote", job=KEY, attempt=0, role=Role.CASCADE, domain=Domain.NETWORK, source="launcher:7")
    made = Diagnosis(cause="disk.full", domain=Domain.STORAGE, summary="/scratch is full", fingerprint="disk.full")
    play.do(e.Escalated, job=KEY, attempt=0, diagnosis=made, why="disk")
    if any(timer.startswith("settle:") for timer in play.engine.state.timers):
        play.settle()
    assert play.incident.diagnosis.cause == "disk.full"


def test_a_lease_that_ends_while_evacuating(play):
    """It saved and left without a word: the attempt is over by the lease's end."""
    play.say(e.Command.EVACUATE, job=KEY)
    assert kinds(play.do(e.LauncherLapsed, job=KEY)) == ["RequeueHeld"]


def test_a_lapse_timer_that_fires_in_recovery_does_nothing(play):
    """The recovery has its own waits."""
    play.do(e.LauncherLapsed, job=KEY)
    play.xid("n2")
    play.done(o.RequeueHeld)
    assert kinds(play.fire("lapse:")) == []


def test_a_lapse_timer_for_a_job_that_has_ended(play):
    """Nothing to fear."""
    play.do(e.LauncherLapsed, job=KEY)
    play.job(state=S.COMPLETED)
    assert kinds(play.fire("lapse:")) == [] if any(t.startswith("lapse") for t in play.engine.state.timers) else True


def test_a_released_job_that_fails_before_anybody_saw_it_run(play):
    """Started and dead between two looks of the watcher: a further fault, not a further requeue of the same."""
    held(play)
    play.done(o.SetExcluded)
    play.done(o.ReleaseJob)
    play.job(state=S.FAILED, restart_count=1, exit_code=1)
    assert play.state in {JobState.STOPPING, JobState.DIAGNOSING}
    if any(timer.startswith("settle:") for timer in play.engine.state.timers):
        play.settle()
    assert play.opened(o.RequeueHeld)


def test_a_view_without_a_change_still_counts_when_it_is_waited_for(play):
    """Released, and the last view showed it running anew already."""
    held(play)
    play.done(o.SetExcluded)
    order = play.open(o.ReleaseJob).id
    play.engine.state.jobs["c/7#1"].view = JobView(
        key=KEY, partition="gpu", state=S.RUNNING, restart_count=2, nodes=("n1",), recovery=RecoverySpec()
    )
    play.engine.index.jobs_on.setdefault("n1", set()).add("c/7#1")
    play.do(e.OrderDone, order=order)
    assert play.state is JobState.RESTARTING


# --- what nobody asked for --------------------------------------------------------------------------------------------


def test_an_owner_who_withdraws_the_wish_during_recovery():
    """The recovery that is under way is finished; the next fault is only watched."""
    play = Play().plain()
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    play.job(recovery=RecoverySpec(enabled=False))
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=NODES)
    play.checkpoint(1, 10)
    assert play.closed[0].outcome == "recovered"
    play.finding("exit.code.1", job=KEY, attempt=1, source="slurm")
    assert play.state is JobState.WATCHING


def test_a_watched_jobs_fault_is_told_and_settled_when_it_ends():
    """nobody asked; its incident closes with the job."""
    play = Play().plain(recovery=None)
    play.finding("exit.code.1", job=KEY, attempt=0)
    assert play.state is JobState.WATCHING
    play.job(state=S.FAILED, exit_code=1)
    assert play.state is JobState.GIVEN_UP
    assert play.closed[0].outcome == "observed"


def test_a_ladder_that_only_tells():
    """unknown = ["notify"]: people are told, the job is left alone."""
    play = Play(scope="allocation", ladders={Trouble.UNKNOWN: (R.NOTIFY,)}).running()
    assert kinds(play.finding("odd", job=KEY, attempt=0, source="launcher:7", summary="something odd")) == []
    assert play.state is JobState.WATCHING
    assert R.NOTIFY in play.incident.remedies


def test_an_end_with_a_ladder_that_only_tells():
    """It has ended, and nothing may be done: the launcher leaves with its code."""
    play = Play(scope="allocation", ladders={Trouble.UNKNOWN: (R.NOTIFY,)}).running()
    play.ended(0, exit_code=3, signal=None, stopped=False)
    assert play.open(o.Escalate).exit_code == 3


def test_stop_in_advise_mode_asks_first():
    """Giving up is a deed, too."""
    play = Play(modes={R.STOP: Mode.ADVISE}, limits=Limits(max_requeues=0)).plain()
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    (record,) = play.engine.proposed_orders()
    assert isinstance(record.order, o.GiveUp)
    play.say(e.Command.APPROVE, order=record.order.id)
    assert play.state is JobState.GIVEN_UP
    assert play.closed[0].outcome == "given_up"


def test_stop_in_observe_mode_ends_nothing():
    """The job has failed and stays failed."""
    play = Play(modes={R.STOP: Mode.OBSERVE}, limits=Limits(max_requeues=0)).plain()
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    assert play.state is JobState.GIVEN_UP
    assert play.closed[0].outcome == "observed"
    assert play.opened(o.GiveUp) == []


def test_a_second_fault_under_observe_does_not_end_the_first_recovery():
    """The restart is being proven; the new fault is only written down."""
    play = Play().running()
    play.crash(fingerprint="a")
    play.restart_in_place()
    play.say(e.Command.SET_MODE, value="observe")
    play.xid("n2")
    assert play.state is JobState.PROVING
    play.checkpoint(1, 200)
    assert "recovered" in {incident.outcome for incident in play.closed}


def test_a_hang_whose_ladder_is_empty_is_looked_at_and_left():
    """Stacks are told, nothing is done."""
    play = Play(scope="allocation", ladders={Trouble.HANG: ()}).running()
    assert kinds(play.hang()) == []
    assert play.state is JobState.WATCHING


def test_silent_ranks_are_named(inside):
    """Ranks that gave no stack are told of."""
    inside.hang()
    inside.do(e.StacksCaptured, job=KEY, attempt=0, silent_ranks=(2, 5))
    assert any("ranks 2 and 5" in line for line in inside.incident.story)


def test_a_stopped_rank_is_said_to_be_stopped(inside):
    """A signal stopped it: that is more than that it stands elsewhere."""
    inside.hang()
    inside.do(e.StacksCaptured, job=KEY, attempt=0, odd_ranks=(1,), silent_ranks=(1,), stopped_ranks=(1,))
    assert any("rank 1 is stopped (SIGSTOP) while the others wait for it" in line for line in inside.incident.story)


def test_stacks_of_an_older_attempt_change_nothing(inside):
    """They were on their way."""
    inside.hang()
    assert kinds(inside.do(e.StacksCaptured, job=KEY, attempt=9, odd_ranks=(1,))) == []
    assert inside.state is JobState.DIAGNOSING


def test_a_hang_while_proving_that_moves_again_goes_on_proving(inside):
    """The first recovery is not forgotten."""
    inside.crash()
    inside.restart_in_place()
    inside.first_step(1, 101, resumed_from=100)
    inside.hang(1)
    assert inside.state is JobState.DIAGNOSING
    inside.step(1, 120)
    assert inside.state is JobState.PROVING
    inside.checkpoint(1, 200)
    assert {incident.outcome for incident in inside.closed} == {"observed", "recovered"}


# --- start and time-outs ----------------------------------------------------------------------------------------------


def test_nothing_starts_after_the_release_is_a_fault_with_its_own_budget(play):
    """The scheduler runs it, no launcher comes: requeued once more, and given up when the budget is spent."""
    held(play)
    play.done(o.SetExcluded)
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=NODES[:1])
    assert kinds(play.fire("job:")) == ["RequeueHeld"]
    play.j.requeues = 2
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=2, nodes=())
    while play.state is not JobState.RELEASED:
        play.done(o.SetExcluded if play.opened(o.SetExcluded) else o.ReleaseJob)
    if play.opened(o.ReleaseJob):
        play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, restart_count=2, nodes=NODES[:1])
    assert kinds(play.fire("job:")) == ["GiveUp"]


def test_blindness_postpones_what_cannot_be_seen(play):
    """While the scheduler cannot be read, nobody is given up for not having started."""
    held(play)
    play.done(o.SetExcluded)
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=NODES[:1])
    play.do(e.WatchBlind, blind=True)
    assert kinds(play.fire("job:")) == []
    assert play.state is JobState.RESTARTING


def test_blindness_is_told_once(play):
    """And its end."""
    play.do(e.WatchBlind, blind=True, why="x")
    play.do(e.WatchBlind, blind=True, why="x")
    play.do(e.WatchBlind, blind=False)
    assert play.notices().count("The scheduler cannot be read") == 1
    assert "The scheduler can be read again" in play.notices()


def test_a_launcher_that_says_nothing_after_its_stop_is_taken_over(play):
    """Its attempt ended, it was to restart in place: `start_s` later the controller requeues, the restart uncounted."""
    play.crash()
    play.ended(0)
    play.settle()
    assert play.j.in_place == 1
    assert kinds(play.fire("job:")) == ["RequeueHeld"]
    assert play.j.in_place == 0


def test_a_launcher_that_should_have_escalated_is_taken_over():
    """Its budget is spent in the controller's books too: no word of it within `order_s`."""
    play = Play(limits=Limits(max_in_place=0)).running()
    play.crash()
    play.ended(0)
    play.settle()
    assert play.state is JobState.DIAGNOSING
    assert kinds(play.fire("job:")) == ["RequeueHeld"]


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_node_that_changes_its_group_while_held_back():
    """The new group's brake decides."""
    play = Play(brake=Brake(max_nodes=1, max_percent=100.0)).nodes(*NODES)
    play.xid("n1")
    play.xid("n2")
    assert play.ns("n2") is NodeState.SUSPECT
    assert kinds(play.node("n2", group="other")) == ["QuarantineNode"]


def test_a_tripped_brake_with_too_little_room_stays_tripped():
    """Three wait, one may go."""
    play = Play(brake=Brake(max_nodes=1, max_percent=100.0)).nodes(*NODES)
    for name in NODES:
        play.xid(name)
    assert kinds(play.fire("brake:")) == ["QuarantineNode"]
    record = play.engine.state.brakes["gpu"]
    assert record.tripped_at > 0
    assert record.waiting == ["n3", "n4"]


def test_a_brake_timer_of_a_brake_that_was_reset(play):
    """By hand in the meantime."""
    assert play.do(e.TimerFired, timer="brake:gpu") == []


def test_evidence_about_a_retired_node_is_only_told():
    """It is out of service already."""
    play = Play().nodes()
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.fail(o.ReplaceNode)
    play.now += 60.0
    assert kinds(play.xid("n2", 79)) == []
    assert play.engine.open_incidents() == []
    assert any("out of service already" in line for line in play.n().story)


def test_a_job_in_the_incident_of_a_node_that_has_its_own():
    """Two incidents know the node; one waits for it."""
    play = Play().running()
    play.say(e.Command.REBOOT, node="n2")
    play.crash(node="n2")
    play.finding(
        "cuda.ecc", job=KEY, attempt=0, rank=2, node="n2", domain=Domain.HARDWARE, remedy=R.REPLACE,
        kind=EvidenceKind.LOG, source="launcher:7",
    )  # fmt: skip
    play.ended(0)
    play.settle()
    waiting = [incident for incident in play.engine.open_incidents() if "n2" in incident.nodes_open]
    assert len(waiting) == 1


def test_a_repair_that_may_not_be_done_leaves_the_node_out_of_service():
    """Quarantine acts, repairs are only observed: it stays drained for a person."""
    play = Play(modes={R.REPLACE: Mode.OBSERVE}).nodes()
    play.xid("n2")
    assert kinds(play.done(o.QuarantineNode)) == []
    assert play.ns() is NodeState.DRAINING
    assert play.closed[0].outcome == "observed"
    observed = [r for r in play.engine.touched().orders if r.status is OrderStatus.OBSERVED]
    assert [type(record.order) for record in observed] == [o.ReplaceNode]


def test_a_next_repair_that_may_not_be_done_hands_the_node_to_a_person():
    """Reboot acts and does not help; replacing is only observed."""
    play = Play(modes={R.REPLACE: Mode.OBSERVE}).nodes()
    play.xid("n2", 73)
    play.done(o.QuarantineNode)
    assert kinds(play.fail(o.RebootNode)) == ["RetireNode"]


def test_a_forgotten_drain_that_fails_its_check_is_a_persons():
    """Found drained by us at start, and it is still broken."""
    play = Play()
    play.node("n1", drained=True, drain_reason="[holdfast] Xid 74")
    assert kinds(play.do(e.NodeValidated, node="n1", passed=False)) == ["RetireNode"]
    assert play.ns("n1") is NodeState.RETIRED


def test_two_machines_swapped_in_a_healthy_node():
    """Nothing was held against it; older evidence is stale from here on."""
    play = Play().nodes()
    play.node("n2", instance_id="x", boot_id="x")
    assert play.n().clean_at == play.now
    assert play.ns() is NodeState.HEALTHY


def test_a_silent_node_that_shows_a_new_boot_is_heard():
    """A view of the scheduler is a word as well."""
    play = Play().nodes()
    play.do(e.NodeSilent, node="n2", for_s=30.0)
    play.node("n2", boot_id="b2")
    assert play.ns() is NodeState.HEALTHY


def test_context_of_a_node_joins_its_incident():
    """A warning of the node's, without a job, is remembered with the node."""
    play = Play().nodes()
    play.finding("edac.ce", node="n2", role=Role.CONTEXT, domain=Domain.HARDWARE, kind=EvidenceKind.LOG)
    play.xid("n2")
    assert {finding.rule for finding in play.incident.findings} == {"edac.ce", "nvidia.xid.74"}


# --- people, late -----------------------------------------------------------------------------------------------------


def late(play: Play) -> str:
    """The newest proposal about the job."""
    return next(record.order.id for record in play.engine.proposed_orders() if isinstance(record.order, o.JobOrder))


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda play: play.start(1, in_place=1),
        lambda play: play.job(state=S.CANCELLED),
        lambda play: play.job(state=S.COMPLETED),
    ],
)
def test_approvals_that_were_overtaken(meanwhile):
    """The job went on, or ended, while the person thought."""
    play = Play(mode=Mode.ADVISE).running()
    play.xid("n2")
    order = late(play)
    meanwhile(play)
    assert "RequeueHeld" not in kinds(play.say(e.Command.APPROVE, order=order))


def test_a_restart_in_place_is_approved():
    """Advise inside an allocation, down to the end."""
    play = Play(scope="allocation", mode=Mode.ADVISE).running()
    play.ended(0, exit_code=3, signal=None, stopped=False)
    play.settle()
    assert kinds(play.say(e.Command.APPROVE, order=late(play))) == ["RestartInPlace"]
    assert play.state is JobState.IN_PLACE
    play.start(1, in_place=1)
    play.checkpoint(1, 200)
    assert play.closed[0].outcome == "recovered"


def test_an_evacuation_is_approved():
    """Save and stop, asked first."""
    play = Play(modes={R.EVACUATE: Mode.ADVISE}).running()
    play.finding(
        "nvidia.temperature", node="n2", domain=Domain.HARDWARE, predicts=True, kind=EvidenceKind.COUNTER,
        source="agent:n2",
    )  # fmt: skip
    assert kinds(play.say(e.Command.APPROVE, order=late(play))) == ["SaveAndStop"]
    assert play.state is JobState.EVACUATING


def test_requeue_by_word_inside_an_allocation_is_refused(inside):
    """A launcher has no queue."""
    inside.say(e.Command.REQUEUE, job=KEY)
    assert any(title.startswith("Refused: requeue") for title in inside.notices())


def test_repair_by_word_of_somebody_elses_drain_is_refused():
    """Theirs."""
    play = Play().nodes()
    play.node("n2", drained=True, drain_reason="memory test")
    assert kinds(play.say(e.Command.REBOOT, node="n2")) == []


def test_drills_are_remembered_for_a_while_only(play):
    """32 of them."""
    for number in range(40):
        play.do(e.DrillFired, drill=f"d{number}", kind="x", job=JobKey("c", "99"))
    assert len(play.engine.state.drills) == 32


def requeue_overtaken(play: Play) -> Play:
    """Our requeue hangs; the scheduler requeues the job by itself meanwhile, and it starts on a node that is bad."""
    play.xid("n2")
    assert play.state is JobState.STOPPING
    play.job(state=S.PENDING, restart_count=1, nodes=())
    play.job(state=S.RUNNING, nodes=("n2", "n3"))
    return play


@pytest.mark.parametrize("state", [S.RUNNING, S.NODE_FAIL])
def test_a_requeue_that_was_so_already_while_the_job_runs_anew_is_ordered_of_that_run(play, state):
    """Found by seed 10183: the running job was taken for held; when it failed it waited for nodes for ever."""
    requeue_overtaken(play)
    if state is not S.RUNNING:
        play.job(state=state)
    assert kinds(play.done(o.RequeueHeld)) == ["RequeueHeld"]
    assert play.open(o.RequeueHeld).restart_count == 1
    assert not play.j.in_queue
    play.job(state=S.HELD, restart_count=2, nodes=())
    play.done(o.RequeueHeld)
    if play.state is JobState.DIAGNOSING:
        play.settle()
    assert play.open(o.SetExcluded).nodes == ("n2",)


def test_a_held_job_that_somebody_started_and_that_failed_unseen_is_requeued(play):
    """It is in no queue any more: a release would have no effect, and it would wait for nodes for ever."""
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    assert play.state is JobState.HELD
    assert kinds(play.job(state=S.NODE_FAIL, nodes=("n1",))) == ["RequeueHeld"]
    assert play.state is JobState.STOPPING


def test_blindness_to_one_kind_is_told_once_and_postpones_what_cannot_be_seen_of_it(play):
    """Jobs of other kinds go on; the topic is the kind's, so that its end closes it."""
    for _ in range(2):
        play.do(e.WatchBlind, blind=True, kind="pytorchjob", why="404")
    assert play.notices().count("Jobs of the kind pytorchjob cannot be read") == 1
    assert not play.engine.state.blind
    play.do(e.WatchBlind, blind=False, kind="jobset")
    play.do(e.WatchBlind, blind=False, kind="pytorchjob")
    assert play.notices()[-1] == "Jobs of the kind pytorchjob are known again"
    assert play.engine.state.unseen == []


def test_a_scheduler_that_does_not_reach_its_nodes_is_told_once(play):
    """In words of its own: no job is out of sight."""
    for blind in (True, True, False):
        play.do(e.WatchBlind, blind=blind, kind=NODE_KIND, why="slurmctld does not reach 4 of its 4 nodes")
    assert play.notices() == ["The scheduler does not reach its nodes", "The scheduler reaches its nodes again"]


@pytest.mark.parametrize(("kind", "begins"), [("pytorchjob", False), ("job", True)])
def test_a_job_of_a_kind_that_cannot_be_read_is_not_lost_for_a_silent_launcher(kind, begins):
    """Its state is what was seen last, which says nothing about now."""
    key = JobKey("c", "ns.pytorchjob.a")
    play = Play().nodes()
    play.job(key)
    play.attach(key=key)
    play.do(e.LauncherLapsed, job=key)
    play.do(e.WatchBlind, blind=True, kind=kind, why="404")
    play.fire("lapse:")
    assert bool(play.engine.open_incidents()) is begins
