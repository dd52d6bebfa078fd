"""Several drills in a row, each on a job that fits it, and everything written down.

Called by `holdfast drill run` and by tests. Drills that need the same job share one, so that imports and first steps
are paid once; after a drill that failed the next one gets a fresh cluster, so that one fault is not counted twice.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.drill.clusters import KUBERNETES, StageSettings, lacking_on_slurm
from holdfast.drill.ports import Site
from holdfast.drill.results import DrillResult, DrillRun, render_json, render_junit, skipped
from holdfast.drill.runner import Patience, run_drill
from holdfast.drill.scenario import JobNeeds, Scenario
from holdfast.drill.site import SiteStage, fitted, lacking_on_site
from holdfast.drill.site_settings import SiteSettings
from holdfast.drill.stage import Stage, read_report
from holdfast.drill.training import CHECKPOINTS, TrainingJob, loss_difference
from holdfast.drill.verdict import Check
from holdfast.errors import HoldfastError, NotFoundError, UserError
from holdfast.model.records import JOB_ENDED, JobState
from holdfast.os.files import write_whole
from holdfast.ports import Clock
from holdfast.report.html import render_html

SPARE_NODES = 1
CANCELLED = "its job was cancelled"
_LOOK_S = 0.5
_ODD = re.compile(r"[^A-Za-z0-9_-]+")


class CampaignSettings(Struct, frozen=True, kw_only=True):
    """How drills are run."""

    folder: Path
    """Where clusters and the written results go; a folder of its own."""
    workload: Literal["counter", "gpt"] = "counter"
    launcher: Literal["holdfast", "torchrun"] = "holdfast"
    seed: int = 1
    fresh: bool = False
    """A cluster of its own for every drill."""
    repeat: int = 1
    policy: Path | None = None
    """The controller's policy; None: `drill/policy.toml`, with the brakes let go."""
    patience: Patience = Patience()
    has_torch: bool = True
    on: Literal["local", "slurm", "kubernetes", "site"] = "local"
    """A cluster that is brought up, or `site`."""
    site: SiteSettings | None = None
    """The cluster that runs already."""
    until_cancelled: bool = False
    """After its drills each job trains on until its scheduler is told to cancel it, or Ctrl-C."""
    verbose: bool = False
    """Tell what the job's record says, line by line."""


class Sitting(Struct, frozen=True):
    """Drills that share one job."""

    job: TrainingJob
    scenarios: tuple[Scenario, ...]


def plan(scenarios: Iterable[Scenario], settings: CampaignSettings) -> list[Sitting]:
    """Put drills that need the same job together, in the order of their first; those that end the job stay alone."""
    shared: dict[TrainingJob, list[Scenario]] = {}
    sittings: list[tuple[TrainingJob, list[Scenario]]] = []
    for scenario in scenarios:
        job = job_for(scenario, settings)
        if settings.fresh or scenario.expect.job_completes:
            sittings.append((job, [scenario]))
        elif job in shared:
            shared[job].append(scenario)
        else:
            shared[job] = [scenario]
            sittings.append((job, shared[job]))
    return [Sitting(job, tuple(found)) for job, found in sittings]


def job_for(scenario: Scenario, settings: CampaignSettings) -> TrainingJob:
    """The job that a scenario asks for, with the workload that the campaign or the fault's kind needs."""
    needs = scenario.job
    own = settings.site.config if settings.site is not None else None
    workload = "gpt" if scenario.definition.needs == "gpt" else settings.workload
    place = "{scratch}" if needs.checkpoints_on_node else "{shared}" if needs.checkpoints_on_shared else ""
    return TrainingJob(
        workload=workload,
        launcher=settings.launcher,
        name="drill",
        nodes=needs.nodes,
        ranks_per_node=needs.ranks_per_node,
        steps=needs.steps,
        checkpoint_every=needs.checkpoint_every,
        step_s=needs.step_s,
        seed=settings.seed,
        checkpoint_dir=f"{place}/checkpoints" if place else CHECKPOINTS,
        mirror=CHECKPOINTS if place else "",
        command=own.command if own is not None else (),
        python=(own.python if own is not None else "") or sys.executable,
    )


