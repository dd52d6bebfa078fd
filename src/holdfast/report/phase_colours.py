"""One colour for each kind of phase, the same in every incident of a page, for light and for dark grounds. Pure.

Called by the report's page, which holds `css()`, and by the cockpit, which serves it as a file. A colour repeats what
the phase's name beside it says. Each stands out from the grounds of both pages with a contrast of 3 or more
(WCAG 2.2, 1.4.11), which no single set of ten colours does on white and on black.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from holdfast.model.records import Mark
from holdfast.report.timeline import PHASE_NAMES


class Tone(Struct, frozen=True):
    """A phase's colour on a light ground and on a dark one, as `#rrggbb`."""

    light: str
    dark: str


COLOURS: Mapping[Mark, Tone] = {
    Mark.DETECTED: Tone("#D55E00", "#F07A2E"),
    Mark.DIAGNOSED: Tone("#9A6A00", "#F3BD55"),
    Mark.ISOLATED: Tone("#C2407F", "#E58BBF"),
    Mark.STOPPED: Tone("#5B2A86", "#A678DE"),
    Mark.REQUEUED: Tone("#2A8BC5", "#7CCBF7"),
    Mark.RELEASED: Tone("#6B7F00", "#A8B400"),
    Mark.PLACED: Tone("#00447C", "#3F86DC"),
    Mark.STARTED: Tone("#6B737B", "#8D97A2"),
    Mark.FIRST_STEP: Tone("#009169", "#1FA37C"),
    Mark.PROVEN: Tone("#14532D", "#C9F5B5"),
}

NUMBERS: Mapping[str, int] = {name: number for number, name in enumerate(PHASE_NAMES.values())}
"""Number of each phase by its name: class `t3` of a page's elements has the colour of phase 3."""


def css() -> str:
    """Classes `t0`, `t1`, ... with a phase's `fill` and `background`, by the reader's scheme or the page's switch."""
    tones = [COLOURS[mark] for mark in PHASE_NAMES]
    light = " ".join(f"--t{number}: {tone.light};" for number, tone in enumerate(tones))
    dark = " ".join(f"--t{number}: {tone.dark};" for number, tone in enumerate(tones))
    classes = " ".join(
        f".t{number} {{ fill: var(--t{number}); background: var(--t{number}); }}" for number in range(len(tones))
    )
    return (
        f":root {{ {light} }}\n"
        f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f'@media screen {{ :root[data-theme="dark"] {{ {dark} }} }}\n'
        f"{classes}\n"
    )
