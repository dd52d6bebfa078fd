"""Drills from the page: who may, what is compared, and that a run under way is ended with the cockpit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.cockpit.served import csrf_of, run, served
from tests.controller.cases import until

from holdfast.adapters.clock import SystemClock
from holdfast.api import Identity, Role
from holdfast.cockpit.drills import DrillRoom
from holdfast.cockpit.pages import Page
from holdfast.drill.calendar import Calendar
from holdfast.drill.schedule import Schedule
from holdfast.errors import RefusedError, UsageError
from holdfast.model.events import DrillRun

pytestmark = pytest.mark.timeout(600)
OPERATOR = Identity("mei", Role.OPERATOR)


def written(folder: Path, name: str, *, recover_s: float, passed: bool = True) -> None:
    """Results as `holdfast drill run` leaves them."""
    drill = {
        "name": "kill9", "kind": "kill", "passed": passed, "skipped": False, "reason": "" if passed else "too slow",
        "cause": "exit.signal.9", "detect_s": 0.1, "recover_s": recover_s,
    }  # fmt: skip
    (folder / name).mkdir(parents=True)
    form = {"version": 1, "passed": passed, "started_at": 1.7e9, "seconds": 20.0, "drills": [drill]}
    (folder / name / "drills.json").write_text(json.dumps(form))
    (folder / name / "asked.json").write_text(json.dumps({"who": "mei", "why": "<b>before the launch</b>"}))


def test_two_runs_are_compared_and_the_worse_is_named(tmp_path: Path) -> None:
    """The newest run beside the one before it: what became slower stands out; a torn folder is left out."""

    async def work() -> None:
        written(tmp_path / "drills", "20261101T100000Z", recover_s=5.0)
        written(tmp_path / "drills", "20261102T100000Z", recover_s=15.0)
        (tmp_path / "drills" / "20261103T100000Z").mkdir()
        (tmp_path / "drills" / "20261101T100000Z" / "asked.json").unlink()
        async with served(tmp_path) as house, house.browser(Role.VIEWER) as http:
            page = (await http.get("/drills")).text
            assert "kill9: recover_s was 5.00 s, is 15.00 s" in page
            assert "&lt;b&gt;before the launch&lt;/b&gt;" in page
            other = await http.get("/drills?before=20261102T100000Z&after=20261101T100000Z")
            assert "Nothing is worse" in other.text

    run(work)


def test_the_calendar_stands_on_the_page_with_its_last_runs(tmp_path: Path) -> None:
    """Next run, quiet hours, the last run's verdict and what is worse in it; its runs are compared with their own kind."""

    async def work() -> None:
        nightly = Schedule(name="nightly", drills=("kill9",), at="03:00", zone="Asia/Tokyo", quiet=("00:00-23:59",))
        weekly = Schedule(name="weekly", drills=("hang",), at="04:30", days=("sun",), on="slurm", slower_by=3.0)
        results = tmp_path / "results"
        for name, recover_s in (("20261101T180000Z", 5.0), ("20261102T180000Z", 15.0)):
            for one in ("nightly", "weekly"):
                written(results / one, name, recover_s=recover_s)
                worse = [{"drill": "kill9", "what": "recover_s", "before": "5.00 s", "now": "<b>15.00 s"}]
                flagged = worse if (one, recover_s) == ("nightly", 15.0) else []
                (results / one / name / "regressions.json").write_text(json.dumps(flagged))
        written(tmp_path / "drills", "20261103T100000Z", recover_s=99.0)
        (results / "ended" / "20261103T180000Z").mkdir(parents=True)
        (results / "ended" / "20261103T180000Z" / "aborted.json").write_text('{"why": "by a person"}')
        others = (Schedule(name=name, drills=("kill9",), at="05:00") for name in ("ended", "new"))
        calendar = Calendar((nightly, weekly, *others), results)
        async with served(tmp_path, calendar=calendar) as house, house.browser(Role.VIEWER) as http:
            page = " ".join((await http.get("/drills")).text.split())
            for part in (
                "03:00 Asia/Tokyo, on local", "00:00-23:59", "never: it is always quiet then", "04:30 UTC, sun, on slurm",
                "kill9: recover_s was 5.00 s, is &lt;b&gt;15.00 s", "nothing is worse", str(results), ">worse</span>", ">aborted</span>",
                "by a person", "none yet",
            ):  # fmt: skip
                assert part in page, part
            link = "/drills?before=nightly/20261101T180000Z&amp;after=nightly/20261102T180000Z#compared"
            assert link in page
            compared = (await http.get(link.replace("&amp;", "&"))).text
            assert "kill9: recover_s was 5.00 s, is 15.00 s" in compared
            other = "/drills?before=weekly/20261101T180000Z&after=weekly/20261102T180000Z"
            assert "Nothing is worse." in (await http.get(other)).text

    run(work)


