"""The demo: one training job, three faults in turn, and the proof that its loss is that of an undisturbed run.

Called by `holdfast demo`. It is made of the same parts as drills: a stage, three shipped scenarios, the runner. An
undisturbed run with the same seed comes first, without pauses between its steps; its losses are what the disturbed
run is held against, to the last bit. Time is the clock's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from holdfast.drill.clusters import StageSettings
from holdfast.drill.ports import Site
from holdfast.drill.results import DrillResult
from holdfast.drill.runner import Patience, run_drill
from holdfast.drill.scenario import Scenario
from holdfast.drill.stage import Stage, read_report
from holdfast.drill.training import Losses, TrainingJob, largest_difference, read_losses
from holdfast.errors import HoldfastError, UsageError
from holdfast.model.cluster import JobKey, attempt_name
from holdfast.model.records import JobRecord, JobState
from holdfast.ports import Clock
from holdfast.report.gather import ReportData
from holdfast.report.series import Point

FAULTS = ("crash_segfault", "xid_74_replace", "hang_allreduce")
"""Names of the shipped scenarios, in the order in which the demo runs them."""
EMULATED = (
    "GPUs, their kernel-log lines and the replacement of a node are emulated; processes, faults and times are real."
)


class DemoSettings(Struct, frozen=True, kw_only=True):
    """What is shown."""

    folder: Path
    nodes: int = 4
    spares: int = 1
    steps: int = 240
    step_s: float = 0.1
    checkpoint_every: int = 10
    seed: int = 1
    launcher: Literal["holdfast", "torchrun"] = "torchrun"
    workload: Literal["counter", "gpt"] = "gpt"
    on: Literal["local", "slurm", "kubernetes"] = "local"
    """An embedded cluster, or a real Slurm or Kubernetes on this machine."""
    limit_s: float = 300.0
    """For each of: the undisturbed run, one drill's steady state, the rest of the job after the last drill."""


class DemoResult(Struct, kw_only=True):
    """What came out."""

    drills: list[DrillResult] = field(default_factory=list)
    completed: bool = False
    """The job ended at the step that was asked for."""
    last_step: int = 0
    steps_compared: int = 0
    largest_difference: float | None = None
    """Between the losses of the disturbed and the undisturbed run at the same step."""
    seconds: float = 0.0
    report: ReportData | None = None

    @property
    def passed(self) -> bool:
        """All faults survived, the job complete, every loss equal."""
        return (
            self.completed
            and len(self.drills) == len(FAULTS)
            and all(drill.passed for drill in self.drills)
            and self.largest_difference == 0.0
        )


class Watcher:
    """What the demo tells its audience; the command line draws it, tests record it."""

    def stage_up(self, stage: Stage) -> None:
        """All nodes and the controller are up."""

    def job_submitted(self, key: JobKey, job: TrainingJob) -> None:
        """A job was queued; `job.name` says which."""

    def note(self, text: str) -> None:
        """One sentence on what happens now."""

    def drill_over(self, result: DrillResult) -> None:
        """One fault and its recovery are over."""


async def run_demo(
    settings: DemoSettings, scenarios: dict[str, Scenario], *, clock: Clock, watcher: Watcher
) -> DemoResult:
    """Run the whole demo and gather its report. What was started is ended when it returns, however it returns.

    Raises:
        LinkError: something did not start or did not answer in time; the message says what.
        UsageError: too few nodes or steps for three faults.
    """
    if settings.nodes < 2 or settings.spares < 1:
        raise UsageError("the demo needs at least 2 nodes and 1 spare: use --nodes 2 --spares 1 or more")
    result = DemoResult()
    began = clock.monotonic()
    wanted = StageSettings(
        folder=settings.folder, on=settings.on, nodes=settings.nodes, spares=settings.spares, accounting=False
    )
    async with Stage(wanted) as stage:
        watcher.stage_up(stage)
        reference = await _undisturbed(stage, settings, watcher)
        job = _job(settings, "demo", settings.step_s)
        key = await stage.submit(job)
        watcher.job_submitted(key, job)
        site = Site(
            eyes=stage.eyes,
            job=key,
            clock=clock,
            breaker=stage.breaker,
            job_dir=stage.job_dir(key),
            losses=lambda: largest_difference(read_losses(stage.job_dir(key)), reference),
            step_s=settings.step_s,
        )
        await _break_it(stage, site, settings, scenarios, result, watcher)
        await _finish(stage, key, settings, result, watcher)
    attempts = read_losses(stage.job_dir(key))
    result.steps_compared = len({step for losses in attempts.values() for step in losses if step in reference})
    result.largest_difference = largest_difference(attempts, reference)
    result.seconds = clock.monotonic() - began
    result.report = await _report(stage, key, reference, attempts, clock.now())
    return result


