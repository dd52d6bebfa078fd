"""What the scheduler says of a job, and what is made of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.errors import EXIT_DO_NOT_REQUEUE
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, RecoverySpec, SchedulerState
from holdfast.model.policy import Brake, Limits, Policy
from holdfast.model.records import Authority, JobState, Mark

S = SchedulerState


def plain(**policy) -> Play:
    """A job without a launcher, that asked for recovery, running."""
    return Play(**policy).plain()


def test_a_failed_job_is_requeued_held_and_released():
    """No launcher: the scheduler's word that it failed is the evidence."""
    play = plain()
    orders = play.job(state=S.FAILED, exit_code=1)
    assert kinds(orders) == []
    assert play.state is JobState.DIAGNOSING
    assert kinds(play.settle()) == ["RequeueHeld"]
    assert play.incident.diagnosis.cause == "exit.code.1"
    play.done(o.RequeueHeld)
    assert play.state in {JobState.HELD, JobState.RELEASED}
    assert play.open(o.ReleaseJob).epoch == 1
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.done(o.ReleaseJob)
    play.job(state=S.PENDING)
    play.job(state=S.RUNNING, nodes=NODES)
    assert play.state is JobState.PROVING
    assert [attempt.number for attempt in play.j.attempts] == [0, 1]
    play.checkpoint(1, 10)
    assert play.closed[0].outcome == "recovered"


def test_a_job_that_reports_no_progress_is_proven_by_living_on():
    """Without any word of its steps, `prove_s` without a new fault is the proof there is."""
    play = plain()
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=NODES)
    assert play.state is JobState.PROVING
    play.fire("job:")
    assert play.state is JobState.WATCHING
    assert play.closed[0].outcome == "recovered"


def test_the_same_end_told_twice_is_one():
    """Views repeat; only a change of state or restart count is news."""
    play = plain()
    play.job(state=S.FAILED, exit_code=1)
    play.job(state=S.FAILED, exit_code=1, reason="NonZeroExitCode")
    play.settle()
    assert len([x for x in play.all if isinstance(x, o.RequeueHeld)]) == 1


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"state": S.COMPLETED, "exit_code": 0}, JobState.COMPLETED),
        ({"state": S.TIMEOUT}, JobState.COMPLETED),
        ({"state": S.CANCELLED}, JobState.CANCELLED),
        ({"state": S.FAILED, "exit_code": 86}, JobState.GIVEN_UP),
    ],
)
def test_ends_that_are_no_failures(fields, state):
    """Completion, a time limit, a cancel, and the code that forbids a requeue: nothing is ordered."""
    play = plain()
    orders = play.job(**fields)
    assert kinds(orders) == []
    assert play.state is state
    assert play.engine.open_incidents() == []


def test_exit_code_85_restarts_the_job():
    """A job that saved and stopped because it was asked to is started again; nothing is wrong with it."""
    play = plain()
    play.job(state=S.FAILED, exit_code=85)
    assert kinds(play.settle()) == ["RequeueHeld"]
    assert play.incident.diagnosis.cause == "exit.restart_me"


def test_exit_code_85_is_honoured_when_the_script_hides_it(play):
    """The launcher left with 85, the batch script ended with 0."""
    play.do(e.LauncherLapsed, job=KEY, left=True, exit_code=85)
    play.job(state=S.COMPLETED, exit_code=0)
    assert kinds(play.settle()) == ["RequeueHeld"]


def test_a_launcher_that_leaves_with_86_ends_it(play):
    """Never requeued: the scheduler is told so, too."""
    orders = play.do(e.LauncherLapsed, job=KEY, left=True, exit_code=86)
    assert kinds(orders) == ["GiveUp"]
    assert not play.open(o.GiveUp).cancel
    assert play.state is JobState.GIVEN_UP


