"""The judges of simulated histories: silent on a good one, and each finds what it is there for in a tampered one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import NodeView, SchedulerState
from holdfast.model.events import Command
from holdfast.model.evidence import Diagnosis, Remedy
from holdfast.model.orders import OrderStatus
from holdfast.model.records import JobState
from holdfast.sim.checkers import came_to_rest_in_time, judged
from holdfast.sim.checkers.journal import Replayed, records_of
from holdfast.sim.history import Cancelled, Drained, Faulted, Held, History, OrderTook, Resumed, RunBegan, Step, Wrote
from sim.histories import CHECK, JOB, NEW, OLD, REPLACE, REQUEUE, XID, Tale, good, order


@pytest.fixture
def tale() -> Tale:
    return good()


def said_by(history: History) -> set[str]:
    """Names of the judges that complain."""
    return {complaint.judge for complaint in judged(history)}


def test_a_good_history_has_no_complaints(tale):
    """Nothing is made up, and liveness is judged too."""
    assert came_to_rest_in_time(tale.history)
    assert judged(tale.history) == []


def test_liveness_is_judged_only_when_there_was_time(tale):
    """An incident that is open while faults go on is no failure yet."""
    tale.incident.closed_at = 0.0
    assert said_by(tale.history) == {"incidents_close"}
    tale.history.ended_at = tale.now + 10.0
    assert said_by(tale.history) == set()


# --- the journal ---


def test_a_lost_event_is_found(tale):
    """By its number."""
    del tale.history.steps[3]
    assert "journal_is_sound" in said_by(tale.history)


def test_an_event_stored_twice_is_found(tale):
    """By its id, though its number is right."""
    last = tale.history.steps[-1].event
    tale.history.steps.append(Step(replace(last, seq=last.seq + 1)))
    assert said_by(tale.history) == {"journal_is_sound"}


def test_two_controllers_of_one_epoch_are_found(tale):
    """The fence would not tell them apart."""
    tale.event(e.ControllerStarted, epoch=1)
    assert said_by(tale.history) == {"journal_is_sound"}


def test_a_replay_that_orders_something_else_is_found(tale):
    """Orders are compared event by event, then the records."""
    history = tale.history
    orders = [list(step.orders) for step in history.steps]
    same = Replayed(orders, records_of(history))
    assert judged(history, lambda *_: same) == []
    fewer = Replayed([[] for _ in orders], records_of(history))
    (complaint,) = judged(history, lambda *_: fewer)
    assert "led to quarantine_node c1, requeue_held c2; its replay leads to nothing" in complaint.text
    lost = Replayed(orders, {})
    assert {"replay_is_the_same"} == {one.judge for one in judged(history, lambda *_: lost)}


# --- orders ---


def test_an_order_with_two_effects_is_found(tale):
    """The same id changed the world twice."""
    tale.took(REPLACE, instance_id=NEW)
    assert "order c5 had its effect 2 times" in [one.text for one in judged(tale.history)]


def test_a_second_outcome_is_found(tale):
    """Done and done again; done and failed."""
    tale.event(e.OrderDone, order="c2")
    tale.event(e.OrderFailed, order="c3", why="no")
    texts = [one.text for one in judged(tale.history)]
    assert texts == ["order c2 was done 2 times", "order c3 has failed and is done"]


def test_an_outcome_of_an_order_that_nobody_gave_is_found(tale):
    """A stranger's word."""
    tale.event(e.OrderDone, order="c99")
    assert said_by(tale.history) == {"no_order_twice"}


def test_an_order_given_again_after_its_outcome_is_found(tale):
    """What is done must not be asked for again; what is pending may be sent once more."""
    pending = tale.history.steps[-1]
    tale.history.steps[-1] = Step(pending.event, (replace(CHECK, cause=1),))
    assert "no_order_twice" in said_by(tale.history)


