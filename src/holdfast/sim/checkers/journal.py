"""Is the journal whole, and is it all there is? Its numbers, its ids, its epochs, and a replay of its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.events import AnyEvent
from holdfast.model.orders import AnyOrder
from holdfast.model.wire import encode, kind_of
from holdfast.sim.history import History

SHOWN = 160
"""Characters of a record that a complaint shows."""


class Replayed(Struct):
    """What an engine that was given the journal's events made of them."""

    orders: list[list[AnyOrder]]
    """Per event."""
    records: dict[str, bytes]
    """Name (`job:..`, `node:..`, `incident:..`) -> the record as bytes."""


Told = Callable[[AnyEvent, Sequence[Sequence[AnyOrder]]], AnyEvent]
"""What the engine is told in place of an event, seen what it has ordered and proposed at each event so far."""
Replay = Callable[[Sequence[AnyEvent], Told], Replayed]
"""Gives the events, in order, to a fresh engine."""


def as_stored(event: AnyEvent, orders: Sequence[Sequence[AnyOrder]]) -> AnyEvent:
    """The event itself."""
    del orders
    return event


def journal_is_sound(history: History) -> Iterator[str]:
    """No number is missing, no event stands there twice, and each controller's epoch is above the one before."""
    for number, step in enumerate(history.steps, 1):
        if step.event.seq != number:
            yield f"event {step.event.id} has number {step.event.seq} and stands at place {number}"
            break
    counts = Counter(step.event.id for step in history.steps)
    for name, times in counts.items():
        if times > 1:
            yield f"event {name} is stored {times} times"
    epoch = 0
    for step in history.steps:
        if isinstance(step.event, e.ControllerStarted):
            if step.event.epoch <= epoch:
                yield f"controller epoch {step.event.epoch} (event {step.event.seq}) comes after epoch {epoch}"
            epoch = max(epoch, step.event.epoch)


def replay_is_the_same(history: History, replay: Replay) -> Iterator[str]:
    """A fresh engine makes the same orders of the same events, and comes to the records that the journal holds."""
    made = replay([step.event for step in history.steps], as_stored)
    for step, orders in zip(history.steps, made.orders, strict=True):
        if list(step.orders) != orders:
            given = ", ".join(f"{kind_of(order)} {order.id}" for order in step.orders) or "nothing"
            again = ", ".join(f"{kind_of(order)} {order.id}" for order in orders) or "nothing"
            yield f"event {step.event.seq} ({kind_of(step.event)}) led to {given}; its replay leads to {again}"
            return
    stored = records_of(history)
    for name in sorted(made.records.keys() | stored.keys()):
        left, right = stored.get(name), made.records.get(name)
        if left != right:
            yield f"{name} is stored as {_shown(left)}, its replay gives {_shown(right)}"


def records_of(history: History) -> dict[str, bytes]:
    """The records that the journal holds, by name."""
    found = {f"job:{job_name(job.key)}": encode(job) for job in history.jobs}
    found |= {f"node:{node.name}": encode(node) for node in history.nodes}
    found |= {f"incident:{incident.id}": encode(incident) for incident in history.incidents}
    return found


def job_name(key: JobKey) -> str:
    """The whole key as text."""
    return f"{key.cluster}/{key.id}#{key.generation}"


def _shown(record: bytes | None) -> str:
    if record is None:
        return "nothing"
    text = record.decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