def test_a_job_nobody_asked_to_recover_is_only_watched():
    """`recovery` is None: the failure is told, nothing is ordered."""
    play = Play().nodes()
    play.job(recovery=None)
    assert kinds(play.job(state=S.FAILED, exit_code=1)) == []
    assert play.state is JobState.GIVEN_UP


def test_policy_may_recover_everybody():
    """`enabled_by_default`."""
    play = Play(enabled_by_default=True).nodes()
    play.job(recovery=None)
    play.job(state=S.FAILED, exit_code=1)
    assert kinds(play.settle()) == ["RequeueHeld"]


def test_an_owner_may_refuse_recovery():
    """`enabled = false` in the job's own words goes before the policy."""
    play = Play(enabled_by_default=True).nodes()
    play.job(recovery=RecoverySpec(enabled=False))
    assert kinds(play.job(state=S.FAILED, exit_code=1)) == []


def test_a_node_failure_seen_by_the_scheduler_requeues():
    """NODE_FAIL is a platform trouble: another node may serve."""
    play = plain()
    play.job(state=S.NODE_FAIL)
    assert kinds(play.settle()) == ["RequeueHeld"]
    assert play.incident.diagnosis.cause == "scheduler.node_fail"


def test_a_requeue_by_the_scheduler_before_ours_needs_no_second_one(play):
    """Ours is under way when the count grows: its own count tells the executor that only the hold is missing."""
    play.xid("n2")
    orders = play.job(state=S.PENDING, restart_count=1, nodes=())
    assert kinds(orders) == []
    assert play.state is JobState.STOPPING
    assert play.open(o.RequeueHeld).restart_count == 0
    play.done(o.RequeueHeld)
    assert play.j.in_queue
    assert len([x for x in play.all if isinstance(x, o.RequeueHeld)]) == 1


@pytest.mark.parametrize("between", [(), (S.PENDING,), (S.UNKNOWN,)])
def test_a_job_without_a_launcher_that_is_let_go_while_its_evidence_settles_is_not_in_the_queue(bare, between):
    """A person releases what our requeue holds: it runs, so nothing holds it, and its new attempt proves itself."""
    play = bare.plain()
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert play.state is JobState.DIAGNOSING
    for state in between:
        play.job(state=state)
    play.job(state=S.RUNNING, nodes=("n1", "n3", "n4"))
    assert not play.j.in_queue
    assert play.state is JobState.PROVING
    assert (play.attempt.restart_count, play.attempt.nodes) == (1, ("n1", "n3", "n4"))
    assert kinds(play.settle()) == []
    assert play.state is JobState.PROVING


def test_a_requeue_while_a_restart_in_place_was_under_way_is_adopted(play):
    """Launcher and scheduler disagree: the scheduler has it queued, so that is where it is."""
    play.crash()
    orders = play.job(state=S.PENDING, restart_count=1, nodes=())
    assert kinds(orders) == []
    assert play.state is JobState.RELEASED
    assert play.j.authority is Authority.CONTROLLER
    play.job(state=S.RUNNING, nodes=NODES)
    assert play.state is JobState.RESTARTING
    play.attach(restart_count=1)
    play.start(1, restart_count=1)
    play.checkpoint(1, 200)
    assert play.closed[0].outcome == "recovered"
    assert not [x for x in play.all if isinstance(x, o.RequeueHeld)]


def test_a_requeue_by_a_person_without_trouble_is_no_incident(play):
    """Somebody else's business; the job is watched on."""
    play.job(state=S.PENDING, restart_count=1, nodes=())
    assert play.state is JobState.WATCHING
    assert play.engine.open_incidents() == []


def test_a_cancel_ends_its_recovery_at_once(play):
    """The user's word wins: pending orders are withdrawn, the incident closes as cancelled."""
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.job(state=S.CANCELLED, nodes=())
    assert play.state is JobState.CANCELLED
    assert play.opened(o.RequeueHeld) == []
    assert play.n("n2").incident
    play.done(o.ReplaceNode)
    play.node("n2", instance_id="x", boot_id="x")
    play.do(e.NodeValidated, node="n2", passed=True)
    play.done(o.ReturnNode)
    assert play.closed[0].outcome == "cancelled"