def test_a_second_requeue_without_a_run_is_found(tale):
    """One fault, two requeues, though each order had one effect."""
    first = order(o.RequeueHeld, "c20", restart_count=1)
    second = order(o.RequeueHeld, "c21", restart_count=2)
    tale.event(e.FindingSeen, first, second, finding=tale.incident.findings[0])
    tale.took(first)
    tale.took(second)
    assert said_by(tale.history) == {"no_order_twice"}


def test_an_order_with_a_wrong_cause_is_found(tale):
    """It must name the event it was given with."""
    step = tale.history.steps[7]
    tale.history.steps[7] = Step(step.event, tuple(replace(one, cause=2) for one in step.orders))
    assert said_by(tale.history) == {"every_order_has_a_cause"}


def test_a_fence_without_evidence_is_found(tale):
    """Nobody said anything of n4."""
    tale.event(e.TimerFired, order(o.RebootNode, "c20", node="n4"), timer="x")
    assert said_by(tale.history) == {"every_order_has_a_cause"}


def test_an_order_of_no_incident_and_one_without_evidence_are_found(tale):
    """Jobs are not touched for nothing."""
    tale.event(e.TimerFired, replace(REQUEUE, id="c20", incident="i9"), timer="x")
    assert len(judged(tale.history)) == 2
    other = good()
    other.incident.findings = []
    assert said_by(other.history) == {"every_order_has_a_cause"}


def test_an_effect_that_the_journal_does_not_know_is_found(tale):
    """Journal first, or not at all."""
    tale.deed(OrderTook, order="c77", kind="reboot_node", node="n2")
    assert said_by(tale.history) == {"every_order_has_a_cause"}


def test_an_order_without_an_outcome_is_found(tale):
    """In the end only; timers and notices do not count."""
    tale.history.orders[0].status = OrderStatus.PENDING
    assert said_by(tale.history) == {"orders_end"}


# --- nodes ---


def test_more_quarantines_than_the_brake_allows_are_found(tale):
    """One node an hour is the limit here; a person's drain does not count."""
    tale.event(
        e.OperatorCommand, order(o.QuarantineNode, "c20", node="n2"), command=Command.DRAIN, who="mei", node="n2"
    )
    assert said_by(tale.history) == set()
    tale.event(e.NodeGone, order(o.QuarantineNode, "c21", node="n3"), node="n3", evidence="reset")
    (complaint,) = judged(tale.history)
    assert "n3 is quarantined (event 23), 2 nodes of group 'gpu' and this one 1 times within" in complaint.text


def test_a_node_that_is_quarantined_oftener_than_its_brake_allows_is_found(tale):
    """It takes one place of its group, and has as many turns as that has places: one here."""
    tale.event(e.NodeGone, order(o.QuarantineNode, "c20", node="n1"), node="n1", evidence="reset")
    (complaint,) = [one for one in judged(tale.history) if one.judge == "brake_is_kept"]
    assert "1 nodes of group 'gpu' and this one 2 times within" in complaint.text


def test_a_quarantine_after_the_window_is_right(tale):
    """The window moves on, and a person may reset the brake."""
    tale.event(e.OperatorCommand, command=Command.RESET_BRAKE, who="mei", group="gpu")
    tale.event(e.NodeGone, order(o.QuarantineNode, "c21", node="n3"), node="n3", evidence="reset")
    tale.now += 4000.0
    tale.event(e.NodeGone, order(o.QuarantineNode, "c22", node="n2"), node="n2", evidence="reset")
    assert said_by(tale.history) == set()


def test_lifting_an_admins_drain_is_found(tale):
    """In the world by who drained, in the journal by the reason."""
    tale.deed(Drained, node="n2", by="person:admin", reason="memory test")
    tale.deed(Resumed, node="n2", by="c50")
    assert said_by(tale.history) == {"drains_are_our_own"}
    other = good()
    other.node("n2", drained=True, drain_reason="memory test")
    other.event(e.NodeGone, order(o.ReturnNode, "c20", node="n2"), node="n2", evidence="x")
    assert said_by(other.history) == {"drains_are_our_own"}


