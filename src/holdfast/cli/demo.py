"""`holdfast demo`: the story of `drill/demonstration` told live, then its timeline, totals and a page with plots.

On a terminal a small live board shows nodes, job and step; elsewhere one line per happening is printed. The board only
reads the controller; nothing waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from holdfast.adapters.clock import SystemClock
from holdfast.cli import screen
from holdfast.cli.answer import taking
from holdfast.cli.options import OptionSet
from holdfast.drill.demonstration import DemoResult, DemoSettings, Watcher, demo_form, loss_sentence, run_demo
from holdfast.drill.results import DrillResult
from holdfast.drill.scenario import shipped
from holdfast.drill.stage import Stage
from holdfast.drill.training import TrainingJob
from holdfast.errors import EXIT_FAILED, HoldfastError, UsageError
from holdfast.model.cluster import JobKey
from holdfast.model.records import JobRecord, NodeRecord, NodeState
from holdfast.report.html import render_html
from holdfast.report.terminal import show

MARK = ".holdfast-demo"
"""A file in the demo's folder: only a folder that has it is cleared by the next demo."""
LOOK_S = 0.2
NOTES_SHOWN = 6


class Board(Watcher):
    """The live view of the demo."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.notes: list[str] = []
        self.nodes: list[NodeRecord] = []
        self.record: JobRecord | None = None
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            console=console,
        )
        self.task = TaskID(0)
        self.stage: Stage | None = None
        self.key: JobKey | None = None
        self.job: TrainingJob | None = None

    def stage_up(self, stage: Stage) -> None:
        """Note it and begin to look."""
        self.stage = stage
        self.note(f"{stage.nodes} nodes, {stage.spares} spare and a controller are up: {stage.folder}")

    def job_submitted(self, key: JobKey, job: TrainingJob) -> None:
        """Follow this job from here on."""
        self._complete()
        self.key, self.job = key, job
        self.task = self.bar.add_task(f"job {key} ({job.name})", total=job.steps)
        self.note(f"job {key} ({job.name}): {job.ranks} ranks on {job.nodes} nodes, {job.steps} steps")

    def note(self, text: str) -> None:
        """Keep the last few; without a terminal, print at once."""
        self.notes.append(text)
        if not self.console.is_terminal:
            self.console.print(Text(f"demo: {text}"), soft_wrap=True)

    def drill_over(self, result: DrillResult) -> None:
        """Say how it went."""
        took = "" if result.recover_s is None else f", proven after {result.recover_s:.1f} s"
        failed = ", ".join(f"{c.name}: expected {c.expected}, got {c.actual}" for c in result.failures)
        self.note(f"{result.name}: survived{took}" if result.passed else f"{result.name}: FAILED: {failed}")

    async def follow(self) -> None:
        """Look at the controller again and again until cancelled."""
        while True:
            with contextlib.suppress(HoldfastError):
                await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        if self.stage is None or self.key is None or self.job is None:
            return
        eyes = self.stage.eyes
        self.nodes = await eyes.nodes()
        self.record = await eyes.job(self.key)
        attempt = self.record.attempt
        if attempt is None:
            return
        points = await eyes.samples("step", f"job:{self.key}({attempt.number})*")
        step = max([point.value for point in points[-8:]], default=float(attempt.first_step or 0))
        self.bar.update(self.task, completed=step)

    def _complete(self) -> None:
        if self.job is not None:
            self.bar.update(self.task, completed=self.job.steps)

    def __rich__(self) -> RenderableType:
        """The board as it is now."""
        cells = [_node_text(node, self.key) for node in sorted(self.nodes, key=lambda node: node.name)]
        state = Text("waiting for the cluster", style="dim")
        if self.record is not None:
            state = Text.assemble("job ", (self.record.name, "bold"), " is ", (self.record.state.value, "bold"))
        notes = [
            Text(f"  {line}", style="dim", overflow="ellipsis", no_wrap=True) for line in self.notes[-NOTES_SHOWN:]
        ]
        return Group(Text("  ").join(cells) if cells else Text(""), state, *notes, self.bar)


def _node_text(node: NodeRecord, key: JobKey | None) -> Text:
    style = {NodeState.HEALTHY: "green", NodeState.UNKNOWN: "yellow"}.get(node.state, "red")
    busy = "*" if key is not None and key.id in node.view.jobs else ("s" if node.view.spare else " ")
    return Text.assemble((f"{node.name}{busy}", style), (f" {node.state.value}", style))


class DemoChoices(OptionSet, frozen=True):
    """The options of `holdfast demo`, as `DemoSettings` has them."""

    nodes: Annotated[int, typer.Option(help="Nodes of the cluster, each with a real agent process.", min=2)] = 4
    spares: Annotated[int, typer.Option(help="Nodes kept back for a node that fails.", min=1)] = 1
    steps: Annotated[int, typer.Option(help="Steps of the training job.", min=150)] = 240
    launcher: Annotated[
        Literal["torchrun", "holdfast"],
        typer.Option(help="torchrun under `holdfast run --`, or `holdfast run` in its place (warm standbys)."),
    ] = "torchrun"
    seed: Annotated[int, typer.Option(help="Seed of weights, data and faults.")] = 1
    folder: Annotated[
        Path,
        typer.Option("--dir", help="Folder for everything that the demo writes; cleared if an earlier demo made it."),
    ] = Path("holdfast-demo")
    on: Annotated[
        Literal["local", "slurm", "kubernetes"],
        typer.Option(help="Where it runs: an embedded cluster, or a real Slurm or Kubernetes here."),
    ] = "local"
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")] = False


@taking
def demo(given: DemoChoices) -> None:
    """A real PyTorch job survives a crash, a failing NVLink and a hang on this machine, in under three minutes.

    It starts an embedded cluster of real processes, or with `--on` a real Slurm or Kubernetes, trains a small
    GPT, breaks it three times, and shows how each fault was found, what was done, and that the loss is the same as
    without the faults. The page `report.html` in the folder has the plots. Ctrl-C ends everything.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError("the demo's job trains with PyTorch, which is not installed: pip install torch numpy")
    clear(given.folder)
    console = Console(stderr=True) if given.json else Console()
    settings = given.fill(DemoSettings, folder=given.folder / "cluster")
    result = asyncio.run(_watch(settings, Board(console)))
    page = given.folder / "report.html"
    if result.report is not None:
        result.report.notes.append(loss_sentence(result))
        screen.save(page, render_html(result.report))
    if given.json:
        screen.say_json(demo_form(result))
    else:
        conclude(result, page, console)
    if not result.passed:
        raise typer.Exit(EXIT_FAILED)


def clear(folder: Path) -> None:
    """Make the folder fresh. Raises UsageError when it holds something that no demo made."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--dir: {folder} is a file, not a folder")
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise UsageError(f"--dir: {folder} holds files that no demo made: name another folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    (folder / MARK).touch()


async def _watch(settings: DemoSettings, board: Board) -> DemoResult:
    looking = asyncio.create_task(board.follow())
    show: Any = Live(board, console=board.console, refresh_per_second=8) if board.console.is_terminal else None
    try:
        with show if show is not None else contextlib.nullcontext():
            return await run_demo(settings, shipped(), clock=SystemClock(), watcher=board)
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


def conclude(result: DemoResult, page: Path, console: Console) -> None:
    """The end of the story: timeline, totals, what happened in sentences, the proof."""
    if result.report is not None:
        show(result.report, console)
    verdict = "survived" if result.passed else "NOT survived"
    console.print(
        Text(
            f"{len(result.drills)} faults {verdict} in {result.seconds:.0f} s; job ended at step {result.last_step}.",
            "bold",
        )
    )
    console.print(Text(loss_sentence(result)))
    console.print(Text(f"Page with plots: {page}"), soft_wrap=True)