def test_completion_during_recovery_is_recovery(inside):
    """It ran to its end before the checkpoint that would have proven it."""
    inside.crash()
    inside.restart_in_place()
    inside.ended(1, exit_code=0, signal=None, stopped=False)
    assert inside.state is JobState.COMPLETED
    assert inside.closed[0].outcome == "recovered"


def test_a_person_who_releases_the_held_job_is_followed(play):
    """scontrol release by hand, before our own exclusion took effect: it is asked for again, for the job has not started."""
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    assert play.state is JobState.HELD
    play.job(state=S.PENDING)
    assert play.state is JobState.RELEASED
    assert play.opened(o.SetExcluded)[0].nodes == ("n2",)


def test_a_release_whose_effect_is_seen_before_its_outcome_is_done(play):
    """A controller that was killed in between: the job runs, so it was released, and the timeline has it."""
    play.until_release()
    (order,) = play.opened(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=("n1", "n3", "n4"))
    (record,) = [one for one in play.engine.touched().orders if one.order.id == order.id]
    assert record.status is o.OrderStatus.DONE
    assert Mark.RELEASED in play.incident.marks
    assert play.do(e.OrderDone, order=order.id, detail="released") == []
    assert play.state is JobState.RESTARTING


def test_a_person_who_holds_the_released_job_is_respected(play):
    """Their hold is waited out, however long."""
    play.until_release()
    play.done(o.ReleaseJob)
    play.job(state=S.PENDING)
    play.job(state=S.HELD)
    assert play.state is JobState.HELD
    assert play.j.held_by == "a person"
    assert play.opened(o.ReleaseJob) == []
    play.job(state=S.PENDING)
    assert play.state is JobState.RELEASED


@pytest.mark.parametrize(("looked_s", "done"), [(-1.0, False), (1.0, True)])
def test_a_release_that_is_seen_although_its_hold_never_was_is_done(play, looked_s, done):
    """We look only now and then: the hold came and went in between. Tried again, it would undo a person's hold.

    A look from before the release was ordered may show what the scheduler had queued before we held it.
    """
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.settle()
    play.done(o.SetExcluded)
    view = replace(play.j.view, state=S.PENDING, restart_count=1, nodes=())
    play.do(e.JobObserved, at=play.now + 2.0, seen_at=play.now + looked_s, job=view)
    assert bool(play.opened(o.ReleaseJob)) is not done
    play.job(state=S.HELD)
    assert play.j.held_by == ("a person" if done else "")


def test_a_late_held_view_after_release_is_not_a_persons_hold(play):
    """The view was taken before the release took effect."""
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.settle()
    play.done(o.SetExcluded)
    play.done(o.ReleaseJob)
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert play.state is JobState.RELEASED
    assert play.j.held_by == ""


def test_a_job_seen_running_before_the_release_was_confirmed(play):
    """Words arrive in any order: the scheduler runs it, then the order's outcome comes."""
    play.until_release()
    order = play.open(o.ReleaseJob).id
    play.job(state=S.RUNNING, nodes=("n1", "n3"))
    assert play.state is JobState.RESTARTING
    play.do(e.OrderDone, order=order)
    assert play.state is JobState.RESTARTING


def test_the_launchers_word_may_come_before_the_schedulers(play):
    """LauncherAttached and AttemptStarted of the new run before JobObserved(running)."""
    play.until_release()
    play.done(o.ReleaseJob)
    play.attach(restart_count=1, nodes=("n1", "n3", "n4"))
    assert play.state is JobState.RESTARTING
    play.start(1, restart_count=1, nodes=("n1", "n3", "n4"))
    assert play.state is JobState.PROVING


def test_a_vanished_job_is_forgotten(play):
    """Nothing of it stays in memory."""
    play.do(e.JobVanished, job=KEY)
    assert play.engine.state.jobs == {}
    assert play.engine.index.jobs_on == {}


