"""Collects what a report needs from a journal (also one whose controller is dead) into one plain value.

Called by `cli/report`, the demo and drills. All reading happens here; everything behind `ReportData` is pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cached_property
from math import inf
from typing import Any, Protocol

from msgspec import Struct, field, structs

from holdfast.decide.records.job import ATTEMPTS_MAX
from holdfast.model.cluster import JobKey
from holdfast.model.events import AnyEvent, LauncherAttached, NodeValidated, OperatorCommand, PolicyLoaded
from holdfast.model.orders import Notify
from holdfast.model.policy import PolicySet, Slo
from holdfast.model.policy_toml import parse_policy
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.ports import Sample
from holdfast.report import attempts
from holdfast.report.alerts import Alerts
from holdfast.report.figures import (
    Accounting,
    Totals,
    accounts_of,
    came_in,
    ends,
    nodes_by_attempt,
    opened_in,
    tells_steps,
    totals,
)
from holdfast.report.fleet import Economics, Fleet, Span, Stay, fleet
from holdfast.report.interval import IntervalAdvice, advise
from holdfast.report.objectives import Verdict, judge
from holdfast.report.proposals import Facts, Proposal, proposals
from holdfast.report.series import Convergence, JobSeries, Point, Throughput, convergence, throughput
from holdfast.report.training_time import TrainingTime, proof_of, training_time
from holdfast.report.words import ENGLISH, Words
from holdfast.validate.history import FIGURE

DETAILS = ("launcher_attached", "node_validated", "drill_fired")
"""Kinds of events that tell phases, machines and drills."""
SERIES_MAX = 2000
"""With more attempts than this only a report of kind `full` reads the series."""
OF_ONE = "counted is this incident alone, in MTBF, too; lost steps, ETTR and goodput are those of its jobs."
"""Of a report about one incident."""
INCIDENTS_MAX = 200_000
MEASURED_MAX = 500
"""When the figures of more nodes are wanted, one question for all is the quicker one."""


class Records(Protocol):
    """What `gather` reads: part of `ports.Journal`, so a journal fits, and so does a live controller's API."""

    async def jobs(self, *, job: str = "") -> list[JobRecord]:
        """As in `ports.Journal`."""

    async def nodes(self, *, node: str = "") -> list[NodeRecord]:
        """As in `ports.Journal`."""

    async def incidents(
        self, *, incident: str = "", job: str = "", node: str = "", open_only: bool = False, limit: int = 1000
    ) -> list[IncidentRecord]:
        """As in `ports.Journal`."""

    async def orders(
        self, *, incident: str = "", job: str = "", node: str = "", pending_only: bool = False, limit: int = 1000
    ) -> list[OrderRecord]:
        """As in `ports.Journal`."""

    async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
        """As in `ports.Journal`."""

    async def events(self, *, after: int = 0, limit: int = 1000, **where: Any) -> list[AnyEvent]:
        """As in `ports.Journal`."""


