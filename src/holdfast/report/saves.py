"""A job's saves, from the events of its checkpoints: when each was staged, when it was durable, how long it took.

Used by the job's page in the cockpit and by `holdfast job`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from holdfast.model.events import AnyEvent, CheckpointSaved

__all__ = ["Save", "saves_of"]


class Save(Struct, frozen=True):
    """One save: times are seconds since 1970, None where nobody told. `took_s`: seconds from staged to durable."""

    attempt: int
    step: int
    staged_at: float | None
    durable_at: float | None
    took_s: float | None


def saves_of(events: Iterable[AnyEvent]) -> list[Save]:
    """The saves that these events tell of, newest first."""
    found: dict[tuple[int, int], Save] = {}
    for event in events:
        if not isinstance(event, CheckpointSaved):
            continue
        # What is told again goes behind what came between.
        known = found.pop((event.attempt, event.step), None)
        staged = known.staged_at if known is not None else None
        durable = known.durable_at if known is not None else None
        took_s = event.took_s if event.took_s is not None or known is None else known.took_s
        if event.durable:
            durable = event.at if durable is None else durable
        else:
            staged = event.at if staged is None else staged
        if took_s is None and staged is not None and durable is not None:
            took_s = max(0.0, durable - staged)
        found[event.attempt, event.step] = Save(event.attempt, event.step, staged, durable, took_s)
    return list(reversed(found.values()))
