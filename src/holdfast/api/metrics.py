"""The controller's figures as Prometheus families: what `/metrics` gives, and the shipped rules and dashboards ask.

`Tally` counts what commits bring (a listener of the controller); gauges are read at each scrape from the controller and
from `Fleet`. Labels are bounded: states, domains, kinds, groups, partitions; single nodes are named only while they are
not healthy, single jobs only while they run under guard, both up to `NAMED_MAX`. docs/observability.md lists every
family; a test compares. Time passes only as the clock of the controller says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holdfast import __version__
from holdfast.api.limits import LimitGate
from holdfast.controller import Controller
from holdfast.controller.figures import Histogram
from holdfast.controller.fleet import Fleet, NodeLine
from holdfast.model import events as e
from holdfast.model.cluster import SchedulerState
from holdfast.model.records import IncidentRecord, Mark, NodeState
from holdfast.ports import Entry

NAMED_MAX = 500
"""Nodes, and jobs, that are named one by one."""
DRILL = "true"
"""Value of the label `drill` on what a drill did on purpose."""
PHASE_BOUNDS_S = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)
PHASES: tuple[tuple[str, Mark, Mark], ...] = (
    ("detect", Mark.FAULT, Mark.DETECTED),
    ("diagnose", Mark.DETECTED, Mark.DIAGNOSED),
    ("isolate", Mark.DETECTED, Mark.ISOLATED),
    ("requeue", Mark.DETECTED, Mark.REQUEUED),
    ("start", Mark.REQUEUED, Mark.STARTED),
    ("first_step", Mark.STARTED, Mark.FIRST_STEP),
    ("recover", Mark.FAULT, Mark.FIRST_STEP),
    ("prove", Mark.FAULT, Mark.PROVEN),
    ("node_back", Mark.DETECTED, Mark.NODE_RETURNED),
)
"""Phases of an incident: name, from which mark to which. `recover` is the MTTR of docs/definitions.md."""


def _put(family: HistogramMetricFamily, labels: Sequence[str], told: Histogram) -> None:
    family.add_metric(
        labels, list(zip([*map(str, told.bounds), "+Inf"], accumulate(told.counts), strict=True)), told.sum_s
    )


def _gauge(name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _counter(name: str, text: str, labels: Sequence[str], counts: Mapping[Any, int]) -> Metric:
    """A counter of what was counted by one label, or by a tuple of them."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in sorted(counts.items()):
        family.add_metric([values] if isinstance(values, str) else values, number)
    return family


class Tally:
    """What commits brought since this controller started. `take` is a listener of the controller."""

    def __init__(self) -> None:
        self.findings: Counter[tuple[str, str]] = Counter()
        self.drills: Counter[str] = Counter()
        self.commands: Counter[str] = Counter()
        self.opened = 0
        self.closed: Counter[tuple[str, str]] = Counter()
        self.lost_steps = 0
        self.phases = {name: Histogram(PHASE_BOUNDS_S) for name, _, _ in PHASES}
        self._open: set[str] = set()

    def take(self, entries: Sequence[Entry]) -> None:
        """Count one commit."""
        for entry in entries:
            event = entry.event
            if isinstance(event, e.FindingSeen):
                self.findings[event.finding.domain.value, event.finding.severity.value] += 1
            elif isinstance(event, e.DrillFired):
                self.drills[event.kind] += 1
            elif isinstance(event, e.OperatorCommand):
                self.commands[event.command.value] += 1
            for incident in entry.touched.incidents:
                self._incident(incident)

    def known(self, open_incidents: Iterable[str]) -> None:
        """Incidents that were open before this controller started: they are not opened again."""
        self._open.update(open_incidents)

    def _incident(self, incident: IncidentRecord) -> None:
        if not incident.closed_at:
            if incident.id not in self._open:
                self._open.add(incident.id)
                self.opened += 1
            return
        if incident.id not in self._open:
            return
        self._open.discard(incident.id)
        domain = incident.diagnosis.domain.value if incident.diagnosis is not None else "unknown"
        self.closed[domain, incident.outcome or "unknown"] += 1
        self.lost_steps += incident.lost_steps or 0
        for name, begin, end in PHASES:
            if begin in incident.marks and end in incident.marks:
                self.phases[name].add(max(0.0, incident.marks[end] - incident.marks[begin]))


