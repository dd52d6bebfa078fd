"""One drill from the steady state to the verdict.

Called by the command line, the demo and tests with a `Site`: the controller's eyes, a breaker, and the job to break.
Time is the clock's; between two looks it waits for the controller's next event. Whatever happens, also Ctrl-C, the
fault is undone before `run_drill` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from statistics import median
from typing import Any

from msgspec import Struct

from holdfast.drill.faults import Aim, CannotInjectError, Injection, aim
from holdfast.drill.kinds import Reach
from holdfast.drill.ports import Site
from holdfast.drill.results import DrillResult
from holdfast.drill.scenario import Scenario
from holdfast.drill.verdict import Check, Fired, Seen, drill_incident, judge
from holdfast.errors import HoldfastError, LinkError, NotFoundError, UsageError
from holdfast.model.cluster import JobKey
from holdfast.model.events import DrillFired
from holdfast.model.evidence import Remedy
from holdfast.model.records import JOB_ENDED, IncidentRecord, JobRecord, JobState, Mark, NodeRecord, NodeState

_LOOK_S = 0.5
_INCIDENTS, _ORDERS = 200, 500
"""So many of the newest are looked at: incidents of the drill's job and node, orders of the cluster."""
_UNDO_S = 30.0


class Patience(Struct, frozen=True, kw_only=True):
    """How long a drill waits for what."""

    steady_s: float = 120.0
    inject_s: float = 60.0
    margin_s: float = 20.0
    """Beyond the scenario's own limits, so that a late recovery is reported with its true time."""
    settle_s: float = 1.0
    """After the last thing that was waited for: a second restart by mistake shows up in here."""


async def run_drill(
    scenario: Scenario,
    site: Site,
    *,
    drill_id: str,
    seed: int = 0,
    patience: Patience = Patience(),  # noqa: B008 - frozen
    on_note: Callable[[str], None] = lambda _: None,
) -> DrillResult:
    """Run one drill. A fault that cannot be injected fails the drill; it raises only what a person must mend.

    Raises:
        RefusedError: the job or node is not open to drills.
        UsageError: the scenario does not fit this job.
        LinkError: the controller cannot be reached.
    """
    began = site.clock.monotonic()
    drill = _Drill(scenario, site, drill_id, patience, on_note)
    try:
        result = await drill.run(seed)
    finally:
        await _to_the_end(drill.undo())
    result.seconds = site.clock.monotonic() - began
    return result


async def _to_the_end(undo: Coroutine[Any, Any, None]) -> None:
    """Undo even while this task is being cancelled: Ctrl-C must not leave a network cut or a disk full."""
    task = asyncio.ensure_future(asyncio.wait_for(undo, _UNDO_S))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    await task