def _job(settings: DemoSettings, name: str, step_s: float) -> TrainingJob:
    return TrainingJob(
        workload=settings.workload,
        launcher=settings.launcher,
        name=name,
        nodes=settings.nodes,
        steps=settings.steps,
        checkpoint_every=settings.checkpoint_every,
        step_s=step_s,
        seed=settings.seed,
    )


async def _undisturbed(stage: Stage, settings: DemoSettings, watcher: Watcher) -> Losses:
    """Run the same training to its end with no fault and no pause; its losses by step."""
    job = _job(settings, "undisturbed", 0.0)
    watcher.note("an undisturbed run with the same seed comes first, for its losses")
    key = await stage.submit(job)
    watcher.job_submitted(key, job)
    await stage.until(key, lambda record: record.over, limit_s=settings.limit_s)
    losses = {step: loss for run in read_losses(stage.job_dir(key)).values() for step, loss in run.items()}
    if len(losses) < settings.steps:
        raise UsageError(f"the undisturbed run ended after {len(losses)} of {settings.steps} steps: see {stage.folder}")
    return losses


async def _break_it(
    stage: Stage,
    site: Site,
    settings: DemoSettings,
    scenarios: dict[str, Scenario],
    result: DemoResult,
    watcher: Watcher,
) -> None:
    for number, name in enumerate(FAULTS, 1):
        mark = settings.steps * number // (len(FAULTS) + 2)
        await stage.until(site.job, _beyond(mark), limit_s=settings.limit_s)
        drill = await run_drill(
            scenarios[name],
            site,
            drill_id=name,
            seed=settings.seed,
            patience=Patience(steady_s=settings.limit_s),
            on_note=watcher.note,
        )
        result.drills.append(drill)
        watcher.drill_over(drill)


def _beyond(step: int) -> Callable[[JobRecord], bool]:
    """Has the job saved this step, so that the faults are spread over its run?"""
    return lambda job: job.durable_step >= step or job.over


async def _finish(stage: Stage, key: JobKey, settings: DemoSettings, result: DemoResult, watcher: Watcher) -> None:
    watcher.note(f"no more faults: the job goes on to step {settings.steps}")
    record = await stage.until(key, lambda job: job.over, limit_s=settings.limit_s)
    result.last_step = max((a.last_step for a in record.attempts if a.last_step is not None), default=0)
    result.completed = record.state is JobState.COMPLETED and result.last_step >= settings.steps


async def _report(stage: Stage, key: JobKey, reference: Losses, attempts: dict[str, Losses], now: float) -> ReportData:
    """Read the journal after the controller has ended: what it holds is all there is."""
    data = await read_report(stage.journal, title="Holdfast demo", cluster=key.cluster, now=now, job=str(key))
    data.reference_losses = [Point(step, loss) for step, loss in sorted(reference.items())]
    series = data.series[str(key)]
    series.losses = {int(number): [Point(s, v) for s, v in sorted(run.items())] for number, run in attempts.items()}
    data.notes.append(EMULATED)
    return data


def loss_sentence(result: DemoResult) -> str:
    """How the losses compare, in one sentence."""
    if result.largest_difference is None:
        return "No step could be compared with the undisturbed run."
    if result.largest_difference == 0.0:
        return (
            f"The loss equals that of the undisturbed run at all {result.steps_compared} steps, to the last bit,"
            " also at those computed again."
        )
    return (
        f"The loss differs from the undisturbed run by up to {result.largest_difference:.3g}"
        f" over {result.steps_compared} steps."
    )


def demo_form(result: DemoResult) -> dict[str, object]:
    """The result in a stable form for `--json`; `report` is the form of `holdfast report --json`."""
    from holdfast.report.json_form import report_form  # noqa: PLC0415 - only when it is asked for

    if result.report is None:
        raise HoldfastError("the demo has no report")
    return {
        "version": 1,
        "passed": result.passed,
        "completed": result.completed,
        "last_step": result.last_step,
        "seconds": result.seconds,
        "loss": {"steps_compared": result.steps_compared, "largest_difference": result.largest_difference},
        "drills": [
            {
                "name": drill.name,
                "passed": drill.passed,
                "attempt": attempt_name(str(result.report.jobs[0].key), drill.incident.attempt_after)
                if drill.incident and drill.incident.attempt_after is not None and result.report.jobs
                else None,
                "failed_checks": [check.name for check in drill.failures],
            }
            for drill in result.drills
        ],
        "report": report_form(result.report),
    }
