"""Events that are late, repeated, out of order, or about something that is over: nothing acts twice."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, SchedulerState
from holdfast.model.evidence import Domain, EvidenceKind, Remedy, Role
from holdfast.model.policy import Mode
from holdfast.model.records import Authority, JobState, NodeState

S = SchedulerState


def test_the_same_finding_reported_twice_is_one(inside):
    """A finding's id decides: launcher and agent may both report it."""
    inside.crash(id="same")
    inside.crash(id="same")
    assert len(inside.incident.findings) == 1
    assert len(inside.opened(o.StopAttempt)) == 1


def test_the_same_finding_after_its_incident_closed_is_dropped(inside):
    """A report that was held up somewhere for minutes starts nothing."""
    inside.crash(id="same")
    inside.restart_in_place()
    inside.checkpoint(1, 200)
    assert inside.engine.open_incidents() == []
    assert kinds(inside.crash(attempt=1, id="same")) == []
    assert inside.engine.open_incidents() == []


@pytest.mark.parametrize("settled", [True, False])
def test_a_restart_in_place_told_of_when_our_requeue_is_done_is_over(settled):
    """Its launcher was faster than the requeue, its word slower (seed 936): the job is held by us, and released."""
    play = Play().running()
    play.crash()
    play.ended(0)
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.done(o.RequeueHeld)
    if settled:
        play.settle()
    play.start(1, in_place=1)
    assert play.state is (JobState.HELD if settled else JobState.DIAGNOSING)
    assert play.attempt.ended_at
    play.ended(1)
    if not settled:
        play.settle()
    play.do(e.LauncherLapsed, job=KEY, left=True, exit_code=143)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.done(o.SetExcluded)
    play.done(o.ReleaseJob)
    assert play.state is JobState.RELEASED
    play.job(state=S.RUNNING, restart_count=1, nodes=("n1", "n3", "n4", "n5"))
    play.start(2, restart_count=1)
    assert play.state is JobState.PROVING


def test_64_ranks_reporting_the_same_are_one_incident_and_one_stop(inside):
    """Fan-out inside an attempt: one incident, one order, one restart charged."""
    for rank in range(64):
        inside.crash(rank=rank, node=f"n{rank // 16 + 1}")
    assert len(inside.opened(o.StopAttempt)) == 1
    inside.restart_in_place()
    assert inside.j.in_place == 1
    assert sum(inside.j.spent[name] for name in inside.j.spent if not name.startswith("node:")) == 1


def test_a_finding_of_the_old_attempt_refines_the_old_incident(inside):
    """Late evidence of attempt 0 joins the incident that ended it; attempt 1 runs on undisturbed."""
    inside.crash(fingerprint="segv:1")
    inside.restart_in_place()
    incident = inside.incident
    orders = inside.finding(
        "python.exception", job=KEY, attempt=0, rank=5, node="n3", domain=Domain.APPLICATION, source="launcher:7"
    )
    assert kinds(orders) == []
    assert inside.state is JobState.PROVING
    assert inside.incident is incident
    assert [finding.rule for finding in incident.findings] == ["exit.signal.11", "python.exception"]


def test_a_finding_of_the_old_attempt_after_proof_changes_nothing(inside):
    """The incident is closed, so a straggling line of attempt 0 is dropped."""
    inside.crash()
    inside.restart_in_place()
    inside.checkpoint(1, 200)
    assert kinds(inside.crash(attempt=0, rank=6)) == []
    assert inside.state is JobState.WATCHING
    assert inside.engine.open_incidents() == []


def test_a_finding_without_attempt_is_placed_by_its_time(inside):
    """A line older than the new attempt's start belongs to the attempt before."""
    inside.crash()
    before = inside.now
    inside.restart_in_place()
    orders = inside.finding("exit.code.1", job=KEY, rank=3, seen_at=before - 5.0, source="launcher:7")
    assert kinds(orders) == []
    assert inside.state is JobState.PROVING


