"""An incident's phases as bars of a drawing: places and widths as numbers, for SVG, since pages carry no inline style.

Called by `pages.py`. Pure.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.report.phase_colours import NUMBERS
from holdfast.report.timeline import Timeline

WIDTH = 1000.0
LEAST = 4.0
"""A phase of a few milliseconds is still seen."""


class Bar(Struct, frozen=True):
    """One phase. `x` and `width` of `WIDTH`."""

    name: str
    x: float
    width: float
    seconds: float
    percent: float
    tone: int
    """Number of its colour, as `report.phase_colours` has it: the same on every page."""


def bars(timeline: Timeline) -> list[Bar]:
    """Bars side by side over the whole width."""
    if timeline.total_s <= 0:
        return []
    raw = [max(LEAST, WIDTH * phase.seconds / timeline.total_s) for phase in timeline.phases]
    scale = WIDTH / sum(raw)
    found, x = [], 0.0
    for phase, width in zip(timeline.phases, raw, strict=True):
        tone = NUMBERS[phase.name]
        found.append(Bar(phase.name, round(x, 2), round(width * scale, 2), phase.seconds, phase.percent, tone))
        x += width * scale
    return found
