"""The controller's side: authority, take-over, evacuation, stragglers, bad numbers, proof, incidents that merge or do not."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.decide import ladder
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, SchedulerState
from holdfast.model.evidence import Diagnosis, Domain, EvidenceKind, Remedy, Role
from holdfast.model.policy import Limits, Policy, Proof, StragglerRules, Trouble, Waits
from holdfast.model.records import Authority, JobRecord, JobState, Mark, NodeState

S = SchedulerState
R = Remedy


# --- authority --------------------------------------------------------------------------------------------------------


def test_a_launcher_that_escalates_hands_over(play):
    """No in-place rung is left: the controller requeues, without the nodes the launcher names."""
    play.crash()
    play.ended(0)
    play.settle()
    made = Diagnosis(cause="exit.signal.11", domain=Domain.APPLICATION, fingerprint="exit.signal.11")
    play.j.in_place = 9
    orders = play.do(e.Escalated, job=KEY, attempt=0, diagnosis=made, exclude_nodes=("n3",), why="budget used up")
    assert kinds(orders) == ["RequeueHeld"]
    assert play.j.authority is Authority.CONTROLLER
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert play.open(o.SetExcluded).nodes == ("n3",)


def test_an_escalation_out_of_the_blue_opens_an_incident(play):
    """The launcher's events were lost on the way; its hand-over says enough."""
    made = Diagnosis(cause="node.lost", domain=Domain.HARDWARE, summary="n2 is gone", nodes=("n2",))
    play.do(e.Escalated, job=KEY, attempt=0, diagnosis=made, exclude_nodes=("n2",), why="too few nodes")
    if any(timer.startswith("settle:") for timer in play.engine.state.timers):
        play.settle()
    assert play.opened(o.RequeueHeld)
    assert play.incident.diagnosis.cause == "node.lost"


def test_a_launcher_whose_lease_ends_during_a_restart_is_taken_over(play):
    """Its ranks end with the lease: the controller goes on through the queue."""
    play.crash()
    assert kinds(play.do(e.LauncherLapsed, job=KEY)) == ["RequeueHeld"]
    assert play.j.authority is Authority.CONTROLLER


def test_a_launcher_that_does_not_act_is_taken_over(play):
    """It was to stop its attempt; twice `order_s` later the controller requeues."""
    play.crash()
    play.settle()
    assert kinds(play.fire("job:")) == ["RequeueHeld"]


def test_a_lapsed_launcher_of_a_healthy_job_may_come_back(play):
    """The connection was cut for a while: nothing is requeued, authority is as before."""
    assert kinds(play.do(e.LauncherLapsed, job=KEY)) == []
    assert play.j.authority is Authority.CONTROLLER
    play.attach()
    assert play.j.authority is Authority.LAUNCHER
    assert not any(timer.startswith("lapse:") for timer in play.engine.state.timers)


def test_a_lapsed_launcher_that_does_not_come_back_is_a_fault(play):
    """`unknown_s` later: its ranks are over by the lease's end; requeued."""
    play.do(e.LauncherLapsed, job=KEY)
    orders = play.fire("lapse:")
    assert kinds(orders) == ["RequeueHeld"]
    assert play.incident.findings[0].rule == "launcher.lost"


def test_a_launcher_that_leaves_with_0_is_waited_for(play):
    """The batch script may go on; the scheduler will say."""
    assert kinds(play.do(e.LauncherLapsed, job=KEY, left=True, exit_code=0)) == []
    play.job(state=S.COMPLETED, exit_code=0)
    assert play.state is JobState.COMPLETED


def test_an_agents_hardware_finding_overrides_a_restart_in_place(play):
    """rank 5 died, the launcher restarts in place; then the kernel's line arrives: the node must be left."""
    play.crash()
    assert play.state is JobState.STOPPING
    orders = play.xid("n3")
    assert kinds(orders) == ["QuarantineNode", "RequeueHeld"]
    assert len(play.engine.open_incidents()) == 1
    play.done(o.RequeueHeld)
    play.settle()
    assert play.incident.diagnosis.cause == "nvidia.xid.74"
    assert play.open(o.SetExcluded).nodes == ("n3",)