class ReportData(Struct, dict=True):
    """Everything that any form of report shows."""

    title: str
    cluster: str
    made_at: float
    jobs: list[JobRecord] = field(default_factory=list)
    nodes: list[NodeRecord] = field(default_factory=list)
    incidents: list[IncidentRecord] = field(default_factory=list)
    """That lived in the span, oldest first. What is counted are `counted`."""
    series: dict[str, JobSeries] = field(default_factory=dict)
    """Per job name (`1778`)."""
    reference_losses: list[Point] = field(default_factory=list)
    """Loss over step of an undisturbed run with the same seed, when there was one."""
    notes: list[str] = field(default_factory=list)
    """Facts that a reader must know: what was emulated, what could not be read."""
    since: float = 0.0
    """Begin of the span, Unix seconds; 0: all that is known."""
    commands: list[OperatorCommand] = field(default_factory=list)
    """What people ordered, oldest first."""
    events: list[AnyEvent] = field(default_factory=list)
    """Of the kinds in `DETAILS`, oldest first; empty for a fleet."""
    notices: list[OrderRecord] = field(default_factory=list)
    """Orders that told people of something; empty for a fleet."""
    measured: dict[str, list[Sample]] = field(default_factory=dict)
    """Per node of an incident: what `holdfast validate` measured, oldest first; empty for a fleet."""
    alerts: Alerts | None = None
    """What Prometheus said of the span, when it was asked."""
    has_series: bool = False
    """Steps, losses and the like were read."""
    slo: Slo = Slo()
    policies: PolicySet = PolicySet()
    """Their `proof` says when a restart succeeded."""
    economics: Economics = Economics()
    words: Words = ENGLISH
    """Language and time zone."""
    former: ReportData | None = None
    """The span of the same length before, when it was asked for."""
    history: list[IncidentRecord] = field(default_factory=list)
    """Incidents of these jobs at any time: what ended an attempt tells where its time went. Empty: `incidents`."""
    incident: str = ""
    """The one incident that the report is about, when one was asked for: its tables stand in every form."""
    begins_at: float = 0.0
    """When the oldest event of the journal was received, Unix seconds; 0: it has none, or was not asked."""
    read_at: float = 0.0
    """When the records were read, for a span that ended (at `made_at`) before; 0: at `made_at`, and it has no end."""

    @property
    def now(self) -> float:
        """Until when a running attempt lasts, Unix seconds."""
        return self.read_at or self.made_at

    @property
    def until(self) -> float:
        """End of the span, Unix seconds; infinite when it lasts to now."""
        return self.made_at if self.read_at else inf

    @cached_property
    def counted(self) -> list[IncidentRecord]:
        """The incidents that opened in the span, oldest first: one that lives in two spans counts in the first only."""
        return opened_in(self.incidents, self.since, self.until)

    @cached_property
    def job_of(self) -> dict[JobKey, JobRecord]:
        """Each job by its key."""
        return {job.key: job for job in self.jobs}

    @cached_property
    def attached(self) -> dict[JobKey, list[LauncherAttached]]:
        """Launchers' first words by job, oldest first."""
        found: dict[JobKey, list[LauncherAttached]] = {}
        for event in self.events:
            if isinstance(event, LauncherAttached):
                found.setdefault(event.job, []).append(event)
        return found

    @cached_property
    def validated(self) -> dict[str, list[NodeValidated]]:
        """What validation said by node, oldest first."""
        found: dict[str, list[NodeValidated]] = {}
        for event in self.events:
            if isinstance(event, NodeValidated):
                found.setdefault(event.node, []).append(event)
        return found

    @cached_property
    def totals(self) -> Totals:
        """All figures; see `definitions`."""
        return totals(self.jobs, self.counted, self.now, self.accounts)

    @cached_property
    def accounts(self) -> list[Accounting]:
        """Where each job's wall time in the span went, in the order of `jobs`."""
        history = self.history or self.incidents
        return accounts_of(self.jobs, history, self.now, since=self.since, until=self.until)

    @cached_property
    def training_times(self) -> list[TrainingTime]:
        """Training and downtime of each job in the span, in the order of `jobs`."""
        return [
            training_time(job, self.now, proof_of(job, self.policies), since=self.since, until=self.until)
            for job in self.jobs
        ]

    @cached_property
    def gpus(self) -> dict[str, int]:
        """GPUs of each node by its name; 0: not known."""
        return {node.name: node.view.gpus for node in self.nodes}

    def series_of(self, incident: IncidentRecord) -> JobSeries | None:
        """Of the first job that it concerned; None when it was not read."""
        return self.series.get(str(incident.jobs[0])) if incident.jobs else None

    @cached_property
    def throughputs(self) -> list[Throughput]:
        """Training speed before and after each incident that ended an attempt."""
        known = [(incident, self.series_of(incident)) for incident in self.counted if self.series]
        return [throughput(one, of) for one, of in known if of is not None and one.attempt_before is not None]

    @cached_property
    def convergences(self) -> list[Convergence]:
        """Loss and accuracy before and after each incident that ended an attempt, as far as both sides told them."""
        return [found for incident in self.counted if self.series for found in self.converged(incident)]

    def converged(self, incident: IncidentRecord) -> list[Convergence]:
        """The same of one incident."""
        series = self.series_of(incident)
        return convergence(incident, series) if series is not None else []

    def lived(self, job: JobRecord) -> list[AttemptRecord]:
        """The attempts of a job that ran in the span."""
        stops = ends(job.attempts, self.now)
        return [
            a for a, end in zip(job.attempts, stops, strict=True) if a.started_at < self.until and end >= self.since
        ]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Objectives of the policy, judged by all incidents, as `totals` count them."""
        return self._judged(self.history or self.incidents)

    @cached_property
    def fleet_verdicts(self) -> list[Verdict]:
        """The same without drills, as `fleet` counts failures."""
        return self._judged([incident for incident in self.history or self.incidents if not incident.drill])

    def verdicts_of(self, kind: str) -> list[Verdict]:
        """Those that belong to the figures of a kind of report."""
        return self.fleet_verdicts if kind == "fleet" else self.verdicts

    def _judged(self, incidents: list[IncidentRecord]) -> list[Verdict]:
        known = {incident.id for incident in incidents} if self.throughputs else set()
        return judge(
            self.slo,
            incidents=incidents,
            accounts=self.accounts,
            throughputs=[one for one in self.throughputs if one.incident in known],
            since=self.since,
            until=self.until,
        )

    @cached_property
    def stays(self) -> list[Stay]:
        """When each node was observed, in the order of `nodes`."""
        # Retention drops events and keeps incidents: the older of the two tells since when there is a history.
        known = [incident.opened_at for incident in self.history or self.incidents]
        known += [self.begins_at] if self.begins_at else []
        known_since = min(known, default=self.made_at)
        return [(node.first_seen_at or known_since, node.left_at or inf) for node in self.nodes]

    @cached_property
    def fleet(self) -> Fleet:
        """The span's figures over all nodes and jobs."""
        begin = self.since or min(
            [a.started_at for job in self.jobs for a in job.attempts if a.started_at]
            + [incident.opened_at for incident in self.incidents]
            + [seen_at for seen_at, _ in self.stays],
            default=self.made_at,
        )
        return fleet(
            Span(
                jobs=self.jobs,
                accounts=self.accounts,
                nodes=self.nodes,
                stays=self.stays,
                incidents=self.counted,
                commands=self.commands,
                since=begin,
                until=self.made_at,
                economics=self.economics,
                words=self.words,
            )
        )

    @cached_property
    def proposals(self) -> list[Proposal]:
        """What should be changed, by the rules of `proposals`."""
        return proposals(Facts(self.counted, self.intervals, self.job_of), self.fleet)

    @cached_property
    def intervals(self) -> list[IntervalAdvice]:
        """Per job that saved or failed: how often it saves, and how often it should; see `interval`."""
        found = []
        for job, account in zip(self.jobs, self.accounts, strict=True):
            series = self.series.get(str(job.key))
            if series is not None:
                durable = [point.x for point in series.checkpoints if point.x < self.until]
                saves_s = [point.y for point in series.saves if point.x < self.until]
                found.append(advise(job, self.counted, durable=durable, saves_s=saves_s, up_s=account.up_s))
        return [advice for advice in found if advice.actual_s is not None or advice.save_s is not None]