async def run_campaign(
    scenarios: Sequence[Scenario],
    settings: CampaignSettings,
    *,
    clock: Clock,
    on_note: Callable[[str], None] = lambda _: None,
    on_result: Callable[[DrillResult], None] = lambda _: None,
) -> DrillRun:
    """Run them all and write `drills.json`, `junit.xml` and a report per cluster into the folder.

    Raises:
        UserError: what a person must mend: a target that is not open to drills, a scenario that does not fit.
    """
    began = clock.monotonic()
    run = DrillRun(seed=settings.seed, workload=settings.workload, cluster=settings.on, started_at=clock.now())
    campaign = _Campaign(settings, clock, run, on_note, on_result)
    fitting = [_fitted(scenario, settings) for scenario in scenarios]
    try:
        for sitting in plan([s for s in fitting for _ in range(settings.repeat)], settings):
            await campaign.sit(sitting)
    finally:
        await campaign.close()
        run.seconds = clock.monotonic() - began
        settings.folder.mkdir(parents=True, exist_ok=True)
        write_whole(settings.folder / "drills.json", render_json(run).encode())
        write_whole(settings.folder / "junit.xml", render_junit(run).encode())
    return run


def _fitted(scenario: Scenario, settings: CampaignSettings) -> Scenario:
    """As it can be run here: by the site's own measure, and on a job that does not end by itself where one stays."""
    if settings.site is not None:
        scenario = fitted(scenario, settings.site.config)
    if settings.until_cancelled and scenario.expect.job_completes:
        endless = replace(scenario.job, steps=JobNeeds().steps)
        scenario = replace(scenario, expect=replace(scenario.expect, job_completes=False), job=endless)
    return scenario


