"""The parts of a report that are tables, once, as plain rows: every form (terminal, Markdown, HTML, CSV) shows them.

Called by the forms. Pure. Text from outside is given as it is; each form escapes it in its own way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import structs

from holdfast.model.events import DrillFired, NodeValidated
from holdfast.model.orders import Notify, OrderStatus
from holdfast.report.alerts import counted, expected, missed, unfounded
from holdfast.report.definitions import GOOGLE, MISSION_CONTROL_GUIDE
from holdfast.report.figures import Spread, cause_of, is_counted
from holdfast.report.fleet import Fleet, is_beyond_chance
from holdfast.report.gather import ReportData
from holdfast.report.objectives import Verdict
from holdfast.report.published import FLEETS
from holdfast.report.series import JobSeries, Point
from holdfast.report.tables import Section, percent, seconds, short, spoken, table
from holdfast.report.training_time import in_total


def sections(data: ReportData, kind: str) -> list[Section]:
    """The tables of a kind of report that have a row: `full`, `fleet`, `summary`.

    Raises:
        KeyError: a kind that is not known.
    """
    made = [make(data) for make in KINDS[kind]]
    return [spoken(section, data.words) for section in made if section.rows]


# --- the executive summary: each sentence is one that `words_ja` has a template for ---


def executive(data: ReportData) -> Section:
    """One row for each thing that is known: what it is about, a sentence."""
    rows = [
        row
        for make in (_told_run, _told_training, _told_objectives, _told_speed, _told_losses, _told_cost, _told_proposal)
        for row in make(data)
    ]
    return table("executive", "Executive summary", "", ("", "in short"), rows)


Rows = Iterator[tuple[str, str]]


def _told_run(data: ReportData) -> Rows:
    made = data.totals
    yield (
        "what ran",
        f"Jobs: {len(data.jobs)}, nodes: {data.fleet.nodes}, incidents: {made.incidents}, recovered: {made.recovered}.",
    )
    if made.mttd.n and made.mttr.n:
        detect, again = seconds(made.mttd.mean), seconds(made.mttr.mean)
        yield "recovery", f"A fault was noticed after {detect}, and training went on after {again} (means)."


def _told_training(data: ReportData) -> Rows:
    found = in_total(data.training_times)
    if found.efficiency is not None:
        times = f"{seconds(found.trained_s)} trained, {seconds(found.downtime_s)} down"
        failed = f"{found.restarts_failed} of {found.restarts} restarts failed"
        yield "training-time efficiency", f"{percent(found.efficiency)}: {times}; {failed}."


def _told_objectives(data: ReportData) -> Rows:
    judged = [one for one in data.verdicts if one.passed is not None]
    if not data.verdicts:
        yield "objectives", "None is set in [slo] of the policy."
        return
    yield "objectives", f"{sum(1 for one in judged if one.passed)} of {len(judged)} met."
    for one in judged:
        if not one.passed:
            yield "missed objective", f"{one.objective}: {one.measured}, target {one.target}."


def _told_speed(data: ReportData) -> Rows:
    lost = [one.loss_percent for one in data.throughputs if one.loss_percent is not None]
    if lost and max(lost) > 0:
        yield "throughput", f"At most {max(lost):.1f} % slower than before (recoveries: {len(lost)})."
    elif lost:
        yield "throughput", f"As fast as before (recoveries: {len(lost)})."


def _told_losses(data: ReportData) -> Rows:
    for figure in ("training loss", "accuracy"):
        apart = [one.difference for one in data.convergences if one.figure == figure]
        if apart:
            yield figure, f"At most {max(apart):.3g} away from before (recoveries: {len(apart)})."


def _told_cost(data: ReportData) -> Rows:
    cost, price = data.fleet.cost, data.economics.gpu_hour
    if price:
        yield "cost", f"{cost.lost:.2f} GPU-hours were lost, which cost {cost.lost_money:,.2f}."
    else:
        yield "cost", f"{cost.lost:.2f} GPU-hours were lost."


def _told_proposal(data: ReportData) -> Rows:
    for one in data.proposals[:1]:
        yield "first proposal", one.what


# --- the tables ---


def objectives(data: ReportData) -> Section:
    """Verdict per objective; drills count, as they do in the totals beside it."""
    has_drills = any(incident.drill for incident in data.counted)
    return _objectives(data.verdicts, " Drills count, as in the totals." if has_drills else "")


def fleet_objectives(data: ReportData) -> Section:
    """Verdict per objective without drills, as the fleet's figures."""
    return _objectives(data.fleet_verdicts, " Drills are left out, as in the figures below.")