def test_draining_over_an_admins_drain_is_found(tale):
    """Their reason would be lost."""
    tale.deed(Drained, node="n2", by="person:admin", reason="memory test")
    tale.deed(Drained, node="n2", by="c50", reason="[holdfast] x")
    assert said_by(tale.history) == {"drains_are_our_own"}


def test_a_stale_drain_after_a_persons_return_is_found(tale):
    """An order of before the return may be under way for a moment, not for minutes."""
    late = order(o.QuarantineNode, "c20", node="n2", instance_id=OLD)
    tale.event(e.OperatorCommand, late, command=Command.DRAIN, who="mei", node="n2")
    tale.deed(Drained, node="n2", by="person:admin")
    tale.deed(Resumed, node="n2", by="person:admin")
    tale.now += 600.0
    tale.deed(Drained, node="n2", by="c20")
    assert "drains_are_our_own" in said_by(tale.history)


def test_an_order_that_hits_another_machine_is_found(tale):
    """n1 is another machine by now."""
    again = order(o.RebootNode, "c20", instance_id=OLD)
    tale.event(e.NodeGone, again, node="n1", evidence="x")
    tale.took(again, instance_id=NEW)
    assert said_by(tale.history) == {"drains_are_our_own"}


def test_a_forgotten_drain_is_found(tale):
    """Healthy for the engine, drained in the world."""
    tale.deed(Drained, node="n1", by="c1")
    assert said_by(tale.history) == {"no_drain_is_forgotten"}


# --- jobs ---


def test_a_restart_onto_a_bad_node_is_found(tale):
    """Known bad when the release was ordered; after the return it would be right."""
    for place, deed in enumerate(tale.history.deeds):
        if isinstance(deed, RunBegan) and deed.by == "c4":
            tale.history.deeds[place] = replace(deed, nodes=("n1", "n2"))
    (complaint,) = judged(tale.history)
    assert complaint.text == "c4 let job 7 run on n1, known bad since event 8 (nvidia.xid.74)"


def test_a_restart_onto_a_returned_node_is_right(tale):
    """Its machine was swapped, checked and returned."""
    again = order(o.ReleaseJob, "c20", epoch=3)
    tale.event(e.OrderDone, again, order="x")
    tale.deed(RunBegan, job=JOB, epoch=3, nodes=("n1", "n2"), by="c20")
    assert said_by(tale.history) == {"no_order_twice"}  # only the made-up outcome


def test_more_requeues_than_the_budget_are_found(tale):
    """Three without progress where two are allowed; with progress in between all is well."""

    def releases(tale: Tale, between: Callable[[int], object]) -> set[str]:
        for number in range(3):
            tale.event(e.TimerFired, order(o.ReleaseJob, f"c2{number}", epoch=3 + number), timer="x")
            between(number)
        return said_by(tale.history)

    assert releases(tale, lambda _: None) == {"budgets_hold"}
    other = good()
    save = lambda n: other.event(e.CheckpointSaved, job=JOB, attempt=2, step=30 + n, durable=True)  # noqa: E731
    assert releases(other, save) == set()


@pytest.mark.parametrize(("run", "complains"), [(2, False), (1, True)])
def test_progress_that_is_told_late_ends_the_count_of_the_restarts_before_it(tale, run, complains):
    """Its launcher was cut off until a later restart, which alone counts; an attempt from before both is no progress."""
    for number in range(2):
        tale.job(SchedulerState.HELD, restart_count=2 + number)
        tale.event(e.TimerFired, order(o.ReleaseJob, f"c2{number}", epoch=3 + number), timer="x")
    tale.event(e.AttemptStarted, job=JOB, attempt=5, epoch=3, nodes=("n2",), ranks=8, restart_count=run)
    tale.event(e.CheckpointSaved, job=JOB, attempt=5, step=99, durable=True)
    tale.event(e.TimerFired, order(o.ReleaseJob, "c25", epoch=6), timer="x")
    assert ("budgets_hold" in said_by(tale.history)) is complains


