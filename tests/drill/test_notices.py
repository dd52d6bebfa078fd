"""What people are told of a calendar's runs, and when a matter is over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.drill import notices
from holdfast.drill.calendar import Calendar, Held, held, run_folder
from holdfast.drill.notices import SHOWN_MAX, Word
from holdfast.drill.schedule import Schedule, regressions
from holdfast.model.evidence import Severity

NIGHTLY = Schedule(name="nightly", drills=("kill9",), at="03:00", zone="Asia/Tokyo")
AT = 1_800_000_000.0
DAY = 86400.0


def drill(name: str, recover_s: float, *, reason: str = "") -> dict[str, Any]:
    return {
        "name": name, "passed": not reason, "skipped": False, "reason": reason, "detect_s": 0.1, "recover_s": recover_s,
    }  # fmt: skip


class Nights:
    """One run after another, each a day later, judged at its end as the command does it."""

    def __init__(self, folder: Path) -> None:
        self.calendar = Calendar((NIGHTLY,), folder)
        self.number = 0

    def runs(self) -> list[Held]:
        return held(self.calendar, NIGHTLY, AT + self.number * DAY + 1)

    def ends(self, *drills: dict[str, Any]) -> Word | None:
        form = {"passed": all(one["passed"] for one in drills), "drills": list(drills)}
        before = next((run for run in self.runs() if run.form), None)
        worse = regressions(before.form, form, slower_by=NIGHTLY.slower_by) if before else []
        rows = [{"drill": w.drill, "what": w.what, "before": w.before, "now": w.now} for w in worse]
        return self._leave({"drills.json": form, "regressions.json": rows})

    def aborted(self, why: str) -> Word | None:
        return self._leave({"aborted.json": {"why": why}})

    def _leave(self, files: dict[str, Any]) -> Word | None:
        self.number += 1
        folder = run_folder(self.calendar, NIGHTLY, AT + self.number * DAY)
        folder.mkdir(parents=True)
        for name, form in files.items():
            (folder / name).write_text(json.dumps(form))
        run, *earlier = self.runs()
        word = notices.word_of(NIGHTLY, run, earlier)
        if word is not None:
            notices.keep(run, word)
        return word


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def test_a_good_run_tells_nobody(nights: Nights) -> None:
    """Neither the first one nor the next."""
    assert nights.ends(drill("kill9", 2.0)) is None
    assert nights.ends(drill("kill9", 2.2)) is None


def test_a_regression_is_told_once_and_is_over_when_it_is_as_good_again(nights: Nights) -> None:
    """4 s after 2 s is told with both; 4 s again is neither told nor over; 2.5 s is over; after it all is quiet."""
    nights.ends(drill("kill9", 2.0))
    told = nights.ends(drill("kill9", 4.0))
    assert told is not None
    assert (told.severity, told.title) == (
        Severity.WARNING, "nightly: passed, 1 worse than in the run before",
    )  # fmt: skip
    assert "kill9: recover_s 2.00 s -> 4.00 s" in told.text
    assert "Compared with the run of 2027-01-16 17:00:00.000 JST." in told.text
    assert nights.ends(drill("kill9", 4.1)) is None
    assert nights.ends(drill("kill9", 4.0)) is None
    again = nights.ends(drill("kill9", 2.5))
    assert again is not None
    assert (again.severity, again.over, again.title) == (Severity.INFO, True, "nightly: as good again as before")
    assert nights.ends(drill("kill9", 2.4)) is None


def test_a_failure_is_graver_and_names_what_failed(nights: Nights) -> None:
    """Also in the first run, which has nothing to be compared with; it is over with the first run that passes."""
    told = nights.ends(drill("kill9", 2.0), drill("xid", 3.0, reason="cause: expected a, got b"))
    assert told is not None
    assert (told.severity, told.title) == (Severity.ERROR, "nightly: 1 of 2 drills failed")
    assert told.text.startswith("xid: failed: cause: expected a, got b\nThe first run.\nResults: ")
    again = nights.ends(drill("kill9", 2.0), drill("xid", 3.0))
    assert again is not None
    assert again.over


def test_a_drill_that_fails_after_it_passed_stands_there_once(nights: Nights) -> None:
    """As a failure with its reason, not as a figure too; beside it what else became worse."""
    nights.ends(drill("kill9", 2.0), drill("xid", 3.0))
    told = nights.ends(drill("kill9", 4.0), drill("xid", 3.0, reason="too late"))
    assert told is not None
    assert told.text.splitlines()[:2] == ["kill9: recover_s 2.00 s -> 4.00 s", "xid: failed: too late"]


def test_an_aborted_run_is_told_with_its_reason(nights: Nights) -> None:
    """A calendar that never comes to its end would be quiet otherwise. The next good run ends the matter."""
    told = nights.aborted("at its limit")
    assert told is not None
    assert (told.severity, told.title) == (Severity.WARNING, "nightly: aborted, at its limit")
    again = nights.ends(drill("kill9", 2.0))
    assert again is not None
    assert again.over


def test_many_lines_are_cut_and_say_so(nights: Nights) -> None:
    """The page has all of them."""
    told = nights.ends(*(drill(f"d{n}", 1.0, reason="no") for n in range(SHOWN_MAX + 5)))
    assert told is not None
    assert "... and 5 more" in told.text.splitlines()


def test_a_notice_has_one_matter_for_each_schedule_and_a_link(nights: Nights) -> None:
    """Two runs give two notices of one topic; the cockpit's address leads to its page of drills."""
    topics = set()
    for _ in range(2):
        word = nights.ends(drill("kill9", 1.0, reason="no"))
        assert word is not None
        made = notices.notice_of(NIGHTLY, nights.runs()[0], word, link="https://holdfast.example/")
        topics.add(made.topic)
        assert made.text.endswith("\nCalendar: https://holdfast.example/drills")
    assert topics == {"drill-schedule:nightly"}


def test_a_word_that_cannot_be_read_is_none(nights: Nights) -> None:
    """A torn file: the next bad run is told again."""
    nights.ends(drill("kill9", 1.0, reason="no"))
    (nights.runs()[0].folder / notices.WORD).write_text('{"severity": "err')
    assert notices.told(nights.runs()[0]) is None
    assert nights.ends(drill("kill9", 1.0)) is None