async def gather(
    journal: Records,
    *,
    title: str,
    cluster: str,
    now: float,
    job: str = "",
    incident: str = "",
    since: float = 0.0,
    until: float = 0.0,
    with_series: bool = True,
    with_details: bool = True,
    on_job: Callable[[int, int], None] | None = None,
) -> ReportData:
    """Read records and series. `job` and `incident` narrow the report, `since` and `until` its span (Unix seconds).

    `with_series=False` leaves out what only plots, intervals and throughput need, `with_details=False` what only single
    incidents and the coverage need; `on_job(done, of)` is called as each
    job's series have been read: what takes long in a large journal.
    """
    jobs = [record for record in await journal.jobs() if job in ("", str(record.key)) and _lives(record, since, until)]
    notes = []
    for place, record in enumerate(jobs):
        if attempts.lacks_some(record):
            jobs[place], note = await _complete(journal, record)
            notes += [note] if note else []
    found = await journal.incidents(limit=INCIDENTS_MAX)
    history = [
        record
        for record in sorted(found, key=lambda record: record.opened_at)
        if incident in ("", record.id) and (not job or any(str(key) == job for key in record.jobs))
    ]
    incidents = [
        record for record in history if (record.closed_at or now) >= since and (not until or record.opened_at < until)
    ]
    if incident:
        concerned = {key for record in incidents for key in record.jobs}
        jobs = [record for record in jobs if record.key in concerned]
    data = ReportData(title, cluster, until or now, jobs, await journal.nodes(), incidents, since=since)
    data.history, data.read_at, data.incident = history, now if until else 0.0, incident
    data.notes += [*([OF_ONE] if incident else []), *notes, *_silent(jobs)]
    if len(found) >= INCIDENTS_MAX:
        data.notes.append(f"Only the newest {INCIDENTS_MAX} incidents of the journal were read.")
    first = await journal.events(limit=1)
    data.begins_at = first[0].received_at if first else 0.0
    # Also those after the span: a person's help for an incident of the span may have come later.
    commands = [one for one in await events_of(journal, kind="operator_command") if since <= one.at <= now]
    data.commands = [one for one in commands if isinstance(one, OperatorCommand)]
    data.has_series = with_series or (with_details and sum(len(j.attempts) for j in jobs) <= SERIES_MAX)
    if with_details:
        for kind in DETAILS:
            data.events += [one for one in await events_of(journal, kind=kind) if since <= one.at <= (until or now)]
        told = await journal.orders(incident=incident, limit=10_000)
        data.notices = [record for record in told if isinstance(record.order, Notify)]
        data.measured = await _measured(journal, jobs, incidents)
    for done, record in enumerate(jobs, 1):
        if data.has_series:
            data.series[str(record.key)] = await read_series(journal, record, since)
        if on_job is not None:
            on_job(done, len(jobs))
    return data