def test_hardware_seen_by_the_launcher_with_a_spare_is_the_launchers():
    """The allocation has a spare: the controller fences the node, and lets the launcher restart in place."""
    play = Play().running(nodes=NODES[:3], allocation=NODES)
    orders = play.do(e.NodeGone, node="n2", evidence="connection reset", source="launcher:7")
    assert kinds(orders) == ["QuarantineNode"]
    assert play.state is JobState.STOPPING
    play.ended(0)
    play.settle()
    assert play.state is JobState.IN_PLACE
    play.start(1, in_place=1, nodes=("n1", "n3", "n4"))
    play.checkpoint(1, 200)
    assert play.state is JobState.WATCHING
    assert not [x for x in play.all if isinstance(x, o.RequeueHeld)]


def test_hardware_seen_by_the_launcher_without_a_spare_is_the_controllers(play):
    """Nobody waits for the launcher's hand-over."""
    orders = play.do(e.NodeGone, node="n2", evidence="connection reset", source="launcher:7")
    assert kinds(orders) == ["QuarantineNode", "RequeueHeld"]


# --- evacuation -------------------------------------------------------------------------------------------------------


def trend(play: Play, node: str = "n2"):
    return play.finding(
        "nvidia.temperature", node=node, domain=Domain.HARDWARE, remedy=R.REPLACE, predicts=True,
        kind=EvidenceKind.COUNTER, source=f"agent:{node}", summary="rising temperature",
    )  # fmt: skip


def test_a_trend_saves_the_job_before_the_fault(play):
    """Rising temperature: save and stop with a limit, requeue without the node, repair the node."""
    orders = trend(play)
    assert kinds(orders) == ["QuarantineNode", "SaveAndStop"]
    assert play.open(o.SaveAndStop).limit_s == 120.0
    assert play.state is JobState.EVACUATING
    play.ended(0, exit_code=85, signal=None, last_step=150)
    play.do(e.Escalated, job=KEY, attempt=0, why="saved")
    assert play.opened(o.RequeueHeld)
    play.done(o.QuarantineNode)
    play.through_queue()
    assert play.j.requeues == 0
    assert "n2" not in play.attempt.nodes
    play.first_step(1, 151, resumed_from=150)
    play.checkpoint(1, 200)
    assert play.state is JobState.WATCHING
    assert play.incident.lost_steps == 0
    assert play.incident.diagnosis.cause == "nvidia.temperature"


def test_a_job_that_does_not_save_in_time_is_requeued_as_it_is(play):
    """The limit is over."""
    trend(play)
    assert kinds(play.fire("job:")) == ["RequeueHeld"]


def test_the_fault_that_was_foretold_comes_first(play):
    """While it saves, the node fails: no time is left, requeue at once."""
    trend(play)
    orders = play.xid("n2")
    assert kinds(orders) == ["RequeueHeld"]
    assert play.opened(o.SaveAndStop) == []


def test_policy_may_leave_trends_alone():
    """evacuate_on_trend = false: the node is fenced, the job runs on."""
    play = Play(evacuate_on_trend=False).running()
    assert kinds(trend(play)) == ["QuarantineNode"]
    assert play.state is JobState.WATCHING


def test_a_job_that_cannot_save_runs_on_until_it_ends():
    """No launcher: the node drains when the job has ended."""
    play = Play().plain()
    assert kinds(trend(play)) == ["QuarantineNode"]
    assert play.state is JobState.WATCHING


def test_a_failed_request_to_save_is_a_requeue(play):
    """The launcher cannot ask its ranks."""
    trend(play)
    assert kinds(play.fail(o.SaveAndStop, "no ranks")) == ["RequeueHeld"]


def test_the_ladder_may_ask_for_evacuation_of_real_faults():
    """hardware = quarantine, evacuate, requeue, stop."""
    ladder = (R.QUARANTINE, R.EVACUATE, R.REQUEUE, R.STOP)
    play = Play(ladders={Trouble.HARDWARE: ladder}).running()
    assert kinds(play.xid("n2")) == ["QuarantineNode", "SaveAndStop"]


# --- stragglers -------------------------------------------------------------------------------------------------------


