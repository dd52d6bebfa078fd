"""The report as JSON in a stable form. `version` rises when a field changes its meaning; fields are only added.

Form: `{version, title, cluster, made_at, notes, totals, training,
jobs: [{job, ettr, wall_s, productive_s, badput, untold_s, training, attempts}],
intervals: [{job, actual_s, save_s, mtbf_s, failures, best_s, loss_actual, loss_best, says}],
objectives: [{objective, target, measured, passed, arithmetic, verdict}],
throughput: [{incident, unit, before, after, loss_percent}],
convergence: [{incident, figure, first_step, last_step, twice, worst_step, before, after, difference}],
executive_summary: [{about, text}], fleet: {...}, proposals: [{rule, what, evidence, gain}],
alerts: {source, firing, up, having} or null,
incidents: [{id, outcome, drill, cause, domain, summary, suspects, marks, phases, node_phases, total_s, slowest,
lost_steps, story, tables: [{key, title, rows: [{heading: text}]}]}]}`. `tables` are those of the page, in English, as
they are shown there.
Times are Unix seconds, durations seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.model.records import IncidentRecord
from holdfast.report.figures import cause_of, domain_of
from holdfast.report.gather import ReportData
from holdfast.report.sections import executive
from holdfast.report.single import incident_sections
from holdfast.report.timeline import Phase, node_phases, timeline
from holdfast.report.training_time import TrainingTime, in_total

VERSION = 1
OF_JOB = ("ettr", "goodput_percent", "wall_s", "productive_s", "badput", "untold_s", "image_load_s")
"""Of a job's `Accounting`."""


def incident_form(incident: IncidentRecord) -> dict[str, Any]:
    """One incident."""
    cut = timeline(incident)
    found = incident.diagnosis
    return {
        "id": incident.id,
        "outcome": incident.outcome or "open",
        "drill": incident.drill or None,
        "opened_at": incident.opened_at,
        "closed_at": incident.closed_at or None,
        "cause": cause_of(incident),
        "domain": domain_of(incident),
        "summary": found.summary if found else "",
        "confidence": found.confidence if found else 0.0,
        "suspects": {
            "nodes": list(found.nodes) if found else [],
            "ranks": list(found.ranks) if found else [],
            "gpus": list(found.gpus) if found else [],
        },
        "remedies": list(incident.remedies),
        "marks": {mark.value: at for mark, at in incident.marks.items()},
        "phases": _phases(cut.phases),
        "node_phases": _phases(node_phases(incident)),
        "total_s": cut.total_s,
        "slowest": cut.slowest,
        "step_before": incident.step_before,
        "step_resumed": incident.step_resumed,
        "lost_steps": incident.lost_steps,
        "diagnosis_story": found.story if found else "",
        "story": list(incident.story),
    }


def _phases(found: Iterable[Phase]) -> list[dict[str, Any]]:
    return [{"name": one.name, "seconds": one.seconds, "percent": one.percent} for one in found]


def training_form(found: TrainingTime) -> dict[str, Any]:
    """Training-time efficiency of a job with its attempts, or of all jobs."""
    shown = ("efficiency", "trained_s", "downtime_s", "restarts", "restarts_failed")
    told = {name: getattr(found, name) for name in shown}
    return told | ({"attempts": msgspec.to_builtins(found.attempts)} if found.job else {})


def _tables(data: ReportData, incident: IncidentRecord) -> list[dict[str, Any]]:
    return [
        {
            "key": found.key,
            "title": found.title,
            "rows": [dict(zip(found.headings, row, strict=True)) for row in found.rows],
        }
        for found in incident_sections(data, incident)
    ]


def report_form(data: ReportData, kind: str = "full") -> dict[str, Any]:
    """The whole report as plain data; of the fleet and the summary without the list of every job and incident."""
    jobs = list(zip(data.jobs, data.accounts, data.training_times, strict=True)) if kind == "full" else []
    incidents = data.incidents if kind == "full" else []
    return {
        "version": VERSION,
        "title": data.title,
        "cluster": data.cluster,
        "made_at": data.now,
        "notes": data.notes,
        "totals": msgspec.to_builtins(data.totals),
        "training": training_form(in_total(data.training_times)),
        "jobs": [
            {
                "job": found.job,
                "name": job.view.name,
                "state": job.state.value,
                **{name: getattr(found, name) for name in OF_JOB},
                "training": training_form(trained),
                "attempts": msgspec.to_builtins(job.attempts),
            }
            for job, found, trained in jobs
        ],
        "intervals": msgspec.to_builtins(data.intervals),
        "objectives": [{**msgspec.to_builtins(v), "verdict": v.word} for v in data.verdicts_of(kind)],
        "throughput": [{**msgspec.to_builtins(t), "loss_percent": t.loss_percent} for t in data.throughputs],
        "convergence": [{**msgspec.to_builtins(c), "difference": c.difference} for c in data.convergences],
        "executive_summary": [{"about": about, "text": text} for about, text in executive(data).rows],
        "fleet": msgspec.to_builtins(data.fleet),
        "proposals": msgspec.to_builtins(data.proposals),
        "alerts": msgspec.to_builtins(data.alerts),
        "incidents": [{**incident_form(one), "tables": _tables(data, one)} for one in incidents],
    }


def render_json(data: ReportData, kind: str = "full") -> str:
    """The whole report as text."""
    return msgspec.json.format(msgspec.json.encode(report_form(data, kind)), indent=2).decode()