class _Drill:
    """The state of one drill."""

    def __init__(
        self, scenario: Scenario, site: Site, drill_id: str, patience: Patience, on_note: Callable[[str], None]
    ) -> None:
        self.scenario = scenario
        self.site = site
        self.drill_id = drill_id
        self.patience = patience
        self.note = on_note
        self.injection: Injection | None = None
        self.seq = 0
        self.earlier: frozenset[str] = frozenset()
        """Orders that were there before the fault: whatever came just before it is no answer to it."""

    async def run(self, seed: int) -> DrillResult:
        scenario, clock = self.scenario, self.site.clock
        result = DrillResult(name=scenario.name, kind=scenario.kind)
        try:
            job = await self._steady()
            step_s = await self._step_seconds(job)
            fired = await self._inject(job, seed)
        except CannotInjectError as error:
            result.checks = judge(scenario, Seen(fired=None, problem=str(error)), None)
            return result
        result.fired = fired
        await self._tell(fired)
        before = job.attempt.number if job.attempt else 0
        seen = Seen(fired=fired, attempts_before=before, step_s=step_s)
        deadline = clock.monotonic() + self._limit()
        while True:
            await self._look(seen)
            result.incident = drill_incident(seen.incidents, self.drill_id, scenario)
            if self._is_over(seen, result.incident) or clock.monotonic() >= deadline:
                break
            self.seq = await self.site.eyes.wait(self.seq, _LOOK_S)
        await self.undo()
        await self._settle(seen, result)
        result.checks = [*judge(scenario, seen, result.incident), *self._damage_check(result.incident)]
        return result

    async def undo(self) -> None:
        """Take the fault back; harmless when it is already."""
        if self.injection is not None:
            await self.injection.undo()

    # --- before ---

    async def _steady(self) -> JobRecord:
        """Wait until the job trains, has saved in this attempt, and nothing is being recovered or repaired."""
        site, clock = self.site, self.site.clock
        deadline = clock.monotonic() + self.patience.steady_s
        why = "it was not looked at"
        while clock.monotonic() < deadline:
            try:
                job = await site.eyes.job(site.job)
            except NotFoundError as error:
                # A job that was submitted a moment ago has not been looked at yet.
                why = str(error)
            else:
                if job.over:
                    raise UsageError(f"job {site.job} is {job.state.value}: there is nothing to drill")
                why = _unsteady(job) or await self._unsteady_incident(job) or await self._unsteady_nodes(job)
                self._read_along(job)
                if not why:
                    return job
            self.seq = await site.eyes.wait(self.seq, _LOOK_S)
        raise CannotInjectError(f"job {site.job} did not become steady within {self.patience.steady_s:.0f} s: {why}")

    async def _unsteady_incident(self, job: JobRecord) -> str:
        """An incident that people were only told of stays open while its attempt lasts, and is in nobody's way."""
        if not job.incident:
            return ""
        found = await self.site.eyes.incidents(incident=job.incident)
        is_told_only = any(one.outcome == "observed" for one in found)
        return "" if is_told_only else f"incident {job.incident} is open"

    async def _unsteady_nodes(self, job: JobRecord) -> str:
        sick = [node for node in await self.site.eyes.nodes() if node.state is not NodeState.HEALTHY]
        mending = [node for node in sick if node.state is not NodeState.RETIRED]
        if mending:
            return f"node {mending[0].name} is {mending[0].state.value}"
        mine = [node.name for node in sick if job.attempt and node.name in job.attempt.nodes]
        return f"node {mine[0]} is retired" if mine else ""

    async def _step_seconds(self, job: JobRecord) -> float:
        """The measured step time of this attempt, else what the site says."""
        times = await self.site.eyes.step_times(job.key, job.attempt.number if job.attempt else 0)
        return median(times[-32:]) if times else self.site.step_s

    async def _inject(self, job: JobRecord, seed: int) -> Fired:
        scenario = self.scenario
        target = Aim()
        if scenario.definition.reach is not Reach.NOTHING:
            base = job.attempt.durable_step if job.attempt and job.attempt.durable_step else 0
            target = aim(scenario, job, base, seed)
        self.injection = Injection(scenario, self.drill_id, target=target, job=job, site=self.site)
        if scenario.when.after_s:
            await self.site.clock.sleep(scenario.when.after_s)
        self.earlier = frozenset(record.order.id for record in await self.site.eyes.orders(limit=_ORDERS))
        where = f"rank {target.rank}" if target.rank is not None else target.node
        self.note(f"{scenario.name}: {scenario.kind}" + (f" at {where}" if where else ""))
        fired = await self.injection.inject(self.patience.inject_s)
        self.note(f"{scenario.name}: injected" + (f" at step {fired.step}" if fired.step is not None else ""))
        return fired

    async def _tell(self, fired: Fired) -> None:
        if self.scenario.definition.reach is Reach.NOTHING:
            return
        event = DrillFired(
            id=f"drill:{self.drill_id}",
            at=fired.at,
            source=f"drill:{self.drill_id}",
            drill=self.drill_id,
            kind=self.scenario.kind,
            job=self.site.job,
            node=fired.node,
            rank=fired.rank,
            step=fired.step,
        )
        await self.site.eyes.ingest(event.source, [event])

    # --- after ---

    def _limit(self) -> float:
        expect = self.scenario.expect
        if expect.must_not_act:
            return expect.watch_s + self.patience.margin_s + (60.0 if expect.job_completes else 0.0)
        longest = max(expect.recover_s_max or 0.0, expect.detect_s_max or 0.0, 10.0)
        return longest + self.patience.margin_s + (60.0 if expect.job_completes or expect.node_returns else 0.0)

    async def _look(self, seen: Seen) -> None:
        eyes = self.site.eyes
        start = seen.fired.at if seen.fired else 0.0
        try:
            job = await eyes.job(self.site.job)
            self._read_along(job)
            node = seen.fired.node if seen.fired else ""
            newest = await eyes.incidents(job=str(self.site.job), limit=_INCIDENTS)
            if node:
                newest += await eyes.incidents(node=node, limit=_INCIDENTS)
            mine = {one.id: one for one in newest if _concerns(one, start, self.site.job, node, self.drill_id)}
            seen.incidents = sorted(mine.values(), key=lambda incident: incident.opened_at)
            seen.orders = [
                record
                for record in await eyes.orders(limit=_ORDERS)
                if record.issued_at >= start - 0.5 and record.order.id not in self.earlier
            ]
            seen.job_state = job.state
            seen.attempts_after = job.attempt.number if job.attempt else 0
            if self.scenario.expect.node_returns:
                seen.node_healthy = _is_back(await eyes.nodes(), node)
        except LinkError:
            # The drill may have taken the controller's own machine along; it is asked again at the next look.
            self.note("the controller does not answer")

    def _read_along(self, job: JobRecord) -> None:
        """Tell the lines of the job's record that are new since the last look."""
        site = self.site
        if site.on_story is None or not job.story:
            return
        known = job.story.index(site.told) + 1 if site.told in job.story else 0
        for line in job.story[known:]:
            site.on_story(f"  {line}")
        site.told = job.story[-1]

    def _is_over(self, seen: Seen, incident: IncidentRecord | None) -> bool:
        expect = self.scenario.expect
        if seen.job_state in JOB_ENDED:
            return True
        if expect.job_completes:
            return False
        if expect.must_not_act or self.scenario.definition.reach is Reach.NOTHING:
            return seen.fired is not None and self.site.clock.now() >= seen.fired.at + expect.watch_s
        if incident is None or (expect.node_returns and not seen.node_healthy):
            return False
        if expect.recover_s_max is None:
            known = incident.diagnosis is not None and Mark.DETECTED in incident.marks
            return known and (not expect.remedies or bool(incident.remedies) or Remedy.NOTIFY in expect.remedies)
        return bool(incident.closed_at) or (incident.jobs_done and not expect.node_returns)

    async def _settle(self, seen: Seen, result: DrillResult) -> None:
        if seen.job_state not in JOB_ENDED:
            await self.site.clock.sleep(self.patience.settle_s)
        await self._look(seen)
        result.incident = drill_incident(seen.incidents, self.drill_id, self.scenario)
        if self.scenario.expect.loss_matches and self.site.losses is not None:
            with contextlib.suppress(HoldfastError):
                seen.loss_difference = self.site.losses()

    def _damage_check(self, incident: IncidentRecord | None) -> list[Check]:
        """A damaged checkpoint must not be the one that was loaded."""
        damaged = self.injection.damaged_step if self.injection is not None else None
        if damaged is None:
            return []
        resumed = incident.step_resumed if incident else None
        actual = "not known" if resumed is None else f"resumed from step {resumed}"
        passed = resumed is not None and resumed < damaged
        return [Check("damaged checkpoint refused", passed, f"resumed before step {damaged}", actual)]


def _unsteady(job: JobRecord) -> str:
    """Why the job is not steady; empty when it is."""
    attempt = job.attempt
    if job.state is not JobState.WATCHING:
        return f"it is {job.state.value}"
    if attempt is None or not attempt.started_at or attempt.ended_at:
        return "no attempt runs"
    if attempt.durable_step is None:
        return f"attempt {attempt.number} has not saved a checkpoint yet"
    return ""


def _concerns(incident: IncidentRecord, start: float, job: JobKey, node: str, drill: str) -> bool:
    if incident.drill == drill and drill:
        return True
    return incident.opened_at >= start - 0.5 and (job in incident.jobs or bool(node and node in incident.nodes))


def _is_back(nodes: list[NodeRecord], name: str) -> bool:
    """Whether the node, or the one that took its name, takes work."""
    return any(node.name == name and node.state is NodeState.HEALTHY and not node.view.drained for node in nodes)