class ControllerCollector(Collector):
    """Reads the controller's figures at each scrape.

    Args:
        controller: whose.
        fleet: the cluster as it knows it.
        tally: what its commits brought.
        limits: of the API.
        names_jobs: single jobs are named.
        is_newest: nobody else may know more; else the families of jobs, nodes and incidents are left out.
    """

    def __init__(
        self,
        controller: Controller,
        fleet: Fleet,
        tally: Tally,
        limits: LimitGate,
        *,
        names_jobs: bool = True,
        is_newest: bool = True,
    ) -> None:
        self._names_jobs = names_jobs
        self._is_newest = is_newest
        self._controller = controller
        self._fleet = fleet
        self._tally = tally
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield InfoMetricFamily("holdfast_build", "Version of Holdfast.", value={"version": __version__})
        yield from self._self()
        if self._is_newest:
            yield from self._cluster()
            yield from self._nodes()
            if self._names_jobs:
                yield from self._jobs()
            yield from self._queue()
            yield from self._incidents()
        yield from self._counters()

    def _self(self) -> Iterator[Metric]:
        health = self._controller.health()
        for name, text, value in (
            ("holdfast_ready", "1 once the journal is replayed.", health.ready),
            (
                "holdfast_journal_failing",
                "1 while the journal cannot be written, or cannot tell whether this controller still leads.",
                bool(health.failing) or not self._is_newest,
            ),
            ("holdfast_watch_blind", "1 while the orchestrator cannot be read.", health.blind),
            ("holdfast_watch_last_look_seconds", "Unix time of the last look at the orchestrator.", health.looked_at),
            ("holdfast_journal_seq", "Sequence number of the newest event.", health.seq),
            ("holdfast_lease_epoch", "Fencing epoch of the lease.", health.epoch),
            ("holdfast_queue_events", "Events that wait to be stored.", health.queue),
            ("holdfast_orders_waiting", "Orders that wait or run.", health.orders),
            ("holdfast_api_streams", "Event streams that are open.", self._limits.open_streams),
        ):
            yield GaugeMetricFamily(name, text, value=float(value))
        text = "1 for each kind of job that cannot be read while others can."
        yield _gauge("holdfast_watch_unseen", text, ["kind"], (([kind], 1.0) for kind in health.unseen))

    def _cluster(self) -> Iterator[Metric]:
        fleet = self._fleet
        text = "Orders that wait for a person."
        yield GaugeMetricFamily("holdfast_orders_proposed", text, value=float(len(fleet.proposed)))
        jobs = sorted(Counter(line.state.value for line in fleet.jobs.values()).items())
        yield _gauge(
            "holdfast_jobs", "Jobs by state of their recovery.", ["state"], (([state], count) for state, count in jobs)
        )
        nodes = Counter((line.group, line.state.value, self._drill(line)) for line in fleet.nodes.values())
        yield _gauge("holdfast_nodes", "Nodes by group and state.", ["group", "state", "drill"], sorted(nodes.items()))
        brakes = sorted(fleet.brakes.items())
        tripped = (([group], float(bool(brake.tripped_at))) for group, brake in brakes)
        yield _gauge("holdfast_brake_tripped", "1 while the quarantine brake holds.", ["group"], tripped)
        held = (([group], len(brake.waiting)) for group, brake in brakes)
        yield _gauge("holdfast_brake_waiting_nodes", "Nodes that the brake holds back.", ["group"], held)

    def _nodes(self) -> Iterator[Metric]:
        sick = [line for line in self._fleet.nodes.values() if line.state is not NodeState.HEALTHY]
        named = sorted(sick, key=lambda one: one.name)[:NAMED_MAX]
        yield _gauge(
            "holdfast_node_unhealthy",
            'For each node that is not healthy, by its state; `drill="true"`: a drill made it so.',
            ["node", "group", "state", "drill"],
            (([line.name, line.group, line.state.value, self._drill(line)], 1.0) for line in named),
        )
        silent = sum(line.silent for line in self._fleet.nodes.values())
        yield GaugeMetricFamily("holdfast_nodes_silent", "Nodes not heard of.", silent)

    def _drill(self, line: NodeLine) -> str:
        """`true` for a node that is not healthy because of a drill; an empty label is none at all."""
        incident = self._fleet.incidents.get(line.incident) if line.state is not NodeState.HEALTHY else None
        return DRILL if incident is not None and incident.drill else ""

    def _jobs(self) -> Iterator[Metric]:
        guarded = [
            line
            for line in self._fleet.jobs.values()
            if line.guarded and line.scheduler is SchedulerState.RUNNING and line.number is not None
        ]
        running = sorted(guarded, key=lambda one: one.key)[:NAMED_MAX]
        saved = (
            "Unix time of a running guarded job's newest durable checkpoint; before the first, of its attempt's start."
        )
        for name, text, numbers in (
            ("step", "Newest step known of a guarded job.", [one.best_step for one in running]),
            ("last_checkpoint_timestamp_seconds", saved, [one.durable_at or one.started_at for one in running]),
            ("attempt", "Number of its newest attempt.", [one.number or 0 for one in running]),
        ):
            rows = (([one.key], float(number)) for one, number in zip(running, numbers, strict=True))
            yield _gauge(f"holdfast_job_{name}", text, ["job"], rows)

    def _queue(self) -> Iterator[Metric]:
        oldest: dict[str, float] = {}
        pending: Counter[str] = Counter()
        for line in self._fleet.jobs.values():
            if line.scheduler in {SchedulerState.PENDING, SchedulerState.HELD} and line.submitted_at:
                pending[line.partition] += 1
                oldest[line.partition] = min(oldest.get(line.partition, line.submitted_at), line.submitted_at)
        since = "Unix time since which the oldest of them waits."
        waiting = (([one], float(pending[one])) for one in sorted(pending))
        yield _gauge("holdfast_jobs_pending", "Jobs that wait in the queue.", ["partition"], waiting)
        longest = (([one], oldest[one]) for one in sorted(oldest))
        yield _gauge("holdfast_jobs_pending_oldest_timestamp_seconds", since, ["partition"], longest)

    def _incidents(self) -> Iterator[Metric]:
        tally = self._tally
        now_open = [line for line in self._fleet.incidents.values() if line.is_open]
        domains = sorted(Counter(line.domain.value for line in now_open).items())
        rows = (([domain], count) for domain, count in domains)
        yield _gauge("holdfast_incidents_open", "Open incidents by domain.", ["domain"], rows)
        drills = [line.opened_at for line in now_open if line.drill]
        oldest = [([""], min((line.opened_at for line in now_open if not line.drill), default=0.0))]
        yield _gauge(
            "holdfast_incident_oldest_open_timestamp_seconds",
            'Unix time at which the oldest open incident was opened, drills\' (`drill="true"`) apart; 0: none is open.',
            ["drill"],
            [*oldest, *([([DRILL], min(drills))] if drills else [])],
        )
        yield CounterMetricFamily("holdfast_incidents_opened", "Incidents opened.", value=tally.opened)
        text = "Incidents closed, by domain and outcome."
        yield _counter("holdfast_incidents_closed", text, ["domain", "outcome"], tally.closed)
        yield CounterMetricFamily("holdfast_lost_steps", "Steps that had to be done again.", value=tally.lost_steps)
        phases = HistogramMetricFamily(
            "holdfast_recovery_phase_seconds", "Phases of closed incidents.", labels=["phase"]
        )
        for name, histogram in tally.phases.items():
            _put(phases, [name], histogram)
        yield phases

    def _counters(self) -> Iterator[Metric]:
        figures, tally = self._controller.figures, self._tally
        theirs = "Events and beats that were not their reporter's to say."
        yield _counter("holdfast_events", "Events stored, by kind.", ["kind"], figures.events)
        yield _counter("holdfast_orders", "Orders given, by kind.", ["kind"], figures.orders)
        yield _counter("holdfast_order_outcomes", "Outcomes of orders.", ["outcome"], figures.outcomes)
        yield _counter("holdfast_reports_refused", theirs, ["reporter"], figures.not_theirs)
        yield _counter("holdfast_drills_fired", "Faults that drills injected, by kind.", ["kind"], tally.drills)
        yield _counter("holdfast_commands", "What people asked for, by command.", ["command"], tally.commands)
        yield _counter("holdfast_findings", "Findings stored.", ["domain", "severity"], tally.findings)
        yield CounterMetricFamily("holdfast_duplicates", "Events that were stored already.", value=figures.duplicates)
        yield CounterMetricFamily("holdfast_refused", "Events that the engine refused.", value=figures.refused)
        yield CounterMetricFamily("holdfast_beats", "Beats heard.", value=self._controller.presence.beats)
        yield CounterMetricFamily(
            "holdfast_api_refused", "Requests told to come back later.", value=self._limits.refused
        )
        appends = HistogramMetricFamily("holdfast_journal_append_seconds", "Time of one transaction.")
        _put(appends, [], figures.appends)
        yield appends