def slow(play: Play, **fields):
    return play.finding(
        "straggler.rank", job=KEY, attempt=0, rank=3, node="n2", role=Role.CONTEXT, domain=Domain.HARDWARE,
        remedy=R.NOTIFY, kind=EvidenceKind.TELEMETRY, source="launcher:7", summary="rank 3 is slow", **fields,
    )  # fmt: skip


def test_a_straggler_is_told_once_and_nothing_is_done(play):
    """Report only; the same one again is the same incident."""
    assert kinds(slow(play)) == []
    assert kinds(slow(play)) == []
    assert play.state is JobState.WATCHING
    assert len(play.engine.open_incidents()) == 1
    assert play.ns("n2") is NodeState.HEALTHY


def test_a_real_fault_after_a_straggler_is_its_own_incident(play):
    """Being slow and dying are two troubles."""
    slow(play)
    play.crash()
    assert play.state is JobState.STOPPING
    assert [incident.outcome for incident in play.closed] == ["observed"]


def test_policy_may_exclude_stragglers_at_once():
    """straggler.exclude: the job leaves the slow node."""
    play = Play(straggler=StragglerRules(exclude=True)).running()
    assert kinds(slow(play)) == ["RequeueHeld"]
    assert play.j.excluded == ("n2",)


# --- bad numbers ------------------------------------------------------------------------------------------------------


def nan(play: Play, attempt: int):
    return play.finding(
        "loss.nan", job=KEY, attempt=attempt, rank=0, domain=Domain.APPLICATION, kind=EvidenceKind.TELEMETRY,
        source="launcher:7", summary="the loss became NaN",
    )  # fmt: skip


def test_bad_numbers_step_one_checkpoint_back_each_time():
    """The same NaN 44 times from a poisoned checkpoint must not happen."""
    play = Play(scope="allocation", limits=Limits(max_in_place=4)).running()
    for step in (110, 120, 130):
        play.checkpoint(0, step)
    resumed = [130, 120, 110]
    limits = []
    for attempt in range(4):
        assert kinds(nan(play, attempt)) == ["StopAttempt"]
        play.ended(attempt)
        if any(timer.startswith("settle:") for timer in play.engine.state.timers):
            play.settle()
        limits.append(play.open(o.RestartInPlace).restore_step_max)
        play.start(attempt + 1, in_place=attempt + 1)
        if attempt < 3:
            play.first_step(attempt + 1, resumed[attempt] + 1, resumed_from=resumed[attempt])
    assert limits == [None, 120, 110, 100]
    nan(play, 4)
    play.ended(4)
    play.settle()
    assert play.state is JobState.GIVEN_UP


def test_bad_numbers_of_attempts_that_tell_nothing_step_back_as_well():
    """They end before their first step is told: each may have loaded the newest checkpoint that it was allowed to."""
    play = Play(scope="allocation", limits=Limits(max_in_place=4)).running()
    for step in (110, 120, 130):
        play.checkpoint(0, step)
    limits = []
    for attempt in range(4):
        nan(play, attempt)
        play.ended(attempt)
        if any(timer.startswith("settle:") for timer in play.engine.state.timers):
            play.settle()
        limits.append(play.open(o.RestartInPlace).restore_step_max)
        play.start(attempt + 1, in_place=attempt + 1)
    assert limits == [None, 120, 110, 100]


def test_real_progress_ends_the_mistrust():
    """Past every earlier checkpoint: nothing is stepped over any more."""
    play = Play(scope="allocation", limits=Limits(max_in_place=4)).running()
    for attempt in range(2):
        nan(play, attempt)
        play.ended(attempt)
        if any(timer.startswith("settle:") for timer in play.engine.state.timers):
            play.settle()
        play.start(attempt + 1, in_place=attempt + 1)
        play.first_step(attempt + 1, 101, resumed_from=100)
    assert play.j.restore_step_max == 99
    play.checkpoint(2, 300)
    assert play.j.restore_step_max is None
    assert play.j.spent == {}


