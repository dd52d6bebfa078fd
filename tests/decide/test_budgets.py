"""Retries and crash loops: what is counted, what resets it, and where it ends."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.decide import ladder
from holdfast.decide.records import job as job_record
from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobView, RecoverySpec, SchedulerState
from holdfast.model.events import Command
from holdfast.model.evidence import Diagnosis, Domain, Remedy
from holdfast.model.policy import Limits, Mode, Policy, Proof, Trouble
from holdfast.model.records import Authority, Broke, JobRecord, JobState

S = SchedulerState


def record(**fields) -> JobRecord:
    return JobRecord(key=KEY, view=JobView(key=KEY), **fields)


def again(play: Play, attempt: int, **crash) -> list[o.AnyOrder]:
    """The attempt dies, and everything up to the decision."""
    play.crash(attempt=attempt, **crash)
    orders = play.ended(attempt)
    if any(timer.startswith("settle:") for timer in play.engine.state.timers):
        orders += play.settle()
    return orders


def test_the_same_crash_twice_without_progress_is_a_crash_loop(inside):
    """Stop and say why, instead of burning the cluster."""
    assert kinds(again(inside, 0)) == ["RestartInPlace"]
    inside.start(1, in_place=1)
    orders = again(inside, 1)
    assert kinds(orders) == ["Escalate"]
    order = inside.open(o.Escalate)
    assert order.exit_code == EXIT_DO_NOT_REQUEUE
    assert "crash loop" in order.why
    assert " came 2 times" in order.why
    assert ". came" not in order.why
    assert inside.state is JobState.GIVEN_UP
    assert inside.closed[-1].outcome == "given_up"
    assert any("was given up" in title for title in inside.notices())


def test_two_crashes_that_have_nothing_to_do_with_each_other_are_no_loop(inside):
    """The same signal on another node, further on: a crash of its kind. On the same node, or no further, it is a loop."""
    inside.step(0, 150)
    assert kinds(again(inside, 0, node="n3", rank=5)) == ["RestartInPlace"]
    inside.start(1, in_place=1)
    inside.step(1, 190)
    assert kinds(again(inside, 1, node="n1", rank=0)) == ["RestartInPlace"]
    assert inside.j.in_place == 2
    inside.start(2, in_place=2)
    inside.step(2, 195)
    assert kinds(again(inside, 2, node="n1", rank=1)) == ["Escalate"]
    assert "crash loop" in inside.open(o.Escalate).why


@pytest.mark.parametrize(("node", "step"), [("n1", 150), ("n1", 120), ("n1", None), ("n3", 190), ("", 190)])
def test_what_came_no_further_or_names_the_node_again_is_a_loop(inside, node, step):
    """Steps that nobody told of, and places that nobody knows, speak for nothing."""
    inside.step(0, 150)
    assert kinds(again(inside, 0, node="n3", rank=5)) == ["RestartInPlace"]
    inside.start(1, in_place=1)
    if step is not None:
        inside.step(1, step)
    assert kinds(again(inside, 1, node=node, rank=None)) == ["Escalate"]


def test_crashes_that_are_unrelated_still_use_up_the_restarts(inside):
    """However far each comes: without a checkpoint it ends in the queue."""
    for attempt in range(inside.policies.site.limits.max_in_place):
        inside.step(attempt, 150 + attempt)
        assert kinds(again(inside, attempt, node=NODES[attempt % 4], rank=attempt)) == ["RestartInPlace"]
        inside.start(attempt + 1, in_place=attempt + 1)
    last = inside.attempt.number
    inside.step(last, 300)
    assert kinds(again(inside, last, node=NODES[last % 4], rank=last)) == ["Escalate"]
    assert inside.open(o.Escalate).exit_code == EXIT_RESTART_ME


def test_a_recurrence_before_proof_is_the_same_incident(inside):
    """One underlying trouble, one incident, from the first fault."""
    again(inside, 0)
    first = inside.incident
    fault = first.marks["fault"]
    inside.start(1, in_place=1)
    again(inside, 1)
    assert inside.closed == [first]
    assert first.marks["fault"] == fault
    assert first.attempt_before == 0


def test_progress_resets_the_budgets(inside):
    """The same crash after a new checkpoint is the first one again."""
    for attempt in range(4):
        assert kinds(again(inside, attempt)) == ["RestartInPlace"]
        inside.start(attempt + 1, in_place=attempt + 1)
        inside.checkpoint(attempt + 1, 200 + attempt)
    assert inside.j.in_place == 0
    assert len(inside.closed) == 4


def fallen_back(play: Play, attempt: int, to: int) -> Play:
    """The attempt before crashed; this one is started in place and resumes from that step."""
    assert kinds(again(play, attempt - 1, fingerprint=f"x:{attempt}")) == ["RestartInPlace"]
    play.start(attempt, in_place=attempt)
    play.first_step(attempt, to + 1, resumed_from=to)
    return play


def test_progress_counts_from_where_the_attempt_resumed(inside):
    """From step 8,300 back to 20, since newer checkpoints are damaged: what it saves from there on is progress."""
    inside.checkpoint(0, 8300)
    fallen_back(inside, 1, to=20)
    for attempt in range(1, 8):
        assert inside.j.in_place == 1
        inside.checkpoint(attempt, 20 + 230 * attempt)
        assert inside.j.in_place == 0
        fallen_back(inside, attempt + 1, to=20 + 230 * attempt)
    assert inside.j.durable_step == 8300


def test_a_job_that_falls_back_and_dies_at_the_same_step_each_time_is_given_up(inside):
    """What it regains after the first fall is lost again: no progress, and the crash that comes back stops it."""
    inside.checkpoint(0, 8300)
    orders = []
    for attempt in range(1, 4):
        orders = again(inside, attempt - 1)
        if kinds(orders) != ["RestartInPlace"]:
            break
        inside.start(attempt, in_place=attempt)
        inside.first_step(attempt, 21, resumed_from=20)
        inside.checkpoint(attempt, 1000)
        inside.checkpoint(attempt, 1660)
    assert kinds(orders) == ["Escalate"]
    assert "crash loop" in inside.open(o.Escalate).why
    assert inside.attempt.number == 2


def test_who_falls_back_twice_makes_progress_beyond_what_was_regained(inside):
    """To the same step again: it must pass what the attempts since the first fall had saved."""
    inside.checkpoint(0, 8300)
    fallen_back(inside, 1, to=20)
    inside.checkpoint(1, 1660)
    fallen_back(inside, 2, to=20)
    inside.checkpoint(2, 1000)
    assert inside.j.in_place == 1
    inside.checkpoint(2, 1670)
    assert inside.j.in_place == 0


def test_an_attempt_that_does_not_say_where_it_resumed_counts_from_its_first_checkpoint(inside):
    """It resumed at that step or before."""
    inside.checkpoint(0, 8300)
    assert kinds(again(inside, 0)) == ["RestartInPlace"]
    inside.start(1, in_place=1)
    inside.checkpoint(1, 40)
    assert (inside.state, inside.j.in_place) == (JobState.PROVING, 1)
    inside.checkpoint(1, 60)
    assert (inside.state, inside.j.in_place) == (JobState.WATCHING, 0)


def test_a_checkpoint_that_is_told_out_of_order_is_no_fall(inside):
    """Step 300 is heard of before step 200, both of this attempt."""
    assert kinds(again(inside, 0)) == ["RestartInPlace"]
    inside.start(1, in_place=1)
    inside.checkpoint(1, 300)
    inside.checkpoint(1, 200)
    assert inside.j.fell_to is None
    fallen_back(inside, 2, to=300)
    inside.checkpoint(2, 290)
    assert inside.j.in_place == 1


@pytest.mark.parametrize("liar", [0, 1])
def test_a_checkpoint_of_an_absurd_step_does_not_poison_the_job(inside, liar):
    """One lie: the next attempt resumes from what there is, and what it saves is progress as before."""
    attempt = 0
    if liar:
        fallen_back(inside, 1, to=100)
        attempt = 1
    inside.checkpoint(attempt, 2**64 - 1)
    for number in range(attempt + 1, attempt + 7):
        fallen_back(inside, number, to=100 * number)
        inside.checkpoint(number, 100 * number + 100)
        assert inside.j.in_place == 0
    assert 2**64 - 1 not in inside.j.durable_steps


def test_a_release_that_came_to_no_attempt_does_not_hide_progress():
    """Found by seed 10568: the job's epoch had run ahead of its launcher's, and what was saved while the engine waited for
    the launcher to end the attempt gave nothing back."""
    play = Play(limits=Limits(max_requeues=2)).running()
    play.do(e.LauncherLapsed, job=KEY)
    play.fire("lapse:")
    for count in (1, 2):
        play.done(o.RequeueHeld)
        play.job(state=S.HELD, restart_count=count, nodes=())
        if any(timer.startswith("settle:") for timer in play.engine.state.timers):
            play.settle()
        play.done(o.ReleaseJob)
        if count == 1:
            play.job(state=S.NODE_FAIL, nodes=NODES)
    play.job(state=S.RUNNING, nodes=NODES)
    play.attach(restart_count=2)
    play.start(1, restart_count=2, epoch=2)
    play.first_step(1, 101, resumed_from=100)
    assert play.j.epoch > play.attempt.epoch
    assert play.j.requeues == 2
    play.crash(1)
    assert play.state is JobState.STOPPING
    play.checkpoint(1, 200)
    assert play.j.requeues == 0


def test_different_crashes_use_up_the_restarts_in_place():
    """Three in place, then the controller's turn."""
    play = Play(scope="allocation", limits=Limits(max_in_place=2)).running()
    for attempt in range(2):
        assert kinds(again(play, attempt, fingerprint=f"segv:{attempt}")) == ["RestartInPlace"]
        play.start(attempt + 1, in_place=attempt + 1)
    assert kinds(again(play, 2, fingerprint="segv:2")) == ["Escalate"]
    assert play.open(o.Escalate).exit_code == EXIT_RESTART_ME
    assert play.state is JobState.HELD