def _objectives(verdicts: Sequence[Verdict], told: str) -> Section:
    rows = [(v.objective, v.target, v.measured, v.word, v.arithmetic) for v in verdicts]
    heads = ("objective", "target", "measured", "verdict", "arithmetic")
    intro = f"From [slo] of the policy.{told}"
    return table("objectives", "Objectives", intro, heads, rows, numbers=("measured",))


def intervals(data: ReportData) -> Section:
    """How often each job saves, and how often it should; one incident alone does not tell how often a job fails."""
    rows = [
        (a.job, seconds(a.actual_s), seconds(a.best_s), seconds(a.save_s), seconds(a.mtbf_s), a.says)
        for a in (data.intervals if not data.incident else ())
    ]
    heads = ("job", "saves every", "best", "a save holds", "MTBF", "advice")
    return table("intervals", "Checkpoint interval", "", heads, rows, numbers=heads[1:5])


def performance(data: ReportData) -> Section:
    """Throughput before and after each recovery."""
    limit = data.slo.performance_loss
    rows = []
    for t in data.throughputs:
        if t.loss_percent is not None:
            verdict = "-" if not limit else "PASS" if t.loss_percent <= limit else "FAIL"
            sides = (_figure(t.before, t.unit), _figure(t.after, t.unit))
            rows.append((t.incident, *sides, f"{t.loss_percent:.1f} %", f"{limit:g} %" if limit else "-", verdict))
    heads = ("incident", "before", "after", "loss", "tolerance", "verdict")
    intro = "Medians of neighbouring points."
    return table("performance", "Throughput before and after", intro, heads, rows, numbers=heads[1:5])


def converged(data: ReportData) -> Section:
    """Loss and accuracy before and after each recovery."""
    rows = [
        (one.incident, one.figure, one.steps, f"{one.before:.6g}", f"{one.after:.6g}", f"{one.difference:.3g}")
        for one in data.convergences
    ]
    heads = ("incident", "figure", "steps over", "before", "after", "difference")
    intro = "Steps computed twice are compared where they differ most; where there are none, medians beside the gap."
    return table("convergence", "Convergence before and after", intro, heads, rows, numbers=heads[3:])


def training(data: ReportData) -> Section:
    """Training-time efficiency of each job, those with most downtime first, and in total."""
    told = sorted((one for one in data.training_times if one.efficiency is not None), key=lambda one: -one.downtime_s)
    rows = [
        (
            one.job or "in total",
            percent(one.efficiency),
            seconds(one.trained_s),
            seconds(one.downtime_s),
            f"{one.restarts}",
            f"{one.restarts_failed}",
        )
        for one in [*told, *([in_total(told)] if told else [])]
    ]
    heads = ("job", "training-time efficiency", "trained", "downtime", "restarts", "of these failed")
    intro = "Trained / (trained + downtime). Downtime lasts from the last checkpoint to the next attempt's first step."
    return table("training", "Training-time efficiency", intro, heads, rows, numbers=heads[1:])


def restarts(data: ReportData) -> Section:
    """Downtime of each attempt, and whether it reached what `proof` of the policy asks of a restart."""
    rows = [
        (f"{job.job}({one.attempt})", seconds(one.downtime_s), seconds(one.trained_s), one.restart or "first start")
        for job in data.training_times
        for one in job.attempts
        if one.restart is not None or one.downtime_s
    ]
    heads = ("attempt", "downtime", "trained", "restart")
    return table("restarts", "Downtime of each attempt", "", heads, rows, numbers=heads[1:3])


