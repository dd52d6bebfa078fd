"""What telemetry slots tell of evaluations. Used by the launcher's fold and by the agent, for the pages' points. Pure.

A slot keeps what the newest evaluation gave. That belongs to the step after which it came, and to no later one.
"""

from __future__ import annotations

from collections.abc import Hashable


class Evaluations:
    """Tells each accuracy once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, float | None] = {}

    def new(self, slot: Hashable, accuracy: float | None) -> float | None:
        """The accuracy, the first time that this slot tells it; None afterwards."""
        before, self._known[slot] = self._known.get(slot), accuracy
        return None if accuracy == before else accuracy

    def forget(self, slot: Hashable) -> None:
        """The slot is not read any more."""
        self._known.pop(slot, None)