class _Campaign:
    """The cluster that is up now, and what has come out so far."""

    def __init__(
        self,
        settings: CampaignSettings,
        clock: Clock,
        run: DrillRun,
        on_note: Callable[[str], None],
        on_result: Callable[[DrillResult], None],
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.run = run
        self.note = on_note
        self.on_result = on_result
        self.stage: Stage | SiteStage | None = None
        self.stages = 0
        self.site: Site | None = None

    async def sit(self, sitting: Sitting) -> None:
        """Run the drills of one job; a new job, and a new cluster after a failure, wherever it takes one."""
        for scenario in sitting.scenarios:
            lacking = self._lacking(scenario)
            if lacking:
                self._add(skipped(scenario, lacking))
                continue
            if sitting.job.workload == "gpt" and not self.settings.has_torch:
                self._add(skipped(scenario, "needs torch: pip install torch"))
                continue
            try:
                result = await self._drill(scenario, sitting.job)
            except UserError:
                if not await self._is_cancelled():
                    raise
                result = skipped(scenario, CANCELLED)
            except HoldfastError as error:
                result = DrillResult(name=scenario.name, kind=scenario.kind)
                why = str(error)
                result.checks = [Check(name="carried out", passed=False, expected="the drill runs", actual=why)]
            if not result.passed and await self._is_cancelled():
                result = skipped(scenario, CANCELLED)
            self._add(result)
            if result.skipped:
                break
            if not result.passed or self.settings.fresh:
                await self.close()
        if self.settings.until_cancelled:
            await self._stay()
        await self._leave_job()

    async def close(self) -> None:
        """End the cluster that is up."""
        stage, self.stage, self.site = self.stage, None, None
        if stage is None:
            return
        await stage.close()
        if stage.journal is None:
            return
        try:
            data = await read_report(
                stage.journal, title="Holdfast drills", cluster=stage.cluster_name, now=self.clock.now()
            )
        except HoldfastError as error:
            self.note(f"no report: {error}")
            return
        page = self.settings.folder / f"report-{self.stages}.html"
        write_whole(page, render_html(data).encode())

    async def _job_state(self) -> JobState | None:
        """Of the job that is up; None: there is none."""
        if self.site is None:
            return None
        try:
            return (await self.site.eyes.job(self.site.job)).state
        except NotFoundError:
            return None

    async def _is_cancelled(self) -> bool:
        return self.settings.until_cancelled and await self._job_state() is JobState.CANCELLED

    async def _stay(self) -> None:
        """Let the job train on until it is over. Ctrl-C ends the wait, and what was found is kept."""
        site, seq = self.site, 0
        if site is None or await self._job_state() in {None, *JOB_ENDED}:
            return
        self.note(f"job {site.job} trains on until it is cancelled, or Ctrl-C")
        try:
            while await self._job_state() not in {None, *JOB_ENDED}:
                seq = await site.eyes.wait(seq, _LOOK_S)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.uncancel():
                raise

    def _add(self, result: DrillResult) -> None:
        self.run.drills.append(result)
        self.on_result(result)

    async def _drill(self, scenario: Scenario, job: TrainingJob) -> DrillResult:
        site = self.site or await self._bring_up(job)
        number = len(self.run.drills) + 1
        drill_id = f"{number}-{_ODD.sub('-', scenario.name)}"[:100]
        return await run_drill(
            scenario,
            site,
            drill_id=drill_id,
            seed=self.settings.seed + number - 1 if self.settings.repeat > 1 else self.settings.seed,
            patience=self._patience(),
            on_note=self.note,
        )

    async def _bring_up(self, job: TrainingJob) -> Site:
        nodes = job.nodes + 1
        if self.stage is None or self.stage.nodes < nodes:
            await self.close()
            self.stages += 1
            folder = self.settings.folder / f"cluster-{self.stages}"
            if self.settings.site is None:
                self.note(f"bringing up {nodes} nodes and a spare in {folder}")
            self.stage = stage = self._make_stage(folder, nodes)
            await stage.open()
        stage = self.stage
        key = await stage.submit(job)
        job_dir = stage.job_dir(key)
        self.note(f"job {key} is submitted; its folder: {job_dir}")
        self.site = Site(
            eyes=stage.eyes,
            job=key,
            clock=self.clock,
            breaker=stage.breaker,
            job_dir=job_dir,
            losses=lambda: loss_difference(job, job_dir),
            step_s=0.0 if job.command else job.step_s,
            on_story=self.note if self.settings.verbose else None,
        )
        return self.site

    def _make_stage(self, folder: Path, nodes: int) -> Stage | SiteStage:
        if self.settings.site is not None:
            return SiteStage(self.settings.site, self.clock)
        on: Any = self.settings.on
        return Stage(StageSettings(folder=folder, on=on, nodes=nodes, spares=SPARE_NODES, policy=self._policy()))

    def _lacking(self, scenario: Scenario) -> str:
        if self.settings.site is not None:
            return lacking_on_site(scenario.definition, self.settings.site)
        if self.settings.on == "slurm":
            return lacking_on_slurm(scenario.definition)
        return scenario.definition.lacking(KUBERNETES if self.settings.on == "kubernetes" else "local")

    def _patience(self) -> Patience:
        extra = self.settings.site.config.start_s if self.settings.site is not None else 0.0
        return replace(self.settings.patience, steady_s=self.settings.patience.steady_s + extra)

    def _policy(self) -> Path:
        if self.settings.policy is not None:
            return self.settings.policy
        self.settings.folder.mkdir(parents=True, exist_ok=True)
        path = self.settings.folder / "policy.toml"
        path.write_bytes((resources.files("holdfast.drill") / "policy.toml").read_bytes())
        return path

    async def _leave_job(self) -> None:
        """Cancel the job so that the next one has its nodes."""
        site, self.site = self.site, None
        if site is None or self.stage is None:
            return
        try:
            await self.stage.cancel(site.job)
        except HoldfastError:
            await self.close()