def test_a_finding_that_overtakes_the_start_of_its_attempt_waits_for_it(inside):
    """Evidence about an attempt nobody has heard of yet starts nothing; it is acted on when the attempt is known."""
    inside.crash(attempt=0)
    inside.ended(0)
    inside.settle()
    assert kinds(inside.crash(attempt=1, rank=6)) == []
    assert inside.state is JobState.IN_PLACE
    assert kinds(inside.start(1, in_place=1)) == ["StopAttempt"]
    assert inside.state is JobState.STOPPING
    assert inside.attempt.incident == inside.incident.id
    assert inside.j.in_place == 1


def test_the_first_attempts_crash_that_overtakes_its_start_is_no_restart():
    """A rank that dies within milliseconds of the first start: one stop, and nothing is charged before the restart."""
    play = Play(scope="allocation")
    play.attach()
    assert kinds(play.crash(attempt=0)) == []
    assert kinds(play.start(0)) == ["StopAttempt"]
    assert play.j.in_place == 0
    play.ended(0)
    assert kinds(play.settle()) == ["RestartInPlace"]
    assert play.j.in_place == 1


def test_a_crash_heard_of_before_the_start_of_an_implied_attempt_is_charged_once():
    """The controller knew the attempt from the scheduler alone: its launcher's word of the start is no restart of it."""
    play = Play()
    play.nodes()
    play.job()
    play.attach()
    play.crash(attempt=0)
    assert play.state is JobState.STOPPING
    play.start(0)
    assert play.state is JobState.STOPPING
    assert play.attempt.epoch == 1
    assert play.j.in_place == 0
    assert play.j.spent == {}
    play.restart_in_place()
    assert play.state is JobState.PROVING
    assert play.j.in_place == 1


def asked(play: Play) -> list[str]:
    """Orders that wait for people."""
    return kinds([record.order for record in play.engine.proposed_orders()])


def test_a_start_without_the_bad_node_ends_what_was_asked_because_of_it():
    """Found by seed 1102960395: its launcher had heard of the fault, too, and chose others. Their trouble is another."""
    play = Play(modes={Remedy.REQUEUE: Mode.ADVISE})
    play.nodes()
    play.job()
    play.attach()
    play.xid("n2", 95)
    about_n2 = play.incident.id
    assert asked(play) == ["RequeueHeld"]
    play.start(nodes=("n1", "n3", "n4"))
    assert asked(play) == []
    assert play.state is JobState.PROVING
    play.crash()
    assert [i.findings[0].rule for i in play.engine.open_incidents() if i.id != about_n2] == ["exit.signal.11"]


def test_a_person_who_holds_a_job_before_our_release_is_answered_keeps_it_held(play):
    """Its release is seen before it is reported done: tried again later, it would let go what a person holds."""
    play.xid()
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    play.done(o.SetExcluded)
    play.job(state=S.PENDING)
    assert play.opened(o.ReleaseJob) == []
    play.job(state=S.HELD)
    assert play.state is JobState.HELD
    assert play.j.held_by == "a person"
    assert play.opened(o.ReleaseJob) == []


def test_what_followed_from_a_bad_gpu_is_another_trouble_when_it_comes_without_one():
    """The Xid explained the rank's death; the next death, elsewhere and without an Xid, has an incident of its own."""
    play = Play().running()
    play.crash(rank=5, node="n3")
    play.xid("n3", 95)
    play.through_queue(nodes=("n1", "n2", "n4", "n5"))
    first = play.incident
    assert first.diagnosis is not None
    assert first.diagnosis.cause == "nvidia.xid.95"
    play.crash(1, rank=7, node="n4")
    second = next(incident for incident in play.engine.open_incidents() if incident is not first)
    assert [finding.rule for finding in second.findings] == ["exit.signal.11"]
    assert first.diagnosis.cause == "nvidia.xid.95"