# --- proof ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proof", "after_first_step", "after_old_step", "after_fault_step", "after_checkpoint"),
    [
        (Proof.FIRST_STEP, True, True, True, True),
        (Proof.PASSED_FAULT, False, False, True, True),
        (Proof.FIRST_CHECKPOINT, False, False, False, True),
    ],
)
def test_proof_by_policy(proof, after_first_step, after_old_step, after_fault_step, after_checkpoint):
    """First step, passed the fault, first durable checkpoint (default)."""
    play = Play(scope="allocation", proof=proof).running()
    play.step(0, 150)
    play.crash()
    play.restart_in_place()
    seen = []
    for happens in (
        lambda: play.first_step(1, 101, resumed_from=100),
        lambda: play.step(1, 120),
        lambda: play.step(1, 151),
        lambda: play.checkpoint(1, 160),
    ):
        happens()
        seen.append(play.state is JobState.WATCHING)
    assert seen == [after_first_step, after_old_step, after_fault_step, after_checkpoint]


def test_a_restart_that_is_not_proven_in_time_is_told(inside):
    """It runs on; people hear of it; the incident stays open."""
    inside.crash()
    inside.restart_in_place()
    inside.first_step(1, 101, resumed_from=100)
    inside.fire("job:")
    assert inside.state is JobState.PROVING
    assert any("not proven" in title for title in inside.notices())


# --- incidents --------------------------------------------------------------------------------------------------------


def test_a_second_unrelated_fault_during_recovery_opens_its_own(play):
    """An Xid on n3 while the job proves its restart after n2's: two incidents; one proof settles both job sides."""
    play.nodes("n5", "n6")
    play.xid("n2")
    play.through_queue()
    orders = play.xid("n3", 79)
    assert kinds(orders) == ["QuarantineNode", "RequeueHeld"]
    first, second = play.engine.open_incidents()
    assert (first.nodes, second.nodes) == (["n2"], ["n3"])
    play.through_queue(2, nodes=("n1", "n4", "n5", "n6"))
    play.checkpoint(2, 200)
    assert first.jobs_done
    assert second.jobs_done


def test_faults_of_one_switch_are_one_incident():
    """Four nodes behind one switch within seconds, with different jobs."""
    play = Play().nodes(topology="row1/rack3/switch7")
    for i, name in enumerate(NODES):
        play.job(JobKey("c", str(i)), nodes=(name,))
    for name in NODES:
        play.do(e.NodeGone, node=name, evidence="connection reset")
    assert len(play.engine.open_incidents()) == 1
    assert len(play.incident.jobs) == 4


def test_faults_of_one_rack_are_one_incident_when_nodes_are_lost():
    """Two switches of one rack: a loss of power."""
    play = Play()
    play.node("n1", topology="row1/rack3/switch7")
    play.node("n2", topology="row1/rack3/switch8")
    play.do(e.NodeGone, node="n1", evidence="reset")
    play.do(e.NodeGone, node="n2", evidence="reset")
    assert len(play.engine.open_incidents()) == 1


def test_different_machine_faults_behind_one_switch_are_two():
    """Xid 74 here and Xid 48 there have nothing in common but the switch."""
    play = Play().nodes(topology="row1/rack3/switch7")
    play.xid("n1", 74)
    play.xid("n2", 48)
    assert len(play.engine.open_incidents()) == 2


def test_faults_of_one_domain_hours_apart_are_two():
    """Correlation has a window."""
    play = Play().nodes(topology="row1/rack3/switch7")
    play.do(e.NodeGone, node="n1", evidence="reset")
    play.now += 3600.0
    play.do(e.NodeGone, node="n2", evidence="reset")
    assert len(play.engine.open_incidents()) == 2


def test_a_file_system_that_fails_under_many_jobs_is_one_incident():
    """Same rule, same path, within the window."""
    play = Play().nodes()
    for i, name in enumerate(NODES):
        key = JobKey("c", str(i))
        play.job(key, nodes=(name,))
        play.finding(
            "fs.stale", job=key, attempt=0, node=name, rank=0, path="/lustre", domain=Domain.STORAGE,
            kind=EvidenceKind.CHECK,
        )  # fmt: skip
    assert len(play.engine.open_incidents()) == 1
    assert len(play.incident.jobs) == 4


