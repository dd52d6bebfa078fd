"""What a real scheduler says and means: jobs without launchers, nodes that are gone, wishes written onto nodes."""

from __future__ import annotations

import msgspec
import pytest
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, NodeView, RecoverySpec, SchedulerState
from holdfast.model.evidence import Remedy
from holdfast.model.policy import NodeRules
from holdfast.model.records import JobState, NodeState

S = SchedulerState
SLURM = {"boot_id": "slurm:1@100", "instance_id": "slurm:n1/1"}


def failed(play: Play, **fields) -> list[o.AnyOrder]:
    """A job that nobody has seen before is seen after its end."""
    base = {"partition": "gpu", "state": S.FAILED, "exit_code": 3, "started_at": 990.0, "ended_at": 995.0}
    return play.do(e.JobObserved, job=JobView(key=KEY, nodes=NODES, **{**base, **fields}))


# --- jobs ---


def test_a_job_that_failed_before_it_was_seen_is_recovered():
    """It ran and failed between two looks: attempt 0 is written down, and it is requeued."""
    play = Play().nodes()
    orders = failed(play, recovery=RecoverySpec())
    job = play.engine.state.jobs["c/7#1"]
    assert (job.state, [attempt.number for attempt in job.attempts]) == (JobState.DIAGNOSING, [0])
    assert [attempt.exit_code for attempt in job.attempts] == [3]
    assert "JobObserved" not in kinds(orders)


@pytest.mark.parametrize(
    "fields",
    [
        {"recovery": None},
        {"recovery": RecoverySpec(), "ended_at": 10.0},
        {"recovery": RecoverySpec(), "state": S.TIMEOUT},
    ],
)
def test_other_ended_jobs_are_left_alone_at_first_sight(fields):
    """Nobody asked, it is long ago, or it was no failure."""
    play = Play().nodes()
    assert kinds(failed(play, **fields)) == []
    assert play.engine.state.jobs["c/7#1"].state in {JobState.GIVEN_UP, JobState.COMPLETED}


def test_a_job_out_of_sight_is_not_judged():
    """Unknown is no news: neither does a job that is over begin again, nor is one that runs over."""
    over = Play().nodes()
    failed(over, recovery=None)
    runs = Play().plain()
    for play, state in ((over, JobState.GIVEN_UP), (runs, JobState.WATCHING)):
        assert kinds(play.job(state=S.UNKNOWN)) == []
        assert play.engine.state.jobs["c/7#1"].state is state


def test_a_preempted_job_is_requeued():
    """The scheduler ended it for another's sake and does not queue it again by itself."""
    play = Play().plain()
    play.job(state=S.PREEMPTED)
    incident = next(iter(play.engine.state.incidents.values()))
    assert incident.findings[0].rule == "scheduler.preempted"
    assert play.engine.state.jobs["c/7#1"].state is JobState.DIAGNOSING


def test_attempts_without_a_launcher_are_numbered_as_the_scheduler_counts():
    """An agent that reads SLURM_RESTART_COUNT, and the names of old output files, mean the same attempt."""
    play = Play().plain()
    play.job(state=S.PENDING, restart_count=2, nodes=())
    play.job(state=S.RUNNING, restart_count=2, nodes=NODES)
    assert [attempt.number for attempt in play.engine.state.jobs["c/7#1"].attempts] == [0, 2]


def test_an_owner_is_told_of_a_near_miss_once():
    """A warning of the adapter becomes a notice, and is not repeated with every look."""
    play = Play().nodes()
    orders = play.job(warnings=("comment key 'aps' is not known",))
    orders += play.job(reason="x")
    notices = [order for order in orders if isinstance(order, o.Notify)]
    assert [notice.text for notice in notices] == ["comment key 'aps' is not known."]
    assert notices[0].title.endswith(": recovery may differ from what was asked")  # fits --no-requeue as well


def test_a_users_near_misses_are_one_matter():
    """Jobs with ever other slips in their comments do not become a matter each."""
    play = Play().nodes()
    play.job(key=JobKey("c", "8"), user="mei", warnings=("comment key 'zz1' is not known",))
    play.job(key=JobKey("c", "9"), user="mei", warnings=("comment key 'zz2' is not known",))
    assert {one.topic for one in play.all if isinstance(one, o.Notify)} == {"asked:mei"}