def overview(data: ReportData) -> Section:
    """The fleet's figures, and those of the span before."""
    now = _fleet_rows(data.fleet)
    if data.former is None:
        return table("fleet", "Fleet", _span_text(data), ("figure", "value"), now, numbers=("value",))
    before = dict(_fleet_rows(data.former.fleet))
    rows = [(name, value, before.get(name, "-")) for name, value in now]
    intro = f"{_span_text(data)} {_difference(data.fleet, data.former.fleet)}"
    return table("fleet", "Fleet", intro, ("figure", "value", "span before"), rows, numbers=("value", "span before"))


def _fleet_rows(fleet: Fleet) -> list[tuple[str, str]]:
    return [
        ("nodes", f"{fleet.nodes}"),
        ("GPUs", f"{fleet.gpus}" if fleet.gpus_known else f"{fleet.gpus} (not known of every node)"),
        ("jobs", f"{fleet.jobs}"),
        ("failures that ended an attempt", f"{fleet.failures}"),
        ("failures per 1000 node-days", _figure(fleet.per_1000_node_days)),
        ("MTBF", seconds(fleet.mtbf_s)),
        ("MTTD", _spread(fleet.mttd)),
        ("MTTR", _spread(fleet.mttr)),
        ("ETTR", "-" if fleet.ettr is None else f"{fleet.ettr:.4f}"),
        ("goodput", "-" if fleet.goodput_percent is None else f"{fleet.goodput_percent:.2f} %"),
        ("trained again", f"{fleet.came_back} of {fleet.failures}"),
        ("with nobody's help", f"{fleet.by_themselves} ({_figure(fleet.automatic_percent)} %)"),
        ("after a person's order", f"{fleet.resubmitted}"),
        ("given up", f"{fleet.given_up}"),
        ("nodes fenced", f"{fleet.fenced}"),
        ("of these false alarms", f"{fleet.false_alarms}"),
        ("trend of the failure rate", _trend(fleet)),
        ("busiest hour", _busiest(fleet.by_hour, "{:02d}:00".format)),
        ("busiest day of the week", _busiest(fleet.by_day, DAYS.__getitem__)),
        ("lemons", ", ".join(f"{name} ({count})" for name, count in fleet.lemons[:8]) or "none"),
    ]


def _span_text(data: ReportData) -> str:
    days = (data.fleet.until - data.fleet.since) / 86400.0
    seen = data.fleet.node_days
    told = "Drills are no failures; the time that they took counts as lost."
    return f"{days:.1f} days, {seen:.{1 if seen >= 10 else 3}f} node-days observed. {told}"


def _difference(now: Fleet, before: Fleet) -> str:
    verdict = "more than chance explains" if is_beyond_chance(before.failures, now.failures) else ""
    return (
        f"{now.failures} failures after {before.failures} in the span before:"
        f" {verdict or 'chance explains the difference'}."
    )


def _trend(fleet: Fleet) -> str:
    if fleet.trend_percent_per_week is None:
        return "- (under three weeks)"
    return f"{fleet.trend_percent_per_week:+.1f} % a week"


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _busiest(counts: Sequence[int], name: Callable[[int], str]) -> str:
    """The one that stands out from an even spread by more than chance, else none."""
    most, total = max(counts), sum(counts)
    even = total / len(counts)
    if total < 24 or most <= even + 3.5 * even**0.5:
        return "none stands out"
    return f"{name(counts.index(most))} ({most} of {total})"


def causes(data: ReportData) -> Section:
    """Failures by cause, the commonest forty."""
    return _failures_by("cause", data.fleet.by_cause, 40)


def domains(data: ReportData) -> Section:
    """Failures by domain."""
    return _failures_by("domain", data.fleet.by_domain)


