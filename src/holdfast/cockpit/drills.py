"""The drills page: what ships, runs started from the page, and runs compared.

A run is a process of its own on an embedded cluster of its own (`holdfast drill run`), one at a time: this cluster's
jobs and nodes are never hit. Results stay in a folder for the page. Called by `cockpit.py` and `routes.py`. Times are
the controller's clock; a run is ended at its limit, and with the cockpit.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from holdfast.api.auth import Identity, Role
from holdfast.cockpit.pages import Page, Values
from holdfast.drill.calendar import FORM, Calendar, Held, lines
from holdfast.drill.scenario import shipped
from holdfast.drill.schedule import Schedule, regressions
from holdfast.errors import HoldfastError, RefusedError, UsageError
from holdfast.model.events import DrillRun
from holdfast.os.programs import JOINED, Command, Program
from holdfast.ports import Clock

RUNS_MAX = 50
"""Of the newest that the page lists."""
LIMIT_S = 1800.0
TAIL = 40
"""Lines of a run's output that the page shows."""
ASKED = "asked.json"
SLOWER_BY = 0.5
NONE = Calendar()
CALENDAR_RUNS = 10
"""Of each schedule, the newest: what ran before stands in its folder."""
_FOLDER = re.compile(r"[0-9]{8}T[0-9]{6}Z(-[0-9]+)?")
_log = structlog.get_logger("holdfast.cockpit")


class Run(Struct, frozen=True):
    """One run that has ended."""

    name: str
    """Its folder; of the calendar: `nightly/20261101T030000Z`."""
    form: dict[str, Any]
    asked: dict[str, str]
    schedule: str = ""
    """Of the calendar that it belongs to; empty: it was begun from the page."""

    @property
    def started_at(self) -> float:
        """Unix seconds; 0: its results do not say."""
        at = self.form.get("started_at")
        return float(at) if isinstance(at, int | float) else 0.0

    @property
    def who(self) -> str:
        """Who asked for it; empty: nobody from this page."""
        return self.asked.get("who", "")

    @property
    def why(self) -> str:
        """Their reason."""
        return self.asked.get("why", "")

    @property
    def drills(self) -> list[dict[str, Any]]:
        """Each drill as `drills.json` has it."""
        return [one for one in self.form.get("drills", []) if isinstance(one, dict)]


class Going(Struct):
    """The run that is under way."""

    names: tuple[str, ...]
    who: str
    why: str
    since: float
    lines: deque[str]
    folder: str = ""
    stopped_by: str = ""
    task: asyncio.Task[None] | None = None