def test_a_requeue_that_was_refused_gives_no_retries(tale):
    """The refusal is a notice on the command's own topic, and the budget is what it was."""
    name = f"e{len(tale.history.steps) + 1}"
    refusal = o.Notify(id="c19", cause=0, topic=f"command:{name}", title="Refused", text="it is in the queue already")
    tale.event(e.OperatorCommand, refusal, command=Command.REQUEUE, who="ada", why="x", job=JOB)
    for number in range(3):
        tale.event(e.TimerFired, order(o.ReleaseJob, f"c2{number}", epoch=3 + number), timer="x")
    assert said_by(tale.history) == {"budgets_hold"}


def test_a_release_of_what_a_person_holds_is_found(tale):
    """Held through Holdfast or in the queue, until they let go."""
    tale.event(e.OperatorCommand, command=Command.HOLD, who="ada", why="x", job=JOB)
    tale.event(e.TimerFired, order(o.ReleaseJob, "c20", epoch=3), timer="x")
    assert said_by(tale.history) == {"holds_are_respected"}
    other = good()
    other.event(e.OperatorCommand, command=Command.HOLD, who="ada", why="x", job=JOB)
    other.event(e.OperatorCommand, command=Command.RELEASE, who="ada", why="x", job=JOB)
    other.event(e.TimerFired, order(o.ReleaseJob, "c20", epoch=3), timer="x")
    assert said_by(other.history) == set()
    queued = good()
    queued.job(SchedulerState.PENDING, restart_count=1)
    queued.job(SchedulerState.HELD, restart_count=1)
    queued.event(e.TimerFired, order(o.ReleaseJob, "c20", epoch=3), timer="x")
    assert said_by(queued.history) == {"holds_are_respected"}


@pytest.mark.parametrize(
    ("answer", "seen_before", "is_theirs"),
    [(None, False, False), (e.OrderDone, False, False), (e.OrderDone, True, True), (e.OrderFailed, False, True)],
)
def test_a_hold_that_may_be_ours_is_no_persons(tale, answer, seen_before, is_theirs):
    """On Slurm our requeue holds what somebody else has queued already; a look may show that after the answer alone."""
    tale.job(SchedulerState.PENDING, restart_count=1)
    requeue = order(o.RequeueHeld, "c19", restart_count=0)
    tale.event(e.OperatorCommand, requeue, command=Command.REQUEUE, who="ada", why="x", job=JOB)
    if seen_before:
        tale.job(SchedulerState.HELD, restart_count=1)
    if answer is not None:
        tale.event(answer, order="c19", **({"why": "no", "permanent": True} if answer is e.OrderFailed else {}))
    if seen_before:
        tale.job(SchedulerState.PENDING, restart_count=1)
    tale.job(SchedulerState.HELD, restart_count=1)
    tale.event(e.TimerFired, order(o.ReleaseJob, "c20", epoch=3), timer="x")
    assert ("holds_are_respected" in said_by(tale.history)) is is_theirs


def test_a_return_after_failed_checks_is_found(tale):
    """Until the same machine has passed them, or another one stands there."""
    check, give_back = order(o.ValidateNode, "c20"), order(o.ReturnNode, "c21")
    tale.event(e.TimerFired, check, timer="x")
    tale.event(e.NodeValidated, give_back, node="n1", passed=False, instance_id=NEW)
    assert said_by(tale.history) == {"returns_rest_on_checks"}
    other = good()
    other.event(e.TimerFired, check, timer="x")
    other.event(e.NodeValidated, node="n1", passed=False, instance_id=NEW)
    other.node("n1", instance_id="machine-3")
    other.event(e.TimerFired, give_back, timer="x")
    assert said_by(other.history) == set()


def test_a_requeue_that_a_person_asked_for_costs_nothing(tale):
    """Whatever incident it is ordered for."""
    again = order(o.RequeueHeld, "c19", restart_count=1)
    tale.event(e.OperatorCommand, again, command=Command.REQUEUE, who="ada", why="x", job=JOB)
    for number in range(3):
        tale.event(e.TimerFired, order(o.ReleaseJob, f"c2{number}", epoch=3 + number), timer="x")
    assert said_by(tale.history) == set()
    tale.event(e.TimerFired, order(o.ReleaseJob, "c23", epoch=6), timer="x")
    assert said_by(tale.history) == {"budgets_hold"}


