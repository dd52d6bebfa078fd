"""What the pages show of the whole fleet, in memory: loaded once from the journal, then kept by each stored batch.

So a page costs no query over thousands of rows. `cockpit.py` makes it and has the controller tell it (`take`);
`live.py` learns from it which pages have changed. Records handed to `take` are the engine's own and live on: only
copies are kept. No time passes here but that of events.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct, structs

from holdfast.cockpit.lines import IncidentLine, JobLine, NodeLine, incident_line, job_line, node_line
from holdfast.errors import ConfigError
from holdfast.model import events as e
from holdfast.model.orders import Notify, OrderStatus, StartTimer
from holdfast.model.policy import Mode, PolicySet
from holdfast.model.policy_toml import parse_policy
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.ports import Entry, Journal

INCIDENTS_MAX = 20_000
"""Kept for lists and the search, newest first; older ones are found by their address."""
DEEDS_MAX = 5_000
REFUSALS_MAX = 1_000
DEEDS = ("operator_command", "policy_loaded", "controller_started", "drill_run")
"""Kinds of events that the audit page lists."""
WAITING = frozenset({OrderStatus.PROPOSED, OrderStatus.PENDING})

Deed = e.OperatorCommand | e.PolicyLoaded | e.ControllerStarted | e.DrillRun
OnChange = Callable[[frozenset[str], bool], None]
"""Called with the keys of the pages that changed, and whether a person should see it at once."""


class Refusal(Struct, frozen=True):
    """Why the engine did not do what a person asked."""

    title: str
    text: str


class Board:
    """See the module. `on_change` is set by the hub of live pages."""

    def __init__(self, presets: Mapping[str, str] | None = None) -> None:
        self._presets = presets or {}
        self.nodes: dict[str, NodeLine] = {}
        self.jobs: dict[str, JobLine] = {}
        self.incidents: OrderedDict[str, IncidentLine] = OrderedDict()
        """Oldest first."""
        self.waiting: dict[str, OrderRecord] = {}
        """Orders that are proposed or under way, without the engine's timers."""
        self.brakes: dict[str, BrakeRecord] = {}
        self.deeds: deque[Deed] = deque(maxlen=DEEDS_MAX)
        """Oldest first."""
        self.policy: e.PolicyLoaded | None = None
        self.modes: dict[str, dict[str, Mode]] = {}
        """What people said: group -> rung -> mode; the empty name means all."""
        self.refusals: OrderedDict[str, Refusal] = OrderedDict()
        """By id of the command."""
        self.changed_at: dict[str, int] = {}
        """Node -> number of the event that last changed how it looks."""
        self.layout = 0
        """Grows when a node is new, or in another rack."""
        self.seq = 0
        self.on_change: OnChange = lambda _pages, _notable: None
        self._by_job: dict[str, set[str]] = {}
        self._by_node: dict[str, set[str]] = {}
        self.policies = PolicySet()
        """As they were loaded last."""
        self._fresh: set[str] | None = set()
        """While loading: what the controller told meanwhile, which is newer than what is read."""

    # --- loading ---

    async def load(self, journal: Journal) -> None:
        """Read everything once. `take` may be called meanwhile."""
        jobs, nodes, brakes = await journal.jobs(), await journal.nodes(), await journal.brakes()
        incidents = await journal.incidents(limit=INCIDENTS_MAX)
        orders = [o for o in await journal.orders(limit=INCIDENTS_MAX) if o.status in WAITING]
        deeds = await self._old_deeds(journal)
        fresh, self._fresh = self._fresh or set(), None
        for job in jobs:
            if f"job:{job.key}" not in fresh:
                self.jobs[str(job.key)] = job_line(job)
        for node in nodes:
            if f"node:{node.name}" not in fresh:
                self._keep_node(node_line(node), 0)
        for brake in brakes:
            if f"brake:{brake.group}" not in fresh:
                self.brakes[brake.group] = brake
        for order in orders:
            if f"order:{order.order.id}" not in fresh and _is_for_people(order):
                self.waiting[order.order.id] = order
        later = list(self.incidents.values())
        self.incidents.clear()
        for line in [incident_line(one) for one in reversed(incidents) if f"incident:{one.id}" not in fresh] + later:
            self._keep_incident(line)
        newer = list(self.deeds)
        known = {deed.id for deed in newer}
        self.deeds.clear()
        for deed in [*(one for one in deeds if one.id not in known), *newer]:
            self._keep_deed(deed)

    async def _old_deeds(self, journal: Journal) -> list[Deed]:
        found: list[Deed] = []
        for kind in DEEDS:
            after = 0
            while page := await journal.events(after=after, limit=1000, kind=kind):
                found += [one for one in page if isinstance(one, Deed)]
                after = page[-1].seq
        return sorted(found, key=lambda one: one.seq)

    # --- keeping ---

    def take(self, entries: Sequence[Entry]) -> None:
        """Keep what a stored batch changed; called by the controller."""
        pages: set[str] = set()
        notable = False
        for entry in entries:
            self.seq = entry.event.seq
            touched = entry.touched
            for job in touched.jobs:
                notable |= self._take_job(job, pages)
            for node in touched.nodes:
                notable |= self._take_node(node, pages)
            for incident in touched.incidents:
                notable |= self._take_incident(incident, pages)
            for order in touched.orders:
                notable |= self._take_order(order, pages)
            for brake in touched.brakes:
                notable |= self._take_brake(brake, pages)
            if isinstance(entry.event, Deed):
                self._keep_deed(entry.event)
                pages |= {"audit", "settings", "overview"}
                notable = True
            for given in entry.orders:
                if isinstance(given, Notify) and given.topic.startswith("command:"):
                    self._keep_refusal(given)
        if pages:
            self.on_change(frozenset(pages), notable)

    def _mark_fresh(self, name: str) -> None:
        if self._fresh is not None:
            self._fresh.add(name)

    def _take_job(self, record: JobRecord, pages: set[str]) -> bool:
        line = job_line(record)
        before = self.jobs.get(line.key)
        self._mark_fresh(f"job:{line.key}")
        self.jobs[line.key] = line
        pages.add(f"job:{line.key}")
        if before == line:
            return False
        pages |= {"overview", "jobs"}
        return before is None or (before.state, before.scheduler) != (line.state, line.scheduler)

    def _take_node(self, record: NodeRecord, pages: set[str]) -> bool:
        line = node_line(record)
        before = self.nodes.get(line.name)
        self._mark_fresh(f"node:{line.name}")
        pages.add(f"node:{line.name}")
        if before == line:
            return False
        self._keep_node(line, self.seq)
        pages |= {"overview", "nodes"}
        return before is None or before.state is not line.state

    def _keep_node(self, line: NodeLine, seq: int) -> None:
        before = self.nodes.get(line.name)
        if before is None or before.rack != line.rack:
            self.layout += 1
        self.nodes[line.name] = line
        self.changed_at[line.name] = seq

    def _take_incident(self, record: IncidentRecord, pages: set[str]) -> bool:
        line = incident_line(record)
        before = self.incidents.get(line.id)
        self._mark_fresh(f"incident:{line.id}")
        self._keep_incident(line)
        pages |= {f"incident:{line.id}", "overview", "incidents"}
        pages.update(f"job:{key}" for key in line.jobs)
        pages.update(f"node:{name}" for name in line.nodes)
        return before is None or (before.outcome, before.cause) != (line.outcome, line.cause)

    def _keep_incident(self, line: IncidentLine) -> None:
        self.incidents[line.id] = line
        for key in line.jobs:
            self._by_job.setdefault(key, set()).add(line.id)
        for name in line.nodes:
            self._by_node.setdefault(name, set()).add(line.id)
        if len(self.incidents) > INCIDENTS_MAX:
            _, gone = self.incidents.popitem(last=False)
            for index, names in ((self._by_job, gone.jobs), (self._by_node, gone.nodes)):
                for name in names:
                    index.get(name, set()).discard(gone.id)

    def _take_order(self, record: OrderRecord, pages: set[str]) -> bool:
        order = record.order
        self._mark_fresh(f"order:{order.id}")
        if order.incident:
            pages.add(f"incident:{order.incident}")
        if not _is_for_people(record):
            return False
        pages |= {"overview", "orders"}
        if record.status in WAITING:
            self.waiting[order.id] = structs.replace(record)
        else:
            self.waiting.pop(order.id, None)
        return record.status is OrderStatus.PROPOSED

    def _take_brake(self, record: BrakeRecord, pages: set[str]) -> bool:
        before = self.brakes.get(record.group)
        self._mark_fresh(f"brake:{record.group}")
        kept = structs.replace(record, recent=list(record.recent), waiting=list(record.waiting))
        self.brakes[record.group] = kept
        pages.add("overview")
        return bool(before and before.tripped_at) != bool(kept.tripped_at)

    def _keep_deed(self, deed: Deed) -> None:
        self.deeds.append(deed)
        if isinstance(deed, e.PolicyLoaded):
            self.policy = deed
            try:
                self.policies = parse_policy(deed.toml, deed.file, self._presets)
            except ConfigError:
                # A policy of another version may say what this one does not know; what holds is the engine's business.
                self.policies = PolicySet()
        elif isinstance(deed, e.OperatorCommand) and deed.command is e.Command.SET_MODE:
            if deed.value not in set(Mode):
                return
            if deed.remedy:
                self.modes.setdefault(deed.group, {})[deed.remedy] = Mode(deed.value)
            else:
                self.modes[deed.group] = {"": Mode(deed.value)}

    def _keep_refusal(self, notice: Notify) -> None:
        self.refusals[notice.topic.removeprefix("command:")] = Refusal(notice.title, notice.text)
        if len(self.refusals) > REFUSALS_MAX:
            self.refusals.popitem(last=False)

    # --- asking ---

    @property
    def mode(self) -> Mode:
        """What holds for everything that nobody set apart: a person's word, else the policy's."""
        return self.modes.get("", {}).get("") or self.policies.site.mode

    def mode_exceptions(self) -> list[tuple[str, str, Mode]]:
        """(group, rung, mode) where it is not the site's mode."""
        own = [
            ("", rung.value, mode)
            for rung, mode in self.policies.site.modes.items()
            if not self.modes.get("", {}).get("")
        ]
        said = [(g, rung, mode) for g, rungs in self.modes.items() for rung, mode in rungs.items() if g or rung]
        return sorted({(g, r, m) for g, r, m in [*own, *said] if m is not self.mode})

    def open_incidents(self) -> list[IncidentLine]:
        """Newest first."""
        return [line for line in reversed(self.incidents.values()) if line.is_open]

    def incidents_of(self, *, job: str = "", node: str = "") -> list[IncidentLine]:
        """Of a job or a node, newest first."""
        ids = self._by_job.get(job, set()) if job else self._by_node.get(node, set())
        found = [self.incidents[one] for one in ids if one in self.incidents]
        return sorted(found, key=lambda line: -line.opened_at)

    def search(self, text: str, *, open_only: bool = False) -> Iterator[IncidentLine]:
        """Incidents in which every word occurs (fingerprint, cause, summary, job, node, outcome), newest first."""
        words = text.casefold().split()
        for line in reversed(self.incidents.values()):
            if open_only and not line.is_open:
                continue
            if all(word in haystack for haystack in [_haystack(line)] for word in words):
                yield line


def _haystack(line: IncidentLine) -> str:
    parts = [line.id, line.cause, line.summary, line.domain, line.outcome or "open", line.drill]
    return " ".join([*parts, *line.fingerprints, *line.jobs, *line.nodes, *line.remedies]).casefold()


def _is_for_people(record: OrderRecord) -> bool:
    return not isinstance(record.order, StartTimer | Notify)
