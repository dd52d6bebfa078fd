"""The launcher's engine: in-place restarts, hardware and lost nodes without a controller, handing over."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobView, RecoverySpec, SchedulerState
from holdfast.model.evidence import Domain, EvidenceKind, Remedy
from holdfast.model.policy import Limits, Trouble
from holdfast.model.records import Authority, JobState

S = SchedulerState


def with_spare(**policy) -> Play:
    """Three nodes at work, a fourth of the allocation stands by."""
    return Play(scope="allocation", **policy).running(nodes=NODES[:3], allocation=NODES)


def no_spare(**policy) -> Play:
    return Play(scope="allocation", **policy).running()


def test_a_lost_node_is_replaced_by_the_allocations_own_spare():
    """Restart in place on the nodes that are left; the lost one is excluded."""
    play = with_spare()
    assert kinds(play.do(e.NodeGone, node="n2", evidence="connection reset", source="launcher:7")) == ["StopAttempt"]
    play.ended(0)
    assert kinds(play.settle()) == ["RestartInPlace"]
    assert play.open(o.RestartInPlace).exclude_nodes == ("n2",)
    play.start(1, in_place=1, nodes=("n1", "n3", "n4"))
    play.checkpoint(1, 200)
    assert play.closed[0].outcome == "recovered"
    assert play.closed[0].diagnosis.cause == "node.lost"


@pytest.mark.parametrize(
    ("domain", "says"),
    [
        (Domain.NETWORK, "n2 has left the job: its connection was reset, on n2: a network fault."),
        (Domain.PLATFORM, "n2 has left the job: its connection was reset, on n2: a fault of the platform."),
        (Domain.HARDWARE, "n2 no longer runs: its connection was reset, on n2: a hardware fault."),
    ],
)
def test_a_broken_link_is_not_called_a_hardware_fault(domain: Domain, says: str):
    """The node is left all the same, for nobody there would start its ranks; the machine is blamed by other evidence."""
    play = with_spare()
    play.do(e.NodeGone, node="n2", evidence="its connection was reset", domain=domain, source="launcher:7")
    play.ended(0)
    assert kinds(play.settle()) == ["RestartInPlace"]
    assert play.open(o.RestartInPlace).exclude_nodes == ("n2",)
    assert (play.incident.diagnosis.cause, play.incident.diagnosis.domain) == ("node.lost", domain)
    assert play.incident.diagnosis.story.startswith(says)


def test_a_lost_node_without_a_spare_leaves_the_allocation():
    """Exit code 85, and the node named, so that whoever restarts it leaves that node out."""
    play = no_spare()
    play.do(e.NodeGone, node="n2", evidence="connection reset")
    play.ended(0)
    assert kinds(play.settle()) == ["Escalate"]
    order = play.open(o.Escalate)
    assert (order.exit_code, order.exclude_nodes) == (EXIT_RESTART_ME, ("n2",))
    assert play.state is JobState.HELD
    assert play.j.authority is Authority.CONTROLLER


@pytest.mark.parametrize(("play", "kind"), [(with_spare, "RestartInPlace"), (no_spare, "Escalate")])
def test_a_hardware_finding_about_a_node_of_the_allocation(play, kind):
    """The same with an Xid: swapped for the spare, or left."""
    play = play()
    assert kinds(play.xid("n2")) == ["StopAttempt"]
    play.ended(0)
    assert kinds(play.settle()) == [kind]
    assert play.j.excluded == ("n2",)


def test_a_second_bad_node_uses_up_the_spare():
    """n2 and n3 are bad: two good nodes are too few."""
    play = with_spare()
    play.xid("n2")
    play.xid("n3")
    play.ended(0)
    assert kinds(play.settle()) == ["Escalate"]
    assert play.open(o.Escalate).exclude_nodes == ("n2", "n3")


def test_hardware_shown_by_the_diagnosis_excludes_the_node():
    """The rank's own output names an ECC error; the exit is only how it ended."""
    play = with_spare()
    play.finding(
        "cuda.ecc", job=KEY, attempt=0, rank=2, node="n2", domain=Domain.HARDWARE, remedy=Remedy.REPLACE,
        kind=EvidenceKind.LOG, source="launcher:7", summary="uncorrectable ECC error",
    )  # fmt: skip
    assert play.state is JobState.WATCHING
    play.finding("exit.code.1", job=KEY, attempt=0, rank=2, node="n2", source="launcher:7")
    play.ended(0)
    assert kinds(play.settle()) == ["RestartInPlace"]
    assert play.open(o.RestartInPlace).exclude_nodes == ("n2",)
    assert play.incident.diagnosis.cause == "cuda.ecc"


