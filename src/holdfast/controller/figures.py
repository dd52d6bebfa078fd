"""What the controller counts about itself, read by the API for `/metrics` and `/healthz`. No time passes here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, field

from holdfast.model.wire import kind_of
from holdfast.ports import Entry

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the histogram of append times."""


class Figures(Struct):
    """Counts since this controller started."""

    events: Counter[str] = field(default_factory=Counter)
    orders: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    refused: int = 0
    not_theirs: Counter[str] = field(default_factory=Counter)
    """Events and beats that were not their reporter's to say, by kind of reporter."""
    appends: int = 0
    append_s: float = 0.0
    append_buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))

    def committed(self, entries: Sequence[Entry], took_s: float) -> None:
        """Count one transaction."""
        self.appends += 1
        self.append_s += took_s
        self.append_buckets[next((n for n, bound in enumerate(BOUNDS_S) if took_s <= bound), len(BOUNDS_S))] += 1
        for entry in entries:
            kind = kind_of(entry.event)
            self.events[kind] += 1
            if kind in {"order_done", "order_failed"}:
                self.outcomes[kind] += 1
            for order in entry.orders:
                self.orders[kind_of(order)] += 1