class DrillRoom:
    """See the module.

    Args:
        folder: holds a folder for each run.
        clock: tells the time of a run.
        changed: called when there is something new to show.
        submit: has a run's start and end journalled; a run that cannot be journalled does not begin.
        calendar: drills that `holdfast drill schedule run` runs, and where it leaves their results.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        changed: Callable[[], None],
        submit: Callable[[DrillRun], Awaitable[int]],
        calendar: Calendar = NONE,
    ) -> None:
        self._submit = submit
        self._calendar = calendar
        self._folder = folder
        self._clock = clock
        self._changed = changed
        self._drills = shipped()
        self._kept: dict[str, Run] = {}
        self.going: Going | None = None
        self.failed = ""

    async def page(self, page: Page) -> Values:
        """What ships, what runs, what has run, and two runs side by side."""
        now = self._clock.now()
        calendar = await asyncio.to_thread(lines, self._calendar, now, most=CALENDAR_RUNS)
        kept = await asyncio.to_thread(self._runs)
        kept += [_of_calendar(line.schedule, one) for line in calendar for one in line.runs if one.form]
        runs = sorted(kept, key=lambda run: run.started_at, reverse=True)[:RUNS_MAX]
        by_name = {run.name: run for run in runs}
        right = by_name.get(page.ask("after")) or (runs[0] if runs else None)
        left = by_name.get(page.ask("before")) or (_before(right, runs) if right is not None else None)
        slower_by = {one.name: one.slower_by for one in self._calendar.schedules}
        compared, worse = [], []
        if left is not None and right is not None:
            compared = beside(left, right)
            worse = regressions(left.form, right.form, slower_by=slower_by.get(right.schedule, SLOWER_BY))
        return {
            "drills": list(self._drills.values()),
            "going": self.going,
            "failed": self.failed,
            "runs": runs,
            "left": left,
            "right": right,
            "compared": compared,
            "worse": worse,
            "calendar": calendar,
            "calendar_wrong": self._calendar.wrong,
            "calendar_folder": self._calendar.folder,
            "befores": {run.name: before.name for run in runs if (before := _before(run, runs)) is not None},
        }

    def start(self, identity: Identity, names: list[str], why: str) -> None:
        """Begin a run.

        Raises:
            RefusedError: not an operator, or one is under way.
            UsageError: no drill, or one that does not ship; no reason.
        """
        if not identity.may(Role.OPERATOR):
            raise RefusedError(f"the token of {identity.name!r} is {identity.role.one}'s; drills need an operator's")
        if self.going is not None:
            raise RefusedError("a run is under way: wait for its end, or stop it")
        unknown = [name for name in names if name not in self._drills]
        if not names or unknown:
            raise UsageError(f"there is no drill {unknown[0]!r}" if unknown else "choose a drill")
        if not why:
            raise UsageError("say in a few words why: it is kept with the results")
        now = self._clock.now()
        going = self.going = Going(tuple(names), identity.name, why, now, deque(maxlen=TAIL))
        going.folder = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        self.failed = ""
        _log.info("drills are run from the cockpit", names=names, who=identity.name, why=why)
        going.task = asyncio.create_task(self._run(going), name="drills")

    async def stop(self, who: str = "the end of the controller") -> None:
        """End the run that is under way, with all that it has started."""
        going = self.going
        if going is not None and going.task is not None:
            going.stopped_by = who
            going.task.cancel()
            await asyncio.gather(going.task, return_exceptions=True)
            self._over(going)  # also when it was stopped before it had begun

    async def _run(self, going: Going) -> None:
        out = self._folder / going.folder
        command = (sys.executable, "-m", "holdfast", "drill", "run", *going.names, "--out", str(out))
        program: Program | None = None
        try:
            await self._tell(going, "started")
            out.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            program = await Program.start(Command(argv=command, stderr=JOINED))
            async with asyncio.timeout(LIMIT_S):
                await self._read(program.process, going)
                await program.process.wait()
            (out / ASKED).write_bytes(msgspec.json.encode({"who": going.who, "why": going.why}))
        except TimeoutError:
            self.failed = f"The run was ended at its limit of {LIMIT_S:g} s."
        except (OSError, HoldfastError) as error:
            self.failed = f"The run could not be started: {error}"
        finally:
            if program is not None:
                await _end(program)
            code = None if program is None else program.process.returncode
            if code and not (out / FORM).exists() and not self.failed:
                self.failed = f"The run ended with code {code}: {' '.join(list(going.lines)[-2:])}"
            self._over(going)
            self._ended(going, passed=code == 0)
            self._changed()

    def _over(self, going: Going) -> None:
        """Another run that has begun meanwhile stays."""
        if self.going is going:
            self.going = None

    def _tell(self, going: Going, phase: str, detail: str = "") -> Awaitable[int]:
        return self._submit(
            DrillRun(
                id=f"drill-run:{going.folder}:{going.since:.3f}:{phase}",
                at=self._clock.now(),
                source="cockpit",
                who=going.who,
                drills=going.names,
                phase=phase,
                run=going.folder,
                why=going.why,
                detail=detail[:500],
            )
        )

    def _ended(self, going: Going, *, passed: bool) -> None:
        """Have the end journalled. Nobody waits for it: at the controller's own end the journal may be closed."""
        if going.stopped_by:
            self._tell(going, "stopped", f"by {going.stopped_by}")
        elif passed:
            self._tell(going, "passed")
        else:
            self._tell(going, "failed", self.failed)

    async def _read(self, process: asyncio.subprocess.Process, going: Going) -> None:
        stream = process.stdout
        while stream is not None and (line := await stream.readline()):
            going.lines.append(line.decode("utf-8", "replace").rstrip()[:500])
            self._changed()

    def _runs(self) -> list[Run]:
        """Newest first. A run's results do not change, so each is read once."""
        found = []
        folders = sorted(self._folder.iterdir(), reverse=True) if self._folder.is_dir() else []
        under_way = self.going.folder if self.going is not None else ""
        ended = [one for one in folders if _FOLDER.fullmatch(one.name) and one.name != under_way]
        for folder in ended[:RUNS_MAX]:
            run = self._kept.get(folder.name)
            if run is None:
                form, asked = _json(folder / FORM), _json(folder / ASKED)
                if not form:
                    continue
                run = self._kept[folder.name] = Run(folder.name, form, {k: str(v) for k, v in asked.items()})
            found.append(run)
        return found


async def _end(program: Program) -> None:
    """SIGINT, so that it undoes what it did; SIGKILL to all of it when that takes too long."""
    try:
        if program.is_running:
            program.interrupt()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10.0):
                    await program.process.wait()
    finally:
        await program.end()


def _json(path: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _of_calendar(schedule: Schedule, one: Held) -> Run:
    asked = {"who": "calendar", "why": schedule.name}
    return Run(f"{schedule.name}/{one.folder.name}", one.form, asked, schedule.name)


def _before(run: Run, runs: Sequence[Run]) -> Run | None:
    """The newest older run of the same schedule, or from the page; `runs`: newest first."""
    return next((one for one in runs[runs.index(run) + 1 :] if one.schedule == run.schedule), None)


def beside(left: Run, right: Run) -> list[tuple[str, dict[str, Any] | None, dict[str, Any]]]:
    """Each drill of the newer run beside the same one of the older."""
    before = {one["name"]: one for one in left.drills}
    return [(one["name"], before.get(one["name"]), one) for one in right.drills]
