"""The journal's contract in memory. Made by tests and simulation; keeps encoded bytes, as a disk would."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from holdfast.errors import FencedError, JournalBusyError, JournalError
from holdfast.model.events import AnyEvent
from holdfast.model.orders import WAITING
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.wire import decode, decode_event, decode_orders, encode, job_of, kind_of, node_of
from holdfast.ports import Entry, LeaseRow, Sample, Touched

SAMPLES_MAX = 100_000


class _Row:
    """One stored event with what queries need of it."""

    __slots__ = ("id", "incidents", "job", "kind", "node", "orders", "payload", "received_at", "seq")

    def __init__(self, entry: Entry) -> None:
        event = entry.event
        self.seq, self.id, self.received_at = event.seq, event.id, event.received_at
        self.kind, self.job, self.node = kind_of(event), job_of(event), node_of(event)
        self.payload, self.orders = encode(event), encode(entry.orders)
        self.incidents = {record.id for record in entry.touched.incidents}
        self.incidents.update(order.incident for order in entry.orders)
        self.incidents.update(record.order.incident for record in entry.touched.orders)
        self.incidents.discard("")


class MemoryStore:
    """What several `MemoryJournal`s share: the "disk"."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.ids: set[str] = set()
        self.models: dict[str, dict[str, bytes]] = {
            name: {} for name in ("jobs", "nodes", "incidents", "orders", "brakes")
        }
        self.snapshots: list[tuple[int, bytes]] = []
        self.samples: list[Sample] = []
        self.holder, self.epoch, self.expires, self.lease_s = "", 0, 0.0, 0.0
        self.full = False
        """Set by a test: every write fails as on a full disk."""