async def policies_in(records: Records, presets: Mapping[str, str]) -> PolicySet:
    """The newest policies that a controller told the journal of, else the defaults.

    Raises:
        ConfigError: they name a preset that is not among `presets`.
    """
    newest = (await events_of(records, kind="policy_loaded"))[-1:]
    found = [parse_policy(one.toml, one.file, presets) for one in newest if isinstance(one, PolicyLoaded)]
    return found[0] if found else PolicySet()


async def _complete(journal: Records, record: JobRecord) -> tuple[JobRecord, str]:
    """The job with the attempts before those of its record, and a sentence about those that nothing tells of."""
    told = [one for kind in attempts.KINDS for one in await events_of(journal, kind=kind, job=str(record.key))]
    whole = structs.replace(record, attempts=[*attempts.earlier(record, told), *record.attempts])
    first = whole.attempts[0].number
    if first == 0 or len(record.attempts) < ATTEMPTS_MAX:
        return whole, ""  # a job with fewer of them was there before this journal
    return whole, (
        f"Job {record.key}: nothing in this journal tells of its attempts before {record.key}({first}); their time,"
        " steps and failures are not counted."
    )


def _silent(jobs: list[JobRecord]) -> list[str]:
    """A sentence about the jobs of which nothing tells when they trained."""
    names = [str(record.key) for record in jobs if record.attempts and not tells_steps(record)]
    if not names:
        return []
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    text = f"Nothing tells of the steps of these jobs: {shown}. No ETTR or goodput counts them, and what they lost is"
    return [f"{text} the time from each fault to the next start alone."]


async def _measured(
    journal: Records, jobs: list[JobRecord], incidents: list[IncidentRecord]
) -> dict[str, list[Sample]]:
    """Figures of the incidents' nodes, and of those that took their place."""
    held = {job.key: nodes_by_attempt(job) for job in jobs}
    wanted = {
        node
        for record in incidents
        for node in (*record.nodes, *came_in(record, (held[key] for key in record.jobs if key in held)))
    }
    if len(wanted) > MEASURED_MAX:
        found = await journal.samples(FIGURE, "node:*")
    else:
        found = [one for node in sorted(wanted) for one in await journal.samples(FIGURE, f"node:{node}/*")]
    measured: dict[str, list[Sample]] = {}
    for sample in found:
        node = sample.subject.removeprefix("node:").partition("/")[0]
        if node in wanted:
            measured.setdefault(node, []).append(sample)
    return measured


