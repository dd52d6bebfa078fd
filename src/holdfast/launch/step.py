"""`holdfast srun --auto-resume=1` as a program: srun under supervision, run again in the same allocation when it fails.

Called by `cli.srun`, which hands in how a controller is made. The engine, its journal and the line to the cluster's
controller are those of `holdfast run`. Time passes in the asyncio loop that `launch_step` opens.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, structs

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.slurm.daemons import NodeAddress
from holdfast.adapters.slurm.own_job import OwnJob, job_name
from holdfast.adapters.slurm.steps import SrunCall, StepShape, read_call, shape_of
from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_FAILED, LinkError, OrderError
from holdfast.launch import process
from holdfast.launch.allocation import Judge
from holdfast.launch.ground import Ground
from holdfast.launch.late_controller import LateController
from holdfast.launch.late_matcher import LateMatcher
from holdfast.launch.leader import Leader
from holdfast.launch.leading import Outfit, job_view
from holdfast.launch.link import OpenNetwork
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.process import Exit
from holdfast.launch.program import run_on
from holdfast.launch.slurm_nodes import SlurmNodes
from holdfast.launch.step_crew import StepCrew
from holdfast.launch.step_nodes import StepNodes
from holdfast.launch.step_place import (
    allocated_nodes,
    check_allocation,
    claim_folder,
    floor_of,
    step_place,
)
from holdfast.launch.step_runner import SrunStep, StepRunner
from holdfast.launch.step_slots import new_prefix
from holdfast.launch.step_supervisor import StepSupervisor
from holdfast.launch.step_watchers import Watchers
from holdfast.launch.step_words import StepListener
from holdfast.model.cluster import RecoverySpec
from holdfast.model.evidence import Remedy
from holdfast.model.policy import Limits, Mode, Policy

LEASE_S = 2.5
"""Of a watcher. With the margin and the start of srun, a node that falls silent is replaced within 4 s."""
_END_GRACE_S = 30.0


class StepOptions(Struct, frozen=True, kw_only=True):
    """What `holdfast srun` was asked for."""

    argv: tuple[str, ...]
    """srun's own arguments."""
    spares: int | None = None
    policy: str = ""
    """Name of a preset or policy of the set."""
    max_restarts: int | None = None
    job_dir: str = ""


class _Scene(Struct):
    """What is known before the first attempt."""

    place: JobPlace
    call: SrunCall
    shape: StepShape
    own_job: OwnJob
    slurm: SlurmNodes
    floor: int
    telemetry: str
    """What the names of the tasks' folders of slots begin with, see `step_slots`."""


def launch_step(options: StepOptions, environ: Mapping[str, str], judge: Judge) -> int:
    """Run the step to its end; returns srun's exit code.

    Raises:
        UserError: the options, the environment or a file is wrong.
    """
    check_allocation(environ)
    call = read_call(options.argv)
    scene = _look_around(options, call, environ)
    policy = judge.policy_for(scene.place.partition, options.policy)
    in_place = (
        options.max_restarts
        if options.max_restarts is not None
        else policy.limits.max_in_place or Limits().max_in_place
    )
    run_options = RunOptions(
        argv=options.argv,
        is_command=True,
        nnodes=scene.shape.nodes,
        standbys="0",
        max_restarts=in_place,
        stop_grace_s=_END_GRACE_S,
        lease_s=LEASE_S,
    )
    ground = Ground(
        place=scene.place,
        network=OpenNetwork(),
        options=run_options,
        environ=environ,
        voice=Voice(),
        matcher=LateMatcher(lambda: read_matcher(read_catalogue())),
        tag=f"{scene.place.job}-{scene.place.node}-{secrets.token_hex(6)}",
        telemetry=Path(scene.telemetry),
        lease_s=LEASE_S,
    )
    process.become_subreaper()
    code, why, supervisor = asyncio.run(_run(ground, judge, scene, options.policy, policy))
    return _leave(code, why, supervisor, ground, scene)


async def _run(
    ground: Ground, judge: Judge, scene: _Scene, policy_name: str, policy: Policy
) -> tuple[int, str, StepSupervisor]:
    supervisor, outfit = _outfit(ground, scene, policy_name, policy)
    try:
        return *await run_on(ground, judge, outfit), supervisor
    finally:
        await supervisor.leave_watchers()