def test_a_crash_that_comes_back_is_one_incident_also_when_its_exception_explains_the_exit():
    """The exit is heard of first each time, and is a consequence of the exception that is read a moment later."""
    play = Play().running()
    for attempt in (0, 1):
        play.crash(attempt)
        play.finding(
            "python.exception", job=KEY, attempt=attempt, rank=5, node="n3", domain=Domain.APPLICATION,
            seen_at=play.now - 1.0, source="launcher:7", summary="ValueError: no",
        )  # fmt: skip
        if attempt == 0:
            play.restart_in_place()
    assert play.incident.diagnosis is not None
    assert play.incident.diagnosis.cause == "python.exception"


def test_late_hardware_evidence_explains_the_last_time_of_a_trouble_that_came_back():
    """Signal 11, a restart, signal 11 again, and then the Xid: the kernel's line is near the second crash only."""
    play = Play().running()
    play.crash(rank=5, node="n3")
    play.restart_in_place()
    play.crash(1, rank=5, node="n3", at=play.now + 400)
    play.xid("n3", 95, at=play.now + 10)
    assert play.incident.diagnosis is not None
    assert play.incident.diagnosis.cause == "nvidia.xid.95"


def test_attempt_ended_twice_acts_once(inside):
    """The launcher's word repeated after a reconnect changes nothing."""
    inside.crash()
    inside.ended(0)
    inside.settle()
    assert kinds(inside.ended(0)) == []
    assert len([x for x in inside.all if isinstance(x, o.RestartInPlace)]) == 1


def test_the_end_of_an_older_attempt_does_not_stop_the_newer(inside):
    """AttemptEnded(0) after AttemptStarted(1) only completes the record."""
    inside.crash()
    inside.restart_in_place()
    assert kinds(inside.ended(0, exit_code=1, stopped=False)) == []
    assert inside.state is JobState.PROVING


def test_attempt_started_twice_is_one_attempt(inside):
    """Numbers decide."""
    inside.crash()
    inside.restart_in_place()
    inside.start(1, in_place=1)
    assert [attempt.number for attempt in inside.j.attempts] == [0, 1]


def test_an_order_done_that_nobody_gave_is_ignored(play):
    """Ids of another engine, of a settled order, of nothing at all."""
    before = play.engine.snapshot()
    for name in ("a1.1", "c999.1", ""):
        assert kinds(play.do(e.OrderDone, order=name)) == []
        assert kinds(play.do(e.OrderFailed, order=name, why="x")) == []
    assert len(before) == len(play.engine.snapshot()) or play.state is JobState.WATCHING


def test_order_done_twice_acts_once(play):
    """The executor may say it again after a restart."""
    play.xid()
    order = play.open(o.RequeueHeld).id
    play.do(e.OrderDone, order=order)
    count = len(play.all)
    assert kinds(play.do(e.OrderDone, order=order)) == []
    assert [type(x) for x in play.all[count:]] == []


def test_a_checkpoint_of_the_old_attempt_proves_nothing(inside):
    """A write that was in flight when attempt 0 ended is no proof of attempt 1."""
    inside.crash()
    inside.restart_in_place()
    inside.first_step(1, 101, resumed_from=100)
    inside.checkpoint(0, 150)
    assert inside.state is JobState.PROVING
    inside.checkpoint(1, 160)
    assert inside.state is JobState.WATCHING


def test_a_staged_checkpoint_proves_nothing(inside):
    """'Finished staging' is not a durable checkpoint."""
    inside.crash()
    inside.restart_in_place()
    inside.checkpoint(1, 160, durable=False)
    assert inside.state is JobState.PROVING


def test_a_checkpoint_not_beyond_the_one_resumed_from_proves_nothing(inside):
    """Saving the very step it loaded is no progress."""
    inside.crash()
    inside.restart_in_place()
    inside.first_step(1, 101, resumed_from=100)
    inside.checkpoint(1, 100)
    assert inside.state is JobState.PROVING


