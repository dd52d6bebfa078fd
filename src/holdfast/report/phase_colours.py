"""One colour for each kind of phase, the same in every incident of a page, for light and for dark grounds. Pure.

Called by the report's page, which holds `css()`, and by the cockpit, which serves it as a file. A colour repeats what
the phase's name beside it says. Each stands out from the grounds of both pages with a contrast of 3 or more
(WCAG 2.2, 1.4.11), which no single set of ten colours does on white and on black.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.model.records import Mark
from holdfast.report.timeline import PHASE_NAMES

COLOURS: Mapping[Mark, tuple[str, str]] = {
    Mark.DETECTED: ("#D55E00", "#F07A2E"),
    Mark.DIAGNOSED: ("#9A6A00", "#F3BD55"),
    Mark.ISOLATED: ("#C2407F", "#E58BBF"),
    Mark.STOPPED: ("#5B2A86", "#A678DE"),
    Mark.REQUEUED: ("#2A8BC5", "#7CCBF7"),
    Mark.RELEASED: ("#6B7F00", "#A8B400"),
    Mark.PLACED: ("#00447C", "#3F86DC"),
    Mark.STARTED: ("#6B737B", "#8D97A2"),
    Mark.FIRST_STEP: ("#009169", "#1FA37C"),
    Mark.PROVEN: ("#14532D", "#C9F5B5"),
}
"""Of the time before each mark, on a light ground and on a dark one."""

NUMBERS: Mapping[str, int] = {name: number for number, name in enumerate(PHASE_NAMES.values())}
"""Number of each phase by its name: class `t3` of a page's elements has the colour of phase 3."""


def css() -> str:
    """Classes `t0`, `t1`, ... with a phase's `fill` and `background`, by the reader's scheme or the page's switch."""
    tones = [COLOURS[mark] for mark in PHASE_NAMES]
    light, dark = (" ".join(f"--t{number}: {tone[side]};" for number, tone in enumerate(tones)) for side in (0, 1))
    classes = " ".join(
        f".t{number} {{ fill: var(--t{number}); background: var(--t{number}); }}" for number in range(len(tones))
    )
    return (
        f":root {{ {light} }}\n"
        f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f'@media screen {{ :root[data-theme="dark"] {{ {dark} }} }}\n'
        f"{classes}\n"
    )