def _failures_by(what: str, counted: Mapping[str, int], most: int | None = None) -> Section:
    total = sum(counted.values())
    rows = [(name, f"{count}", f"{100 * count / total:.1f} %") for name, count in counted.items()]
    return table(f"{what}s", f"Failures by {what}", "", (what, "n", "share"), rows[:most], numbers=("n", "share"))


def lost(data: ReportData) -> Section:
    """GPU-hours by category of lost time."""
    counted = {name: value for name, value in data.fleet.badput_gpu_h.items() if value > 0}
    total = sum(counted.values())
    rows = [
        (name, f"{value:.2f}", f"{100 * value / total:.1f} %", MISSION_CONTROL.get(name, "-"))
        for name, value in sorted(counted.items(), key=lambda item: -item[1])
    ]
    heads = ("category (Google's badput)", "GPU-hours", "share", "as Mission Control names it")
    intro = f"Categories: {GOOGLE}. Mission Control's words: {MISSION_CONTROL_GUIDE}."
    return table("lost", "Where time was lost", intro, heads, rows, numbers=heads[1:3])


MISSION_CONTROL = {
    "detect": "failure detection",
    "stop": "job shutdown",
    "restart": "restart of the next job",
    "load": "checkpoint loading",
    "recompute": "unsaved work recomputed",
}
"""Downtime in the words of `MISSION_CONTROL_GUIDE`; what it does not name (start-up of a job, the rest) has none."""


def money(data: ReportData) -> Section:
    """Cost and return."""
    cost, price = data.fleet.cost, data.economics.gpu_hour
    rows = [
        ("lost", f"{cost.lost:.2f}", _money(cost.lost_money, price)),
        ("saved against a person on call", f"{cost.saved:.2f}", _money(cost.saved_money, price)),
        ("spares kept free", f"{cost.spares:.2f}", _money(cost.spares_money, price)),
        ("running Holdfast", "-", f"{cost.holdfast_money:,.2f}" if cost.holdfast_money else "- (no price given)"),
        ("saved - spares - Holdfast", f"{cost.saved - cost.spares:.2f}", _money(cost.net_money, price)),
    ]
    heads = ("", "GPU-hours", "money")
    return table("cost", "Cost and return", cost.arithmetic, heads, rows, numbers=heads[1:])


def _money(value: float, price: float) -> str:
    return f"{value:,.2f}" if price else "- (no price given)"


def published(data: ReportData) -> Section:
    """This fleet beside published ones."""
    mine = data.fleet
    mtbf = mine.mtbf_s / 3600.0 if mine.mtbf_s is not None else None
    ettr = None if mine.ettr is None else 100.0 * mine.ettr
    rows = [("this one", f"{mine.gpus}", _figure(mine.per_1000_node_days), _figure(mtbf), _figure(ettr), "this report")]
    for one in FLEETS:
        effective = "-" if one.effective_percent is None else f"over {one.effective_percent:g}"
        rows.append((one.name, f"{one.gpus}", _figure(one.rate), _figure(one.mtbf_h), effective, one.source))
    heads = ("fleet", "GPUs", "failures per 1000 node-days", "MTBF of a job on all of it [h]", "ETTR [%]", "source")
    return table("published", "Beside published fleets", "", heads, rows, numbers=heads[1:5])


def proposed(data: ReportData) -> Section:
    """What should be changed."""
    rows = [(p.rule, p.what, p.evidence, p.gain or "-") for p in data.proposals]
    heads = ("rule", "proposal", "evidence", "expected gain")
    return table("proposals", "Proposals", "Derived from this data by the rules in docs/reports.md.", heads, rows)


def weeks(data: ReportData) -> Section:
    """The span week by week."""
    found = data.fleet.weeks
    rows = [
        (f"{number}", f"{w.failures}", _figure(w.per_1000_node_days), *map(seconds, (w.mttd_s, w.mttr_s, w.mtbf_s)))
        for number, w in enumerate(found, 1)
    ]
    heads = ("week", "failures", "per 1000 node-days", "MTTD", "MTTR", "MTBF")
    return table("weeks", "Week by week", "", heads, rows if len(found) > 1 else [], numbers=heads)


