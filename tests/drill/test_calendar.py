"""What a calendar's folders of results say of each run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.drill.calendar import Calendar, checked, held, last_ended, lines, run_folder
from holdfast.drill.schedule import Schedule
from holdfast.errors import UsageError

NIGHTLY = Schedule(name="nightly", drills=("kill9",), at="03:00", limit_min=60)
AT = 1_800_000_000.0
HOUR = 3600.0


def leave(calendar: Calendar, at: float, **files: object) -> None:
    """A run's folder with these files."""
    folder = run_folder(calendar, NIGHTLY, at)
    folder.mkdir(parents=True)
    for name, form in files.items():
        text = form if isinstance(form, str) else json.dumps(form)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def test_each_run_says_how_it_ended(tmp_path: Path) -> None:
    """Newest first: passed, failed, worse, aborted with its reason, without any word, torn, and the one under way."""
    calendar = Calendar((NIGHTLY,), tmp_path)
    slower = {"drill": "kill9", "what": "recover_s", "before": "1.00 s", "now": "3.00 s"}
    leave(calendar, AT, drills={"passed": True}, regressions=[])
    leave(calendar, AT + HOUR, drills={"passed": False}, regressions=[])
    leave(calendar, AT + 2 * HOUR, drills={"passed": True}, regressions=[slower])
    leave(calendar, AT + 3 * HOUR, aborted={"why": "by a person"}, drills={"passed": True})
    leave(calendar, AT + 4 * HOUR)
    leave(calendar, AT + 5 * HOUR, drills='{"passed": tr', regressions=[{"drill": 7}])
    leave(calendar, AT + 6 * HOUR)
    (tmp_path / "nightly" / "notes").mkdir()
    found = held(calendar, NIGHTLY, AT + 6.5 * HOUR)
    assert [(run.state, run.detail) for run in found] == [
        ("running", ""), ("aborted", "it left no results"), ("aborted", "it left no results"),
        ("aborted", "by a person"), ("worse", ""), ("failed", ""), ("passed", ""),
    ]  # fmt: skip
    assert found[-1].started_at == AT
    assert [one.now for one in found[4].worse] == ["3.00 s"]
    last = last_ended(calendar, NIGHTLY, AT + 6.5 * HOUR)
    assert last is not None
    assert last.folder == found[4].folder


def test_a_line_has_what_is_due_and_what_ran(tmp_path: Path) -> None:
    """Nothing has run in a folder that is not there; quiet hours are told apart from what is due."""
    quiet = Schedule(name="quiet", drills=("kill9",), at="03:00", quiet=("00:00-23:59",))
    first, second = lines(Calendar((NIGHTLY, quiet), tmp_path / "none"), AT)
    assert (first.last, first.next, first.is_quiet) == (None, 1_800_068_400.0, False)
    assert (second.next, second.is_quiet) == (None, True)


def test_two_schedules_of_one_name_would_share_a_folder() -> None:
    """They are refused, as is a line that cannot be read."""
    with pytest.raises(UsageError, match="same name"):
        checked([NIGHTLY, NIGHTLY], None)
    with pytest.raises(UsageError, match="no time of day"):
        checked([Schedule(name="n", drills=("kill9",), at="25:00")], None)
