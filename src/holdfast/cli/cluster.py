"""`holdfast cluster ...`: an embedded cluster of real processes on this machine, to try things on.

`up` starts the little scheduler and its nodes in the background, `submit` queues a job, `status` looks, `down` ends
everything. The scheduler stands for Slurm: it knows nothing of recovery; `holdfast controller` brings that.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from holdfast.adapters.emulated import devices
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.adapters.local.daemon import daemon_pid, end_cluster, start_cluster
from holdfast.cli import screen
from holdfast.cli.answer import Answer, answering, group
from holdfast.cli.json_forms import fields_of, form
from holdfast.cli.options import DirOption, OptionSet
from holdfast.errors import EXIT_FAILED, LinkError, NotFoundError
from holdfast.model.cluster import ENDED, JobView, NodeView, RecoverySpec, SchedulerState, WorldView
from holdfast.wiring.settings import default_folder

app = group("Run an embedded cluster of real processes on this machine.")


class UpOptions(OptionSet, frozen=True):
    """What `up` is asked for."""

    cluster_dir: DirOption = None
    nodes: Annotated[int, typer.Option(min=1, max=64, help="Ordinary nodes.")] = 4
    spares: Annotated[int, typer.Option(min=0, max=64, help="Nodes used only when the ordinary ones run out.")] = 0
    gpus_per_node: Annotated[int, typer.Option(min=0, max=16, help="Emulated GPUs of each node.")] = 8
    drill_ok: Annotated[bool, typer.Option("--drill-ok", help="Open to drills: nodes may be broken on purpose.")] = (
        False
    )
    emulated: Annotated[
        bool,
        typer.Option("--devices", help="Each node's emulated GPUs answer NVML, nvidia-smi and dcgmi (needs gcc)."),
    ] = False


@app.command()
@answering
def up(given: UpOptions) -> Answer:
    """Start a cluster in the background and wait until its nodes are up."""
    folder = (given.cluster_dir or default_folder()).expanduser().resolve()
    nodes, spares, options = given.nodes, given.spares, ["--gpus-per-node", str(given.gpus_per_node)]
    if given.emulated:
        devices.build()  # a missing compiler is said here, once, and not by every agent
        options.append("--emulated-devices")
    running = start_cluster(folder, nodes=nodes, spares=spares, drill_ok=given.drill_ok, follow=False, options=options)
    try:
        asyncio.run(running.until_up())
    except BaseException:  # also Ctrl-C: a cluster that did not come up is not left behind
        running.end()
        raise
    made = form(dir=str(folder), pid=running.process.pid, nodes=nodes, spares=spares)
    spare = f" and {spares} spare" if spares else ""
    where = f" --dir {folder}" if given.cluster_dir is not None else ""
    lines = [
        f"cluster up: {nodes} nodes{spare} in {folder} (pid {running.process.pid})",
        f"  holdfast cluster submit{where} --nodes {min(2, nodes)} -- hostname",
        f"  holdfast cluster down{where}",
    ]
    return Answer(lambda: made, lambda: lines)


@app.command()
@answering
def down(*, cluster_dir: DirOption = None) -> Answer:
    """End a cluster and every process in it. Its folder stays."""
    folder = _folder(cluster_dir)
    ran = asyncio.run(end_cluster(folder))
    said = f"cluster in {folder} is down" if ran else f"no cluster ran in {folder}"
    return Answer(lambda: form(dir=str(folder), ran=ran), lambda: [said])


@app.command()
@answering
def status(*, cluster_dir: DirOption = None) -> Answer:
    """Show nodes and jobs as the scheduler sees them."""
    folder, scheduler = _running(cluster_dir)
    world = asyncio.run(scheduler.observe())
    made = form(dir=str(folder), pid=daemon_pid(folder), **fields_of(world, "cluster at nodes jobs"))
    return Answer(lambda: made, lambda: _tables(world))


class SubmitOptions(OptionSet, frozen=True):
    """What a job is asked for."""

    cluster_dir: DirOption = None
    nodes: Annotated[int, typer.Option("--nodes", "-N", min=1, help="Nodes of the job.")] = 1
    name: Annotated[str, typer.Option("--job-name", "-J", help="Name of the job.")] = ""
    exclude: Annotated[
        str, typer.Option("--exclude", "-x", metavar="NODES", help="Nodes to keep off: node01,node02.")
    ] = ""
    hold: Annotated[bool, typer.Option("--hold", "-H", help="Queue it held.")] = False
    recover: Annotated[bool, typer.Option("--recover", help="Ask for recovery of this job.")] = False
    drill_ok: Annotated[bool, typer.Option("--drill-ok", help="This job may be broken on purpose.")] = False
    wait: Annotated[bool, typer.Option("--wait", "-W", help="Wait for its end and exit as it did.")] = False


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@answering
def submit(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD", help="Run once on every node of the job, as srun does.")
    ],
    *,
    given: SubmitOptions,
) -> Answer:
    """Queue a job. Its output goes to output.log in the job's folder."""
    _, scheduler = _running(given.cluster_dir)
    submitted = scheduler.submit(
        command,
        nodes=given.nodes,
        name=given.name or Path(command[0]).name,
        exclude=tuple(filter(None, given.exclude.split(","))),
        hold=given.hold,
        recovery=RecoverySpec() if given.recover else None,
        drill_ok=given.drill_ok,
        cwd=str(Path.cwd()),
        env={key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "SLURM_"))},
    )
    job = asyncio.run(submitted)
    if not given.wait:
        said = f"job {job.key.id} is queued; its output: {job.job_dir}/output.log"
        return Answer(lambda: form(job=job), lambda: [said])
    ended = asyncio.run(_until_ended(scheduler, job.key.id))
    said = f"job {ended.key.id} {ended.state.value}{f': {ended.reason}' if ended.reason else ''}"
    code = 0 if ended.state is SchedulerState.COMPLETED else ended.exit_code or EXIT_FAILED
    return Answer(lambda: form(job=ended), lambda: [said], code)