class MemoryJournal:
    """A `ports.Journal` without a file."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store if store is not None else MemoryStore()
        self._epoch = 0
        self._holder = ""
        self._lease_s = 0.0

    @property
    def epoch(self) -> int:
        """Fencing epoch of the lease held here, 0 before `acquire`."""
        return self._epoch

    async def lease(self) -> LeaseRow | None:
        """See `ports.Journal.lease`."""
        store = self.store
        return LeaseRow(store.holder, store.epoch, store.expires, store.lease_s) if store.epoch else None

    async def acquire(self, holder: str, *, lease_s: float, now: float, seen: LeaseRow | None = None) -> int:
        """See `ports.Journal.acquire`. The same holder name takes its own lease over at once."""
        self._check_disk()
        store = self.store
        is_free = store.holder in {"", holder}
        if seen is not None and not is_free:
            if await self.lease() != seen:
                raise JournalBusyError(f"{store.holder!r} is the active controller of this journal and alive")
        elif not is_free and store.expires > now:
            raise JournalBusyError(
                f"{store.holder!r} is the active controller of this journal for another {store.expires - now:.1f} s; "
                "stop it first, or wait for its lease to end"
            )
        store.holder, store.epoch, store.expires, store.lease_s = holder, store.epoch + 1, now + lease_s, lease_s
        self._holder, self._epoch, self._lease_s = holder, store.epoch, lease_s
        return store.epoch

    async def renew(self, *, now: float) -> None:
        """See `ports.Journal.renew`."""
        self._check_epoch()
        self.store.expires = now + self._lease_s

    async def release(self) -> None:
        """See `ports.Journal.release`."""
        self._check_epoch()
        self.store.holder, self.store.expires = "", 0.0
        self._epoch = 0

    async def load(self) -> tuple[bytes | None, int, Iterator[AnyEvent]]:
        """See `ports.Journal.load`."""
        seq, state = self.store.snapshots[-1] if self.store.snapshots else (0, None)
        return state, seq, (decode_event(row.payload) for row in list(self.store.rows) if row.seq > seq)

    async def append(self, entries: Sequence[Entry]) -> None:
        """See `ports.Journal.append`."""
        self._check_epoch()
        rows = [_Row(entry) for entry in entries]
        last = self.store.rows[-1].seq if self.store.rows else 0
        for row in rows:
            if row.seq <= last or row.id in self.store.ids:
                raise JournalError(f"event {row.id!r} (seq {row.seq}) cannot be stored: it exists already")
            last = row.seq
        for entry, row in zip(entries, rows, strict=True):
            self.store.rows.append(row)
            self.store.ids.add(row.id)
            self._project(entry.touched)

    def _project(self, touched: Touched) -> None:
        models = self.store.models
        for job in touched.jobs:
            models["jobs"][f"{job.key.cluster}/{job.key.id}#{job.key.generation}"] = encode(job)
        for node in touched.nodes:
            models["nodes"][node.name] = encode(node)
        for incident in touched.incidents:
            models["incidents"][incident.id] = encode(incident)
        for order in touched.orders:
            models["orders"][order.order.id] = encode(order)
        for brake in touched.brakes:
            models["brakes"][brake.group] = encode(brake)

    async def snapshot(self, state: bytes, seq: int) -> None:
        """See `ports.Journal.snapshot`."""
        self._check_epoch()
        kept = [one for one in self.store.snapshots if one[0] != seq]
        self.store.snapshots = sorted([*kept, (seq, state)])[-2:]

    async def seen(self, event_ids: Sequence[str]) -> set[str]:
        """See `ports.Journal.seen`."""
        return self.store.ids.intersection(event_ids)

    async def last_seq(self) -> int:
        """See `ports.Journal.last_seq`."""
        newest = self.store.rows[-1].seq if self.store.rows else 0
        return max(newest, self.store.snapshots[-1][0] if self.store.snapshots else 0)

    async def events(
        self, *, after: int = 0, before: int = 0, limit: int = 1000, newest: bool = False, **where: Any
    ) -> list[AnyEvent]:
        """See `ports.Journal.events`."""
        unknown = set(where) - {"incident", "job", "node", "kind"}
        if unknown:
            raise JournalError(f"events cannot be chosen by {min(unknown)!r}: use incident, job, node or kind")
        found: list[AnyEvent] = []
        for row in reversed(list(self._after(after))) if newest else self._after(after):
            if len(found) >= limit:
                break
            if _matches(row, where) and (not before or row.seq < before):
                found.append(decode_event(row.payload))
        return found[::-1] if newest else found

    def _after(self, seq: int) -> Iterator[_Row]:
        rows = self.store.rows
        return (rows[index] for index in range(bisect_right(rows, seq, key=lambda row: row.seq), len(rows)))

    async def entries(self, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        """See `ports.Journal.entries`."""
        return [_entry(row) for row in islice(self._after(after), limit)]

    async def entry(self, event_id: str) -> Entry | None:
        """See `ports.Journal.entry`."""
        return next((_entry(row) for row in reversed(self.store.rows) if row.id == event_id), None)

    async def entries_before(self, before: int, *, kinds: Sequence[str], limit: int = 100) -> list[Entry]:
        """See `ports.Journal.entries_before`."""
        rows = (row for row in reversed(self.store.rows) if row.seq < before and row.kind in kinds)
        return [_entry(row) for row in islice(rows, limit)]

    async def jobs(self, *, job: str | Sequence[str] = "") -> list[JobRecord]:
        """See `ports.Journal.jobs`."""
        found = [decode(data, JobRecord) for _, data in sorted(self.store.models["jobs"].items())]
        return [one for one in found if _is_wanted(str(one.key), job)]

    async def nodes(self, *, node: str | Sequence[str] = "") -> list[NodeRecord]:
        """See `ports.Journal.nodes`."""
        found = sorted(self.store.models["nodes"].items())
        return [decode(data, NodeRecord) for name, data in found if _is_wanted(name, node)]

    async def brakes(self) -> list[BrakeRecord]:
        """See `ports.Journal.brakes`."""
        return [decode(data, BrakeRecord) for _, data in sorted(self.store.models["brakes"].items())]

    async def incidents(
        self,
        *,
        incident: str = "",
        job: str = "",
        node: str = "",
        open_only: bool = False,
        limit: int = 1000,
        before: tuple[float, str] | None = None,
    ) -> list[IncidentRecord]:
        """See `ports.Journal.incidents`."""
        found = [decode(data, IncidentRecord) for data in self.store.models["incidents"].values()]
        found.sort(key=lambda one: (one.opened_at, one.id), reverse=True)
        if before is not None:
            found = [one for one in found if (one.opened_at, one.id) < before]
        chosen = [one for one in found if incident in {"", one.id} and not (open_only and one.closed_at)]
        return [one for one in chosen if one.concerns(job=job, node=node)][:limit]

    async def orders(
        self,
        *,
        order: str = "",
        incident: str = "",
        job: str = "",
        node: str = "",
        pending_only: bool = False,
        limit: int = 1000,
        before: tuple[float, str] | None = None,
    ) -> list[OrderRecord]:
        """See `ports.Journal.orders`."""
        found = [decode(data, OrderRecord) for data in self.store.models["orders"].values()]
        found.sort(key=lambda one: (one.issued_at, one.order.id), reverse=True)
        if before is not None:
            found = [one for one in found if (one.issued_at, one.order.id) < before]
        chosen = [
            one for one in found
            if incident in {"", one.order.incident} and order in {"", one.order.id}
            and job in {"", str(getattr(one.order, "job", ""))} and node in {"", getattr(one.order, "node", "")}
        ]  # fmt: skip
        return [one for one in chosen if not pending_only or one.status in WAITING][:limit]

    async def add_samples(self, samples: Sequence[Sample]) -> None:
        """See `ports.Journal.add_samples`. Holds at most `SAMPLES_MAX`; not thinned."""
        self._check_disk()
        self.store.samples.extend(
            one if math.isfinite(one.value) else Sample(one.series, one.subject, one.at, math.nan) for one in samples
        )
        del self.store.samples[:-SAMPLES_MAX]

    async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
        """See `ports.Journal.samples`."""
        chosen = [one for one in self.store.samples if one.series == series and one.at > after]
        if subject.endswith("*"):
            chosen = [one for one in chosen if one.subject.startswith(subject[:-1])]
        elif subject:
            chosen = [one for one in chosen if one.subject == subject]
        return sorted(chosen, key=lambda one: one.at)

    async def retain(self, before: float) -> int:
        """See `ports.Journal.retain`."""
        self._check_epoch()
        newest = self.store.snapshots[-1][0] if self.store.snapshots else 0
        still_open = {one.id for one in await self.incidents(open_only=True, limit=len(self.store.models["incidents"]))}

        def old(row: _Row) -> bool:
            return row.received_at < before and row.seq <= newest and not row.incidents & still_open

        dropped = [row for row in self.store.rows if old(row)]
        self.store.ids.difference_update(row.id for row in dropped)
        self.store.rows = [row for row in self.store.rows if not old(row)]
        for one in await self.orders(limit=len(self.store.models["orders"])):
            if 0.0 < one.ended_at < before and one.order.incident not in still_open:
                del self.store.models["orders"][one.order.id]
        return len(dropped)

    async def close(self) -> None:
        """See `ports.Journal.close`: the store stays, as a file would."""

    def _check_disk(self) -> None:
        if self.store.full:
            raise JournalError("the journal cannot be written: database or disk is full")

    def _check_epoch(self) -> None:
        if self._epoch == 0:
            raise FencedError("the journal is written only by the holder of its lease: acquire it first")
        if self._epoch != self.store.epoch:
            by = f" by {self.store.holder!r}" if self.store.holder else ""
            raise FencedError(f"epoch {self._epoch} of {self._holder!r} was superseded{by}: this controller must stop")
        self._check_disk()


def _is_wanted(name: str, wanted: str | Sequence[str]) -> bool:
    return wanted in {"", name} if isinstance(wanted, str) else name in wanted


def _matches(row: _Row, where: dict[str, Any]) -> bool:
    if where.get("incident") and where["incident"] not in row.incidents:
        return False
    if where.get("job") and row.job != str(where["job"]):
        return False
    if where.get("node") and row.node != where["node"]:
        return False
    kind = where.get("kind")
    return not kind or (row.kind == kind if isinstance(kind, str) else row.kind in kind)


def _entry(row: _Row) -> Entry:
    return Entry(decode_event(row.payload), decode_orders(row.orders), Touched())