def test_a_job_that_vanishes_during_recovery_closes_its_incident(inside):
    """The scheduler has forgotten it: nothing is left to wait for."""
    inside.crash()
    inside.do(e.JobVanished, job=KEY)
    assert inside.closed[0].outcome == "cancelled"
    assert inside.engine.state.timers == {}


def test_somebody_requeues_a_job_that_was_given_up():
    """A fresh start: watched again, with full budgets."""
    play = Play(limits=Limits(max_requeues=0)).plain()
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    assert play.state is JobState.GIVEN_UP
    play.job(state=S.PENDING, restart_count=1)
    assert play.state is JobState.WATCHING
    assert play.j.requeues == 0


def test_first_seen_after_its_end_is_history():
    """A job that had failed before we looked is not ours to recover."""
    play = Play().nodes()
    assert kinds(play.job(state=S.FAILED, exit_code=1)) == []
    assert play.state is JobState.GIVEN_UP


def test_start_that_never_comes_is_a_fault(play):
    """Released and run by the scheduler, but no process within `start_s`: requeued again, then given up."""
    play.xid("n2")
    play.through_queue()
    play.crash(attempt=1)
    play.ended(1)
    play.settle()
    play.fire("job:")
    assert play.state is JobState.STOPPING
    assert play.j.authority is Authority.CONTROLLER
    assert len(play.opened(o.RequeueHeld)) == 1


def test_waiting_for_nodes_is_told_again_and_again(play):
    """`nodes_s` after the release people hear of it; the job waits on."""
    play.until_release()
    play.done(o.ReleaseJob)
    play.fire("job:")
    assert play.state is JobState.WAITING_FOR_NODES
    play.fire("job:")
    assert sum("waits for nodes" in title for title in play.notices()) == 2


@pytest.mark.parametrize(("told", "since_release_s"), [(0.0, 300.0), (290.4, 290.4), (-0.6, 0.0), (-5000.0, 300.0)])
def test_a_released_job_is_placed_when_the_scheduler_starts_it(play, told, since_release_s):
    """By its own time of the start, in whole seconds or finer; one of a former start, or none, is no time of this one."""
    play.until_release()
    play.done(o.ReleaseJob)
    released = play.incident.marks[Mark.RELEASED]
    assert Mark.PLACED not in play.incident.marks
    play.now = released + 300.0 - play.step_s
    play.job(state=S.RUNNING, nodes=("n1", "n3", "n4"), started_at=released + told if told else 0.0)
    assert play.incident.marks[Mark.PLACED] - released == pytest.approx(since_release_s)


def test_a_launcher_may_be_the_first_to_say_that_its_job_has_nodes(play):
    """Before the scheduler was looked at again."""
    play.until_release()
    play.done(o.ReleaseJob)
    play.attach(restart_count=1, nodes=("n1", "n3", "n4"))
    assert play.incident.marks[Mark.PLACED] == play.now


def test_marks_of_a_requeue(play):
    """All phases are stamped, in order."""
    incident_at = play.now
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.through_queue()
    play.first_step(1, 101, resumed_from=100)
    play.checkpoint(1, 200)
    marks = play.incident.marks
    wanted = [Mark.FAULT, Mark.DETECTED, Mark.ISOLATED, Mark.STOPPED, Mark.REQUEUED, Mark.RELEASED, Mark.PLACED, Mark.STARTED, Mark.FIRST_STEP, Mark.PROVEN]  # fmt: skip
    assert [mark for mark in wanted if mark not in marks] == []
    times = [marks[mark] for mark in wanted]
    assert times == sorted(times)
    assert times[0] >= incident_at


def test_the_mark_stopped_is_the_attempts_own_end(play):
    """Its ranks ended a while before the job was back in the queue: the mark is not moved by the requeue."""
    play.xid("n2")
    play.ended(0)
    ended_at = play.now
    play.now += 20.0
    play.done(o.RequeueHeld)
    assert play.incident.marks[Mark.STOPPED] == ended_at
    assert play.incident.marks[Mark.REQUEUED] == play.now


