"""The field's flows, each as its preset plays it."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.adapters.policy_files import packaged_presets
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import RecoverySpec, SchedulerState
from holdfast.model.evidence import Domain, EvidenceKind, Remedy
from holdfast.model.policy import Brake, NodeRules, PolicySet
from holdfast.model.policy_toml import parse_policy
from holdfast.model.records import JobState, NodeState

S = SchedulerState
NEW = ("n1", "n3", "n4", "n5")


def policies(name: str, more: str = "") -> PolicySet:
    """The preset, with a brake that suits four nodes."""
    brake = "\n[brake]\nmax_nodes = 100\nmax_percent = 100\n"
    return parse_policy(f'preset = "{name}"\n{more}{brake}', "test.toml", packaged_presets())


def play_of(name: str, more: str = "") -> Play:
    return Play(policies(name, more)).nodes()


def test_hyperpod_slurm_always_replaces_never_reboots():
    """Detect, drain, wait, replace, validate, resume: Xid 73, which elsewhere is a reboot, replaces as well."""
    play = play_of("hyperpod-slurm")
    play.job()
    assert kinds(play.xid("n2", 73)) == ["QuarantineNode", "RequeueHeld"]
    mark = play.open(o.QuarantineNode)
    play.done(o.QuarantineNode)
    assert (mark.action_reason, mark.repair) == (True, Remedy.REPLACE)
    assert play.ns() is NodeState.DRAINING
    play.done(o.RequeueHeld)
    assert play.state is JobState.HELD
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert kinds(play.all)[-1] == "ReplaceNode"
    play.done(o.SetExcluded)
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=NEW)
    play.first_step(1, 1)
    assert play.state is JobState.WATCHING
    play.done(o.ReplaceNode)
    play.node("n2", instance_id="new", boot_id="new")
    play.do(e.NodeValidated, node="n2", passed=True, instance_id="new")
    play.done(o.ReturnNode)
    assert play.closed[0].outcome == "recovered"
    assert not [x for x in play.all if isinstance(x, o.RebootNode | o.ResetGpu)]


def test_hyperpod_slurm_retries_hardware_and_stops_for_anything_else():
    """Diagnosis decides: a crash of the code is the owner's to look at."""
    play = play_of("hyperpod-slurm")
    play.job()
    play.finding("exit.signal.11", job=KEY, attempt=0, rank=1, node="n1", domain=Domain.APPLICATION)
    if play.state is not JobState.GIVEN_UP:
        play.job(state=S.FAILED, exit_code=1)
        if play.state is not JobState.GIVEN_UP:
            play.settle()
    assert play.state is JobState.GIVEN_UP
    assert "RequeueHeld" not in kinds(play.all)


def test_hyperpod_slurm_requeues_without_waiting_for_attribution():
    """Excluded and released as soon as it is held."""
    play = play_of("hyperpod-slurm")
    play.job()
    play.xid("n2")
    assert kinds(play.done(o.RequeueHeld)) == ["SetExcluded"]


@pytest.mark.parametrize(("number", "kind"), [(73, "RebootNode"), (74, "ReplaceNode")])
def test_hyperpod_eks_reboots_or_replaces_by_fault(number, kind):
    """74 replace, 73 reboot; then deep checks, then back."""
    play = play_of("hyperpod-eks")
    play.job()
    play.xid("n2", number)
    play.done(o.QuarantineNode)
    play.done(o.RequeueHeld)
    orders = play.job(state=S.HELD, restart_count=1, nodes=())
    assert kind in kinds(orders)
    assert {"RebootNode", "ReplaceNode"} - {kind} - set(kinds(play.all))


def test_hyperpod_eks_a_reboot_that_does_not_help_is_followed_by_a_replacement():
    """The deep check fails after the reboot."""
    play = play_of("hyperpod-eks")
    play.xid("n2", 73)
    play.done(o.QuarantineNode)
    play.done(o.RebootNode)
    play.node("n2", boot_id="b2")
    assert kinds(play.do(e.NodeValidated, node="n2", passed=False)) == ["ReplaceNode"]