async def events_of(journal: Records, **where: str) -> list[AnyEvent]:
    """Every such event, oldest first; `where`: as in `ports.Journal.events`."""
    found: list[AnyEvent] = []
    after = 0
    while page := await journal.events(after=after, limit=1000, **where):
        found += page
        after = page[-1].seq
    return found


def _lives(record: JobRecord, since: float, until: float) -> bool:
    """Did the job do anything from `since` to `until` (0: now)?"""
    if not record.attempts:
        return record.since >= since and (not until or record.since < until)
    if until and record.attempts[0].started_at >= until:
        return False
    return any((attempt.ended_at or attempt.started_at) >= since or not attempt.ended_at for attempt in record.attempts)


async def read_series(journal: Records, record: JobRecord, since: float = 0.0) -> JobSeries:
    """What was sampled of a job's attempts from `since` on, Unix seconds."""
    series = JobSeries()

    async def points(name: str, attempt: int, *, of_ranks: bool = True) -> list[Point]:
        subject = f"job:{record.key}({attempt})"
        found = await journal.samples(name, f"{subject}*" if of_ranks else subject, after=since)
        return [Point(s.at, s.value) for s in (one_rank(found) if of_ranks else found)]

    for attempt in record.attempts:
        number = attempt.number
        steps = await points("step", number)
        series.losses[number] = _over_step(steps, await points("loss", number))
        if told_at := await points("accuracy", number):
            series.accuracies[number] = _over_step(steps, told_at)
        for name, kept in (("samples", series.samples), ("tokens", series.tokens)):
            if counted := await points(name, number, of_ranks=False):
                kept[number] = counted
        if attempt.first_step is not None and attempt.first_step_at:
            steps.append(Point(attempt.first_step_at, attempt.first_step))
        known = max((point.y for point in steps), default=None)
        if attempt.reached is not None and attempt.ended_at and known is not None and known < attempt.reached:
            steps.append(Point(attempt.ended_at, attempt.reached))
        series.steps[number] = _in_order(steps)
        saved = await points("checkpoint", number, of_ranks=False)
        if not saved and attempt.durable_step is not None and attempt.durable_at:
            saved = [Point(attempt.durable_at, attempt.durable_step)]
        series.checkpoints.extend(saved)
        series.saves.extend(await points("save_s", number))
    series.checkpoints = _in_order(series.checkpoints)
    return series


def _in_order(points: list[Point]) -> list[Point]:
    return sorted(set(points), key=lambda point: point.x)


def one_rank(samples: list[Sample]) -> list[Sample]:
    """Of samples of several ranks those of the first one, in order of time: all ranks go through the same steps.

    A subject without a rank (a job whose progress is read from its log) comes before any rank.
    """
    if not samples:
        return []
    chosen = min({sample.subject for sample in samples}, key=lambda name: (len(name), name))
    return [sample for sample in samples if sample.subject == chosen]


def _over_step(steps: list[Point], told: list[Point]) -> list[Point]:
    """Loss or accuracy over time as one over step.

    Both are mostly sampled at the same moments. An accuracy is rarer, and the store thins what is old, so that the step
    of a moment between two samples is taken in proportion.
    """
    known = sorted({point.x: point.y for point in steps}.items())
    times = [at for at, _ in known]
    found = []
    for point in told:
        place = bisect_left(times, point.x)
        if place < len(known) and times[place] == point.x:
            found.append(Point(known[place][1], point.y))
        elif 0 < place < len(known):
            (begin, low), (end, high) = known[place - 1], known[place]
            found.append(Point(low + (high - low) * (point.x - begin) / (end - begin), point.y))
    return found
