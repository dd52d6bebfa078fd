"""One incident in depth: its phases by the names people use, the jobs it touched, the loss, its nodes before and after.

Called by every form. Pure. What was not measured gets a row that says so.
"""

from __future__ import annotations

from holdfast.model.cluster import SchedulerState
from holdfast.model.events import Command
from holdfast.model.records import IncidentRecord, JobRecord, JobState, Mark
from holdfast.report.figures import came_in, nodes_by_attempt
from holdfast.report.fleet import job_gpus
from holdfast.report.gather import ReportData
from holdfast.report.objectives import still_share
from holdfast.report.series import JobSeries
from holdfast.report.tables import Section, short, table
from holdfast.report.timeline import cut

NOT_MEASURED = "not measured"

_PHASES: tuple[tuple[str, Mark | None], ...] = (
    ("detect", Mark.DETECTED),
    ("diagnose", Mark.DIAGNOSED),
    ("isolate", Mark.ISOLATED),
    ("drain", Mark.STOPPED),
    ("requeue", Mark.REQUEUED),
    ("release", Mark.RELEASED),
    ("wait for a node", Mark.PLACED),
    ("image load", None),
    ("start", Mark.STARTED),
    ("load checkpoint", Mark.FIRST_STEP),
    ("recompute", None),
    ("prove", Mark.PROVEN),
)


def incident_sections(data: ReportData, incident: IncidentRecord) -> list[Section]:
    """The tables of one incident that have a row."""
    makers = (phases, affected, cost, losses, accuracies, machines, figures)
    return [section for make in makers if (section := make(data, incident)).rows]


def phases(data: ReportData, incident: IncidentRecord) -> Section:
    """Seconds and percent of each phase, cut in order of time: each ends at its mark and begins at the one before."""
    begin = incident.marks.get(Mark.FAULT, incident.opened_at)
    extra = {"image load": _attached(data, incident), "recompute": _caught_up(data, incident)}
    ends = [(name, incident.marks.get(mark) if mark is not None else extra[name]) for name, mark in _PHASES]
    order = {name: place for place, (name, _) in enumerate(_PHASES)}
    known = sorted((max(at, begin), order[name], name) for name, at in ends if at is not None)
    clock = data.words.clock
    rows = {
        name: (name, f"{end - last:.3f}", f"{percent:.1f}", clock(last), clock(end))
        for name, last, end, percent in cut(begin, [(at, name) for at, _, name in known])
    }
    found = [rows.get(name) or (name, "-", "-", NOT_MEASURED, "") for name, _ in _PHASES] if known else []
    heads = ("phase", "seconds", "percent", "from", "to")
    return table("phases", "Phases", "", heads, found, numbers=heads[1:3])


def slowest(data: ReportData, incident: IncidentRecord) -> str:
    """The longest phase by the names of `phases`; a dash when none is known."""
    known = [(float(seconds), name) for name, seconds, *_ in phases(data, incident).rows if seconds != "-"]
    return max(known)[1] if known else "-"


def _attached(data: ReportData, incident: IncidentRecord) -> float | None:
    """When the new attempt's launcher said its first word: prolog and image were there by then.

    Not known where nothing tells when the job got its nodes: a wait for them must not pass for an image's load.
    """
    placed = incident.marks.get(Mark.PLACED)
    started = incident.marks.get(Mark.STARTED)
    if placed is None or started is None:
        return None
    since = incident.marks.get(Mark.RELEASED, placed)
    at = [one.at for key in incident.jobs for one in data.attached.get(key, ()) if since <= one.at <= started]
    return max(placed, min(at)) if at else None