def test_hyperpod_eks_a_replaced_node_comes_under_another_name():
    """The old name vanishes while it is in repair: its side is settled."""
    play = play_of("hyperpod-eks")
    play.xid("n2", 74)
    play.done(o.QuarantineNode)
    play.do(e.NodeVanished, node="n2")
    play.node("n2-new")
    assert play.engine.open_incidents() == []


def test_hyperpod_eks_job_max_retry_count_goes_before_the_preset():
    """`sagemaker.amazonaws.com/job-max-retry-count: "0"`."""
    play = play_of("hyperpod-eks")
    play.job(recovery=RecoverySpec(max_requeues=0))
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    assert play.state is JobState.GIVEN_UP


def test_mission_control_requeues_held_attributes_excludes_releases():
    """The diagnosis is made while the job is held, from the whole picture; success is the first checkpoint."""
    play = play_of("mission-control")
    play.job()
    play.finding("nccl.remote", job=KEY, attempt=0, rank=0, node="n1", domain=Domain.NETWORK, kind=EvidenceKind.EXIT)
    assert kinds(play.all) == ["RequeueHeld"]
    play.finding(
        "cuda.ecc", job=KEY, attempt=0, rank=2, node="n2", domain=Domain.HARDWARE, remedy=Remedy.REPLACE,
        kind=EvidenceKind.LOG, summary="uncorrectable ECC error",
    )  # fmt: skip
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert play.state is JobState.DIAGNOSING
    assert kinds(play.settle()) == ["QuarantineNode", "SetExcluded"]
    assert play.incident.diagnosis.cause == "cuda.ecc"
    assert play.open(o.SetExcluded).nodes == ("n2",)
    play.done(o.SetExcluded)
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, nodes=NEW)
    play.first_step(1, 11, resumed_from=10)
    assert play.state is JobState.PROVING
    play.checkpoint(1, 20)
    assert play.state is JobState.WATCHING


def test_mission_control_max_requeue_times():
    """One requeue, then given up; the job's own number goes before."""
    for own, given_up in ((None, True), (2, False)):
        play = play_of("mission-control")
        play.job(recovery=RecoverySpec(max_requeues=own))
        play.job(state=S.FAILED, exit_code=1)
        play.done(o.RequeueHeld)
        play.job(state=S.HELD, restart_count=1, nodes=())
        play.settle()
        if play.opened(o.ReleaseJob):
            play.done(o.ReleaseJob)
        play.job(state=S.RUNNING, nodes=NODES)
        play.job(state=S.FAILED, exit_code=2)
        if any(timer.startswith("settle:") for timer in play.engine.state.timers):
            play.settle()
        assert (play.state is JobState.GIVEN_UP) == given_up


def test_mission_control_a_crash_that_prints_and_exits_later_is_requeued_once():
    """`segmentation fault` is printed, 60 s later the job exits with 1: one requeue, attributed to the line."""
    play = play_of("mission-control")
    play.job()
    play.finding(
        "process.segfault", job=KEY, attempt=0, rank=0, domain=Domain.APPLICATION, kind=EvidenceKind.LOG,
        summary="segmentation fault",
    )  # fmt: skip
    assert kinds(play.all) == []
    play.now += 60.0
    assert kinds(play.job(state=S.FAILED, exit_code=1)) == ["RequeueHeld"]
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert kinds(play.settle()) == ["ReleaseJob"]
    assert play.incident.diagnosis.cause == "process.segfault"


def test_mission_control_tells_of_the_requeue_then_of_the_cause_then_of_the_release():
    """A failed job is queued again, held, at once; it is attributed while it is held; nothing is released before that."""
    play = play_of("mission-control")
    play.job()
    assert kinds(play.job(state=S.FAILED, exit_code=1)) == ["RequeueHeld"]
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert (play.state, play.incident.diagnosis) == (JobState.DIAGNOSING, None)
    assert kinds(play.settle()) == ["ReleaseJob"]
    play.done(o.ReleaseJob)
    titles = [order.title for order in play.all if isinstance(order, o.Notify)]
    assert titles == ["7(0) is requeued, held", "7(0): the job ended with exit code 1", "7(0) is released"]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_mission_control_queues_nothing_that_it_may_not(mode):
    """Under observe and advise the job stays as it ended until the evidence has settled."""
    play = play_of("mission-control", f'mode = "{mode}"\n')
    play.job()
    assert kinds(play.job(state=S.FAILED, exit_code=1)) == []
    assert not [order for order in play.settle() if isinstance(order, o.RequeueHeld)]