def test_a_calendar_that_cannot_be_used_is_said_on_the_page(tmp_path: Path) -> None:
    """The controller goes on; whoever looks at the drills reads why none is due."""

    async def work() -> None:
        calendar = Calendar(wrong='at = "25:00" is no time of day')
        async with served(tmp_path, calendar=calendar) as house, house.browser(Role.VIEWER) as http:
            page = (await http.get("/drills")).text
            assert "The calendar of drills cannot be used: at = &#34;25:00&#34; is no time of day" in page

    run(work)


def test_a_run_is_begun_by_an_operator_with_a_reason_and_ended_with_the_cockpit(tmp_path: Path) -> None:
    """A viewer, an unknown drill, no reason and a second run are refused; stopping leaves no process behind."""

    async def work() -> None:
        told: list[DrillRun] = []

        def submit(event: DrillRun) -> asyncio.Future[int]:
            told.append(event)
            stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            stored.set_result(len(told))
            return stored

        room = DrillRoom(tmp_path, SystemClock(), lambda: None, submit)
        with pytest.raises(RefusedError, match="operator"):
            room.start(Identity("v", Role.VIEWER), ["kill9"], "why")
        with pytest.raises(UsageError, match="no drill"):
            room.start(OPERATOR, ["--all"], "why")
        with pytest.raises(UsageError, match="few words"):
            room.start(OPERATOR, ["kill9"], "")
        room.start(OPERATOR, ["kill9"], "test")
        with pytest.raises(RefusedError, match="under way"):
            room.start(OPERATOR, ["kill9"], "test")
        assert (await room.page(Page("drills")))["going"] is not None
        await until(lambda: told)
        await room.stop("mei")
        assert room.going is None
        assert [(one.phase, one.who, one.drills, one.why) for one in told] == [
            ("started", "mei", ("kill9",), "test"),
            ("stopped", "mei", ("kill9",), "test"),
        ]
        assert told[0].run == told[1].run
        assert told[0].id != told[1].id

    run(work)


def test_the_end_of_a_stopped_run_leaves_the_next_one_alone(tmp_path: Path) -> None:
    """Somebody begins another run as soon as the first is over, before its stop has returned: the second is under way."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        told: list[DrillRun] = []
        began: list[str] = []

        def submit(event: DrillRun) -> asyncio.Future[int]:
            told.append(event)
            stored: asyncio.Future[int] = loop.create_future()
            if event.phase == "started":
                return stored  # the journal takes its time: no process is started
            if not began:
                began.append("second")
                room.start(OPERATOR, ["kill9"], "second")
            stored.set_result(len(told))
            return stored

        room = DrillRoom(tmp_path, SystemClock(), lambda: None, submit)
        room.start(OPERATOR, ["kill9"], "first")
        await until(lambda: told)
        await room.stop("mei")
        assert room.going is not None
        assert room.going.why == "second"
        await room.stop("mei")
        assert room.going is None
        await asyncio.sleep(0)
        assert [(one.phase, one.why) for one in told][:2] == [("started", "first"), ("stopped", "first")]

    run(work)


def test_a_run_from_the_page_stands_on_the_audit_page_and_in_the_api(tmp_path: Path) -> None:
    """Who, why and what came of it, each an event of the journal; a run that is stopped says by whom."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser() as http:
            form = {"csrf": await csrf_of(http, "/drills"), "deed": "run", "drill": "kill9", "why": "before <b>launch"}
            await http.post("/drills", data=form)
            await until(lambda: any(isinstance(one, DrillRun) for one in house.cockpit.board.deeds))
            await http.post("/drills", data={**form, "deed": "stop"})
            await until(lambda: sum(isinstance(one, DrillRun) for one in house.cockpit.board.deeds) == 2)
            page = (await http.get("/audit?q=kill9")).text
            assert "drill run started" in page
            assert "drill run stopped" in page
            assert "before &lt;b&gt;launch" in page
            said = (await http.get("/v1/audit")).json()
            assert [one["what"] for one in said if one["what"].startswith("drill")] == [
                "drill_run stopped", "drill_run started"
            ]  # fmt: skip
            assert said[0]["who"] == "the-operator"

    run(work)


def test_the_form_of_the_page_begins_a_run(tmp_path: Path) -> None:
    """What the page says no to stands on the page that follows."""

    async def work() -> None:
        async with served(tmp_path) as house, house.browser() as http:
            form = {"csrf": await csrf_of(http, "/drills"), "deed": "run", "drill": "nobody's", "why": "x"}
            assert (await http.post("/drills", data=form)).status_code == 303
            assert "there is no drill" in (await http.get("/drills")).text

    run(work)