def ran(data: ReportData) -> Section:
    """What ran: for the summary."""
    drills = sum(1 for incident in data.counted if incident.drill and is_counted(incident))
    names = sorted({event.drill for event in data.events if isinstance(event, DrillFired)})
    begin, end = data.fleet.since, data.fleet.until
    rows = [
        ("cluster", data.cluster),
        ("span", f"{data.words.time(begin)} - {data.words.time(end)} ({(end - begin) / 86400.0:.2f} d)"),
        ("drills", _clipped(", ".join(names)) or "none"),
        ("nodes", f"{data.fleet.nodes}"),
        ("jobs", f"{len(data.jobs)}"),
        ("incidents", f"{data.totals.incidents}, {drills} of them drills"),
        ("recovered", f"{data.totals.recovered}"),
        ("MTTD", _spread(data.totals.mttd)),
        ("MTTR", _spread(data.totals.mttr)),
        ("lost steps", f"{data.totals.steps_lost}"),
        ("ETTR", "-" if data.totals.ettr is None else f"{data.totals.ettr:.4f}"),
        ("training-time efficiency", percent(in_total(data.training_times).efficiency)),
    ]
    return table("ran", "What was run", "", ("", "value"), rows)


def problems(data: ReportData) -> Section:
    """What did not go well."""
    rows = [
        (i.id, cause_of(i), i.outcome or "open", data.words.tell(i.story[-1], i.opened_at) if i.story else "")
        for i in data.incidents
        if i.outcome not in {"recovered", "observed"}
    ]
    heads = ("incident", "cause", "outcome", "last word")
    return table("problems", "Problems found", _more(len(rows) - FEW), heads, map(_short_row, rows[:FEW]))


def _short_row(row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_clipped(value) for value in row)


FEW = 5
"""Rows of a list in the summary: with the rest of it they fill one printed page."""
CLIP = 110
REMARK = 76
"""Characters of its texts that fit."""


def _clipped(text: str, limit: int = CLIP) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3].rstrip()}..."


def _more(left: int) -> str:
    return f"{left} more: --kind full lists all." if left > 0 else ""


def proposed_few(data: ReportData) -> Section:
    """What should be changed, for one page: of many proposals the first of each rule, then the second ones."""
    seen: Counter[str] = Counter()
    ranked = []
    for place, one in enumerate(data.proposals):
        seen[one.rule] += 1
        ranked.append((seen[one.rule], place))
    chosen = sorted(place for _, place in sorted(ranked)[:FEW])
    whole = proposed(data)
    rows = [_short_row(whole.rows[place]) for place in chosen]
    intro = " ".join(text for text in (whole.intro, _more(len(whole.rows) - FEW)) if text)
    return table(whole.key, whole.title, intro, whole.headings, rows)


# --- how much of what a report needs was measured ---


COVERAGE = ("what", "coverage", "remark")


def coverage(data: ReportData) -> Section:
    """Percent of attempts with each metric, faults that were noticed, incidents that people were told of."""
    rows = [*_metrics(data), *_drills(data), *_notices(data), *_alerts(data)]
    return table("coverage", "Observability coverage", "", COVERAGE, rows, numbers=COVERAGE[1:2])


def environment(data: ReportData) -> Section:
    """Were the nodes proven good before they took work?"""
    said = [event for event in data.events if isinstance(event, NodeValidated)]
    passed = sum(1 for event in said if event.passed)
    rows = [
        ("nodes validated", _share(passed, len(said)), ", ".join(e.node for e in said if not e.passed) or "-"),
        ("nodes known", f"{len(data.nodes)}", f"{sum(1 for node in data.nodes if node.view.gpus)} tell their GPUs"),
    ]
    return table("environment", "Environment", "", COVERAGE, rows, numbers=COVERAGE[1:2])


