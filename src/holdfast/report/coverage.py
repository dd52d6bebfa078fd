"""Observability coverage and environment, for the summary: how much of what a report needs was measured. Pure."""

from __future__ import annotations

from holdfast.model.events import DrillFired, NodeValidated
from holdfast.model.orders import Notify, OrderStatus
from holdfast.report.gather import JobSeries, Point, ReportData
from holdfast.report.sections import Section

HEADS = ("what", "coverage", "remark")


def coverage(data: ReportData) -> Section:
    """Percent of attempts with each metric, faults that were noticed, incidents that people were told of."""
    rows = [*_metrics(data), *_drills(data), *_notices(data)]
    rows.append(("alerts of Prometheus", "not measured", "their firing is not in the journal"))
    rows.append(("GPU and network metrics", "not measured", "agents journal findings, not samples"))
    return Section("coverage", "Observability coverage", "", HEADS, tuple(rows), frozenset({"coverage"}))


def environment(data: ReportData) -> Section:
    """Were the nodes proven good before they took work?"""
    said = [event for event in data.events if isinstance(event, NodeValidated)]
    passed = sum(1 for event in said if event.passed)
    rows = [
        ("nodes validated", _share(passed, len(said)), ", ".join(e.node for e in said if not e.passed) or "-"),
        ("nodes known", f"{len(data.nodes)}", f"{sum(1 for node in data.nodes if node.view.gpus)} tell their GPUs"),
    ]
    return Section("environment", "Environment", "", HEADS, tuple(rows), frozenset({"coverage"}))


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
        ("loss", count([series.losses.get(number, []) for series, number in kept]), of),
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
    real = [incident.id for incident in data.incidents if incident.outcome != "observed"]
    if not real:
        return []
    untold = [name for name in real if name not in told]
    remark = f"nobody was told of: {', '.join(untold[:8])}" if untold else "-"
    return [("incidents that people were told of", _share(len(real) - len(untold), len(real)), remark)]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} % ({part} of {whole})" if whole else "not measured"
