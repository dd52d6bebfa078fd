"""What people are told of a calendar's runs: that one failed, became worse or was aborted, and that this is over.

Called by `cli/drill_notices` at a run's end. A word stands in the run's own folder (`notice.json`), so that the next
run knows what was told, whoever starts it. A matter is over only when a run passes and is no worse than the one that
was good before it began: a figure that became worse and stays so is neither told twice nor taken back. Pure but for
reading and writing that file; no time passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.drill.calendar import Held
from holdfast.drill.schedule import Schedule, regressions
from holdfast.model.evidence import Severity
from holdfast.model.orders import Notify
from holdfast.os.files import write_whole
from holdfast.report.words import Words

WORD = "notice.json"
SHOWN_MAX = 20
"""So many lines of one run are told; the rest stands on the page."""


class Word(Struct, frozen=True):
    """What was told of one run."""

    severity: Severity
    title: str
    text: str
    over: bool = False
    """The run is good again: what was told before is closed."""
    good: str = ""
    """Folder of the newest run before the matter began that came to its end; empty: there was none."""


def told(run: Held) -> Word | None:
    """What was told of a run; None: nothing."""
    try:
        return msgspec.json.decode((run.folder / WORD).read_bytes(), type=Word)
    except (OSError, msgspec.DecodeError):
        return None


def keep(run: Held, word: Word) -> None:
    """Leave it beside the run's results. Raises OSError."""
    write_whole(run.folder / WORD, msgspec.json.format(msgspec.json.encode(word), indent=2) + b"\n")


def word_of(schedule: Schedule, run: Held, earlier: Sequence[Held]) -> Word | None:
    """What is to be told of a run that has just ended; None: nothing.

    Args:
        schedule: whose run it was.
        run: with its state as `calendar.held` tells it.
        earlier: the runs before it, newest first.
    """
    before = next((one for one in earlier if one.form), None)
    last = next((word for one in earlier if (word := told(one)) is not None), None)
    is_open = last is not None and not last.over
    good = last.good if last is not None and is_open else before.folder.name if before is not None else ""
    name = schedule.name
    if run.state == "aborted":
        text = f"Nothing is compared with it. What it did was undone. Results: {run.folder}"
        return Word(Severity.WARNING, f"{name}: aborted, {run.detail or 'it left no results'}", text, good=good)
    if run.state == "passed":
        if not is_open or _still_worse(schedule, run, earlier, good):
            return None
        return Word(Severity.INFO, f"{name}: as good again as before", _results(run), over=True, good=good)
    lines = [
        *(
            f"{found.drill}: {found.what} {found.before} -> {found.now}"
            for found in run.worse
            if found.what != "passed"
        ),
        *(f"{drill['name']}: failed: {drill['reason']}" for drill in _failed(run)),
    ]
    shown = [*lines[:SHOWN_MAX], *([f"... and {len(lines) - SHOWN_MAX} more"] if len(lines) > SHOWN_MAX else [])]
    compared = f"Compared with {_when(schedule, before)}." if before is not None else "The first run."
    text = "\n".join([*shown, compared, _results(run)])
    if run.form.get("passed"):
        return Word(Severity.WARNING, f"{name}: passed, {len(run.worse)} worse than in the run before", text, good=good)
    failed = f"{len(_failed(run))} of {len(run.form.get('drills', ()))} drills failed"
    return Word(Severity.ERROR, f"{name}: {failed}", text, good=good)


def notice_of(schedule: Schedule, run: Held, word: Word, *, link: str = "") -> Notify:
    """The word as a notice; all words of a schedule are one matter.

    Args:
        schedule: whose run it was.
        run: the run.
        word: what is told of it.
        link: address of the cockpit; empty: the notice has no link to the page of drills.
    """
    topic = f"drill-schedule:{schedule.name}"
    text = f"{word.text}\nCalendar: {link.rstrip('/')}/drills" if link else word.text
    return Notify(
        id=f"{topic}:{run.folder.name}", cause=0, topic=topic, severity=word.severity, title=word.title, text=text
    )


def _still_worse(schedule: Schedule, run: Held, earlier: Sequence[Held], good: str) -> bool:
    """Is a run that passed slower than the one before the matter began?"""
    form = next((one.form for one in earlier if one.folder.name == good), None)
    return form is not None and bool(regressions(form, run.form, slower_by=schedule.slower_by))


def _failed(run: Held) -> list[dict[str, Any]]:
    return [drill for drill in run.form.get("drills", ()) if not drill["passed"] and not drill["skipped"]]


def _when(schedule: Schedule, run: Held) -> str:
    return f"the run of {Words(zone=schedule.zone).time(run.started_at)}"


def _results(run: Held) -> str:
    return f"Results: {run.folder}"