def test_mission_control_cancels_a_held_job_that_its_ladder_stops():
    """Evidence that comes while it is held, and says stop, ends it in the queue: it is never released."""
    play = play_of("mission-control", "[ladders]\nbad_numbers = ['stop']\n")
    play.job()
    play.job(state=S.FAILED, exit_code=1)
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.finding("loss.nan", job=KEY, attempt=0, rank=0, domain=Domain.APPLICATION, seen_at=play.now - 1.0)
    assert kinds(play.settle()) == ["GiveUp"]
    assert play.open(o.GiveUp).cancel
    assert play.state is JobState.GIVEN_UP


def test_mission_control_attributes_a_job_that_cannot_be_queued_again():
    """The scheduler refuses the requeue before the evidence has settled: the job is given up, with what is known."""
    play = play_of("mission-control")
    play.job()
    play.job(state=S.FAILED, exit_code=1)
    assert kinds(play.fail(o.RequeueHeld)) == ["GiveUp"]
    assert [(one.outcome, one.diagnosis.cause) for one in play.closed] == [("given_up", "exit.code.1")]


def test_parallelcluster_a_failed_check_is_down_replaced_requeued():
    """A check finds a bad GPU: node out of service, job requeued elsewhere, node replaced once nothing runs there."""
    play = play_of("parallelcluster")
    play.job()
    orders = play.finding(
        "check.gpu", node="n2", domain=Domain.HARDWARE, remedy=Remedy.REPLACE, kind=EvidenceKind.CHECK,
        source="agent:n2", summary="GPU 3 failed its check",
    )  # fmt: skip
    assert kinds(orders) == ["QuarantineNode", "RequeueHeld"]
    assert kinds(play.done(o.QuarantineNode)) == []
    assert kinds(play.done(o.RequeueHeld)) == ["SetExcluded"]
    play.done(o.SetExcluded)
    assert play.state is JobState.RELEASED
    assert kinds(play.job(state=S.PENDING, restart_count=1, nodes=())) == ["ReplaceNode"]
    play.done(o.ReplaceNode)
    assert kinds(play.node("n2", instance_id="new", boot_id="new")) == ["ReturnNode"]


def test_parallelcluster_a_failed_prolog_drains_and_replaces_the_node_once():
    """Slurm has drained it and requeued the job; other jobs on the node end first. Said again it is nothing new."""
    play = play_of("parallelcluster")
    drained = {"drained": True, "drain_reason": "Prolog error", "failed_check": "its Prolog failed"}
    orders = play.node("n2", jobs=("77",), **drained)
    assert kinds(orders) == ["QuarantineNode"]
    play.done(o.QuarantineNode)
    play.node("n2", jobs=("77",), drain_reason="[holdfast] its Prolog failed", failed_check="")
    assert kinds(play.node("n2", jobs=())) == ["ReplaceNode"]
    play.done(o.ReplaceNode)
    assert kinds(play.node("n2", instance_id="new", boot_id="new")) == ["ReturnNode"]
    play.done(o.ReturnNode)
    assert play.closed[0].outcome == "recovered"


def test_a_failed_prolog_is_left_to_people_where_policy_observes():
    """Nothing is ordered; whoever resumes the node closes the incident."""
    play = play_of("parallelcluster", 'mode = "observe"\n')
    drained = {"drained": True, "drain_reason": "Prolog error", "failed_check": "its Prolog failed"}
    assert kinds(play.node("n2", **drained)) == []
    assert play.ns() is NodeState.SUSPECT
    play.node("n2", drained=False, drain_reason="", failed_check="")
    assert play.ns() is NodeState.HEALTHY


