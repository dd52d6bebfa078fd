"""The stable JSON forms of the viewing commands, documented in docs/json-forms.md.

`version` rises only when a field changes its meaning; fields are only added. Times are Unix seconds, null when not
known; durations are seconds. Called by the command modules; pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.model.orders import AnyOrder
from holdfast.model.records import AttemptRecord, BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.wire import kind_of
from holdfast.report.json_form import incident_form, training_form
from holdfast.report.saves import Save
from holdfast.report.training_time import TrainingTime

Form = dict[str, Any]


def form(**parts: object) -> Form:
    """A whole form, which begins with its version."""
    return {"version": 1, **parts}


def fields_of(record: object, names: str) -> Form:
    """These fields as they are; one whose name ends in `?` is null where it is empty or zero."""
    return {
        name.rstrip("?"): (getattr(record, name.rstrip("?")) or None) if name[-1] == "?" else getattr(record, name)
        for name in names.split()
    }


def job_row(job: JobRecord) -> Form:
    """One job without its history."""
    view, attempt = job.view, job.attempt
    return {
        "job": str(job.key),
        **fields_of(job.key, "cluster generation"),
        "attempt": job.name if attempt is not None else None,
        **fields_of(view, "name user partition"),
        **fields_of(job, "state since?"),
        "scheduler_state": view.state,
        "authority": job.authority,
        "nodes": view.nodes,
        "excluded": job.excluded,
        "step": attempt.reached if attempt is not None else None,
        **fields_of(job, "best_step durable_step"),
        "attempts": len(job.attempts),
        **fields_of(job, "requeues in_place incident? held_by?"),
    }


def attempt_form(job: JobRecord, attempt: AttemptRecord) -> Form:
    """One execution of a job."""
    names = (
        "number epoch nodes ranks standby log_dir started_at? first_step_at? first_step resumed_from last_step "
        "durable_step ended_at? exit_code signal stopped incident?"
    )
    return {"attempt": f"{job.key}({attempt.number})", **fields_of(attempt, names)}


def job_form(
    job: JobRecord,
    incidents: Iterable[IncidentRecord],
    orders: Iterable[OrderRecord],
    saves: Iterable[Save],
    trained: TrainingTime,
) -> Form:
    """`holdfast job ID --json`."""
    return job_row(job) | {
        "attempts": [attempt_form(job, attempt) for attempt in job.attempts],
        "training": training_form(trained),
        "incidents": [incident_form(incident) for incident in incidents],
        "orders": [order_form(order) for order in orders],
        "checkpoints": [
            {"attempt": f"{job.key}({save.attempt})", **fields_of(save, "step staged_at durable_at took_s")}
            for save in saves
        ],
        "story": job.story,
    }


def node_row(node: NodeRecord) -> Form:
    """One node without its history."""
    view = node.view
    return {
        "node": node.name,
        "group": view.group,
        **fields_of(node, "state since?"),
        "alive": view.alive,
        "silent": node.silent,
        "heard": node.heard,
        **fields_of(view, "spare drained"),
        "drained_by_holdfast": node.drained_by_us,
        "drain_reason": view.drain_reason,
        "scheduler_state": view.state_text,
        **fields_of(view, "jobs gpus topology"),
        "boot_id": node.boot_id or view.boot_id,
        "instance_id": node.instance_id or view.instance_id,
        **fields_of(node, "incident? findings offences"),
    }


def brake_form(brake: BrakeRecord) -> Form:
    """The quarantine brake of one group."""
    reporters = {name: fields_of(rested, "nodes requeues held") for name, rested in brake.reporters.items()}
    return fields_of(brake, "group nodes recent recent_nodes tripped_at? waiting") | {"reporters": reporters}


def node_form(node: NodeRecord, incidents: Iterable[IncidentRecord], orders: Iterable[OrderRecord]) -> Form:
    """`holdfast node show NAME --json`."""
    return node_row(node) | {
        "incidents": [incident_form(incident) for incident in incidents],
        "orders": [order_form(order) for order in orders],
        "story": node.story,
    }


def incident_row(incident: IncidentRecord) -> Form:
    """One incident, with the jobs and nodes that it concerns."""
    return incident_form(incident) | {"jobs": [str(key) for key in incident.jobs], "nodes": incident.nodes}


def incident_page_form(incident: IncidentRecord, orders: Iterable[OrderRecord]) -> Form:
    """`holdfast incident ID --json`."""
    return incident_row(incident) | {
        **fields_of(incident, "findings findings_dropped"),
        "judged": incident.diagnosis.judged if incident.diagnosis else [],
        "orders": [order_form(order) for order in orders],
    }


def order_form(record: OrderRecord) -> Form:
    """An order and what became of it."""
    order = record.order
    job = getattr(order, "job", None)
    return {
        "order": order.id,
        "kind": kind_of(order),
        "status": record.status,
        "job": str(job) if job is not None else None,
        "node": getattr(order, "node", "") or None,
        **fields_of(order, "incident? remedy why cause"),
        **fields_of(record, "issued_at? ended_at? expires_at? detail waits_for approvals_needed"),
        "approvals": [fields_of(known, "who by at") for known in record.approvals],
    }


def target(order: AnyOrder) -> str:
    """What an order is about, for people: a job's number, a node's name, or a dash."""
    job = getattr(order, "job", None)
    return getattr(order, "node", "") or (str(job) if job is not None else "-")