def test_budgets_of_the_job_go_before_the_policys():
    """`max_requeues` in the job's own words."""
    play = Play(Policy(limits=Limits(max_requeues=5))).nodes()
    play.job(recovery=RecoverySpec(max_requeues=0))
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    assert play.state is JobState.GIVEN_UP


def test_starts_that_failed_before_any_attempt_are_not_counted_by_the_launcher(bare):
    """Found by simulation (seed 53): its attempts were taken for old ones, and a job that trained was given up."""
    bare.nodes()
    bare.job()
    for count in (1, 2):
        bare.job(state=S.NODE_FAIL, restart_count=count - 1)
        bare.settle()
        bare.done(o.RequeueHeld)
        bare.job(state=S.HELD, restart_count=count, nodes=())
        while bare.state is not JobState.RELEASED:
            bare.settle() if bare.state is JobState.DIAGNOSING else bare.done(o.SetExcluded)
        bare.done(o.ReleaseJob)
        bare.job(state=S.PENDING)
        bare.job(state=S.RUNNING, nodes=NODES)
    bare.attach(restart_count=2)
    bare.start(0, restart_count=2)
    assert bare.state is JobState.PROVING
    assert [attempt.number for attempt in bare.j.attempts] == [0]
    bare.first_step(0, 1)
    bare.checkpoint(0, 10)
    assert bare.state is JobState.WATCHING


def test_a_start_that_failed_between_two_looks_is_a_failure(bare):
    """Found by simulation (seed 109): neither pending nor running was ever seen, and the job was waited for for ever."""
    bare.nodes()
    bare.job(started_at=900.0)
    bare.job(state=S.FAILED, exit_code=1)
    bare.settle()
    bare.done(o.RequeueHeld)
    bare.done(o.ReleaseJob)
    assert bare.state is JobState.RELEASED
    bare.job(state=S.FAILED, exit_code=1, restart_count=1, started_at=1001.0)
    if any(timer.startswith("settle:") for timer in bare.engine.state.timers):
        bare.settle()
    assert bare.opened(o.RequeueHeld) or bare.state is JobState.GIVEN_UP


def test_our_own_requeue_seen_late_does_not_revive_a_job_that_is_given_up():
    """Found by simulation (seed 310): the end was withdrawn, and the job lay in the queue, held by nobody."""
    play = Play(limits=Limits(max_requeues=1)).plain()
    play.xid("n2")
    play.j.requeues = 1
    play.done(o.RequeueHeld)
    if play.state is not JobState.GIVEN_UP:
        play.settle()
    assert play.state is JobState.GIVEN_UP
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert play.open(o.GiveUp)
    play.done(o.GiveUp)
    play.job(state=S.CANCELLED)
    assert play.state is JobState.GIVEN_UP


def test_a_run_that_ended_while_our_requeue_was_under_way_is_requeued_itself():
    """Found by simulation (seed 8064): preempted, started and lost; our requeue "was so already", and nobody released
    what was in no queue.
    """
    play = Play().plain()
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    assert play.open(o.RequeueHeld).restart_count == 0
    play.job(state=S.PENDING, restart_count=1, nodes=())
    play.job(state=S.RUNNING, restart_count=1, nodes=NODES)
    play.job(state=S.NODE_FAIL, reason="NodeFail")
    assert kinds(play.done(o.RequeueHeld)) == ["RequeueHeld"]
    assert play.open(o.RequeueHeld).restart_count == 1
    play.job(state=S.HELD, restart_count=2, nodes=())
    play.done(o.RequeueHeld)
    if play.state is JobState.DIAGNOSING:
        play.settle()
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=NODES)
    assert play.state in {JobState.RESTARTING, JobState.PROVING}