def test_symptoms_first_then_the_cause_are_one_incident(play):
    """NCCL errors and an exit, then the node's Xid: one incident, whose cause is the Xid."""
    play.finding("nccl.remote", job=KEY, attempt=0, rank=1, node="n1", role=Role.CASCADE, domain=Domain.NETWORK)
    play.xid("n2")
    assert len(play.engine.open_incidents()) == 1
    play.done(o.RequeueHeld)
    play.settle()
    assert play.incident.diagnosis.cause == "nvidia.xid.74"


def test_a_node_that_shows_its_loss_after_its_job_has_ended_is_the_reason():
    """NODE_FAIL first, the node's own state a moment later: one incident, and the node is excluded."""
    play = Play().plain()
    play.job(state=S.NODE_FAIL)
    play.node("n2", alive=False)
    assert len(play.engine.open_incidents()) == 1
    play.settle()
    assert play.incident.diagnosis.cause == "node.lost"
    play.done(o.RequeueHeld)
    assert play.open(o.SetExcluded).nodes == ("n2",)


def test_a_fault_of_a_node_that_a_person_drained_is_repaired_there(play):
    """It is fenced already: isolated at once, repaired when it is empty."""
    play.say(e.Command.DRAIN, node="n2")
    play.done(o.QuarantineNode)
    assert kinds(play.xid("n2")) == ["RequeueHeld"]
    assert Mark.ISOLATED in play.incident.marks
    play.done(o.RequeueHeld)
    assert kinds(play.job(state=S.HELD, restart_count=1, nodes=())) == ["ReplaceNode"]


def test_findings_are_bounded_and_roots_are_kept(inside):
    """10,000 ranks complain; the one that tells is kept."""
    inside.finding("nccl.remote", job=KEY, attempt=0, rank=0, role=Role.CASCADE, source="launcher:7")
    for rank in range(100):
        inside.finding("nccl.remote", job=KEY, attempt=0, rank=rank, role=Role.CASCADE, source="launcher:7")
    inside.crash()
    incident = inside.incident
    assert len(incident.findings) <= 48
    assert incident.findings_dropped > 0
    assert any(finding.rule == "exit.signal.11" for finding in incident.findings)


def test_a_hang_that_moves_again_was_none(inside):
    """Progress while stacks are taken: nothing is ended."""
    inside.hang()
    orders = inside.step(0, 101)
    assert kinds(orders) == []
    assert inside.state is JobState.WATCHING
    assert inside.opened(o.CaptureStacks) == []
    assert inside.closed[0].outcome == "observed"
    assert kinds(inside.hang()) == ["CaptureStacks"]


def test_a_crash_while_stacks_are_taken_ends_the_look(inside):
    """An exit says more than a stack."""
    inside.hang()
    assert kinds(inside.crash()) == ["StopAttempt"]


def test_stacks_that_cannot_be_taken_do_not_delay(inside):
    """OrderFailed: on with what is known."""
    inside.hang()
    assert kinds(inside.fail(o.CaptureStacks, "no py-spy")) == ["StopAttempt"]


@pytest.mark.parametrize(
    ("rungs", "why"), [((R.NOTIFY,), "people"), ((), "the ladder for storage troubles does nothing")]
)
def test_a_look_that_finds_what_people_are_only_told_of_ends_nothing(rungs, why):
    """A rank's line says why nothing moves, and the ladder of that trouble leaves the job as it is."""
    inside = Play(scope="allocation", ladders={**Policy().ladders, Trouble.STORAGE: rungs}).running()
    inside.hang()
    line = {"kind": EvidenceKind.LOG, "domain": Domain.STORAGE, "rank": 3}
    inside.finding("io.stale_handle", job=KEY, attempt=0, source="launcher:7", **line)
    assert kinds(inside.do(e.StacksCaptured, job=KEY, attempt=0)) == []
    assert inside.state is JobState.WATCHING
    assert inside.incident.diagnosis.cause == "io.stale_handle"
    assert why in inside.j.story[-1]