def asked_instead_of_in_place() -> Play:
    """A restart in place was ordered, its launcher's lease ended before, and a person is asked for the requeue."""
    play = Play(modes={Remedy.REQUEUE: Mode.ADVISE}).running()
    play.crash()
    play.ended(0)
    play.settle()
    assert play.state is JobState.IN_PLACE
    play.do(e.LauncherLapsed, job=KEY)
    assert play.state is JobState.DIAGNOSING
    return play


def test_a_restart_in_place_that_came_to_nothing_is_not_counted_where_people_are_asked():
    """Found by seed 52000279: the one crash counted twice, as a crash loop, and the approved requeue ended the job."""
    play = asked_instead_of_in_place()
    (proposed,) = play.engine.proposed_orders()
    play.say(e.Command.APPROVE, order=proposed.order.id)
    play.done(o.RequeueHeld)
    assert play.state is JobState.RELEASED
    assert (play.j.in_place, play.j.requeues, play.j.spent["exit.signal.11"]) == (0, 1, 1)


def test_a_restart_in_place_that_is_told_of_while_people_are_asked_is_counted_once():
    """The launcher was heard again."""
    play = asked_instead_of_in_place()
    play.start(1, in_place=1)
    assert play.state is JobState.PROVING
    assert (play.j.in_place, play.j.spent["exit.signal.11"]) == (1, 1)


