"""The contract of every journal; runs unchanged against memory, SQLite and PostgreSQL."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.adapters.journal_cases import (
    KEY,
    STORES,
    Store,
    entry,
    job_record,
    node_record,
    order,
    order_record,
    run,
)

from holdfast.adapters.journal import export
from holdfast.errors import FencedError, JournalBusyError, JournalError
from holdfast.model import events as e
from holdfast.model import records as r
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Finding, Place
from holdfast.ports import Entry, Sample, Touched


@pytest.fixture(params=STORES)
def store(request, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path, request)


def test_what_was_appended_is_there_after_a_restart(store: Store):
    """Events come back in order, equal, with their orders, from a journal that was opened anew."""

    async def work() -> None:
        journal = store.open()
        await journal.acquire("a", lease_s=10, now=100)
        finding = Finding(id="f", rule="nvidia.xid.74", at=99.5, place=Place(node="n1", gpu=3), job=KEY)
        first = Entry(
            e.FindingSeen(id="e1", at=99.5, received_at=100, seq=1, finding=finding), [order("o1")], Touched()
        )
        await journal.append([first, entry(2)])
        await journal.append([entry(3)])
        await journal.close()
        journal = store.open()
        state, seq, events = await journal.load()
        assert (state, seq) == (None, 0)
        assert [first.event, entry(2).event, entry(3).event] == list(events)
        assert [first.orders, [], []] == [one.orders for one in await journal.entries()]
        assert await journal.entry(first.event.id) == (await journal.entries())[0]
        assert await journal.entry("nobody's") is None
        assert await journal.last_seq() == 3
        await journal.close()

    run(work)


def test_load_begins_behind_the_newest_snapshot(store: Store):
    """`load` gives the newest snapshot and only the events after it."""

    async def work() -> None:
        journal = store.open()
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(n) for n in range(1, 6)])
        for seq in (1, 2, 4):
            await journal.snapshot(b"state %d" % seq, seq)
        await journal.snapshot(b"again", 4)
        state, seq, events = await journal.load()
        assert (state, seq, [one.seq for one in events]) == (b"again", 4, [5])
        await journal.close()

    run(work)


def test_events_are_chosen_by_incident_job_node_and_kind(store: Store):
    """An event belongs to the incidents that it touched, that its orders serve, or whose orders it ended."""

    async def work() -> None:
        journal = store.open()
        await journal.acquire("a", lease_s=10, now=100)
        attached = e.LauncherAttached(id="l", at=1, received_at=1, seq=5, job=KEY, restart_count=0)
        await journal.append(
            [
                entry(1, incidents=[r.IncidentRecord("i1", 100.0)]),
                entry(2, node="n2", orders_out=[order("o1")]),
                entry(3, orders=[order_record("o1", "done")]),
                entry(4, node="n2"),
                Entry(attached, [], Touched()),
            ]
        )
        assert [one.seq for one in await journal.events(incident="i1")] == [1, 2, 3]
        assert [one.seq for one in await journal.events(node="n2")] == [2, 4]
        assert [one.seq for one in await journal.events(node="n2", after=2)] == [4]
        assert [one.seq for one in await journal.events(job="7")] == [5]
        assert [one.seq for one in await journal.events(job=KEY)] == [5]
        assert [one.seq for one in await journal.events(kind="launcher_attached")] == [5]
        assert [one.seq for one in await journal.events(kind=("node_heard", "node_gone"), limit=2)] == [1, 2]
        with pytest.raises(JournalError, match="colour"):
            await journal.events(colour="red")
        await journal.close()

    run(work)


def test_a_limit_counts_the_orders_that_were_asked_for(store: Store):
    """What waits for a person, or is under way, is found behind any number of newer orders that are over."""

    async def work() -> None:
        journal = store.open()
        await journal.acquire("a", lease_s=10, now=100)
        waits = [order_record("o1", "proposed", at=50.0), order_record("o2", at=51.0)]
        over = [order_record(f"d{number}", "done") for number in range(9)]
        await journal.append([entry(1, orders=[*waits, *over])])
        assert [one.order.id for one in await journal.orders(pending_only=True, limit=2)] == ["o2", "o1"]
        await journal.close()

    run(work)


def test_read_models_follow_the_events(store: Store):
    """The last change of a record wins, also inside one batch; each model can be asked for one record."""

    async def work() -> None:
        journal = store.open()
        await journal.acquire("a", lease_s=10, now=100)
        again = JobKey("c", "7", 2)
        held = job_record(r.JobState.HELD)
        await journal.append(
            [
                entry(1, jobs=[job_record()], nodes=[node_record("n2"), node_record("n1")]),
                entry(2, jobs=[held, job_record(key=again)], orders=[order_record("o1")]),
                entry(3, orders=[order_record("o1", "done"), order_record("o2", incident="i2", at=101.0)]),
                entry(4, incidents=[r.IncidentRecord("i1", 1.0, closed_at=2.0), r.IncidentRecord("i2", 3.0)]),
                entry(5, brakes=[r.BrakeRecord("gpu", nodes=8)]),
            ]
        )
        assert [held, job_record(key=again)] == await journal.jobs()
        assert [job_record(key=again)] == await journal.jobs(job="7#2")
        assert [one.name for one in await journal.nodes()] == ["n1", "n2"]
        assert [node_record("n2")] == await journal.nodes(node="n2")
        assert [one.order.id for one in await journal.orders()] == ["o2", "o1"]
        assert [one.order.id for one in await journal.orders(pending_only=True)] == ["o2"]
        assert [order_record("o1", "done")] == await journal.orders(incident="i1")
        assert [one.id for one in await journal.incidents()] == ["i2", "i1"]
        assert [one.id for one in await journal.incidents(open_only=True)] == ["i2"]
        assert [one.id for one in await journal.incidents(incident="i1")] == ["i1"]
        assert [r.BrakeRecord("gpu", nodes=8)] == await journal.brakes()
        await journal.close()

    run(work)


def test_lists_are_filtered_before_they_are_cut(store: Store):
    """Incidents and orders of a job or a node come whole from behind those of others; events before a number, too."""

    async def work() -> None:
        journal = store.open()
        await journal.acquire("a", lease_s=10, now=100)
        theirs = [r.IncidentRecord(f"i{n}", float(n), jobs=[JobKey("c", "8")], nodes=["n8"]) for n in range(2, 40)]
        await journal.append(
            [
                entry(1, incidents=[r.IncidentRecord("i1", 1.0, jobs=[KEY], nodes=["n7"]), *theirs]),
                entry(2, orders=[order_record("mine", at=1.0), *(order_record(f"o{n}", node="n8") for n in range(40))]),
                *(entry(number) for number in range(3, 6)),
            ]
        )
        assert [one.id for one in await journal.incidents(job=str(KEY), limit=1)] == ["i1"]
        assert [one.id for one in await journal.incidents(node="n7", limit=1)] == ["i1"]
        assert await journal.incidents(job=str(KEY), node="n8") == []
        assert [one.order.id for one in await journal.orders(node="n1", limit=1)] == ["mine"]
        assert await journal.orders(job="8", limit=1) == []
        assert [one.seq for one in await journal.events(before=5, limit=2, newest=True)] == [3, 4]
        await journal.close()

    run(work)


def test_ids_that_were_stored_are_seen(store: Store):
    """`seen` finds stored ids among many, also with more ids than fit into one query."""

    async def work() -> None:
        journal = store.open()
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(n) for n in range(1, 1201)])
        assert {"e3", "e1200"} == await journal.seen(["e3", "x", "e1200", *(f"y{n}" for n in range(1200))])
        assert await journal.seen([]) == set()
        await journal.close()

    run(work)


def test_a_batch_is_stored_whole_or_not_at_all(store: Store):
    """A batch with an event that exists already changes nothing."""

    async def work() -> None:
        journal = store.open()
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(1)])
        with pytest.raises(JournalError):
            await journal.append([entry(2, nodes=[node_record()]), entry(3, event_id="e1")])
        assert await journal.last_seq() == 1
        assert await journal.nodes() == []
        await journal.append([entry(2)])
        await journal.close()

    run(work)


def test_one_holder_at_a_time_and_its_epoch_grows(store: Store):
    """A live lease is refused to others, an ended, released or own one is taken; each time with a larger epoch."""

    async def work() -> None:
        one, two = store.open(), store.open()
        assert await one.acquire("one", lease_s=10, now=100) == 1
        with pytest.raises(JournalBusyError, match="'one'"):
            await two.acquire("two", lease_s=10, now=105)
        await one.renew(now=105)
        with pytest.raises(JournalBusyError):
            await two.acquire("two", lease_s=10, now=114)
        assert await two.acquire("two", lease_s=10, now=115.5) == 2
        await two.release()
        assert await one.acquire("one", lease_s=10, now=116) == 3
        assert await one.acquire("one", lease_s=10, now=116) == 4
        await one.close()
        await two.close()

    run(work)


def test_the_superseded_holder_can_write_nothing(store: Store):
    """After another took the lease, every write of the former raises FencedError and leaves no trace."""

    async def work() -> None:
        old, new = store.open(), store.open()
        await old.acquire("old", lease_s=10, now=100)
        await old.append([entry(1)])
        await new.acquire("new", lease_s=10, now=111)
        await new.append([entry(2)])
        for write in (
            lambda: old.append([entry(3)]),
            lambda: old.snapshot(b"s", 1),
            lambda: old.renew(now=112),
            old.release,
            lambda: old.retain(1000.0),
        ):
            with pytest.raises(FencedError, match="'new'"):
                await write()
        assert [one.seq for one in await new.events()] == [1, 2]
        await new.append([entry(3)])
        await old.close()
        await new.close()

    run(work)


def test_nobody_writes_without_the_lease(store: Store):
    """A journal whose lease was never taken refuses to append."""

    async def work() -> None:
        journal = store.open()
        with pytest.raises(FencedError, match="acquire"):
            await journal.append([entry(1)])
        await journal.close()

    run(work)


def test_retention_keeps_open_incidents_and_what_a_restart_needs(store: Store):
    """Dropped: old events behind the snapshot, of no incident or of closed ones. Numbers are never used again."""

    async def work() -> None:
        journal = store.open()
        await journal.acquire("a", lease_s=10, now=100)
        opened, closed = r.IncidentRecord("open", 1.0), r.IncidentRecord("closed", 1.0, closed_at=2.0)
        await journal.append(
            [
                entry(1, at=10),
                entry(2, at=11, incidents=[opened], orders=[order_record("o1", "done", incident="open", at=11)]),
                entry(3, at=12, incidents=[closed], orders=[order_record("o2", "done", incident="closed", at=12)]),
                entry(4, at=50),
                entry(5, at=13),
                entry(6, at=14),
            ]
        )
        assert await journal.retain(before=40) == 0
        await journal.snapshot(b"s", 5)
        assert await journal.retain(before=40) == 3
        assert [one.seq for one in await journal.events()] == [2, 4, 6]
        assert [one.order.id for one in await journal.orders()] == ["o1"]
        assert {"open", "closed"} == {one.id for one in await journal.incidents()}
        await journal.snapshot(b"s", 6)
        await journal.retain(before=1000)
        assert await journal.last_seq() == 6
        await journal.close()

    run(work)


def test_samples_are_read_by_series_and_subject(store: Store):
    """A series comes in order of time, by exact subject or prefix; what is not finite comes back as NaN."""

    async def work() -> None:
        journal = store.open()
        await journal.acquire("a", lease_s=10, now=100)
        points = [
            Sample("loss", "job:7(0)/rank:0", 3.0, 0.5),
            Sample("loss", "job:7(0)/rank:1", 2.0, 0.25),
            Sample("loss", "job:7_0)/rank:2", 2.5, 9.0),
            Sample("step", "job:7(0)/rank:0", 1.0, 4.0),
            Sample("loss", "job:7(0)/rank:0", 4.0, math.inf),
        ]
        await journal.add_samples(points)
        assert [points[1], points[0]] == (await journal.samples("loss", "job:7(0)/*"))[:2]
        assert math.isnan((await journal.samples("loss", "job:7(0)/*"))[2].value)
        assert [points[1]] == await journal.samples("loss", "job:7(0)/rank:1")
        assert len(await journal.samples("loss", after=2.0)) == 3
        await journal.close()

    run(work)


def test_a_lease_seen_silent_is_taken_whatever_the_clocks_say(store: Store):
    """With `seen` no time is compared: the row as it was seen is taken, one that was renewed since is not."""

    async def work() -> None:
        one, two = store.open(), store.open()
        assert await two.lease() is None
        await one.acquire("one", lease_s=10, now=400)
        seen = await two.lease()
        assert seen is not None
        assert (seen.holder, seen.epoch) == ("one", 1)
        await one.renew(now=403)
        # Five minutes ahead: by the times alone it would be free.
        with pytest.raises(JournalBusyError, match="'one'"):
            await two.acquire("two", lease_s=10, now=900, seen=seen)
        # Five minutes behind: by the times alone it would be held for long.
        assert await two.acquire("two", lease_s=10, now=100, seen=await two.lease()) == 2
        with pytest.raises(FencedError):
            await one.renew(now=406)
        await two.release()
        released = await one.lease()
        assert released is not None
        assert released.holder == ""
        await one.close()
        await two.close()

    run(work)


def test_names_from_outside_never_keep_an_event_from_being_stored(store: Store):
    """NUL, thousands of characters, any language: stored, found again by the same name, and given back as they were."""
    names = ("n\0ul", "x" * 5000, "x" * 4999 + "y", "\U0001f525" * 400, "ü\n'\"%_")

    async def work() -> None:
        journal = store.open()
        await journal.acquire("a" * 2000, lease_s=10, now=100)
        await journal.append(
            [
                entry(n, event_id=f"id {name}", node=name, nodes=[node_record(name)], orders=[order_record(f"o{name}")])
                for n, name in enumerate(names, 1)
            ]
        )
        await journal.add_samples([Sample(name, name, float(n), 1.0) for n, name in enumerate(names, 1)])
        assert {f"id {name}" for name in names} == await journal.seen([f"id {name}" for name in names] + ["other"])
        for n, name in enumerate(names, 1):
            assert [one.node for one in await journal.events(node=name)] == [name]
            assert [one.name for one in await journal.nodes(node=name)] == [name]
            assert [one.at for one in await journal.samples(name, name)] == [float(n)]
        assert await journal.acquire("a" * 2000, lease_s=10, now=101) == 2
        await journal.close()

    run(work)


def test_export_is_the_same_for_the_same_history(tmp_path: Path, request):
    """All stores give byte for byte the same lines for the same entries, one line per event with its orders."""

    async def lines(store: Store) -> bytes:
        journal = store.open()
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(1, orders_out=[order("o1")]), entry(2)])
        await journal.append([entry(n) for n in range(3, 1205)])
        out = b"".join([line async for line in export(journal)])
        await journal.close()
        return out

    texts = [run(lambda kind=kind: lines(Store(kind, tmp_path, request))) for kind in STORES]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0].count(b"\n") == 1204
    assert texts[0].startswith(b'{"seq":1,"event":{"event":"node_heard","id":"e1",')
