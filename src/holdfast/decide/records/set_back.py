"""Sets remembered times back when the controller's clock was set back, or its successor's clock is behind.

`Engine.handle` calls it when an event was received long before the one before it. Without it time would stand still
until the clock has caught up: evidence of now would be older than the last repair, and no brake's window would pass.
Pure: the time comes with the event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import structs

from holdfast.decide.state import State

SLACK_S = 60.0
"""A clock that goes back by less is waited for."""
TIMES = (
    "since", "first_seen_at", "left_at", "clean_at", "started_at", "placed_at", "first_step_at", "durable_at",
    "ended_at", "opened_at", "said_at", "issued_at", "expires_at", "tripped_at",
)  # fmt: skip
LISTS = ("offences", "recent")


def set_back(state: State, now: float) -> None:
    """Let nothing that is remembered be of later than now. What waits goes on waiting for as long as it had to."""
    by_s = state.now - now
    state.now = now
    for waiting in state.timers.values():
        waiting.due_at -= by_s
    for record in _records(state):
        for name in TIMES:
            if getattr(record, name, 0.0) > now:
                setattr(record, name, getattr(record, name) - by_s if name == "expires_at" else now)
        for name in LISTS:
            if hasattr(record, name):
                setattr(record, name, [min(at, now) for at in getattr(record, name)])
    for rested in (one for brake in state.brakes.values() for one in brake.reporters.values()):
        rested.nodes = {node: min(at, now) for node, at in rested.nodes.items()}
        rested.requeues = [min(at, now) for at in rested.requeues]
    for incident in state.incidents.values():
        incident.marks = {mark: min(at, now) for mark, at in incident.marks.items()}
    state.domains = {domain: (incident, min(at, now)) for domain, (incident, at) in state.domains.items()}
    state.drills = [structs.replace(drill, at=min(drill.at, now)) for drill in state.drills]


def _records(state: State) -> Iterator[Any]:
    for job in state.jobs.values():
        yield job
        yield from job.attempts
    yield from state.nodes.values()
    yield from state.incidents.values()
    yield from state.orders.values()
    yield from state.brakes.values()