def test_a_launcher_of_the_run_that_is_being_given_up_does_not_revive_the_job():
    """Found by simulation (seed 1152): the end was withdrawn, the budgets were fresh, and it was released once more."""
    play = Play(limits=Limits(max_requeues=1)).running()
    play.do(e.LauncherLapsed, job=KEY)
    play.fire("lapse:")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=NODES)
    play.xid("n2")
    play.settle()
    assert play.state is JobState.GIVEN_UP
    play.attach(restart_count=1)
    assert play.state is JobState.GIVEN_UP
    assert play.open(o.GiveUp)
    play.done(o.GiveUp)
    play.attach(restart_count=2)
    assert play.state is JobState.WATCHING


@pytest.mark.parametrize("told_by", ["scheduler", "launcher"])
def test_a_start_by_the_scheduler_does_not_take_back_a_give_up_that_is_under_way(told_by):
    """The scheduler requeues a job whose node failed, unseen, as we give the job up: its budget is used up all the same."""
    play = Play(limits=Limits(max_requeues=0)).plain()
    play.xid("n2")
    play.settle()
    assert play.state is JobState.GIVEN_UP
    if told_by == "scheduler":
        play.job(state=S.PENDING, restart_count=1, nodes=())
        play.job(state=S.RUNNING, nodes=NODES)
    play.attach(restart_count=1)
    assert play.state is JobState.GIVEN_UP
    assert play.open(o.GiveUp)
    play.done(o.GiveUp)
    play.job(state=S.CANCELLED)
    assert play.state is JobState.GIVEN_UP
    play.job(state=S.PENDING, restart_count=2)
    assert play.state is JobState.WATCHING, "a person queues it once more"


def test_a_launcher_that_gives_up_what_a_bad_node_did_is_overruled(play):
    """It saw only ranks die; the requeue that a node's agent led to goes on."""
    play.xid()
    play.do(e.LauncherLapsed, job=KEY, left=True, exit_code=EXIT_DO_NOT_REQUEUE, source="launcher:7")
    assert play.state is JobState.STOPPING
    assert play.opened(o.GiveUp) == []
    play.job(state=S.FAILED, exit_code=EXIT_DO_NOT_REQUEUE)
    play.through_queue()
    assert play.state is JobState.PROVING


def test_a_job_that_itself_asks_not_to_be_requeued_is_not(play):
    """Exit code 86 of the job's own ranks goes before our requeue, which may take effect all the same: it is ended."""
    play.xid()
    play.ended(0, exit_code=EXIT_DO_NOT_REQUEUE, signal=None, stopped=False)
    play.do(e.LauncherLapsed, job=KEY, left=True, exit_code=EXIT_DO_NOT_REQUEUE, source="launcher:7")
    assert play.state is JobState.GIVEN_UP
    play.done(o.GiveUp)
    play.job(state=S.FAILED, exit_code=EXIT_DO_NOT_REQUEUE)
    orders = play.job(state=S.HELD, restart_count=1, nodes=())
    assert kinds(orders) == ["GiveUp"]
    assert play.open(o.GiveUp).cancel
    play.job(state=S.CANCELLED)
    assert play.state is JobState.GIVEN_UP


def test_the_late_goodbye_of_an_earlier_starts_launcher_ends_nothing(play):
    """The next start's launcher was faster: it keeps its authority, and its attempt lives."""
    play.xid()
    play.through_queue()
    play.do(e.LauncherLapsed, job=KEY, left=True, exit_code=143, restart_count=0, source="launcher:7")
    assert play.j.authority is Authority.LAUNCHER
    assert not play.attempt.ended_at
    play.do(e.LauncherLapsed, job=KEY, left=True, exit_code=143, restart_count=1, source="launcher:7")
    assert play.j.authority is Authority.CONTROLLER
    assert play.attempt.ended_at


