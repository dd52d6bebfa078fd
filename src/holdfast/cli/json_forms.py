"""The stable JSON forms of the viewing commands, documented in docs/json-forms.md.

`version` rises only when a field changes its meaning; fields are only added. Times are Unix seconds, null when not
known; durations are seconds. Called by the command modules; pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.model.orders import AnyOrder
from holdfast.model.records import (
    AttemptRecord,
    BrakeRecord,
    IncidentRecord,
    JobRecord,
    NodeRecord,
    OrderRecord,
)
from holdfast.model.wire import kind_of
from holdfast.report.json_form import incident_form, training_form
from holdfast.report.training_time import TrainingTime

VERSION = 1
Form = dict[str, Any]


def jobs_form(jobs: Iterable[JobRecord]) -> Form:
    """`holdfast jobs --json`."""
    return {"version": VERSION, "jobs": [job_row(job) for job in jobs]}


def job_row(job: JobRecord) -> Form:
    """One job without its history."""
    view, attempt = job.view, job.attempt
    return {
        "job": str(job.key),
        "cluster": job.key.cluster,
        "generation": job.key.generation,
        "attempt": job.name if attempt is not None else None,
        "name": view.name,
        "user": view.user,
        "partition": view.partition,
        "state": job.state.value,
        "since": job.since or None,
        "scheduler_state": view.state.value,
        "authority": job.authority.value,
        "nodes": list(view.nodes),
        "excluded": list(job.excluded),
        "step": attempt.reached if attempt is not None else None,
        "best_step": job.best_step,
        "durable_step": job.durable_step,
        "attempts": len(job.attempts),
        "requeues": job.requeues,
        "in_place": job.in_place,
        "incident": job.incident or None,
        "held_by": job.held_by or None,
    }


def attempt_form(job: JobRecord, attempt: AttemptRecord) -> Form:
    """One execution of a job."""
    return {
        "attempt": f"{job.key}({attempt.number})",
        "number": attempt.number,
        "epoch": attempt.epoch,
        "nodes": list(attempt.nodes),
        "ranks": attempt.ranks,
        "standby": attempt.standby,
        "log_dir": attempt.log_dir,
        "started_at": attempt.started_at or None,
        "first_step_at": attempt.first_step_at or None,
        "first_step": attempt.first_step,
        "resumed_from": attempt.resumed_from,
        "last_step": attempt.last_step,
        "durable_step": attempt.durable_step,
        "ended_at": attempt.ended_at or None,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "stopped": attempt.stopped,
        "incident": attempt.incident or None,
    }


def job_form(
    job: JobRecord, incidents: Iterable[IncidentRecord], orders: Iterable[OrderRecord], trained: TrainingTime
) -> Form:
    """`holdfast job ID --json`."""
    return {
        "version": VERSION,
        "job": job_row(job)
        | {
            "attempts": [attempt_form(job, attempt) for attempt in job.attempts],
            "training": training_form(trained),
            "incidents": [incident_form(incident) for incident in incidents],
            "orders": [order_form(order) for order in orders],
            "story": list(job.story),
        },
    }


def node_row(node: NodeRecord) -> Form:
    """One node without its history."""
    view = node.view
    return {
        "node": node.name,
        "group": view.group,
        "state": node.state.value,
        "since": node.since or None,
        "alive": view.alive,
        "silent": node.silent,
        "spare": view.spare,
        "drained": view.drained,
        "drained_by_holdfast": node.drained_by_us,
        "drain_reason": view.drain_reason,
        "scheduler_state": view.state_text,
        "jobs": list(view.jobs),
        "gpus": view.gpus,
        "topology": view.topology,
        "boot_id": node.boot_id or view.boot_id,
        "instance_id": node.instance_id or view.instance_id,
        "incident": node.incident or None,
        "findings": list(node.findings),
        "offences": list(node.offences),
    }


def brake_form(brake: BrakeRecord) -> Form:
    """The quarantine brake of one group."""
    return {
        "group": brake.group,
        "nodes": brake.nodes,
        "recent": list(brake.recent),
        "tripped_at": brake.tripped_at or None,
        "waiting": list(brake.waiting),
    }


def nodes_form(nodes: Iterable[NodeRecord], brakes: Iterable[BrakeRecord]) -> Form:
    """`holdfast nodes --json`."""
    return {
        "version": VERSION,
        "nodes": [node_row(node) for node in nodes],
        "brakes": [brake_form(brake) for brake in brakes],
    }


def node_form(node: NodeRecord, incidents: Iterable[IncidentRecord], orders: Iterable[OrderRecord]) -> Form:
    """`holdfast node show NAME --json`."""
    return {
        "version": VERSION,
        "node": node_row(node)
        | {
            "incidents": [incident_form(incident) for incident in incidents],
            "orders": [order_form(order) for order in orders],
            "story": list(node.story),
        },
    }


def incidents_form(incidents: Iterable[IncidentRecord]) -> Form:
    """`holdfast incidents --json`."""
    return {"version": VERSION, "incidents": [incident_row(incident) for incident in incidents]}


def incident_row(incident: IncidentRecord) -> Form:
    """One incident, with the jobs and nodes that it concerns."""
    return incident_form(incident) | {"jobs": [str(key) for key in incident.jobs], "nodes": list(incident.nodes)}


def incident_page_form(incident: IncidentRecord, orders: Iterable[OrderRecord]) -> Form:
    """`holdfast incident ID --json`."""
    return {
        "version": VERSION,
        "incident": incident_row(incident)
        | {
            "findings": msgspec.to_builtins(incident.findings),
            "findings_dropped": incident.findings_dropped,
            "judged": msgspec.to_builtins(incident.diagnosis.judged) if incident.diagnosis else [],
            "orders": [order_form(order) for order in orders],
        },
    }


def orders_form(orders: Iterable[OrderRecord]) -> Form:
    """`holdfast orders --json`."""
    return {"version": VERSION, "orders": [order_form(order) for order in orders]}


def order_form(record: OrderRecord) -> Form:
    """An order and what became of it."""
    order = record.order
    job = getattr(order, "job", None)
    return {
        "order": order.id,
        "kind": kind_of(order),
        "status": record.status.value,
        "job": str(job) if job is not None else None,
        "node": getattr(order, "node", "") or None,
        "incident": order.incident or None,
        "remedy": order.remedy.value,
        "why": order.why,
        "cause": order.cause,
        "issued_at": record.issued_at or None,
        "ended_at": record.ended_at or None,
        "expires_at": record.expires_at or None,
        "detail": record.detail,
    }


def target(order: AnyOrder) -> str:
    """What an order is about, for people: a job's number, a node's name, or a dash."""
    job = getattr(order, "job", None)
    return getattr(order, "node", "") or (str(job) if job is not None else "-")
