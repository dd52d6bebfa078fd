"""Drills of the calendar that never came to their end, for `holdfast report`.

A drill's process that is killed leaves nothing in the journal but what it had injected. Its folder tells: no results,
and no word of why. Used by `report` alone; times are Unix seconds.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.drill.calendar import checked, held
from holdfast.errors import UsageError
from holdfast.model.events import DrillFired
from holdfast.report.gather import ReportData
from holdfast.wiring.settings import load_settings


def drills_cut_short(config: Path | None, data: ReportData, now: float) -> list[str]:
    """A sentence for each aborted run of `[[drill.schedule]]` that had injected faults into this cluster."""
    fired = [event for event in data.events if isinstance(event, DrillFired)]
    if not fired:
        return []
    settings = load_settings(config)
    found = settings.config.drill
    try:
        calendar = checked(found.schedule, settings.path(found.results))
    except UsageError:
        return []  # `holdfast drill schedule` says what is wrong with it
    told = []
    for one in calendar.schedules:
        for run in held(calendar, one, now, most=1000):
            end = run.started_at + one.limit_min * 60.0
            names = [event.drill for event in fired if run.started_at <= event.at <= end]
            if run.state == "aborted" and names:
                told.append(
                    f"Drill run {one.name} of {data.words.time(run.started_at)} did not come to its end"
                    f" ({run.detail or 'aborted'}): of it {', '.join(names[:8])} had been injected, and what"
                    " they broke may not have been undone."
                )
    return told
