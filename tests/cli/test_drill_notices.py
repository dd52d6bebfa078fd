"""Notices of a calendar's runs, sent to a webhook: at the end of a run, later where it was away, with the matter's end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.webhook import Web, webhook

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.notice_settings import Destination, NotifyConfig
from holdfast.cli import drill_notices
from holdfast.drill.calendar import Calendar, run_folder
from holdfast.drill.schedule import Schedule
from holdfast.errors import ConfigError
from holdfast.wiring.notices import check_destinations

NIGHTLY = Schedule(name="nightly", drills=("kill9",), at="03:00")
AT = 1_800_000_000.0
CLOCK = SystemClock()
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def web() -> Iterator[Web]:
    with webhook() as made:
        yield made


def leave(folder: Path, number: int, config: NotifyConfig, *, reason: str = "") -> Calendar:
    """A run that ended, judged; with a reason it failed."""
    calendar = Calendar((NIGHTLY,), folder)
    run = run_folder(calendar, NIGHTLY, AT + number)
    run.mkdir(parents=True)
    drill = {"name": "kill9", "passed": not reason, "skipped": False, "reason": reason}
    (run / "drills.json").write_text(json.dumps({"passed": not reason, "drills": [drill]}))
    (run / "regressions.json").write_text("[]")
    asyncio.run(drill_notices.leave(calendar, NIGHTLY, run, config, CLOCK))
    return calendar


def deliver(calendar: Calendar, config: NotifyConfig, for_s: float = 60.0) -> list[str]:
    paths = drill_notices.waiting(calendar)
    return asyncio.run(drill_notices.deliver(paths, config, CLOCK, for_s=for_s, stay=False))


def test_a_failed_run_is_told_as_a_drill_and_its_end_closes_the_matter(tmp_path: Path, web: Web) -> None:
    """One topic; the second message says that it is resolved. Outboxes whose notices were taken are gone."""
    config = web.config(severity="error")
    calendar = leave(tmp_path, 1, config, reason="too late")
    assert deliver(calendar, config) == []
    leave(tmp_path, 2, config)
    assert deliver(calendar, config) == []
    first, second = web.got
    assert first["title"] == "Drill: nightly: 1 of 1 drills failed"
    assert "kill9: failed: too late" in first["message"]
    assert "https://holdfast.example/drills" in first["message"]
    assert "on purpose" in first["message"]
    assert (first["severity"], first["resolved"], second["resolved"]) == ("error", "false", "true")
    assert second["title"] == "Drill: Resolved: nightly: as good again as before"
    assert first["topic"] == second["topic"] == "drill-schedule:nightly"
    assert drill_notices.waiting(calendar) == []


def test_a_destination_that_is_away_gets_it_from_the_next_command(tmp_path: Path, web: Web) -> None:
    """It is named, its notice stays on disk beside the run, and is sent by whoever comes next, once."""
    config = web.config()
    web.away.set()
    calendar = leave(tmp_path, 1, config, reason="no")
    assert deliver(calendar, config, for_s=0.5) == ["team"]
    assert [path.name for path in drill_notices.waiting(calendar)] == ["outbox.jsonl"]
    web.away.clear()
    assert deliver(calendar, config) == []
    assert deliver(calendar, config) == []
    assert [one["title"] for one in web.got] == ["Drill: nightly: 1 of 1 drills failed"]


def test_a_command_does_not_wait_for_the_end_of_quiet_hours(tmp_path: Path, web: Web) -> None:
    """What waits for the morning stays; the destination is named without a wait."""
    config = web.config(quiet="00:00-23:59", quiet_unless="fatal")
    calendar = leave(tmp_path, 1, config, reason="no")
    assert deliver(calendar, config, for_s=1e6) in ([], ["team"])  # [] in the one minute of the day that is not quiet
    assert len(web.got) + len(drill_notices.waiting(calendar)) == 1


def test_without_destinations_the_word_stands_beside_the_run(tmp_path: Path) -> None:
    """`notice.json` alone: no outbox."""
    calendar = leave(tmp_path, 1, NotifyConfig(), reason="no")
    [run] = (tmp_path / "nightly").iterdir()
    assert json.loads((run / "notice.json").read_text())["severity"] == "error"
    assert drill_notices.waiting(calendar) == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder stands where the outbox should be: the run's result is not lost over it."""
    config = web.config()
    calendar = Calendar((NIGHTLY,), tmp_path)
    (run_folder(calendar, NIGHTLY, AT + 1).parent).mkdir(parents=True)
    run = run_folder(calendar, NIGHTLY, AT + 1)
    (run / "outbox.jsonl").mkdir(parents=True)
    (run / "drills.json").write_text('{"passed": false, "drills": []}')
    (run / "regressions.json").write_text("[]")
    asyncio.run(drill_notices.leave(calendar, NIGHTLY, run, config, CLOCK))
    assert "nightly: people could not be told: the outbox" in capsys.readouterr().err


def test_a_destination_that_cannot_work_is_refused_before_anything_is_broken(tmp_path: Path) -> None:
    """As the controller does it."""
    wrong = NotifyConfig(to=(Destination(name="team", url_file=str(tmp_path / "none")),))
    with pytest.raises(ConfigError, match="url_file cannot be read"):
        check_destinations(wrong)
    check_destinations(NotifyConfig())