def _metrics(data: ReportData) -> list[tuple[str, str, str]]:
    if not data.has_series:
        return [("metrics of jobs", "not measured", "series were not read for so many attempts")]
    attempts = [(str(job.key), a.number) for job in data.jobs for a in job.attempts if a.started_at]
    kept = [(data.series.get(name, JobSeries()), number) for name, number in attempts]

    def count(points: list[list[Point]]) -> str:
        return _share(sum(1 for found in points if len(found) > 1), len(attempts))

    of = "of attempts"
    return [
        ("steps", count([series.steps.get(number, []) for series, number in kept]), of),
        ("training loss", count([series.losses.get(number, []) for series, number in kept]), of),
        ("tokens or samples", count([s.tokens.get(n) or s.samples.get(n, []) for s, n in kept]), of),
    ]


def _drills(data: ReportData) -> list[tuple[str, str, str]]:
    fired = sorted({event.drill for event in data.events if isinstance(event, DrillFired)})
    noticed = {incident.drill for incident in data.incidents if incident.drill}
    missed = [name for name in fired if name not in noticed]
    if not fired:
        return [("injected faults that were noticed", "not measured", "no drill ran")]
    remark = f"no incident: {', '.join(missed[:8])}" if missed else "-"
    return [("injected faults that were noticed", _share(len(fired) - len(missed), len(fired)), remark)]


def _notices(data: ReportData) -> list[tuple[str, str, str]]:
    told = {
        record.order.incident
        for record in data.notices
        if isinstance(record.order, Notify) and record.status is OrderStatus.DONE
    }
    real = [incident.id for incident in data.incidents if is_counted(incident)]
    if not real:
        return []
    untold = [name for name in real if name not in told]
    remark = f"nobody was told of: {', '.join(untold[:8])}" if untold else "-"
    return [("incidents that people were told of", _share(len(real) - len(untold), len(real)), remark)]


def _alerts(data: ReportData) -> list[tuple[str, str, str]]:
    """Of Prometheus: what fired, what should have, which targets answered, which nodes had metrics."""
    if data.alerts is None:
        why = "give --prometheus URL"
        return [("alerts of Prometheus", "not measured", why), ("GPU and network metrics", "not measured", why)]
    told, until = data.alerts, data.made_at
    wanted = expected(data.incidents, until)
    lacking = missed(told, wanted)
    wrong = unfounded(told, data.incidents, until)
    names = ", ".join(f"{one.name} of {one.incident}" for one in lacking[:8])
    strange = ", ".join(f"{one.name} {one.node}".rstrip() for one in wrong[:8])
    rows = [
        ("alerts that fired", f"{len(told.firing)}", counted(told)),
        ("alerts that should have fired", _share(len(wanted) - len(lacking), len(wanted)), names or "-"),
        ("alerts for which no incident gives a reason", f"{len(wrong)}", strange or "-"),
    ]
    rows += [(f"targets of {job} that answered", f"{100 * share:.1f} %", "-") for job, share in sorted(told.up.items())]
    rows += [(f"nodes with {kind} metrics", _share(count, len(data.nodes)), "-") for kind, count in told.having.items()]
    return rows


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} % ({part} of {whole})" if whole else "not measured"


def coverage_few(data: ReportData) -> Section:
    """The same for one page."""
    made = coverage(data)
    return structs.replace(made, rows=tuple((*row[:2], _clipped(row[2], REMARK)) for row in made.rows))


KINDS: dict[str, tuple[Callable[[ReportData], Section], ...]] = {
    "full": (executive, objectives, training, restarts, performance, converged, intervals, money, proposed),
    "fleet": (
        fleet_objectives,
        overview,
        training,
        causes,
        domains,
        lost,
        weeks,
        money,
        published,
        intervals,
        proposed,
    ),
    "summary": (ran, objectives, environment, coverage_few, problems, proposed_few),
}


def _figure(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{short(value)} {unit}".rstrip()


def _spread(found: Spread) -> str:
    if not found.n:
        return "-"
    return f"{seconds(found.mean)} (n={found.n}, median {seconds(found.median)}, p95 {seconds(found.p95)})"
