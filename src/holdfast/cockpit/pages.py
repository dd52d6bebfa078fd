"""What each page shows: its template and the values for it. Nothing here depends on who looks.

A page is named as its address is: `overview`, `jobs?q=gpt`, `job:1778`. Lists and the overview are made from the board;
the page of one thing reads its whole record from the journal. Called by `cockpit.py` for a whole page and for the live
parts of one. Times are those of the records; what is newer than the journal is not shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl

from msgspec import Struct

from holdfast.api.operate import etag_of, gist_of
from holdfast.cockpit import phases
from holdfast.cockpit.board import Board
from holdfast.controller import Controller
from holdfast.controller.fleet import JobLine, NodeLine, incident_line
from holdfast.errors import NotFoundError
from holdfast.model import events as e
from holdfast.model.listing import first_of
from holdfast.model.orders import CancelTimer, OrderStatus, StartTimer
from holdfast.model.records import SHOWN_STATES, JobRecord, OrderRecord
from holdfast.model.wire import kind_of
from holdfast.report.saves import saves_of
from holdfast.report.similar import similar
from holdfast.report.tables import offsets
from holdfast.report.timeline import timeline
from holdfast.report.training_time import proof_of, training_time

ROWS = 100
"""Of a list, on one page."""
SHOWN = 12
"""Of each kind, on the overview."""
EVENTS_BACK = 10_000
"""The page of one thing looks for its events among so many of the newest."""
DEED_ROWS = 200
ORDER_ROWS = 500

Values = dict[str, Any]


class Page(Struct, frozen=True):
    """A page's address within the cockpit."""

    kind: str
    name: str = ""
    asked: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Page:
        """`job:1778`, `jobs?q=gpt&page=2`."""
        base, _, query = text.partition("?")
        kind, _, name = base.partition(":")
        return cls(kind, name, tuple(parse_qsl(query, max_num_fields=8)))

    def ask(self, name: str) -> str:
        """A parameter of the query, bounded."""
        return next((value[:200] for key, value in self.asked if key == name), "").strip()

    @property
    def number(self) -> int:
        """Which page of a list, from 1 on."""
        text = self.ask("page")
        return max(1, min(int(text), 100_000)) if text.isdecimal() and len(text) < 7 else 1


class Slice(Struct, frozen=True):
    """A page's worth of a list."""

    rows: Sequence[Any]
    number: int
    more: bool
    total: int