def _caught_up(data: ReportData, incident: IncidentRecord) -> float | None:
    """When the new attempt passed the last step before the fault."""
    if incident.step_before is None or incident.attempt_after is None or not incident.jobs:
        return None
    series = data.series_of(incident) or JobSeries()
    points = series.steps.get(incident.attempt_after, [])
    at = next((point.x for point in points if point.y >= incident.step_before), None)
    job = data.job_of.get(incident.jobs[0])
    attempt = job.numbered(incident.attempt_after) if job is not None else None
    # How far it had come at its end does not tell when it had come there.
    at_its_end = attempt is not None and at == attempt.ended_at
    return None if at_its_end and len(points) > 1 and points[-1].y > incident.step_before else at


def affected(data: ReportData, incident: IncidentRecord) -> Section:
    """Jobs that ran into it and jobs that waited meanwhile, and how each came back."""
    rows = [(str(job.key), "running", _came_back(data, job, incident)) for job in _stopped(data, incident)]
    rows += [(str(job.key), "waiting", "-") for job in data.jobs if _waited(job, incident)]
    return table("affected", "Affected jobs", "", ("job", "role", "how it came back"), rows)


def _stopped(data: ReportData, incident: IncidentRecord) -> list[JobRecord]:
    """The jobs that ran into it, as far as they are known."""
    return [data.job_of[key] for key in incident.jobs if key in data.job_of]


def _came_back(data: ReportData, job: JobRecord, incident: IncidentRecord) -> str:
    again = job.numbered(incident.attempt_after)
    ordered = [
        c for c in data.commands
        if c.job == job.key and c.at >= incident.opened_at and (not incident.closed_at or c.at <= incident.closed_at)
    ]  # fmt: skip
    if again is not None:
        who = [c.who for c in ordered if c.command in {Command.REQUEUE, Command.RELEASE}]
        return f"{job.key}({again.number}), by {who[0]}" if who else f"{job.key}({again.number}), by itself"
    successor = next((other for other in data.jobs if _is_resubmission(job, other, incident)), None)
    if successor is not None:
        return f"resubmitted by a person as {successor.key}"
    return "its attempt went on" if incident.attempt_before is None else "not back"


def _is_resubmission(job: JobRecord, other: JobRecord, incident: IncidentRecord) -> bool:
    """Same name and owner, submitted after the fault, while the first one had ended."""
    over = job.state in {JobState.GIVEN_UP, JobState.CANCELLED, JobState.COMPLETED}
    same = (other.view.name, other.view.user) == (job.view.name, job.view.user) and bool(job.view.name)
    return over and same and other.key != job.key and other.view.submitted_at > incident.opened_at


def _waited(job: JobRecord, incident: IncidentRecord) -> bool:
    """In the queue when the fault came, and not started before the incident was over or a node was fenced for it."""
    if job.key in incident.jobs or not incident.nodes or not job.view.submitted_at:
        return False
    fault = incident.marks.get(Mark.FAULT, incident.opened_at)
    first = min((a.started_at for a in job.attempts if a.started_at), default=None)
    return job.view.submitted_at <= fault and (first > fault if first is not None else _is_queued(job))


def _is_queued(job: JobRecord) -> bool:
    return job.view.state in {SchedulerState.PENDING, SchedulerState.HELD}


def cost(data: ReportData, incident: IncidentRecord) -> Section:
    """Lost steps and GPU-hours of each job that it stopped: standing still, and computing steps once more."""
    heads = ("job", "lost steps", "stood still [s]", "computed again [s]", "GPUs", "GPU-hours")
    rows = []
    if incident.attempt_before is not None:
        begin = incident.marks.get(Mark.FAULT, incident.opened_at)
        first = incident.marks.get(Mark.FIRST_STEP)
        still = max(0.0, (first or incident.closed_at or data.made_at) - begin) * still_share(incident)
        caught = _caught_up(data, incident)
        again = max(0.0, caught - first) if caught is not None and first is not None else None
        for job in _stopped(data, incident):
            held = job_gpus(job, data.gpus)
            steps = "-" if incident.lost_steps is None else f"{incident.lost_steps}"
            hours = (still + (again or 0.0)) * held / 3600.0
            shown = "-" if again is None else f"{again:.3f}"
            rows.append((str(job.key), steps, f"{still:.3f}", shown, f"{held}", f"{hours:.4f}"))
    intro = "GPU-hours = (stood still + computed again) x GPUs; a node whose GPUs are not known counts as one."
    return table("lost-to-it", "What it cost", intro, heads, rows, numbers=heads[1:])