def test_a_hint_of_plain_quarantine_does_not_stop_the_job():
    """Nothing for a launcher to do: the job runs on."""
    play = no_spare()
    orders = play.finding(
        "check.disk", node="n2", domain=Domain.HARDWARE, remedy=Remedy.QUARANTINE, kind=EvidenceKind.CHECK
    )
    assert kinds(orders) == []
    assert play.state is JobState.WATCHING


def test_no_node_is_ordered_about():
    """A launcher has user rights only."""
    play = with_spare()
    play.do(e.NodeObserved, node=play.engine.state.nodes.get("n1") or _node("n1"))
    play.do(e.AgentAttached, node="n1", boot_id="b")
    play.xid("n1")
    play.do(e.NodeSilent, node="n1", for_s=5.0)
    assert not [x for x in play.all if isinstance(x, o.NodeOrder)]
    assert play.engine.state.nodes == {}


def _node(name):
    from holdfast.model.cluster import NodeView

    return NodeView(name=name, drained=True, drain_reason="[holdfast] x")


def test_a_spent_ladder_hands_over():
    """Ladder without requeue: stop, with the code that forbids a requeue."""
    play = no_spare(
        ladders={Trouble.APPLICATION: (Remedy.RESTART_IN_PLACE, Remedy.STOP)}, limits=Limits(max_in_place=0)
    )
    play.crash()
    play.ended(0)
    assert kinds(play.settle()) == ["Escalate"]
    assert play.open(o.Escalate).exit_code == EXIT_DO_NOT_REQUEUE


def test_the_next_allocation_goes_on_with_the_same_journal():
    """Requeued by whomever: the launcher attaches with a larger count, and the restart is proven there."""
    play = no_spare()
    play.do(e.NodeGone, node="n2", evidence="connection reset")
    play.ended(0)
    play.settle()
    play.done(o.Escalate)
    incident = play.incident
    play.attach(restart_count=1, nodes=("n1", "n3", "n4", "n5"))
    assert play.state is JobState.RESTARTING
    assert play.j.authority is Authority.LAUNCHER
    play.start(1, restart_count=1, epoch=2, nodes=("n1", "n3", "n4", "n5"))
    play.checkpoint(1, 200)
    assert play.closed == [incident]
    assert incident.outcome == "recovered"


def test_a_new_launcher_does_not_carry_on_what_the_former_one_was_ordered():
    """Killed by a requeue in the middle of a restart: the next run starts its own attempt, once."""
    play = no_spare()
    play.crash()
    play.ended(0)
    play.settle()
    assert play.opened(o.RestartInPlace)
    play.do(e.ControllerStarted, epoch=2, scope="allocation")
    assert [x.order for x in play.engine.pending_orders() if isinstance(x.order, o.JobOrder)] == []
    play.do(e.JobObserved, job=JobView(key=KEY, state=S.RUNNING, nodes=NODES, restart_count=1))
    play.attach(restart_count=1)
    assert play.j.authority is Authority.LAUNCHER
    play.start(1, restart_count=1, epoch=3)
    assert play.state is JobState.PROVING
    play.checkpoint(1, 200)
    assert play.closed[0].outcome == "recovered"