def test_events_before_the_snapshot_are_not_handled_again(play):
    """A replay of what the snapshot already contains leads to nothing."""
    play.xid()
    again = Engine.restore(play.engine.snapshot(), play.policies)
    assert [again.handle(event) for event in play.events] == [[] for _ in play.events]
    assert again.snapshot() == play.engine.snapshot()
    assert again.touched().jobs == []


def test_an_old_view_of_the_job_is_ignored(play):
    """A snapshot with a smaller restart count was taken before."""
    play.xid()
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.job(state=S.RUNNING, restart_count=0, nodes=NODES)
    assert play.j.view.state is S.HELD


def test_a_launcher_of_an_older_run_gets_no_authority(play):
    """Its attach message was on its way when the job was requeued."""
    play.xid()
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.attach(restart_count=0)
    assert play.j.authority is Authority.CONTROLLER


def test_a_launcher_that_reattaches_during_our_requeue_gets_no_authority(play):
    """The controller has taken over; the launcher will be ended."""
    play.xid()
    play.do(e.LauncherLapsed, job=KEY)
    play.attach()
    assert play.j.authority is Authority.CONTROLLER
    assert play.state is JobState.STOPPING


def test_old_evidence_about_a_returned_node_is_stale(play):
    """A kernel line from before the replacement, delivered after it, must not fence the new machine."""
    when = play.now
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.now += 60.0
    play.done(o.ReplaceNode)
    play.node("n2", instance_id="new", boot_id="new")
    play.do(e.NodeValidated, node="n2", passed=True)
    play.done(o.ReturnNode)
    assert play.ns("n2") is NodeState.HEALTHY
    assert kinds(play.xid("n2", seen_at=when)) == []
    assert play.ns("n2") is NodeState.HEALTHY
    assert kinds(play.xid("n2")) == ["QuarantineNode"]


def test_a_fault_since_the_checks_counts_although_the_return_is_answered_later(play):
    """The node took work again before the answer came, and broke in between: its report is heard after the answer."""
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.done(o.ReplaceNode)
    play.node("n2", instance_id="new", boot_id="new", drained=True, drain_reason="[holdfast] Xid 74")
    play.do(e.NodeValidated, node="n2", passed=True)
    play.now += 2.0
    play.node("n2", instance_id="new", boot_id="new")
    when = play.now + 2.0
    play.now += 10.0
    play.done(o.ReturnNode)
    assert play.ns("n2") is NodeState.HEALTHY
    assert kinds(play.xid("n2", seen_at=when)) == ["QuarantineNode"]


@pytest.mark.parametrize("how", ["replaced by us", "replaced again during its checks"])
def test_old_evidence_about_a_replaced_node_is_stale_during_its_checks(play, how):
    """The launcher of the job that left it speaks of the machine before: the new one is not fenced or repaired."""
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    when = play.now
    play.now += 60.0
    play.done(o.ReplaceNode)
    play.node("n2", instance_id="new", boot_id="new")
    if how != "replaced by us":
        when = play.now + 30.0
        play.now += 60.0
        play.node("n2", instance_id="newer", boot_id="newer")
    assert play.ns("n2") is NodeState.VALIDATING
    base = {"node": "n2", "job": KEY, "domain": Domain.HARDWARE, "remedy": Remedy.REPLACE, "kind": EvidenceKind.CHECK}
    assert kinds(play.finding("nvidia.xid.79", source="launcher:7", attempt=0, seen_at=when, **base)) == []
    assert (play.ns("n2"), play.n("n2").findings) == (NodeState.VALIDATING, ["nvidia.xid.74"])
    play.do(e.NodeValidated, node="n2", passed=True)
    play.done(o.ReturnNode)
    assert play.ns("n2") is NodeState.HEALTHY


def test_validation_of_a_former_machine_is_ignored(play):
    """The word is about a machine that is gone."""
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.done(o.ReplaceNode)
    play.node("n2", instance_id="new", boot_id="new")
    play.do(e.NodeValidated, node="n2", passed=True, instance_id="machine-n2")
    assert play.ns("n2") is NodeState.VALIDATING
    assert play.opened(o.ReturnNode) == []
    assert play.open(o.ValidateNode).instance_id == "new"