def test_a_look_that_takes_too_long_is_over(inside):
    """Its order is taken back, and stacks that come all the same stop nothing twice."""
    inside.hang()
    assert kinds(inside.fire("job:")) == ["StopAttempt"]
    assert inside.opened(o.CaptureStacks) == []
    assert kinds(inside.do(e.StacksCaptured, job=KEY, attempt=0)) == []


def test_notices_come_in_the_order_in_which_things_happen(play):
    """Requeued, cause, released, recovered: one topic, the incident."""
    play.xid("n2")
    play.through_queue()
    play.first_step(1, 101, resumed_from=100)
    play.checkpoint(1, 200)
    incident = play.incident.id
    notices = [x for x in play.all if isinstance(x, o.Notify)]
    assert {x.topic for x in notices} == {incident}
    order = ["requeued", "Xid 74", "released", "recovered"]
    places = [next(i for i, x in enumerate(notices) if word in x.title) for word in order]
    assert places == sorted(places)


def test_the_story_tells_what_happened_and_why(play):
    """Plain sentences, in order."""
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.through_queue()
    play.first_step(1, 101, resumed_from=100)
    play.checkpoint(1, 200)
    story = "\n".join(play.incident.story)
    for words in (
        "Seen: Xid 74",
        "n2: quarantined",
        "stopped and requeued",
        "Diagnosis:",
        "released without n2",
        "recovered",
    ):
        assert words in story
    assert all(line[2] == ":" and line[8] == "Z" for line in play.incident.story)


def test_a_drill_gives_the_true_time_of_the_fault_and_nothing_else():
    """Marks only: the same orders with and without it."""
    with_drill, without = Play().running(), Play().running()
    with_drill.do(e.DrillFired, drill="xid-74", kind="xid", node="n2")
    without.do(e.ControllerStarted, epoch=1)
    fired = with_drill.now
    with_drill.now = without.now = fired + 2.0
    assert kinds(with_drill.xid("n2")) == kinds(without.xid("n2"))
    assert with_drill.incident.drill == "xid-74"
    assert with_drill.incident.marks[Mark.FAULT] == fired
    assert without.incident.marks[Mark.FAULT] > fired


def test_a_drill_that_is_told_late_still_gives_its_time(play):
    """The mark arrives after the finding."""
    fired = play.now
    play.xid("n2")
    play.do(e.DrillFired, drill="xid-74", kind="xid", node="n2", seen_at=fired)
    assert play.incident.marks[Mark.FAULT] == fired


@pytest.mark.parametrize(("after_s", "drill"), [(899.0, "hang"), (901.0, "")])
def test_a_drill_explains_an_incident_of_the_next_quarter_of_an_hour(play, after_s, drill):
    """A hang is found 540 s after it began at the latest; what comes after 900 s is something else."""
    play.do(e.DrillFired, drill="hang", kind="hang", node="n2")
    play.step_s = 0.0
    play.now += after_s
    play.xid("n2")
    assert play.incident.drill == drill


def test_an_old_drill_is_not_taken_for_a_new_fault(play):
    """Spurious lines of an hour ago did not cause this."""
    play.do(e.DrillFired, drill="spurious", kind="spurious", node="n2")
    play.now += 3600.0
    play.xid("n2")
    assert play.incident.drill == ""


# --- the ladder's arithmetic ------------------------------------------------------------------------------------------


def job(**fields) -> JobRecord:
    return JobRecord(key=KEY, view=JobView(key=KEY), **fields)


@pytest.mark.parametrize(
    ("cause", "domain", "trouble"),
    [
        ("hang.step", Domain.UNKNOWN, Trouble.HANG),
        ("straggler.rank", Domain.HARDWARE, Trouble.STRAGGLER),
        ("loss.nan", Domain.APPLICATION, Trouble.BAD_NUMBERS),
        ("node.lost", Domain.HARDWARE, Trouble.NODE_LOST),
        ("nvidia.xid.74", Domain.HARDWARE, Trouble.HARDWARE),
        ("exit.signal.11", Domain.APPLICATION, Trouble.APPLICATION),
        ("disk.full", Domain.STORAGE, Trouble.STORAGE),
        ("nccl.timeout", Domain.NETWORK, Trouble.NETWORK),
        ("exit.restart_me", Domain.PLATFORM, Trouble.PLATFORM),
        ("operator.requeue", Domain.OPERATOR, Trouble.PLATFORM),
        ("unknown", Domain.UNKNOWN, Trouble.UNKNOWN),
    ],
)
def test_which_ladder_a_cause_belongs_to(cause, domain, trouble):
    """By its rule's family, else by its domain."""
    assert ladder.trouble(cause, domain) is trouble


