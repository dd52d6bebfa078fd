"""Made-up histories for tests of reports: a year of a fleet from one seed, as records and as a journal's rows."""

from __future__ import annotations

import random
from typing import Any

from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, NodeView
from holdfast.model.evidence import Diagnosis, Domain, Finding, Remedy
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark, NodeRecord

BEGIN = 1_700_000_000.0
CAUSES = (
    ("nvidia.xid.74", Domain.HARDWARE), ("torch.cuda.oom", Domain.APPLICATION), ("node.lost", Domain.HARDWARE),
    ("exit.signal.11", Domain.APPLICATION), ("nccl.timeout", Domain.NETWORK), ("unknown", Domain.UNKNOWN),
)  # fmt: skip


def a_year(seed: int, *, incidents: int, nodes: int = 64, jobs: int = 8, days: float = 365.0):
    """(jobs, nodes, incidents): each job goes from attempt to attempt through its share of the incidents."""
    draw = random.Random(seed)
    names = [f"node{n:03d}" for n in range(nodes)]
    made_nodes = [
        NodeRecord(
            name, NodeView(name, gpus=8), first_seen_at=BEGIN, offences=[BEGIN] * draw.choice([0, 0, 0, 1, 2, 4])
        )
        for name in names
    ]
    made_jobs, found = [], []
    per_job = incidents // jobs
    for number in range(jobs):
        key = JobKey("sim", str(100 + number))
        held = tuple(names[number * nodes // jobs : (number + 1) * nodes // jobs])
        attempts = []
        gap = days * 86400.0 / (per_job + 1)
        at, base = BEGIN, 0
        for n in range(per_job):
            started, fault = at, at + gap * draw.uniform(0.5, 0.9)
            detected = fault + draw.expovariate(1 / 3.0)
            stopped = detected + draw.uniform(0.1, 2)
            again = stopped + draw.uniform(1, 40)
            first = again + draw.uniform(1, 60)
            steps = int((fault - started) / 10)
            attempts.append(
                AttemptRecord(
                    n,
                    nodes=held,
                    started_at=started,
                    first_step_at=started + 5,
                    first_step=base + 1,
                    last_step=base + steps,
                    ended_at=stopped,
                )
            )
            cause, domain = draw.choice(CAUSES)
            is_given_up = draw.random() < 0.02
            marks = {Mark.FAULT: fault, Mark.DETECTED: detected, Mark.STOPPED: stopped}
            if not is_given_up:
                marks |= {Mark.STARTED: again, Mark.FIRST_STEP: first, Mark.PROVEN: first + 60}
            if domain is Domain.HARDWARE:
                marks[Mark.ISOLATED] = detected + 0.2
                if draw.random() < 0.6:
                    marks[Mark.NODE_RETURNED] = detected + 3600
            found.append(
                IncidentRecord(
                    id=f"i-{number}-{n}", opened_at=detected, jobs=[key], nodes=[held[0]] if domain is Domain.HARDWARE else [],
                    diagnosis=Diagnosis(cause=cause, domain=domain), marks=marks, attempt_before=n, attempt_after=n + 1,
                    step_before=base + steps, step_resumed=max(0, base + steps - 90), closed_at=first + 60, drill="xid" if draw.random() < 0.05 else "",
                    remedies=[Remedy.QUARANTINE, *([Remedy.REPLACE] if draw.random() < 0.7 else [])] if domain is Domain.HARDWARE else [],
                    outcome="given_up" if is_given_up else "recovered",
                )
            )  # fmt: skip
            at, base = again, max(0, base + steps - 90)
        attempts.append(
            AttemptRecord(
                per_job, nodes=held, started_at=at, first_step_at=at + 5, first_step=base + 1, last_step=base + 5000
            )
        )
        made_jobs.append(JobRecord(key, JobView(key, want_nodes=len(held)), attempts=attempts))
    return made_jobs, made_nodes, found


def events_of(incident: IncidentRecord) -> list[e.AnyEvent]:
    """What agents and launchers said of an incident of `a_year`, in order of time, without numbers."""
    key, marks, before = incident.jobs[0], incident.marks, incident.attempt_before or 0

    def common(kind: str, at: float) -> dict[str, Any]:
        return {"id": f"{incident.id}.{kind}", "at": at, "received_at": at, "source": f"launcher:{key}"}

    finding = Finding(id=f"f-{incident.id}", rule=incident.diagnosis.cause, at=marks[Mark.FAULT], job=key)
    said: list[e.AnyEvent] = [
        e.FindingSeen(finding=finding, **common("seen", marks[Mark.DETECTED])),
        e.AttemptEnded(job=key, attempt=before, **common("ended", marks[Mark.STOPPED])),
    ]
    if Mark.STARTED in marks:
        epoch, first = before + 1, (incident.step_resumed or 0) + 1
        said += [
            e.AttemptStarted(job=key, attempt=before + 1, epoch=epoch, **common("started", marks[Mark.STARTED])),
            e.FirstStepDone(job=key, attempt=before + 1, step=first, **common("first", marks[Mark.FIRST_STEP])),
            e.CheckpointSaved(
                job=key, attempt=before + 1, step=first + 9, durable=True, **common("saved", marks[Mark.PROVEN])
            ),
        ]
    return said