def test_a_save_and_stop_costs_nothing_whatever_ends_the_run(tale):
    """Found by seed 51250: its launcher was lost meanwhile, and it was requeued for a node. It covers one restart only."""
    save = order(o.SaveAndStop, "c19", attempt=1, limit_s=60.0)
    tale.event(e.TimerFired, save, timer="x")
    for number in range(3):
        tale.event(e.TimerFired, order(o.ReleaseJob, f"c2{number}", epoch=3 + number), timer="x")
    assert said_by(tale.history) == set()
    tale.event(e.TimerFired, order(o.ReleaseJob, "c23", epoch=6), timer="x")
    assert said_by(tale.history) == {"budgets_hold"}


def test_a_persons_wish_covers_no_later_run_of_the_same_incident(tale):
    """Found by seed 52284: all crashes after a command counted as its doing, and no judge saw that they went on."""
    tale.incident.findings.append(replace(XID, id="f2", rule="operator.reboot", at=tale.now))
    for number in range(4):
        tale.now += 600.0
        tale.event(e.TimerFired, order(o.ReleaseJob, f"c2{number}", epoch=3 + number), timer="x")
    assert "budgets_hold" in said_by(tale.history)


def test_giving_up_too_early_is_found(tale):
    """Nothing was tried since the last progress; when an order was refused for good, or a person asked, it is right."""
    stop = order(o.GiveUp, "c20", remedy=Remedy.STOP, why="crash loop")
    tale.event(e.TimerFired, stop, timer="x")
    assert said_by(tale.history) == {"budgets_hold"}
    refused = good()
    again = order(o.RequeueHeld, "c19", restart_count=1)
    refused.event(e.TimerFired, again, timer="x")
    refused.event(e.OrderFailed, stop, order="c19", why="may not be requeued")
    assert said_by(refused.history) == set()


def test_a_crash_that_came_back_after_somebody_elses_restart_has_come_back(tale):
    """Preempted while its restart in place was ordered, it was started by the scheduler, and crashed as before."""
    stop = order(o.GiveUp, "c20", remedy=Remedy.STOP, why="crash loop")
    tale.event(e.AttemptStarted, job=JOB, attempt=2, epoch=3, restart_count=1)
    tale.event(e.CheckpointSaved, job=JOB, attempt=2, step=90, durable=True)
    tale.event(e.AttemptStarted, job=JOB, attempt=4, epoch=5, restart_count=2)
    tale.event(e.TimerFired, stop, timer="x")
    assert said_by(tale.history) == set()


def test_a_start_after_a_cancel_is_found(tale):
    """In the world and in the journal; a person may queue it once more."""
    tale.deed(Cancelled, job=JOB, by="person:owner")
    tale.job(SchedulerState.CANCELLED)
    tale.deed(RunBegan, job=JOB, epoch=3, nodes=("n2",), by="person:owner")
    assert said_by(tale.history) == set()
    tale.deed(Cancelled, job=JOB, by="person:owner")
    tale.event(e.TimerFired, order(o.RequeueHeld, "c20", restart_count=1), timer="x")
    tale.deed(RunBegan, job=JOB, epoch=4, nodes=("n2",), by="c20")
    assert len([one for one in judged(tale.history) if one.judge == "no_restart_after_cancel"]) == 2


@pytest.mark.parametrize(("restart_count", "complaints"), [(0, {"no_restart_after_cancel"}), (1, set())])
def test_a_start_after_a_cancel_may_be_known_by_its_launcher_alone(tale, restart_count, complaints):
    """A person queued it once more while the scheduler could not be read. The launcher that was cancelled is no start."""
    tale.job(SchedulerState.CANCELLED)
    tale.event(e.LauncherAttached, job=JOB, restart_count=restart_count, nodes=("n2",))
    tale.event(e.TimerFired, order(o.RequeueHeld, "c20", restart_count=1), timer="x")
    judges = {one.judge for one in judged(tale.history)}
    assert judges & {"no_restart_after_cancel"} == complaints