class Pages:
    """See the module."""

    def __init__(self, controller: Controller, board: Board) -> None:
        self._controller = controller
        self._board = board
        self._racks: list[tuple[str, list[str]]] = []
        self._racks_of = -1
        self._makers: dict[str, tuple[str, Callable[[Page], Awaitable[Values]]]] = {
            "overview": ("overview.html", self._overview),
            "jobs": ("jobs.html", self._jobs),
            "job": ("job.html", self._job),
            "nodes": ("nodes.html", self._nodes),
            "node": ("node.html", self._node),
            "incidents": ("incidents.html", self._incidents),
            "incident": ("incident.html", self._incident),
            "orders": ("orders.html", self._orders),
            "order": ("order.html", self._order),
            "audit": ("audit.html", self._audit),
        }

    def add(self, kind: str, template: str, make: Callable[[Page], Awaitable[Values]]) -> None:
        """A page that another module makes."""
        self._makers[kind] = (template, make)

    async def values(self, page: Page) -> tuple[str, Values]:
        """Template and values.

        Raises:
            NotFoundError: no such page, job, node or incident.
        """
        if page.kind not in self._makers:
            raise NotFoundError(f"there is no page {page.kind!r}")
        template, make = self._makers[page.kind]
        return template, await make(page) | {"health": self.health(), "seq": self._controller.seq}

    def health(self) -> Values:
        """The watcher's own health, and the mode: on every page."""
        health = self._controller.health()
        state, why = "well", ""
        if health.failing:
            state, why = "failing", f"The journal cannot be written, so nothing new is begun: {health.failing}"
        elif health.blind:
            state, why = "blind", "The scheduler cannot be read: what is shown of jobs and nodes may be out of date."
        elif not health.ok:
            state, why = "starting", "The controller is not ready."
        return {
            "state": state,
            "why": why,
            "mode": self._board.mode.value,
            "exceptions": self._board.mode_exceptions(),
            "looked_at": health.looked_at if health.blind else 0.0,
            "epoch": health.epoch,
        }

    # --- the fleet ---

    async def _overview(self, _page: Page) -> Values:
        board = self._board
        jobs = board.fleet.jobs.values()
        troubled = sorted((j for j in jobs if j.is_troubled and not j.is_over), key=_newest)
        running = sorted((j for j in jobs if j.is_running and not j.is_troubled), key=_newest)
        unwell = sorted((n for n in board.fleet.nodes.values() if not n.is_well), key=lambda n: -n.since)
        open_now = board.fleet.open_incidents()
        return {
            "node_counts": Counter(node.shown for node in board.fleet.nodes.values()),
            "node_total": len(board.fleet.nodes),
            "running_total": sum(1 for job in jobs if job.is_running),
            "waiting_total": sum(1 for job in jobs if not job.is_running and not job.is_over),
            "troubled": troubled[:SHOWN],
            "troubled_total": len(troubled),
            "running": running[:SHOWN],
            "incidents": open_now[:SHOWN],
            "incident_total": len(open_now),
            "recent": [line for line in islice(reversed(board.fleet.incidents.values()), 200) if not line.is_open][:5],
            "proposed": list(islice(board.fleet.proposed.values(), SHOWN)),
            "proposed_total": len(board.fleet.proposed),
            "under_way": sum(1 for one in board.fleet.waiting.values() if one.status is OrderStatus.PENDING),
            "tripped": [brake for brake in board.fleet.brakes.values() if brake.tripped_at],
            "unwell": unwell[:SHOWN],
            "unwell_total": len(unwell),
            "racks": self.racks(),
        }

    def racks(self) -> list[tuple[str, list[NodeLine]]]:
        """Nodes by failure domain, both in order of their names; the order is kept until a node comes or moves."""
        nodes = self._board.fleet.nodes
        if self._racks_of != self._board.layout:
            found: dict[str, list[str]] = {}
            for name in sorted(nodes, key=natural):
                found.setdefault(nodes[name].rack, []).append(name)
            self._racks = sorted(found.items(), key=lambda item: natural(item[0]))
            self._racks_of = self._board.layout
        return [(rack, [nodes[name] for name in names]) for rack, names in self._racks]

    async def _jobs(self, page: Page) -> Values:
        words, state = page.ask("q").casefold().split(), page.ask("state")
        found = [
            job for job in self._board.fleet.jobs.values()
            if _job_is(job, state) and all(word in _words_of(job) for word in words)
        ]  # fmt: skip
        found.sort(key=lambda job: (not job.is_troubled, job.is_over, not job.is_running, -job.since))
        return {"jobs": sliced(found, page), "q": page.ask("q"), "chosen": state}

    async def _nodes(self, page: Page) -> Values:
        words, state = page.ask("q").casefold().split(), page.ask("state")
        found = [
            node for node in self._board.fleet.nodes.values()
            if (not state or node.shown == state or (state == "unwell" and not node.is_well))
            and all(word in f"{node.name} {node.rack} {node.group} {node.note}".casefold() for word in words)
        ]  # fmt: skip
        found.sort(key=lambda node: (node.is_well, natural(node.name)))
        return {"nodes": sliced(found, page), "q": page.ask("q"), "chosen": state, "states": SHOWN_STATES}

    async def _incidents(self, page: Page) -> Values:
        open_only = page.ask("state") == "open"
        first = (page.number - 1) * ROWS
        rows = list(islice(self._board.fleet.search(page.ask("q"), open_only=open_only), first, first + ROWS + 1))
        helped = Counter(
            (line.outcome, " then ".join(line.remedies) or "nothing but a restart")
            for line in islice(self._board.fleet.search(page.ask("q")), 1000)
            if page.ask("q") and not line.is_open
        )
        shown = Slice(rows[:ROWS], page.number, len(rows) > ROWS, len(self._board.fleet.incidents))
        return {"incidents": shown, "q": page.ask("q"), "open_only": open_only, "helped": helped.most_common(6)}

    async def _orders(self, page: Page) -> Values:
        waiting = sorted(self._board.fleet.waiting.values(), key=lambda one: -one.issued_at)
        known = self._board.fleet.waiting
        over = await self._orders_in(lambda one: one.order.id not in known, ROWS)
        return {"waiting": waiting[:ROWS], "over": over, "kind_of": kind_of, "page": page}

    async def _orders_in(
        self, wanted: Callable[[OrderRecord], bool], limit: int, incident: str = ""
    ) -> list[OrderRecord]:
        """The newest orders of those wanted, without the engine's timers."""

        def ask(before: tuple[float, str] | None, size: int) -> Awaitable[list[OrderRecord]]:
            return self._controller.journal.orders(limit=size, before=before, incident=incident)

        def choose(found: list[OrderRecord]) -> list[OrderRecord]:
            return [one for one in found if not isinstance(one.order, StartTimer | CancelTimer) and wanted(one)]

        return await first_of(ask, choose, lambda one: (one.issued_at, one.order.id), limit, start=None)

    async def _order(self, page: Page) -> Values:
        found = await self._controller.journal.orders(order=page.name)
        if not found:
            raise NotFoundError(f"there is no order {page.name!r}")
        about = self._board.fleet.incidents.get(found[0].order.incident)
        job = self._board.fleet.jobs.get(str(getattr(found[0].order, "job", "")))
        return {
            "order": found[0],
            "owner": job.user if job is not None else "",
            "summary": about.headline if about is not None else "",
            "etag": etag_of(found[0]),
        }

    async def _audit(self, page: Page) -> Values:
        words = page.ask("q").casefold().split()
        found = [deed for deed in reversed(self._board.deeds) if all(word in _deed_words(deed) for word in words)]
        refused = self._board.refusals
        return {"deeds": sliced(found, page), "q": page.ask("q"), "refused": refused, "kind_of": kind_of}

    # --- one thing ---

    async def _job(self, page: Page) -> Values:
        found = await self._controller.journal.jobs(job=page.name)
        if not found:
            raise NotFoundError(f"there is no job {page.name!r}")
        job = found[-1]
        events = await self._events(job=page.name, kind=("checkpoint_saved", "stacks_captured"))
        lines = self._board.fleet.incidents_of(job=page.name)
        newest = await self._controller.journal.incidents(incident=lines[0].id) if lines else []
        trained = training_time(job, self._controller.clock.now(), proof_of(job, self._board.policies))
        return {
            "job": job,
            "trained": trained,
            "times": {one.attempt: one for one in trained.attempts},
            "owner": job.view.user,
            "name": str(job.key),
            "incidents": lines[:ROWS],
            "checkpoints": saves_of(events)[:200],
            "stacks": next((one for one in reversed(events) if isinstance(one, e.StacksCaptured)), None),
            "around": newest[0] if newest else None,
            "can": _job_commands(job),
            "etag": gist_of(job),
        }

    async def _node(self, page: Page) -> Values:
        found = await self._controller.journal.nodes(node=page.name)
        if not found:
            raise NotFoundError(f"there is no node {page.name!r}")
        events = await self._events(node=page.name, kind=NODE_KINDS)
        return {
            "node": found[0],
            "incidents": self._board.fleet.incidents_of(node=page.name)[:ROWS],
            "history": list(reversed(events))[:DEED_ROWS],
            "kind_of": kind_of,
            "etag": gist_of(found[0]),
            "jobs": [self._board.fleet.jobs.get(job) or job for job in found[0].view.jobs],
        }

    async def _incident(self, page: Page) -> Values:
        journal = self._controller.journal
        found = await journal.incidents(incident=page.name)
        if not found:
            raise NotFoundError(f"there is no incident {page.name!r}")
        incident = found[0]
        given = await self._orders_in(lambda _: True, ORDER_ROWS, incident=page.name)
        return {
            "incident": incident,
            "orders": given[::-1],
            "kind_of": kind_of,
            "timeline": timeline(incident),
            "bars": phases.bars(timeline(incident)),
            "offsets": offsets(incident),
            "fingerprints": sorted(incident.fingerprints),
            "similar": similar(incident_line(incident), self._board.fleet.incidents.values()),
        }

    async def _events(self, **where: Any) -> list[e.AnyEvent]:
        """Of the newest `EVENTS_BACK` events those about one thing, oldest first."""
        after = max(0, self._controller.seq - EVENTS_BACK)
        return await self._controller.journal.events(after=after, limit=1000, **where)