@app.command()
def cancel(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")],
    *,
    cluster_dir: DirOption = None,
) -> None:
    """End a job for good."""
    _, scheduler = _running(cluster_dir)
    screen.say(f"job {job}: {asyncio.run(scheduler.cancel(job))}")


async def _until_ended(orchestrator: LocalOrchestrator, job_id: str) -> JobView:
    while True:
        job = await orchestrator.job(job_id)
        if job is None:
            raise NotFoundError(f"job {job_id} is no longer known to the cluster")
        if job.state in ENDED:
            return job
        await orchestrator.wait_change(30.0)


def _folder(cluster_dir: Path | None) -> Path:
    folder = (cluster_dir or default_folder()).expanduser().resolve()
    if not folder.is_dir():
        raise NotFoundError(f"there is no cluster in {folder}; `holdfast cluster up` starts one")
    return folder


def _running(cluster_dir: Path | None) -> tuple[Path, LocalOrchestrator]:
    folder = _folder(cluster_dir)
    if not daemon_pid(folder):
        raise LinkError(f"no cluster runs in {folder}; `holdfast cluster up` starts one")
    return folder, LocalOrchestrator(folder / "cluster.sock")


def _tables(world: WorldView) -> list[RenderableType]:
    nodes = (
        (
            f"{node.name} (spare)" if node.spare else node.name,
            Text(node.state_text + (f": {screen.clean(node.drain_reason)}" if node.drain_reason else ""), _style(node)),
            ",".join(node.jobs),
            node.boot_id[:8],
            node.instance_id,
        )
        for node in world.nodes
    )
    jobs = (
        (job.key.id, job.name, job.state.value, job.restart_count, screen.fold(job.nodes), job.reason)
        for job in world.jobs
    )
    made = [screen.table("node", "state", "jobs", "boot", "machine", rows=nodes, keep=("node",))]
    if world.jobs:
        headings = ("job", "name", "state", "restarts", "nodes", "reason")
        made.append(screen.table(*headings, rows=jobs, right=("restarts",), keep=("job",)))
    return [*made]


def _style(node: NodeView) -> str:
    if node.alive is False:
        return "red"
    return "yellow" if node.alive is None or node.drained else "green"