def test_a_timer_that_was_replaced_does_not_fire_early(play):
    """The firing of the old timer was on its way: the rest is waited for, and nothing else happens."""
    play.xid()
    name = next(timer for timer in play.engine.state.timers if timer.startswith("job:"))
    orders = play.do(e.TimerFired, timer=name)
    assert [type(order) for order in orders] == [o.StartTimer]
    assert orders[0].after_s == pytest.approx(60.0, abs=1.0)
    assert kinds(play.fire("job:")) == ["RequeueHeld"]


def test_a_timer_counts_when_the_clock_has_gone_back(play):
    """A controller that takes over with a clock five minutes behind must not wait until its clock has caught up."""
    play.xid()
    name = next(timer for timer in play.engine.state.timers if timer.startswith("job:"))
    order = play.engine.state.timers[name].order
    behind = play.now - 300.0
    fired = e.TimerFired(id=e.fired_id(order.id), at=behind, received_at=behind, seq=play.count + 1, timer=name)
    orders = play.send(fired)
    assert "RequeueHeld" in kinds(orders)


def test_a_timer_nobody_knows_is_ignored(play):
    """Cancelled in the meantime."""
    assert play.do(e.TimerFired, timer="job:c/7#1") == []
    assert play.do(e.TimerFired, timer="nonsense") == []


def test_escalation_of_an_older_attempt_is_ignored(play):
    """The launcher's hand-over was on its way when a new attempt started."""
    play.crash()
    play.restart_in_place()
    assert kinds(play.do(e.Escalated, job=KEY, attempt=0, why="old")) == []
    assert play.state is JobState.PROVING


def test_escalation_of_a_run_that_somebody_has_ended_since_is_ignored(play):
    """The launcher was cut off; meanwhile a person cancelled the job and queued it again (seed 390001138)."""
    play.running()
    play.job(state=S.CANCELLED)
    play.job(state=S.PENDING, restart_count=1, nodes=())
    assert kinds(play.do(e.Escalated, job=KEY, attempt=0, why="no rung is left", source="launcher:7")) == []
    assert play.state is JobState.WATCHING


def test_escalation_during_a_requeue_only_adds_what_it_knows(play):
    """No second requeue; the nodes it names are excluded as well."""
    play.xid("n2")
    assert kinds(play.do(e.Escalated, job=KEY, attempt=0, exclude_nodes=("n4",), why="no rung")) == []
    assert play.j.excluded == ("n2", "n4")


@pytest.mark.parametrize("role", [Role.BENIGN, Role.PROGRESS, Role.CHECKPOINT])
def test_lines_that_mean_no_harm_change_nothing(play, role):
    """Look-alikes."""
    before = len(play.all)
    play.finding("spurious", job=KEY, attempt=0, role=role)
    assert play.all[before:] == []
    assert play.engine.open_incidents() == []


def test_a_log_line_alone_moves_nothing(play):
    """A rank may print anything. The line is kept, and joins when something happens that it explains."""
    orders = play.finding(
        "python.exception",
        job=KEY,
        attempt=0,
        rank=5,
        node="n3",
        domain=Domain.APPLICATION,
        kind=EvidenceKind.LOG,
        source="launcher:7",
    )
    assert kinds(orders) == []
    assert play.engine.open_incidents() == []
    play.crash()
    assert [finding.rule for finding in play.incident.findings] == ["exit.signal.11", "python.exception"]


def test_a_hardware_line_in_a_ranks_output_alone_moves_nothing(play):
    """Only the kernel log speaks for the node by itself."""
    orders = play.finding(
        "cuda.ecc", job=KEY, attempt=0, rank=5, node="n3", domain=Domain.HARDWARE, kind=EvidenceKind.LOG
    )
    assert kinds(orders) == []
    assert play.ns("n3") is NodeState.HEALTHY