NODE_KINDS = (
    "finding_seen", "finding_cleared", "node_gone", "node_silent", "node_heard", "node_validated", "agent_attached",
    "operator_command", "drill_fired",
)  # fmt: skip


def _newest(job: JobLine) -> float:
    return -job.since


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A key that sorts node2 before node10."""
    parts = re.findall(r"([0-9]+)|([^0-9]+)", name)
    return [(False, int(digits[:18]), digits) if digits else (True, 0, text) for digits, text in parts]


def _job_is(job: JobLine, state: str) -> bool:
    match state:
        case "":
            return True
        case "running":
            return job.is_running
        case "troubled":
            return job.is_troubled and not job.is_over
        case "over":
            return job.is_over
        case "waiting":
            return not job.is_running and not job.is_over
        case _:
            return job.state == state


def _words_of(job: JobLine) -> str:
    return f"{job.key} {job.name} {job.user} {job.partition} {job.state} {job.scheduler}".casefold()


def _deed_words(deed: Any) -> str:
    if isinstance(deed, e.OperatorCommand):
        target = f"{deed.node} {deed.job or ''} {deed.order} {deed.group}"
        return f"{deed.who} {deed.command} {target} {deed.why} {deed.value}".casefold()
    if isinstance(deed, e.DrillRun):
        return f"drill run {deed.who} {deed.phase} {' '.join(deed.drills)} {deed.why} {deed.detail}".casefold()
    return f"{kind_of(deed)} {deed.source}".casefold()


def sliced(found: Sequence[Any], page: Page) -> Slice:
    """The page of a list that is asked for."""
    first = (page.number - 1) * ROWS
    return Slice(found[first : first + ROWS], page.number, len(found) > first + ROWS, len(found))


def _job_commands(job: JobRecord) -> list[str]:
    """What a person may ask for, the gentlest first; the engine has the last word."""
    if job.state in {"completed", "given_up", "cancelled"}:
        return []
    held = ["release"] if job.held_by else ["hold"]
    return [*held, "evacuate", "requeue", "give_up"]
