"""What simulation of a job on thousands of nodes found: races of fast starts, stale exclusions, records that grow."""

from __future__ import annotations

from tests.decide.play import NODES, Play, kinds

from holdfast.decide.incidents import ranks_by_node
from holdfast.decide.records.job import NODES_KEPT, NODES_SMALL
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobView, RecoverySpec, SchedulerState
from holdfast.model.records import AttemptRecord, Authority, JobState
from holdfast.model.wire import encode

S = SchedulerState


def test_a_launcher_that_is_faster_than_the_releases_outcome_takes_authority(play):
    """It attaches before OrderDone(ReleaseJob) is heard: the job runs, and its launcher decides inside."""
    play.until_release()
    order = play.open(o.ReleaseJob).id
    play.attach(restart_count=1, nodes=("n1", "n3", "n4"))
    assert (play.state, play.j.authority) == (JobState.RESTARTING, Authority.LAUNCHER)
    play.do(e.OrderDone, order=order)
    assert (play.state, play.j.authority) == (JobState.RESTARTING, Authority.LAUNCHER)


def test_a_late_word_of_the_former_launcher_gives_it_no_authority(play):
    """The same moment, but the launcher of the attempt that was ended: it leads nothing any more."""
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.settle()
    play.done(o.SetExcluded)
    play.attach(restart_count=0)
    assert (play.state, play.j.authority) == (JobState.RELEASED, Authority.CONTROLLER)


def test_a_new_allocation_forgets_which_nodes_the_last_one_left_out():
    """The node that was lost is repaired and given to the job again: it counts as good, so a crash restarts in place."""
    play = Play(scope="allocation").running()
    play.do(e.NodeGone, node="n2", evidence="connection reset")
    play.ended(0)
    play.settle()
    assert play.j.excluded == ("n2",)
    view = JobView(key=play.j.key, state=S.RUNNING, nodes=NODES, restart_count=1, recovery=RecoverySpec())
    play.do(e.JobObserved, job=view)
    play.attach(restart_count=1)
    play.start(1, restart_count=1, epoch=5)
    play.first_step(1, 101, 100)
    play.checkpoint(1, 200)
    assert play.j.excluded == ()
    play.crash(attempt=1)
    play.ended(1)
    assert kinds(play.settle()) == ["RestartInPlace"]


def test_a_large_jobs_record_stays_bounded():
    """Sixty attempts on 400 nodes: only the newest name their nodes, and the record stays small."""
    nodes = tuple(f"n{number:04d}" for number in range(400))
    play = Play(scope="allocation").running(nodes=nodes)
    assert len(nodes) > NODES_SMALL
    for attempt in range(1, 60):
        play.start(attempt, in_place=attempt, nodes=nodes, ranks=len(nodes))
    named = [attempt.number for attempt in play.j.attempts if attempt.nodes]
    assert named == [59, 58, 57][:NODES_KEPT][::-1]
    assert len(encode(play.j)) < 40_000


def test_attempts_of_a_large_job_share_their_ranks():
    """Wherever they run: a map of its own for each of the newest attempts took 5 MB each on 12,500 nodes."""
    before = ranks_by_node(AttemptRecord(number=0, nodes=("n1", "n2", "n3"), ranks=6))
    after = ranks_by_node(AttemptRecord(number=1, nodes=("n1", "n3", "n4"), ranks=6))
    assert before == {"n1": (0, 1), "n2": (2, 3), "n3": (4, 5)}
    assert list(after) == ["n1", "n3", "n4"]
    assert all(mine is theirs for mine, theirs in zip(after.values(), before.values(), strict=True))
