"""The engine's memory: snapshots, indexes, pending orders, bounded growth."""

from __future__ import annotations

import msgspec
import pytest
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.decide.engine import Engine
from holdfast.decide.state import SNAPSHOT_VERSION, Index, State, from_bytes, occupying, to_bytes
from holdfast.errors import EngineError, VersionError, WireError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, SchedulerState
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import PolicySet
from holdfast.model.records import slug

S = SchedulerState


def test_a_snapshot_is_read_back_without_loss(play):
    """Equal states give equal bytes, in the middle of a recovery too."""
    play.xid("n2")
    play.do(e.NodeSilent, node="n1", for_s=3.0)
    play.say(e.Command.SET_MODE, value="advise", group="cpu")
    data = play.engine.snapshot()
    again = Engine.restore(data, play.policies)
    assert again.snapshot() == data
    assert again.state == play.engine.state
    assert vars(again.index) == vars(play.engine.index)
    assert (again.scope, again.seq) == ("cluster", play.count)


def test_a_restored_engine_goes_on_as_the_first_would(play):
    """The same orders to the same events from here on."""
    play.xid("n2")
    other = Engine.restore(play.engine.snapshot(), play.policies)
    before = len(play.events)
    play.through_queue()
    play.checkpoint(1, 200)
    for event in play.events[before:]:
        other.handle(event)
    assert other.snapshot() == play.engine.snapshot()


def test_a_newer_snapshot_is_refused_with_a_sentence(play):
    """Not read halfway."""
    raw = msgspec.msgpack.decode(play.engine.snapshot())
    raw["version"] = SNAPSHOT_VERSION + 1
    with pytest.raises(VersionError, match="newer"):
        from_bytes(msgspec.msgpack.encode(raw))


def test_fields_of_a_newer_version_are_ignored(play):
    """What it does not know it leaves out."""
    raw = msgspec.msgpack.decode(play.engine.snapshot())
    raw["colour"] = "blue"
    assert from_bytes(msgspec.msgpack.encode(raw)) == play.engine.state


@pytest.mark.parametrize("data", [b"", b"nonsense", msgspec.msgpack.encode({"version": 1, "jobs": 3})])
def test_what_is_no_snapshot_is_named(data):
    """WireError, not a traceback of the decoder."""
    with pytest.raises(WireError):
        from_bytes(data)


def test_an_empty_state_survives():
    """Version and scope are always written."""
    state = State(version=SNAPSHOT_VERSION, scope="allocation")
    assert from_bytes(to_bytes(state)) == state


def test_an_unknown_scope_is_refused():
    """A typo would otherwise give an engine that orders everything."""
    with pytest.raises(EngineError, match="scope"):
        Engine(PolicySet(), scope="clutser")


def test_pending_orders_and_timers_with_their_due_times(play):
    """What a controller carries on with after a restart."""
    play.xid("n2")
    records = play.engine.pending_orders()
    deeds = [record.order for record in records if not isinstance(record.order, o.StartTimer | o.Notify)]
    assert kinds(deeds) == ["QuarantineNode", "RequeueHeld"]
    timers = {record.order.timer: record for record in records if isinstance(record.order, o.StartTimer)}
    assert set(timers) == set(play.engine.state.timers)
    for record in timers.values():
        assert record.status is OrderStatus.PENDING
        assert record.expires_at == pytest.approx(record.issued_at + record.order.after_s)
    causes = [record.order.cause for record in records if not isinstance(record.order, o.StartTimer)]
    assert causes == sorted(causes)


def test_touched_are_the_records_that_changed(play):
    """And no others."""
    play.do(e.NodeSilent, node="n4", for_s=3.0)
    touched = play.engine.touched()
    assert [node.name for node in touched.nodes] == ["n4"]
    assert (touched.jobs, touched.incidents, touched.orders) == ([], [], [])
    play.xid("n2")
    touched = play.engine.touched()
    assert [node.name for node in touched.nodes] == ["n2"]
    assert [job.key for job in touched.jobs] == [KEY]
    assert len(touched.incidents) == 1
    assert {type(record.order) for record in touched.orders} >= {o.QuarantineNode, o.RequeueHeld}
    assert [brake.group for brake in touched.brakes] == ["gpu"]


def test_touched_hold_an_orders_end(play):
    """Its status is part of the read model."""
    play.xid("n2")
    play.done(o.QuarantineNode)
    ended = {type(record.order): record.status for record in play.engine.touched().orders}
    assert ended[o.QuarantineNode] is OrderStatus.DONE


def test_closed_incidents_and_settled_orders_leave_the_memory(play):
    """A year of recoveries must not grow the snapshot."""
    sizes = []
    for number in range(6):
        attempt = play.attempt.number
        play.crash(attempt, fingerprint=f"x{number}")
        play.restart_in_place(attempt + 1)
        play.first_step(attempt + 1, 1)
        play.checkpoint(attempt + 1, 1000 + number)
        for record in list(play.engine.state.orders.values()):
            play.do(e.OrderDone, order=record.order.id)
        sizes.append((len(play.engine.state.incidents), len(play.engine.state.orders), len(play.engine.state.timers)))
    assert set(sizes) == {(0, 0, 0)}


def test_memory_of_findings_and_attempts_is_bounded(inside):
    """Ids seen, context, attempts."""
    for number in range(5000):
        inside.engine.handle(
            e.FindingSeen(
                id=f"x{number}", at=inside.now, received_at=inside.now, finding=_context(f"c{number}", inside.now)
            )
        )
    state = inside.engine.state
    assert len(state.seen) <= 4096
    assert len(state.context[slug(KEY)]) <= 24
    for attempt in range(1, 120):
        inside.engine.handle(
            e.AttemptStarted(id=f"a{attempt}", at=inside.now, job=KEY, attempt=attempt, epoch=attempt + 1)
        )
    assert len(inside.j.attempts) <= 64
    assert inside.attempt.number == 119


def _context(name, at):
    from holdfast.model.evidence import Finding, Role

    return Finding(id=name, rule="nccl.warn", at=at, role=Role.CONTEXT, job=KEY)


def test_events_without_a_number_are_numbered():
    """Tests and tools may leave `seq` out; ids stay unique."""
    play = Play().running()
    first = play.engine.seq
    play.engine.handle(e.NodeHeard(id="x", at=play.now, node="n1"))
    assert play.engine.seq == first + 1


def test_slug_tells_generations_apart():
    """The same id, used again."""
    assert slug(JobKey("c", "7")) == "c/7#1"
    assert slug(JobKey("c", "7", 2)) == "c/7#2"


def test_a_job_that_does_not_run_occupies_no_node():
    """Schedulers go on naming its nodes."""
    view = JobView(key=KEY, nodes=NODES, state=S.RUNNING)
    assert occupying(view) == NODES
    for state in (S.COMPLETED, S.FAILED, S.HELD, S.PENDING, S.CANCELLED):
        assert occupying(msgspec.structs.replace(view, state=state)) == ()


def test_the_index_is_what_the_records_say(play):
    """Computed anew after a restart, kept up to date before."""
    play.xid("n2")
    fresh = Index(play.engine.state)
    assert vars(fresh) == vars(play.engine.index)
    assert fresh.jobs_on["n2"] == {slug(KEY)}
