"""What people did, which policy and modes hold, and which pages a commit changes: beside the fleet, in memory.

So a page costs no query over thousands of rows. `cockpit.py` makes it and has the fleet tell it (`take`); `live.py`
learns from it which pages have changed. No time passes here but that of events.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence

from holdfast.controller.fleet import Changed, Fleet, is_for_people
from holdfast.errors import ConfigError
from holdfast.model import events as e
from holdfast.model.orders import Notify, OrderStatus
from holdfast.model.policy import Mode, PolicySet
from holdfast.model.policy_toml import parse_policy
from holdfast.ports import Entry, Journal
from holdfast.report.gather import events_of

DEEDS_MAX = 5_000
REFUSALS_MAX = 1_000
DEEDS = ("operator_command", "policy_loaded", "controller_started", "drill_run")
"""Kinds of events that the audit page lists."""

Deed = e.OperatorCommand | e.PolicyLoaded | e.ControllerStarted | e.DrillRun
OnChange = Callable[[frozenset[str], bool], None]
"""Called with the keys of the pages that changed, and whether a person should see it at once."""


class Board:
    """See the module. `on_change` is set by the hub of live pages."""

    def __init__(self, fleet: Fleet, presets: Mapping[str, str] | None = None) -> None:
        self.fleet = fleet
        self._presets = presets or {}
        self.deeds: deque[Deed] = deque(maxlen=DEEDS_MAX)
        """Oldest first."""
        self.policy: e.PolicyLoaded | None = None
        self.modes: dict[str, dict[str, Mode]] = {}
        """What people said: group -> rung -> mode; the empty name means all."""
        self.refusals: OrderedDict[str, Notify] = OrderedDict()
        """Why the engine did not do what a person asked, by id of the command."""
        self.changed_at: dict[str, int] = {}
        """Node -> number of the event that last changed how it looks."""
        self.layout = 0
        """Grows when a node is new, or in another rack."""
        self.on_change: OnChange = lambda _pages, _notable: None
        self.policies = PolicySet()
        """As they were loaded last."""

    # --- loading ---

    async def load(self, journal: Journal) -> None:
        """Read what people did, once. `take` may be called meanwhile."""
        found = [one for kind in DEEDS for one in await events_of(journal, kind=kind) if isinstance(one, Deed)]
        newer = list(self.deeds)
        known = {deed.id for deed in newer}
        self.deeds.clear()
        for deed in [*sorted((one for one in found if one.id not in known), key=lambda one: one.seq), *newer]:
            self._keep_deed(deed)

    # --- keeping ---

    def take(self, entries: Sequence[Entry], changed: Changed) -> None:
        """Keep what a stored batch changed; called by the fleet."""
        pages: set[str] = set()
        notable = False
        for before, job in changed.jobs:
            pages |= {f"job:{job.key}"} | ({"overview", "jobs"} if before != job else set())
            notable |= before is None or (before.state, before.scheduler) != (job.state, job.scheduler)
        for was, node in changed.nodes:
            pages |= {f"node:{node.name}"} | ({"overview", "nodes"} if was != node else set())
            notable |= was is None or was.state is not node.state
            if was != node:
                self.changed_at[node.name] = changed.seq
            if was is None or was.rack != node.rack:
                self.layout += 1
        for known, incident in changed.incidents:
            pages |= {f"incident:{incident.id}", "overview", "incidents"}
            pages.update(f"job:{key}" for key in incident.jobs)
            pages.update(f"node:{name}" for name in incident.nodes)
            notable |= known is None or (known.outcome, known.cause) != (incident.outcome, incident.cause)
        notable |= self._take_orders(changed, pages)
        for entry in entries:
            if isinstance(entry.event, Deed):
                self._keep_deed(entry.event)
                pages |= {"audit", "settings", "overview"}
                notable = True
            for given in entry.orders:
                if isinstance(given, Notify) and given.topic.startswith("command:"):
                    self._keep_refusal(given)
        if pages:
            self.on_change(frozenset(pages), notable)

    def _take_orders(self, changed: Changed, pages: set[str]) -> bool:
        notable = False
        for order in changed.orders:
            pages |= {f"incident:{order.order.incident}"} if order.order.incident else set()
            if is_for_people(order):
                pages |= {"overview", "orders"}
                notable |= order.status is OrderStatus.PROPOSED
        for old, brake in changed.brakes:
            pages.add("overview")
            notable |= bool(old and old.tripped_at) != bool(brake.tripped_at)
        return notable

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
        self.refusals[notice.topic.removeprefix("command:")] = notice
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