def test_a_prolog_that_fails_everywhere_meets_the_brake_and_whoever_resumes_the_nodes_wins():
    """A broken Prolog script drains a fleet at once: few nodes are fenced, and none that a person took back meanwhile.

    Not even when its quarantine is under way, nor when the brake holds it: its drain was the whole case.
    """
    play = Play(node=NodeRules(failed_prolog_is_a_fault=True), brake=Brake())
    names = [f"n{number}" for number in range(1, 21)]
    play.nodes(*names)
    drained = {"drained": True, "drain_reason": "Prolog error", "failed_check": "its Prolog failed"}
    for name in names:
        play.node(name, **drained)
    fenced = [order.node for order in play.opened(o.QuarantineNode)]
    assert 0 < len(fenced) < 6
    for name in names:
        play.node(name, drained=False, drain_reason="", failed_check="")
    assert [name for name in names if play.ns(name) is not NodeState.HEALTHY] == []
    assert play.opened(o.QuarantineNode) == []
    assert "brake:gpu" not in play.engine.state.timers
    play.node("n19", **drained)
    play.xid("n19", 79)
    play.node("n19", drained=False, drain_reason="", failed_check="")
    assert play.ns("n19") is not NodeState.HEALTHY, "the Xid still stands"


def test_a_failed_prolog_is_left_to_people_unless_policy_says_that_it_counts():
    """A drain of Slurm's own is like an admin's: nothing is ordered, no incident opens, and nobody's drain is taken over."""
    play = play_of("mission-control")
    drained = {"drained": True, "drain_reason": "Prolog error", "failed_check": "its Prolog failed"}
    assert kinds(play.node("n2", **drained)) == []
    assert play.ns() is NodeState.HEALTHY


def test_a_prolog_that_failed_before_the_controller_knew_the_node_is_left_to_people():
    """Its drain may be days old: nobody knows what has been done about it since."""
    play = play_of("parallelcluster")
    drained = {"drained": True, "drain_reason": "Prolog error", "failed_check": "its Prolog failed"}
    assert kinds(play.node("n9", **drained)) == []
    assert play.ns("n9") is NodeState.HEALTHY


def test_a_failed_prologs_drain_is_returned_by_us_only_once_it_is_ours():
    """The adapter would refuse to lift Slurm's own drain: the person is told so at once, as of anybody else's."""
    play = play_of("parallelcluster")
    drained = {"drained": True, "drain_reason": "Prolog error", "failed_check": "its Prolog failed"}
    play.node("n9", **drained)
    assert kinds(play.do(e.OperatorCommand, command=e.Command.RETURN, who="ada", why="", node="n9")) == []
    assert "it was drained by somebody else (Prolog error)" in str(play.all)


def test_parallelcluster_a_crash_stops():
    """Only checks lead to a requeue."""
    play = play_of("parallelcluster")
    play.job()
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    assert play.state is JobState.GIVEN_UP


def test_a_policy_that_the_site_does_not_have_is_named_to_the_owner_once():
    """The job runs under the site's policy; its owner would learn of the slip at the first fault only."""
    play = Play(parse_policy("", "site.toml", packaged_presets())).nodes()
    orders = play.job(recovery=RecoverySpec(policy="hyperpod-slrm"))
    orders += play.job(recovery=RecoverySpec(policy="hyperpod-slrm"), reason="x")
    (notice,) = [order for order in orders if isinstance(order, o.Notify)]
    assert notice.text == (
        "policy 'hyperpod-slrm' is not known here, so the site's holds; did you mean \"hyperpod-slurm\"?."
    )


def test_a_job_may_ask_for_a_preset_by_name():
    """`policy = "hyperpod-slurm"` in the job's own words, on a site with another policy."""
    site = parse_policy("[brake]\nmax_percent = 100\nmax_nodes = 9\n", "site.toml", packaged_presets())
    play = Play(site).nodes()
    play.job(recovery=RecoverySpec(policy="hyperpod-slurm"))
    play.job(state=S.FAILED, exit_code=1)
    play.settle()
    assert play.state is JobState.GIVEN_UP


def test_a_policy_loaded_at_run_time_holds_from_then_on():
    """Stored whole with the event; a wrong one is refused and the former one holds; it survives a restart."""
    play = Play().running()
    play.do(e.PolicyLoaded, toml='mode = "observe"\n', file="site.toml")
    assert kinds(play.xid("n2")) == []
    play.do(e.PolicyLoaded, toml="moed = 1\n", file="site.toml")
    assert "A policy was refused; the former one holds" in play.notices()
    play.engine = play.engine.restore(play.engine.snapshot(), play.policies)
    assert kinds(play.xid("n3")) == []
    assert play.engine.policies.site.mode == "observe"