def test_a_requeue_names_the_nodes_that_are_gone():
    """The adapter need not wait for the word of a node that does not run; without a launcher nothing is leased."""
    play = Play().plain()
    orders = play.do(e.NodeGone, node="n2", evidence="its connection was reset")
    (requeue,) = [order for order in orders if isinstance(order, o.RequeueHeld)]
    (quarantine,) = [order for order in orders if isinstance(order, o.QuarantineNode)]
    assert (requeue.gone, requeue.leased, quarantine.gone) == (("n2",), False, True)


def test_ranks_under_a_launcher_are_leased():
    """They end by themselves when their launcher is cut off, so a silent node may be written off."""
    play = Play().running()
    orders = play.do(e.NodeGone, node="n2", evidence="its connection was reset")
    (requeue,) = [order for order in orders if isinstance(order, o.RequeueHeld)]
    assert requeue.leased


def test_gone_is_not_undone_by_the_schedulers_old_opinion():
    """Slurm calls a node idle for minutes after it lost its power; only a change to alive counts."""
    play = Play().plain()
    play.do(e.NodeGone, node="n2", evidence="its connection was reset")
    play.node("n2", state_text="IDLE")
    assert play.engine.state.nodes["n2"].gone
    play.node("n2", alive=None)
    play.node("n2", alive=True)
    assert not play.engine.state.nodes["n2"].gone


# --- nodes ---


def test_the_schedulers_and_the_agents_names_for_a_machine_do_not_clash():
    """Each is compared with its like; orders carry the scheduler's."""
    play = Play()
    play.do(e.NodeObserved, node=NodeView(name="n1", group="gpu", alive=True, **SLURM))
    play.do(e.AgentAttached, node="n1", boot_id="uuid-1", instance_id="machine-1")
    play.node("n1", state_text="MIXED")
    node = play.engine.state.nodes["n1"]
    assert not [line for line in node.story if "booted" in line or "another machine" in line]
    assert (node.boot_id, node.agent_boot_id) == ("slurm:1@100", "uuid-1")
    (quarantine,) = [order for order in play.xid("n1") if isinstance(order, o.QuarantineNode)]
    assert quarantine.instance_id == "slurm:n1/1"
    play.do(e.AgentAttached, node="n1", boot_id="uuid-2", instance_id="machine-1")
    assert [line for line in play.engine.state.nodes["n1"].story if "booted" in line]


def test_an_agent_that_came_first_is_not_another_boot():
    """The agent spoke of the node before the scheduler did."""
    play = Play()
    play.do(e.AgentAttached, node="n1", boot_id="uuid-1", instance_id="machine-1")
    play.do(e.NodeObserved, node=NodeView(name="n1", group="gpu", alive=True, **SLURM))
    node = play.engine.state.nodes["n1"]
    assert not [line for line in node.story if "booted" in line or "another machine" in line]
    assert (node.boot_id, node.agent_boot_id) == ("slurm:1@100", "uuid-1")


def test_a_repair_asked_for_by_the_nodes_reason_is_done_although_a_person_drained_it():
    """`Action:Reboot` gives the node into our hands; any other reason does not."""
    play = Play(node=NodeRules(validate=False)).nodes()
    play.node("n2", drained=True, drain_reason="Action:Reboot", asked="reboot")
    orders = play.do(e.OperatorCommand, command=e.Command.REBOOT, who="a person", node="n2")
    assert kinds(orders) == ["QuarantineNode"]
    orders = play.done(o.QuarantineNode)
    assert kinds(orders) == ["RebootNode"]
    play.node("n2", state_text="IDLE+FAIL+REBOOT_ISSUED")
    assert play.engine.state.nodes["n2"].state is NodeState.REPAIRING
    play.node("n3", drained=True, drain_reason="mei: memory")
    refused = play.do(e.OperatorCommand, command=e.Command.REBOOT, who="a person", node="n3")
    assert kinds(refused) == []


def test_a_near_miss_on_a_node_is_told():
    """It has no effect; whoever wrote it learns that."""
    play = Play().nodes()
    orders = play.node("n2", drained=True, drain_reason="action:reboot", warnings=("its reason asks for nothing",))
    assert [order.title for order in orders if isinstance(order, o.Notify)] == ["n2: nearly understood"]
    assert kinds(orders) == []


def test_old_records_without_the_new_fields_are_read():
    """A requeue that an older controller stored has neither gone nodes nor a lease."""
    order = msgspec.json.decode(
        b'{"order":"requeue_held","id":"a","cause":1,"job":{"cluster":"c","id":"7"},"restart_count":0}',
        type=o.RequeueHeld,
    )
    assert (order.gone, order.leased, order.remedy) == ((), False, Remedy.NONE)