def test_an_old_attempt_that_writes_beside_the_new_one_is_found(tale):
    """Its epoch is below the newest one's."""
    tale.deed(Wrote, job=JOB, epoch=1, step=30)
    assert said_by(tale.history) == {"attempts_do_not_overlap"}


def test_an_epoch_used_twice_is_found(tale):
    """Nothing would tell the two attempts apart."""
    tale.deed(RunBegan, job=JOB, epoch=2, nodes=("n2",), by="scheduler")
    assert said_by(tale.history) == {"attempts_do_not_overlap"}


@pytest.mark.parametrize("state", [SchedulerState.HELD, SchedulerState.FAILED])
def test_a_job_that_is_left_lying_is_found(tale, state):
    """Held by nobody, or failed with retries left; a job that was given up or is held by a person is not."""
    history = tale.history
    assert history.final is not None
    history.final = replace(history.final, jobs=(replace(history.final.jobs[0], state=state),))
    assert said_by(history) == {"retries_are_used"}
    history.jobs[0].state = JobState.GIVEN_UP
    assert said_by(history) == set()


def test_a_job_for_which_too_few_nodes_are_left_may_wait(tale):
    """Its incident stays open with it; with enough nodes both are complaints."""
    history = tale.history
    assert history.final is not None
    waiting = replace(history.final.jobs[0], state=SchedulerState.PENDING, want_nodes=2)
    history.jobs[0].state = JobState.WAITING_FOR_NODES
    tale.incident.closed_at = 0.0
    tale.incident.jobs_open = [JOB]
    one, two = NodeView(name="n1", alive=True), NodeView(name="n2", alive=True)
    history.final = replace(history.final, jobs=(waiting,), nodes=(one, replace(two, drained=True)))
    assert said_by(history) == set()
    history.final = replace(history.final, nodes=(one, two))
    assert said_by(history) == {"incidents_close", "retries_are_used"}


# --- incidents ---


def test_a_wrong_cause_is_found(tale):
    """The fault stood alone, was seen, and something else is named."""
    tale.incident.diagnosis = Diagnosis(cause="exit.code.1", summary="exit code 1")
    assert said_by(tale.history) == {"stories_name_the_cause"}


def test_a_story_that_does_not_tell_is_found(tale):
    """The right diagnosis must be told, too."""
    tale.incident.story = ["Something happened."]
    assert said_by(tale.history) == {"stories_name_the_cause"}


def test_faults_that_come_together_may_be_taken_for_one_another(tale):
    """Two within minutes: nobody can demand which of them a diagnosis names."""
    tale.deed(Faulted, fault="crash-2", kind="crash", rules=("exit.signal.11",), job=JOB)
    tale.incident.diagnosis = Diagnosis(cause="exit.signal.11", summary="signal 11")
    assert said_by(tale.history) == set()


def test_a_later_fault_of_the_node_that_ends_a_job_may_be_named(tale):
    """Found by seed 57920955: the first was only observed, for nothing ran there. It is the other way round with a job."""
    deeds = tale.history.deeds
    place = next(number for number, deed in enumerate(deeds) if isinstance(deed, Faulted))
    first = deeds[place]
    later = replace(first, fault="gpu-3", rules=("nvidia.xid.119",), at=first.at + 2700.0)
    tale.incident.diagnosis = Diagnosis(cause="nvidia.xid.119", summary="Xid 119")
    tale.incident.story.append("On further evidence: Xid 119.")
    tale.incident.closed_at = later.at + 60.0
    deeds[place : place + 1] = [replace(first, job=None), later]
    assert said_by(tale.history) == set()
    deeds[place] = first
    assert said_by(tale.history) == {"stories_name_the_cause"}