@pytest.mark.parametrize(
    ("spent", "facts", "remedy"),
    [
        ({}, {"launcher": True}, R.RESTART_IN_PLACE),
        ({}, {"launcher": False}, R.REQUEUE),
        ({}, {"launcher": True, "leave_node": True, "enough_nodes": False}, R.REQUEUE),
        ({"in_place": 3}, {"launcher": True}, R.REQUEUE),
        ({"in_place": 3, "requeues": 3}, {"launcher": True}, R.STOP),
        ({"requeues": 3}, {"in_queue": True}, R.STOP),
        ({"requeues": 3}, {"in_queue": True, "asked": True}, R.REQUEUE),
        ({}, {"launcher": True, "evacuated": True}, R.REQUEUE),
        ({"spent": {"f": 1}}, {"launcher": True}, R.STOP),
    ],
)
def test_choice_of_an_application_trouble(spent, facts, remedy):
    """Restart in place, then requeue, then stop; what cannot work is passed over with its reason."""
    diagnosis = Diagnosis(cause="exit.signal.11", domain=Domain.APPLICATION, fingerprint="f")
    choice = ladder.choose(job(**spent), Policy(), diagnosis, ladder.Facts(**facts))
    assert choice.remedy is remedy
    assert choice.why or remedy is R.RESTART_IN_PLACE or facts.get("in_queue")


def test_an_empty_ladder_does_nothing():
    """Policy says so."""
    policy = Policy(ladders={Trouble.APPLICATION: ()})
    diagnosis = Diagnosis(cause="x", domain=Domain.APPLICATION)
    assert ladder.choose(job(), policy, diagnosis, ladder.Facts()).remedy is R.NONE


def test_a_ladder_that_ends_without_stop_leaves_the_job_alone():
    """The last reason is told."""
    policy = Policy(ladders={Trouble.APPLICATION: (R.RESTART_IN_PLACE,)})
    diagnosis = Diagnosis(cause="x", domain=Domain.APPLICATION)
    choice = ladder.choose(job(), policy, diagnosis, ladder.Facts(launcher=False))
    assert choice.remedy is R.NONE
    assert "launcher" in choice.why


def test_waits_of_policy_are_honoured():
    """settle_s = 10 (Mission Control): the diagnosis waits that long while the job is held already."""
    play = Play(waits=Waits(settle_s=10.0)).running()
    play.xid("n2")
    play.done(o.RequeueHeld)
    assert play.state is JobState.DIAGNOSING
    due = next(t.due_at for name, t in play.engine.state.timers.items() if name.startswith("settle:"))
    assert due == pytest.approx(play.now + 10.0, abs=0.1)


def test_requeue_at_once_does_not_wait_for_the_diagnosis():
    """requeue_held = false."""
    play = Play(requeue_held=False, waits=Waits(settle_s=10.0)).running()
    play.xid("n2")
    assert kinds(play.done(o.RequeueHeld)) == ["SetExcluded"]


# --- nodes that a job is kept off -------------------------------------------------------------------------------------


def waits_for_nodes(play: Play) -> Play:
    """Kept off n2 because of a hardware fault, released, and too few nodes are free."""
    play.xid("n2", 73)
    play.done(o.QuarantineNode)
    play.node("n2", drained=True, drain_reason="[holdfast] Xid 73")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    play.done(o.SetExcluded)
    play.job(excluded=("n2",))
    play.done(o.ReleaseJob)
    play.job(state=S.PENDING, reason="Resources", lacks_nodes=True)
    assert play.state is JobState.WAITING_FOR_NODES
    return play