def test_requeues_are_counted_and_end():
    """`max_requeues`, then given up with the reason."""
    play = Play(limits=Limits(max_requeues=1)).plain()
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert play.j.requeues == 1
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=NODES)
    play.job(state=S.FAILED, exit_code=2)
    orders = play.settle() if any(t.startswith("settle") for t in play.engine.state.timers) else []
    assert play.state is JobState.GIVEN_UP
    assert "GiveUp" in kinds(play.all)
    assert "1 requeue with no progress" in play.all[-1].why
    assert orders is not None


def test_a_used_up_budget_waits_for_no_launcher():
    """The node's agent finds the fault, of which the launcher knows nothing: the job is given up at once, off the node."""
    play = Play(limits=Limits(max_requeues=0)).running()
    orders = play.xid("n2")
    assert play.j.authority is Authority.LAUNCHER
    assert {"QuarantineNode", "GiveUp"} <= set(kinds(orders))
    assert play.state is JobState.GIVEN_UP
    assert "which is the limit" in play.open(o.GiveUp).why


def test_a_hang_gets_other_nodes_before_it_is_given_up(inside):
    """In place, then through the queue, then stop."""
    inside.hang()
    inside.fire("job:")
    inside.ended(0)
    inside.start(1, in_place=1)
    inside.hang(1)
    inside.fire("job:")
    assert kinds(inside.ended(1)) == ["Escalate"]
    assert inside.open(o.Escalate).exit_code == EXIT_RESTART_ME


def test_hardware_faults_of_different_nodes_are_no_crash_loop():
    """Xid 74 here, Xid 74 there: the job is not to blame."""
    play = Play().running()
    play.nodes("n5", "n6")
    play.xid("n2")
    play.through_queue(1)
    orders = play.xid("n3")
    assert kinds(orders) == ["QuarantineNode", "RequeueHeld"]
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=2, nodes=())
    play.settle()
    assert play.state is JobState.HELD