def test_complaints_are_bounded(tale):
    """The first ones tell the story."""
    for number in range(20):
        tale.event(e.OrderDone, order=f"c9{number}")
    assert len(judged(tale.history)) == 5


def test_what_sets_something_anew_has_one_effect(tale):
    """An older exclusion, withdrawn and hung, takes effect after a newer one, which then sets its own once more."""
    older, newer = order(o.SetExcluded, "c20"), order(o.SetExcluded, "c21")
    tale.event(e.TimerFired, older, timer="t")
    tale.event(e.TimerFired, newer, timer="t")
    for one in (newer, older, newer):
        tale.took(one)
    assert "no_order_twice" not in said_by(tale.history)
    tale.took(newer)
    assert "order c21 had its effect 2 times" in [one.text for one in judged(tale.history)]


@pytest.mark.parametrize(("after_s", "complains"), [(4.0, False), (7.0, True)])
def test_a_release_that_undoes_a_persons_hold_is_forgiven_only_while_nobody_can_know(tale, after_s, complains):
    """The command's answer was lost: its retry is under way when a person holds the job."""
    release = order(o.ReleaseJob, "c22", epoch=2)
    tale.event(e.TimerFired, release, timer="t")
    tale.took(release)
    tale.deed(Held, job=JOB, by="person:ada")
    tale.now += after_s
    tale.took(release)
    assert ("no_order_twice" in said_by(tale.history)) is complains


@pytest.mark.parametrize(("by", "complains"), [("person:ada", False), ("c7", True)])
def test_a_person_who_lifts_a_bad_nodes_drain_lets_the_job_run_there(tale, by, complains):
    """Between our release and the start: nobody could know. Our own return of a bad node is no excuse."""
    release = order(o.ReleaseJob, "c22", epoch=3)
    tale.event(e.NodeGone, node="n4", evidence="its lease ended")
    tale.event(e.TimerFired, release, timer="t")
    tale.took(release)
    tale.deed(Resumed, node="n4", by=by)
    tale.deed(RunBegan, job=JOB, epoch=3, nodes=("n3", "n4"), by="c22")
    assert ("not_onto_a_bad_node" in said_by(tale.history)) is complains


def test_a_late_word_of_a_loss_counts_although_the_agent_has_spoken_since(tale):
    """What stands in the journal is confirmed by the scheduler's side when it is told."""
    release = order(o.ReleaseJob, "c22", epoch=3)
    tale.event(e.AgentAttached, node="n4", boot_id="b", instance_id=OLD)
    late = tale.event(e.NodeGone, node="n4", evidence="its lease ended")
    tale.history.steps[-1] = Step(replace(late, at=late.at - 120.0))
    tale.event(e.TimerFired, release, timer="t")
    tale.took(release)
    tale.deed(RunBegan, job=JOB, epoch=3, nodes=("n3", "n4"), by="c22")
    assert said_by(tale.history) == {"not_onto_a_bad_node"}


def _gone_again(tale):
    tale.event(e.NodeGone, node="n4", evidence="its lease ended")


@pytest.mark.parametrize(
    ("after_loss", "complains"),
    [
        ((), True),
        ((lambda tale: tale.event(e.NodeVanished, node="n4"),), False),
        ((lambda tale: tale.node("n4", alive=False),), False),
        ((lambda tale: tale.event(e.NodeVanished, node="n4"), lambda tale: tale.node("n4"), _gone_again), True),
    ],
)
def test_what_the_scheduler_does_not_know_or_calls_down_is_out_of_reach(tale, after_loss, complains):
    """It gives out neither, and cannot exclude the first; when it is known again, and lost again, it counts."""
    release = order(o.ReleaseJob, "c22", epoch=3)
    tale.event(e.NodeGone, node="n4", evidence="its lease ended")
    for tell in after_loss:
        tell(tale)
        if not complains:
            tale.event(e.NodeGone, node="n4", evidence="its lease ended")
    tale.event(e.TimerFired, release, timer="t")
    tale.deed(RunBegan, job=JOB, epoch=3, nodes=("n3", "n4"), by="c22")
    assert ("not_onto_a_bad_node" in said_by(tale.history)) is complains