def test_after_giving_up_a_new_allocation_begins_anew():
    """Somebody submitted it again on purpose: watched, with full budgets."""
    play = no_spare(limits=Limits(max_same_fingerprint=1))
    play.crash()
    play.ended(0)
    play.settle()
    assert play.state is JobState.GIVEN_UP
    play.attach(restart_count=1)
    assert play.state is JobState.WATCHING
    play.start(1, restart_count=1, epoch=2)
    assert kinds(play.crash(1, fingerprint="other")) == ["StopAttempt"]


def test_a_restart_that_cannot_be_done_leaves_the_allocation():
    """Too few nodes answered: exit code 85."""
    play = no_spare()
    play.crash()
    play.ended(0)
    play.settle()
    assert kinds(play.fail(o.RestartInPlace, "3 of 4 nodes are here")) == ["Escalate"]
    assert play.open(o.Escalate).exit_code == EXIT_RESTART_ME


def test_a_restart_that_never_starts_leaves_the_allocation():
    """`start_s` is over."""
    play = no_spare()
    play.crash()
    play.ended(0)
    play.settle()
    assert kinds(play.fire("job:")) == ["Escalate"]


def test_a_stop_that_does_not_come_about_is_sent_again_then_left():
    """The same order once more while it is open; when it is said to be done and nothing ended, leave."""
    play = no_spare()
    play.crash()
    order = play.open(o.StopAttempt)
    assert [x for x in play.fire("job:") if isinstance(x, o.StopAttempt)] == [order]
    play.done(o.StopAttempt)
    assert kinds(play.fire("job:")) == ["Escalate"]


def test_the_job_completes():
    """All ranks ended with 0."""
    play = no_spare()
    assert kinds(play.ended(0, exit_code=0, signal=None, stopped=False)) == []
    assert play.state is JobState.COMPLETED


def test_ended_from_outside_is_no_failure():
    """scancel, a time limit, a preemption: the launcher passes the signal on, and nothing is restarted."""
    play = no_spare()
    assert kinds(play.ended(0, signal=15, stopped=True)) == []
    assert play.state is JobState.WATCHING
    assert play.engine.open_incidents() == []


def test_an_unexplained_end_is_a_fault():
    """No finding came: the exit itself is the evidence."""
    play = no_spare()
    assert kinds(play.ended(0, exit_code=3, signal=None, stopped=False)) == []
    assert kinds(play.settle()) == ["RestartInPlace"]
    assert play.incident.diagnosis.cause == "exit.code.3"


def test_exit_code_86_of_the_command_is_final():
    """The program knows that a restart is pointless."""
    play = no_spare()
    orders = play.ended(0, exit_code=86, signal=None, stopped=False)
    assert kinds(orders) == ["Escalate"]
    assert play.open(o.Escalate).exit_code == EXIT_DO_NOT_REQUEUE


def test_exit_code_85_of_the_command_leaves_to_be_started_again():
    """The program saved and asks for a restart."""
    play = no_spare()
    play.ended(0, exit_code=85, signal=None, stopped=False)
    assert kinds(play.settle()) == ["Escalate"]
    assert play.open(o.Escalate).exit_code == EXIT_RESTART_ME


def test_a_save_and_stop_that_the_controller_ordered_leaves_the_allocation():
    """This engine did not order it; the ranks ended with 85 because they were asked to."""
    play = no_spare()
    orders = play.ended(0, exit_code=85, signal=None, stopped=True)
    orders += play.settle() if any(t.startswith("settle") for t in play.engine.state.timers) else []
    assert kinds(orders) == ["Escalate"]
    assert play.open(o.Escalate).exit_code == EXIT_RESTART_ME