@pytest.mark.parametrize("end", [S.FAILED, S.NODE_FAIL, S.CANCELLED, S.COMPLETED])
def test_a_job_that_is_over_and_seems_to_complete_again_is_not_revived(end):
    """A controller that begins anew reads a failed pod's log before it tells the end once more: nobody queued the job."""
    play = Play(limits=Limits(max_requeues=0, max_in_place=0)).plain()
    play.job(state=end, exit_code=1)
    if end in {S.FAILED, S.NODE_FAIL}:
        play.settle()
    over = play.state
    assert over in {JobState.GIVEN_UP, JobState.CANCELLED, JobState.COMPLETED}
    assert kinds(play.job(state=S.COMPLETING)) == []
    assert kinds(play.job(state=end)) == []
    assert play.state is over
    play.job(state=S.PENDING)
    assert play.state is JobState.WATCHING, "a person queues it once more"


def out_of_budget() -> Play:
    """Requeued once, which is the limit, and failed again."""
    play = Play(limits=Limits(max_requeues=1, max_same_fingerprint=9)).plain()
    for count in (0, 1):
        play.job(state=S.FAILED, exit_code=1, restart_count=count)
        play.settle()
        if not count:
            play.done(o.RequeueHeld)
            play.done(o.ReleaseJob)
            play.job(state=S.RUNNING, restart_count=1, nodes=NODES)
    assert play.state is JobState.GIVEN_UP
    play.done(o.GiveUp)
    return play


def test_a_scheduler_that_forgot_a_jobs_end_gives_it_no_fresh_budget():
    """A slurmctld that was killed shows the last run as not begun: it is watched, and what is used up stays used up."""
    play = out_of_budget()
    play.job(state=S.RUNNING, nodes=NODES)
    assert play.state is JobState.WATCHING
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    assert play.state is JobState.GIVEN_UP
    assert not play.opened(o.RequeueHeld)
    play.job(state=S.PENDING, restart_count=2, nodes=())
    play.job(state=S.RUNNING, restart_count=2, nodes=NODES)
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    assert play.opened(o.RequeueHeld), "a person queued it once more"


def test_a_job_out_of_budget_that_is_back_in_our_own_hold_is_ended():
    """A slurmctld that was killed forgot our release and the run: nobody would ever let the job go."""
    play = out_of_budget()
    play.job(state=S.HELD, nodes=())
    assert play.state is JobState.GIVEN_UP
    assert play.open(o.GiveUp).cancel


def given_up_with_exclusions() -> Play:
    """Kept off n2 by us, and given up when its restart failed; the scheduler goes on keeping it off."""
    play = Play(limits=Limits(max_requeues=1, max_in_place=0)).plain()
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    play.done(o.SetExcluded)
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=("n1", "n3", "n4"), excluded=("n2", "n9"))
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    assert play.state is JobState.GIVEN_UP
    return play


def test_a_person_who_queues_a_job_again_gets_the_nodes_that_we_had_kept_it_off():
    """n2 is repaired by then, and nobody else would lift what the scheduler still has; the owner's n9 is theirs."""
    play = given_up_with_exclusions()
    orders = play.job(state=S.PENDING, restart_count=2, nodes=())
    assert play.state is JobState.WATCHING
    assert kinds(orders) == ["SetExcluded"]
    assert play.open(o.SetExcluded).nodes == ()
    play.done(o.SetExcluded)
    assert play.state is JobState.WATCHING
    assert kinds(play.job(excluded=("n9",))) == []


def test_a_job_that_runs_again_keeps_its_exclusions_until_it_is_queued():
    """They have had their effect on this start."""
    play = given_up_with_exclusions()
    assert kinds(play.job(state=S.RUNNING, restart_count=2, nodes=("n1", "n3", "n4"))) == []
    assert play.state is JobState.WATCHING