@pytest.mark.parametrize(
    ("trouble", "times", "stop", "climb"),
    [
        (Trouble.APPLICATION, 0, False, False),
        (Trouble.APPLICATION, 1, True, False),
        (Trouble.STORAGE, 1, True, False),
        (Trouble.HANG, 1, False, True),
        (Trouble.HANG, 2, True, False),
        (Trouble.UNKNOWN, 1, False, True),
        (Trouble.HARDWARE, 9, False, False),
        (Trouble.NODE_LOST, 9, False, False),
        (Trouble.NETWORK, 9, False, False),
        (Trouble.BAD_NUMBERS, 9, False, False),
    ],
)
def test_verdicts(trouble, times, stop, climb):
    """What a fingerprint that came `times` before means, trouble by trouble."""
    diagnosis = Diagnosis(cause="x", fingerprint="f")
    verdict = ladder.verdict_of(record(spent={"f": times}), Limits(), trouble, diagnosis, Broke())
    assert (verdict.stop, verdict.climb) == (stop, climb)
    assert bool(verdict.why) == (stop or climb)


def test_owners_numbers_go_before_the_sites():
    """Only those that the owner named."""
    policy = Policy(limits=Limits(max_in_place=3, max_requeues=3))
    assert ladder.limits_of(policy, None) is policy.limits
    assert ladder.limits_of(policy, RecoverySpec()) is policy.limits
    made = ladder.limits_of(policy, RecoverySpec(max_requeues=9))
    assert (made.max_requeues, made.max_in_place) == (9, 3)
    assert ladder.limits_of(policy, RecoverySpec(max_in_place=0)).max_in_place == 0


def test_charges_and_reset():
    """Per rung, per fingerprint, per node."""
    job = record()
    diagnosis = Diagnosis(cause="c", fingerprint="f", nodes=("n1",))
    job_record.charge(job, Remedy.RESTART_IN_PLACE, diagnosis, Broke(), diagnosis.nodes)
    job_record.charge(job, Remedy.REQUEUE, diagnosis, Broke(), ())
    assert (job.in_place, job.requeues, job.spent) == (1, 1, {"f": 2, "node:n1": 1})
    assert job_record.reset_budgets(job)
    assert (job.in_place, job.requeues, job.spent) == (0, 0, {})
    assert not job_record.reset_budgets(job)


def test_a_node_that_costs_too_many_restarts_is_left_even_on_thin_evidence():
    """Different crashes, always on n3: the third time the node is excluded."""
    play = Play(scope="allocation", limits=Limits(max_in_place=9, max_restarts_per_node=3)).running(
        nodes=("n1", "n2", "n3"), allocation=("n1", "n2", "n3", "n4")
    )
    for attempt in range(3):
        again(play, attempt, fingerprint=f"x:{attempt}", node="n3", rank=5)
        order = play.open(o.RestartInPlace)
        assert order.exclude_nodes == (("n3",) if attempt == 2 else ())
        play.start(attempt + 1, in_place=attempt + 1, nodes=("n1", "n2", "n3"))


def test_a_crash_that_a_restart_does_not_mend_stops_before_the_first_step(inside):
    """An import error in an attempt that never made a step: no second try."""
    inside.crash()
    inside.restart_in_place()
    inside.finding(
        "python.import", job=KEY, attempt=1, rank=0, node="n1", domain=Domain.APPLICATION, source="launcher:7",
        summary="ModuleNotFoundError",
    )  # fmt: skip
    diagnosis = inside.engine.open_incidents()[-1]
    assert diagnosis is not None
    assert inside.state in {JobState.STOPPING, JobState.DIAGNOSING}


def test_fault_passed_is_progress_where_policy_says_so():
    """proof = passed_fault: a completed step beyond the fault resets the budgets as well."""
    play = Play(scope="allocation", proof=Proof.PASSED_FAULT).running()
    play.step(0, 130)
    again(play, 0)
    play.start(1, in_place=1)
    play.step(1, 120)
    assert play.state is JobState.PROVING
    play.step(1, 131)
    assert play.state is JobState.WATCHING
    assert play.j.in_place == 0


def cut_off() -> Play:
    """Requeued once, charged, and started again; its launcher cannot be heard, and two nodes of it must be left."""
    play = Play(limits=Limits(max_requeues=1)).running()
    play.do(e.LauncherLapsed, job=KEY)
    play.fire("lapse:")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=NODES)
    assert play.j.requeues == 1
    play.xid("n2")
    play.xid("n3")
    assert play.state is JobState.STOPPING
    return play