def test_a_job_whose_owner_wants_no_recovery_is_only_watched():
    """`--max-restarts 0`: nothing is stopped or restarted; the launcher leaves with the command's own code."""
    play = Play(scope="allocation")
    view = JobView(key=KEY, state=S.RUNNING, nodes=NODES, recovery=RecoverySpec(enabled=False))
    play.do(e.JobObserved, job=view, source="allocation")
    play.attach()
    play.start(0)
    assert kinds(play.crash()) == []
    assert kinds(play.ended(0, exit_code=None, signal=11, stopped=False)) == ["Escalate"]
    assert play.open(o.Escalate).exit_code == 139


def test_epochs_only_grow():
    """Each restart orders a larger one, also after restarts that never came up."""
    play = no_spare(limits=Limits(max_in_place=9))
    epochs = []
    for attempt in range(3):
        play.crash(attempt, fingerprint=f"x{attempt}", node=NODES[attempt])
        play.ended(attempt)
        if any(timer.startswith("settle:") for timer in play.engine.state.timers):
            play.settle()
        order = play.open(o.RestartInPlace)
        epochs.append(order.epoch)
        play.start(attempt + 1, in_place=attempt + 1, epoch=order.epoch)
    assert epochs == [2, 3, 4]


def test_the_odd_ranks_node_is_left_only_when_hardware_evidence_agrees():
    """A hang names rank 3; nothing else speaks against n2: restarted with it. With an Xid: without."""
    for hardware in (False, True):
        play = with_spare()
        if hardware:
            play.finding(
                "nvidia.xid.13", node="n2", domain=Domain.HARDWARE, remedy=Remedy.REPLACE, kind=EvidenceKind.LOG,
                source="agent:n2",
            )  # fmt: skip
        else:
            play.hang()
            play.do(e.StacksCaptured, job=KEY, attempt=0, odd_ranks=(3,))
        play.ended(0)
        if any(timer.startswith("settle:") for timer in play.engine.state.timers):
            play.settle()
        assert play.open(o.RestartInPlace).exclude_nodes == (("n2",) if hardware else ())


def test_both_engines_make_the_same_moves():
    """The controller's engine, fed with the launcher's events, passes through the same states."""
    inside, above = Play(scope="allocation").running(), Play().running()
    states = []
    for play in (inside, above):
        seen = []
        play.crash()
        seen.append(play.state)
        play.ended(0)
        seen.append(play.state)
        play.settle()
        seen.append(play.state)
        play.start(1, in_place=1)
        seen.append(play.state)
        play.checkpoint(1, 200)
        seen.append(play.state)
        states.append((seen, play.closed[0].outcome, play.closed[0].diagnosis.cause))
    assert states[0] == states[1]


def test_ids_of_both_engines_never_meet():
    """An OrderDone of the launcher's order means nothing to the controller's engine."""
    inside, above = Play(scope="allocation").running(), Play().running()
    inside.crash()
    above.xid("n2")
    ours = {record.order.id for record in above.engine.pending_orders()}
    theirs = {record.order.id for record in inside.engine.pending_orders()}
    assert not ours & theirs


def test_a_node_that_is_lost_before_the_first_attempt_starts_is_left_all_the_same():
    """The launcher chose it, then lost it, and then says that all processes are started: nobody tells of it again."""
    play = Play(scope="allocation")
    play.job(nodes=NODES)
    play.attach()
    play.do(e.NodeGone, node="n2", evidence="it has not answered", source="launcher:7")
    play.settle()
    orders = play.start(0)
    play.ended(0)
    assert kinds([*orders, *play.settle()])[-1] == "Escalate"
    assert play.open(o.Escalate).exclude_nodes == ("n2",)


def test_a_launcher_asks_the_scheduler_for_no_exclusion(inside):
    """Its job is in the queue by another's doing, and its own look shows no exclusion: that order is the controller's."""
    inside.xid("n2")
    inside.job(state=S.PENDING, restart_count=1, nodes=())
    assert inside.state is JobState.RELEASED
    inside.j.excluded = ("n3",)
    assert kinds(inside.fire("job:")) == []
    assert inside.state is JobState.WAITING_FOR_NODES