def _look_around(options: StepOptions, call: SrunCall, environ: Mapping[str, str]) -> _Scene:
    submit = environ.get("SLURM_SUBMIT_DIR", ".")
    root = Path(options.job_dir or f"{submit}/holdfast-run-{environ['SLURM_JOB_ID']}").absolute()
    folder = claim_folder(root, int(environ.get("SLURM_RESTART_COUNT", "0") or 0))
    own_job = OwnJob(job_name(environ), folder, environ)
    nodes, addresses = asyncio.run(_nodes(own_job, environ))
    shape = shape_of(call, nodes, environ, spares=options.spares)
    floor = floor_of(root, folder)
    place = step_place(environ, folder, shape.candidates, addresses)
    ours = place.nodes if place.node in place.nodes else (place.node, *place.nodes)
    slurm = SlurmNodes(own_job, ours, addresses)
    return _Scene(place, call, shape, own_job, slurm, floor, new_prefix(place.job.id))


async def _nodes(own_job: OwnJob, environ: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, NodeAddress]]:
    """What the scheduler says; the environment's word where it does not answer now."""
    try:
        facts = await own_job.facts()
    except (OrderError, LinkError):
        facts = None
    nodes = allocated_nodes(environ, facts)
    try:
        return nodes, await own_job.addresses(nodes)
    except (OrderError, LinkError):
        return nodes, {}


def _outfit(ground: Ground, scene: _Scene, policy_name: str, policy: Policy) -> tuple[StepSupervisor, Outfit]:
    place, options = ground.place, ground.options
    view = job_view(place, options)
    asked = view.recovery or RecoverySpec()
    view = structs.replace(view, recovery=structs.replace(asked, policy=policy_name or asked.policy))
    base = {key: value for key, value in ground.environ.items() if key not in {"SLURM_STEP_ID", "SLURM_STEPID"}}
    base[process.TAG] = ground.tag
    runner = StepRunner(
        SrunStep(
            place,
            scene.call,
            scene.shape,
            base=base,
            telemetry=scene.telemetry,
            is_acting=policy.modes.get(Remedy.RESTART_IN_PLACE, policy.mode) is Mode.ACT,
        ),
        matcher=ground.matcher,
        listener=StepListener(
            report=lambda node, report: crew.hear(node, report),
            ended=lambda attempt: supervisor.srun_ended(attempt),
            lost=lambda node, line: nodes.given_up(node, line),
            cancelled=lambda attempt, why: supervisor.cancelled(attempt, why),
        ),
        voice=ground.voice,
    )
    crew = StepCrew(
        place,
        runner,
        candidates=scene.shape.candidates,
        on_report=lambda node, report: supervisor.hear(node, report),
        on_all_gone=lambda attempt: leader.on_all_gone(attempt),
    )
    controller = LateController()
    leader = Leader(ground, policy=policy, view=view, want_nodes=scene.shape.nodes, crew=crew, controller=controller)
    nodes = leader.nodes = StepNodes(
        place,
        slurm=scene.slurm,
        floor=scene.floor,
        crew=crew,
        watchers=Watchers(place, base, scene.telemetry, ground.voice),
        events=leader.events,
        observer=leader.observer,
        voice=ground.voice,
        background=leader.background,
    )
    supervisor = StepSupervisor(leader, crew, nodes, runner, ground.voice)
    return supervisor, Outfit(leader, controller, supervisor.end_job)


# --- leaving ----------------------------------------------------------------------------------------------------------


def _leave(code: int, why: str, supervisor: StepSupervisor, ground: Ground, scene: _Scene) -> int:
    """Srun's own exit code; before that, a requeue when nothing is left to be done in this allocation."""
    if code == 0:
        return 0
    leader, ended = supervisor.leader, supervisor.runner.last_exit
    if ended != Exit():
        own = ended.shell_code
    elif (watch := leader.observer.watch) is not None:
        own = watch.outcome().shell_code
    else:  # srun was never started
        own = code if code == EXIT_DO_NOT_REQUEUE else EXIT_FAILED
    if leader.leaving.wants_requeue(code):
        from holdfast.launch.own_slurm_job import requeue_own_job  # noqa: PLC0415 - once, at the very end

        refusal = requeue_own_job(leader, scene.own_job, environ=ground.environ, voice=ground.voice)
        ground.voice.say(f"{why}; the job is not requeued: {refusal}")
    elif why and code != 128 + leader.leaving.shutdown.ending:
        ground.voice.say(f"not run again: {why}")
    return own or EXIT_FAILED