def losses(data: ReportData, incident: IncidentRecord) -> Section:
    """Does the loss go on where it was? Steps computed twice are compared, else the points beside the gap."""
    is_followed = incident.attempt_before is not None and incident.attempt_after is not None and bool(incident.jobs)
    rows = _beside(data, incident, "training loss")
    missing = [(NOT_MEASURED, "-", "-", "-")] if is_followed else []
    return table("loss", "Loss before and after", "", BESIDE, rows or missing, numbers=BESIDE[1:])


def accuracies(data: ReportData, incident: IncidentRecord) -> Section:
    """The same of the accuracy; nothing where the job tells none."""
    rows = _beside(data, incident, "accuracy")
    return table("accuracy", "Accuracy before and after", "", BESIDE, rows, numbers=BESIDE[1:])


BESIDE = ("steps over", "before", "after", "difference")


def _beside(data: ReportData, incident: IncidentRecord, figure: str) -> list[tuple[str, ...]]:
    found = [one for one in data.converged(incident) if one.figure == figure]
    return [(one.steps, f"{one.before:.6g}", f"{one.after:.6g}", f"{one.difference:.3g}") for one in found]


def machines(data: ReportData, incident: IncidentRecord) -> Section:
    """What validation said of the incident's nodes before they took work again."""
    heads = ("node", "time", "validation", "evidence")
    end = incident.closed_at or float("inf")
    said = [event for node in dict.fromkeys(incident.nodes) for event in data.validated.get(node, ())]
    seen = sorted((event for event in said if incident.opened_at <= event.at <= end), key=lambda event: event.at)
    rows: list[tuple[str, ...]] = [
        (e.node, data.words.clock(e.at), "PASS" if e.passed else "FAIL", e.detail or e.instance_id or "-") for e in seen
    ]
    rows += [(name, "-", NOT_MEASURED, "-") for name in incident.nodes if name not in {e.node for e in seen}]
    return table("machines", "Nodes before and after", "", heads, rows)


def figures(data: ReportData, incident: IncidentRecord) -> Section:
    """What `holdfast validate` measured of its nodes last before the fault, and first after it.

    A node that took another's place stands here, too: it has no figure before, the replaced one may have none after.
    """
    heads = ("node", "figure", "before", "after", "change")
    fault = incident.marks.get(Mark.FAULT, incident.opened_at)
    rows: list[tuple[str, ...]] = []
    stopped = map(nodes_by_attempt, _stopped(data, incident))
    for node in (*incident.nodes, *came_in(incident, stopped)):
        known: dict[str, dict[bool, float]] = {}
        for one in data.measured.get(node, ()):
            sides = known.setdefault(one.subject.partition("/")[2], {})
            is_after = one.at > fault
            if not is_after or True not in sides:
                sides[is_after] = one.value
        for name, sides in sorted(known.items()):
            before, after = sides.get(False), sides.get(True)
            change = f"{100.0 * (after / before - 1.0):+.1f} %" if before and after is not None else "-"
            shown = ("-" if value is None else short(value) for value in (before, after))
            rows.append((node, name, *shown, change))
    missing = [node for node in incident.nodes if not any(row[0] == node for row in rows)]
    rows += [(node, NOT_MEASURED, "-", "-", "-") for node in missing]
    intro = "Figures of `holdfast validate` that this journal holds: the last before the fault, the first after it."
    return table("measured", "Node performance before and after", intro, heads, rows, numbers=heads[2:])