def test_a_released_job_whose_scheduler_says_later_that_nodes_are_missing_waits_for_them(play):
    """Slurm shows it pending first, and says `Resources` or `BadConstraints` when it has tried to start it."""
    play.until_release()
    play.done(o.ReleaseJob)
    play.job(state=S.PENDING, reason="BeginTime")
    assert play.state is JobState.RELEASED
    play.job(state=S.PENDING, reason="BadConstraints", lacks_nodes=True)
    assert play.state is JobState.WAITING_FOR_NODES
    assert "waits for nodes (BadConstraints)" in play.j.story[-1]


def test_a_waiting_job_may_use_a_node_again_once_it_is_clean(play):
    """Found by simulation (seed 8): the node came back, the exclusion stayed, and the job waited for ever."""
    waits_for_nodes(play)
    play.done(o.RebootNode)
    play.node("n2", boot_id="boot-2")
    play.do(e.NodeValidated, node="n2", passed=True)
    play.done(o.ReturnNode)
    assert play.open(o.SetExcluded).nodes == ()
    assert play.j.excluded == ()
    assert "n2 again" in play.j.story[-1]


def test_the_next_restart_may_use_a_node_that_was_repaired_while_the_job_ran(play):
    """Nobody lifts the exclusion while it runs; the restart after that is kept off the new bad node alone."""
    play.xid("n2", 73)
    play.through_queue()
    play.job(excluded=("n2",))
    play.done(o.QuarantineNode)
    play.done(o.RebootNode)
    play.node("n2", boot_id="boot-2")
    play.do(e.NodeValidated, node="n2", passed=True)
    play.done(o.ReturnNode)
    assert play.j.excluded == ("n2",)
    play.xid("n3")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=2, nodes=())
    play.settle()
    assert play.open(o.SetExcluded).nodes == ("n3",)


def test_thin_evidence_does_not_keep_a_job_waiting_for_ever(play):
    """A healthy node that was only thought odd is better than no node, after `nodes_s`."""
    waits_for_nodes(play)
    play.j.excluded = ("n2", "n3")
    play.j.excluded_asked = ("n2", "n3")
    play.job(excluded=("n2", "n3"))
    play.fire("job:")
    assert play.open(o.SetExcluded).nodes == ("n2",)


def test_what_comes_after_an_exclusion_is_lifted_goes_on(play):
    """The outcome of lifting it moves nothing; the start ends it."""
    waits_for_nodes(play)
    play.say(e.Command.CONFIRM_HEALTHY, node="n2")
    assert kinds(play.done(o.SetExcluded)) == []
    play.job(state=S.RUNNING, nodes=NODES, excluded=(), reason="")
    assert play.state is JobState.RESTARTING


def test_an_exclusion_that_an_earlier_command_undoes_is_asked_for_again(play):
    """A command that had timed out takes effect after a later one: the bad node could be given out until then."""
    waits_for_nodes(play)
    assert kinds(play.job(excluded=())) == ["SetExcluded"]
    assert play.open(o.SetExcluded).nodes == ("n2",)
    assert kinds(play.job(excluded=("n9",))) == []  # it is under way
    play.job(excluded=("n2", "n9"))
    play.done(o.SetExcluded)
    assert kinds(play.job(excluded=("n2",))) == []  # n9 was never ours


def test_an_exclusion_that_an_earlier_command_brings_back_is_lifted_again(play):
    """The node is clean by then, and the job would wait for it for ever."""
    waits_for_nodes(play)
    play.say(e.Command.CONFIRM_HEALTHY, node="n2")
    play.done(o.SetExcluded)
    play.job(excluded=())
    assert kinds(play.job(excluded=("n2",))) == ["SetExcluded"]
    assert play.open(o.SetExcluded).nodes == ()


def test_an_exclusion_is_lifted_also_when_a_person_lets_the_job_go_before_that_was_done(play):
    """A person holds the waiting job, its node becomes clean, and they let go: our order that lifts it is not lost."""
    waits_for_nodes(play)
    play.job(state=S.HELD)
    play.say(e.Command.CONFIRM_HEALTHY, node="n2")
    assert play.open(o.SetExcluded).nodes == ()
    play.job(state=S.PENDING)
    assert play.state is JobState.RELEASED
    assert play.open(o.SetExcluded).nodes == ()
