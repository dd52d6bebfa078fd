"""What the controller counts about itself, read by the API for `/metrics` and `/healthz`. No time passes here."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, field

from holdfast.model.wire import kind_of
from holdfast.ports import Entry

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the histogram of append times."""


class Histogram:
    """Durations counted by upper bound. `counts` has one more, for what is above the last bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum_s += seconds


class Figures(Struct):
    """Counts since this controller started."""

    events: Counter[str] = field(default_factory=Counter)
    orders: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    refused: int = 0
    not_theirs: Counter[str] = field(default_factory=Counter)
    """Events and beats that were not their reporter's to say, by kind of reporter."""
    appends: Histogram = field(default_factory=lambda: Histogram(BOUNDS_S))

    def committed(self, entries: Sequence[Entry], took_s: float) -> None:
        """Count one transaction."""
        self.appends.add(took_s)
        for entry in entries:
            kind = kind_of(entry.event)
            self.events[kind] += 1
            if kind in {"order_done", "order_failed"}:
                self.outcomes[kind] += 1
            for order in entry.orders:
                self.orders[kind_of(order)] += 1
