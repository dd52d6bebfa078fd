"""Observability coverage and environment, for the summary: how much of what a report needs was measured. Pure."""

from __future__ import annotations

from holdfast.model.events import DrillFired, NodeValidated
from holdfast.model.orders import Notify, OrderStatus
from holdfast.report.alerts import counted, expected, missed, unfounded
from holdfast.report.figures import is_counted
from holdfast.report.gather import ReportData
from holdfast.report.section import Section, table
from holdfast.report.series import JobSeries, Point

HEADS = ("what", "coverage", "remark")


def coverage(data: ReportData) -> Section:
    """Percent of attempts with each metric, faults that were noticed, incidents that people were told of."""
    rows = [*_metrics(data), *_drills(data), *_notices(data), *_alerts(data)]
    return table("coverage", "Observability coverage", "", HEADS, rows, numbers=HEADS[1:2])


def environment(data: ReportData) -> Section:
    """Were the nodes proven good before they took work?"""
    said = [event for event in data.events if isinstance(event, NodeValidated)]
    passed = sum(1 for event in said if event.passed)
    rows = [
        ("nodes validated", _share(passed, len(said)), ", ".join(e.node for e in said if not e.passed) or "-"),
        ("nodes known", f"{len(data.nodes)}", f"{sum(1 for node in data.nodes if node.view.gpus)} tell their GPUs"),
    ]
    return table("environment", "Environment", "", HEADS, rows, numbers=HEADS[1:2])


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