def test_a_requeue_that_is_adopted_leaves_all_bad_nodes():
    """Two nodes are bad, and the brake lets one be fenced. Somebody else queues the job meanwhile, with no hold."""
    play = Play(brake=Brake(max_nodes=1, max_percent=100.0)).running()
    play.crash()
    for node in ("n2", "n3"):
        play.xid(node)
    play.fail(o.RequeueHeld, "the scheduler refuses")
    orders = play.job(state=S.PENDING, restart_count=1, nodes=())
    assert play.state is JobState.RELEASED
    assert [order.nodes for order in orders if isinstance(order, o.SetExcluded)] == [("n2", "n3")]


@pytest.mark.parametrize("asked", [False, True])
def test_a_job_that_somebody_else_released_leaves_all_bad_nodes(asked):
    """The brake holds back its node's fence. A person held it, so it was not kept off yet; or that is under way."""
    play = Play(brake=Brake(max_nodes=0, max_percent=100.0)).running()
    if not asked:
        play.say(e.Command.HOLD, job=KEY)
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    assert (play.state, len(play.opened(o.SetExcluded))) == (JobState.HELD, int(asked))
    orders = play.job(state=S.PENDING)
    assert play.state is JobState.RELEASED
    assert [order.nodes for order in orders if isinstance(order, o.SetExcluded)] == [("n2",)]


def test_a_launchers_engine_asks_for_no_exclusions():
    """It has left its allocation for a bad node, and somebody lets the queued job go: that is the controller's matter."""
    play = Play(scope="allocation").running()
    play.job()
    play.xid("n2")
    play.ended(0)
    play.settle()
    assert (play.state, play.j.excluded) == (JobState.HELD, ("n2",))
    play.job(state=S.HELD)
    play.job(state=S.PENDING)
    assert play.state is JobState.RELEASED
    play.fire("job:")
    assert play.opened(o.SetExcluded) == []


def test_a_reused_id_of_another_cluster_hides_no_job():
    """Each cluster gives its own ids: there 7 was used twice, and here it is a launcher's first word."""
    play = Play().nodes()
    play.job(JobKey("other", "7", 2))
    play.attach()
    assert play.j.authority is Authority.LAUNCHER


def settling_in_the_queue() -> Play:
    """Its node went bad; it is requeued and held, and its evidence settles."""
    play = Play().running()
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert play.state is JobState.DIAGNOSING
    return play


def test_a_launcher_of_a_job_that_a_person_let_go_while_evidence_settled_leads_it():
    """Its word comes before the scheduler's. Nothing is excluded or released any more: the job runs."""
    play = settling_in_the_queue()
    play.attach(restart_count=1)
    assert play.state is JobState.RESTARTING
    assert (play.j.authority, play.j.in_queue) == (Authority.LAUNCHER, False)
    assert kinds(play.job(state=S.RUNNING, nodes=NODES)) == []
    assert kinds(play.settle()) == []
    play.start(1, restart_count=1)
    assert play.state is JobState.PROVING


def test_an_attempt_of_a_job_that_a_person_let_go_is_no_restart_in_place():
    """Its start is told of first of all: it came through the queue, which costs no restart in place."""
    play = settling_in_the_queue()
    play.start(1, restart_count=1)
    assert play.state is JobState.PROVING
    assert (play.j.in_place, play.j.in_queue) == (0, False)


def test_a_late_word_of_the_run_that_was_requeued_starts_nothing():
    """Its launcher attached before our requeue took effect; the controller hears of it after."""
    play = settling_in_the_queue()
    play.attach(restart_count=0)
    assert play.state is JobState.DIAGNOSING
    assert (play.j.authority, play.j.in_queue) == (Authority.CONTROLLER, True)


def test_an_attempt_knows_when_it_got_its_nodes():
    """The scheduler's start lies before the launcher's first word; a restart in place gets no nodes anew."""
    play = Play().nodes()
    play.job(started_at=990.0)
    play.attach()
    play.start()
    assert play.j.attempts[0].placed_at == 990.0
    play.start(1, in_place=1)
    assert [attempt.placed_at for attempt in play.j.attempts] == [990.0, 0.0]