def test_context_is_forgotten_after_a_while(play):
    """A warning of yesterday explains nothing today."""
    play.finding("nccl.ib.port", job=KEY, attempt=0, role=Role.CONTEXT, kind=EvidenceKind.LOG)
    play.now += 7200.0
    play.crash()
    assert [finding.rule for finding in play.incident.findings] == ["exit.signal.11"]


def test_events_about_unknown_jobs_and_nodes_are_ignored():
    """Nothing to do, and no error."""
    bare = Play()
    bare.ended(0)
    bare.first_step(0, 1)
    bare.checkpoint(0, 1)
    bare.step(0, 1)
    bare.do(e.StacksCaptured, job=KEY, attempt=0)
    bare.do(e.Escalated, job=KEY, attempt=0)
    bare.do(e.LauncherLapsed, job=KEY)
    bare.do(e.JobVanished, job=KEY)
    bare.do(e.NodeVanished, node="n1")
    bare.do(e.NodeSilent, node="n1", for_s=1.0)
    bare.do(e.NodeHeard, node="n1")
    bare.do(e.NodeValidated, node="n1", passed=True)
    bare.do(e.FindingCleared, node="n1", rule="x")
    assert [order for order in bare.all if not isinstance(order, o.Notify)] == []


def test_what_was_told_and_is_over_hides_no_later_fault(inside):
    """Found by simulation (seed 216): a straggler was told of, the matter closed, and the crash that came was ignored."""
    inside.finding("straggler.rank", job=KEY, attempt=0, rank=3, node="n2", kind=EvidenceKind.TELEMETRY)
    assert inside.state is JobState.WATCHING
    inside.fire("job:")
    assert inside.engine.open_incidents() == []
    assert kinds(inside.crash()) == ["StopAttempt"]


def test_late_words_of_a_job_whose_id_was_used_again_bring_nothing_back(play):
    """Found by simulation (seed 283): a ghost ran on the node for ever, and it could not be repaired."""
    former, now = JobKey("c", "9"), JobKey("c", "9", 2)
    play.job(former)
    play.do(e.JobVanished, job=former)
    play.job(now)
    play.attach(key=former, restart_count=4)
    play.start(3, key=former, restart_count=4)
    assert [job.key for job in play.engine.state.jobs.values()] == [KEY, now]


def test_a_late_word_of_a_nodes_loss_counts_although_its_agent_was_heard_since():
    """The scheduler's side confirms it when it is heard, see `controller/claims.py`: the node is down at that time."""
    play = Play().nodes(*NODES)
    lost_at = play.now
    play.now += 100.0
    play.do(e.AgentAttached, node="n2", boot_id="boot-n2", instance_id="machine-n2")
    late = e.NodeGone(id="late", at=lost_at, received_at=play.now, node="n2", evidence="reset; the scheduler says so")
    assert kinds(play.send(late)) == ["QuarantineNode"]


def test_a_dead_node_that_a_person_took_over_and_put_back_into_service_is_seen_to():
    """They made our drain their own, and lifted it: nobody else would keep jobs off it."""
    play = Play().nodes(*NODES)
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    play.node("n2", alive=False, drained=True, drain_reason="[holdfast] Xid 74")
    play.node("n2", alive=False, drained=True, drain_reason="mine now (ada)")
    assert play.ns() is NodeState.HEALTHY
    assert kinds(play.node("n2", drained=False, drain_reason="")) == ["QuarantineNode"]


def test_a_job_that_only_its_launcher_told_of_is_forgotten_when_its_id_is_given_again():
    """Found by seed 12190: the scheduler never showed it, so it never vanished, and a node waited for it to drain."""
    play = Play().nodes()
    play.attach()
    play.start(0)
    play.ended(0)
    play.do(e.JobObserved, job=JobView(key=JobKey("c", "7", 2), state=SchedulerState.RUNNING, nodes=("n4",)))
    assert list(play.engine.state.jobs) == ["c/7#2"]
    play.xid("n2")
    play.done(o.QuarantineNode)
    assert kinds(play.all)[-1] == "ReplaceNode"