def test_progress_that_is_told_late_counts():
    """Found by simulation (seed 1305): the checkpoint was heard of when the next requeue had been ordered already."""
    play = cut_off()
    play.attach(restart_count=1)
    play.start(1, restart_count=1, epoch=play.j.epoch)
    play.checkpoint(1, 200)
    assert play.j.requeues == 0
    play.done(o.RequeueHeld)
    if play.state is JobState.DIAGNOSING:
        play.settle()
    assert play.state is JobState.HELD
    assert play.j.requeues == 1


def test_progress_that_is_told_before_its_attempts_start_counts():
    """Messages overtake each other."""
    play = cut_off()
    play.checkpoint(1, 200)
    assert play.j.requeues == 0


def test_progress_of_an_attempt_whose_start_was_never_told_of_counts():
    """It was restarted in place meanwhile, and the word of that came first."""
    play = Play(limits=Limits(max_requeues=1)).running()
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    play.done(o.SetExcluded)
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=NODES)
    play.start(2, restart_count=1, in_place=1)
    assert (play.state, play.j.requeues) == (JobState.PROVING, 1)
    play.checkpoint(1, 200)
    assert play.j.requeues == 0


def test_late_words_of_the_attempt_before_the_charge_give_nothing_back():
    """What attempt 0 saved before it was stopped is no progress since the requeue that followed."""
    play = cut_off()
    play.checkpoint(0, 150)
    assert play.j.durable_step == 150
    assert play.j.requeues == 1
    play.done(o.RequeueHeld)
    if play.state is JobState.DIAGNOSING:
        play.settle()
    assert play.state is JobState.GIVEN_UP


def crashes_again_and_again(play: Play) -> None:
    """Each attempt dies in the same way, and whoever leads the job is out of rungs after the first restart in place."""
    for _ in range(2 * play.policies.site.limits.max_requeues):
        attempt = play.attempt.number
        again(play, attempt, node="n1", rank=0)
        if play.state is JobState.DIAGNOSING:
            play.do(e.Escalated, job=KEY, attempt=attempt, why="crash loop")
        if play.state is JobState.IN_PLACE:
            play.start(attempt + 1, in_place=1, restart_count=play.attempt.restart_count)
        elif play.state is JobState.STOPPING:
            play.through_queue(play.attempt.restart_count + 1)


def test_a_reboot_that_a_person_asked_for_explains_no_later_crash():
    """Found by seed 52284: each crash since counted as the person's wish, and 186 restarts in a row cost nothing."""
    play = Play().running()
    play.say(Command.REBOOT, node="n2")
    play.xid("n2")
    play.crash()
    play.through_queue()
    assert play.incident.diagnosis.cause == "operator.reboot"
    crashes_again_and_again(play)
    assert play.state is JobState.GIVEN_UP
    assert "crash loop: died of signal 11" in play.open(o.GiveUp).why


def evacuated(**policy) -> Play:
    """A person has it save and stop; a rank dies of it, and its launcher leaves."""
    play = Play(**policy).running()
    play.say(Command.EVACUATE, job=KEY)
    again(play, 0)
    play.do(e.LauncherLapsed, job=KEY, left=True, exit_code=EXIT_RESTART_ME)
    return play


def test_an_evacuation_explains_no_later_crash():
    """It costs no retry; what its incident sees of the attempts after it does."""
    play = evacuated()
    play.through_queue()
    assert play.j.requeues == 0
    crashes_again_and_again(play)
    assert play.state is JobState.GIVEN_UP


def test_starts_that_come_to_no_attempt_after_an_evacuation_use_up_the_requeues():
    """Its launcher is never heard: a broken prolog, or an image that cannot be had."""
    play = evacuated()
    for start in range(1, 9):
        if play.state is not JobState.STOPPING:
            break
        play.done(o.RequeueHeld)
        play.job(state=S.HELD, restart_count=start, nodes=())
        if play.opened(o.SetExcluded):
            play.done(o.SetExcluded)
        play.done(o.ReleaseJob)
        play.job(state=S.RUNNING, nodes=NODES)
        play.job(state=S.NODE_FAIL)
        if play.state is JobState.DIAGNOSING:
            play.settle()
    assert (play.state, play.j.requeues) == (JobState.GIVEN_UP, 3)


def test_an_evacuation_ends_no_job_whose_requeues_are_used_up():
    """It costs no retry, so none has to be left; where nothing could be saved the job was given up for it."""
    play = evacuated(limits=Limits(max_requeues=0))
    assert play.state is JobState.STOPPING
    play.through_queue()
    assert (play.state, play.j.requeues) == (JobState.PROVING, 0)