@pytest.mark.parametrize(("ended", "complains"), [(True, False), (False, True)])
def test_a_job_that_was_queued_anew_unseen_has_new_retries(tale, ended, complains):
    """It had ended, and its launcher's start is the first word of a run that we did not order."""
    for number in range(2):
        tale.event(e.TimerFired, order(o.ReleaseJob, f"c2{number}", epoch=3 + number), timer="x")
        start = {"epoch": 3 + number, "nodes": ("n2",), "ranks": 8, "restart_count": 2 + number}
        tale.event(e.AttemptStarted, job=JOB, attempt=2 + number, **start)
    if ended:
        tale.job(SchedulerState.FAILED, restart_count=3)
    tale.event(e.AttemptStarted, job=JOB, attempt=4, epoch=5, nodes=("n2",), ranks=8, restart_count=4)
    tale.event(e.TimerFired, order(o.ReleaseJob, "c29", epoch=6), timer="x")
    assert ("budgets_hold" in said_by(tale.history)) is complains


def test_a_start_by_the_scheduler_itself_counts_as_a_restart_also_without_a_launcher(tale):
    """It was preempted and runs again with no progress in between: the fault has come back once all the same."""
    for number in range(3):
        tale.job(SchedulerState.RUNNING, restart_count=number, nodes=("n2",))
    tale.event(e.TimerFired, order(o.GiveUp, "c20", remedy=Remedy.STOP, why="crash loop"), timer="x")
    assert said_by(tale.history) == set()


@pytest.mark.parametrize("before", [SchedulerState.FAILED, SchedulerState.RUNNING])
@pytest.mark.parametrize(("again", "complains"), [(3, False), (2, True)])
def test_whoever_queues_a_job_that_was_given_up_gives_it_new_retries(tale, before, again, complains):
    """Our last requeue came to nothing, as the job was given up: the next start is not ours.

    Nor is it when that job still runs, because the command that ends it hangs (seed 57924188).
    """
    for number in range(2):
        tale.event(e.TimerFired, order(o.ReleaseJob, f"c2{number}", epoch=3 + number), timer="x")
    tale.job(SchedulerState.RUNNING, restart_count=2, nodes=("n2",))
    tale.event(e.TimerFired, order(o.RequeueHeld, "c25", restart_count=2), timer="x")
    tale.event(e.TimerFired, order(o.GiveUp, "c26", remedy=Remedy.STOP, why="crash loop"), timer="x")
    tale.job(before, restart_count=2)
    tale.job(SchedulerState.PENDING, restart_count=again)
    tale.event(e.TimerFired, order(o.ReleaseJob, "c27", epoch=6), timer="x")
    assert ("budgets_hold" in said_by(tale.history)) is (complains and before is SchedulerState.RUNNING)


def test_a_held_job_that_ran_and_failed_unseen_was_let_go(tale):
    """The scheduler shows it held, and then failed: whoever held it has released it in between."""
    tale.job(SchedulerState.PENDING, restart_count=1)
    tale.job(SchedulerState.HELD, restart_count=1)
    tale.job(SchedulerState.FAILED, restart_count=1)
    tale.event(e.TimerFired, order(o.ReleaseJob, "c20", epoch=3), timer="x")
    assert "holds_are_respected" not in said_by(tale.history)


@pytest.mark.parametrize(("topic", "complains"), [("node:n1", False), ("ic1.1", True)])
def test_a_drain_that_is_left_to_people_is_told_of(tale, topic, complains):
    """Policy observes by now, whoever said so: a notice about the node says who lifts its drain."""
    tale.deed(Drained, node="n1", by="c1")
    told = o.Notify(id="c20", cause=1, topic=topic, node="n1", title="n1 is drained by us, and left")
    tale.event(e.NodeGone, told, node="n1", evidence="x")
    assert ("no_drain_is_forgotten" in said_by(tale.history)) is complains
