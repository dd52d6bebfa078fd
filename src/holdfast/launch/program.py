"""`holdfast run` as a program: finds out where it is, becomes leader or follower, and leaves nothing behind.

Called by `cli.run`, which hands in the judgement (`Judge`), because the controller is built beside this package and not
below it. Only what starting ranks takes is imported here; the leader's part stands in `leading`. Time passes in the
asyncio loop that `launch` opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.adapters.local.link import NodeLink
from holdfast.errors import UsageError
from holdfast.launch import process, slot_folder
from holdfast.launch.folder import unusable
from holdfast.launch.follower import Follower
from holdfast.launch.ground import Ground, on_signals
from holdfast.launch.late_matcher import LateMatcher
from holdfast.launch.link import OpenNetwork
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace, read_place, telemetry_root

if TYPE_CHECKING:  # a follower judges nothing, and loads the matcher when its ranks run
    from holdfast.detect.hyperpod_rules import LogRule
    from holdfast.detect.matcher import Matcher
    from holdfast.launch.allocation import Judge
    from holdfast.launch.leader import Leader
    from holdfast.launch.leading import Outfit


_THREADS_S = 12.0
"""A thread that opens a journal waits for its lock up to 10 s."""


def launch(options: RunOptions, environ: Mapping[str, str], judge: Judge) -> int:
    """Run to the end; returns the exit code.

    Raises:
        UserError: the options, the environment or a file is wrong.
    """
    options.check()
    place = read_place(environ, job_dir=options.job_dir, nnodes=options.nnodes)
    local_ranks = 1 if options.is_command else options.local_ranks(environ)
    options.standby_count(local_ranks)
    options.teed_ranks(range(1))
    _make_folders(place)
    tag = f"{place.job}-{place.node}-{secrets.token_hex(6)}"
    telemetry, held = _telemetry(place)
    owns = held is not None
    ground = Ground(
        place=place,
        network=OpenNetwork() if place.node_dir is None else NodeLink(place.node_dir),
        options=options,
        environ=environ,
        voice=Voice(),
        matcher=LateMatcher(lambda: _load_matcher(options.rules)),
        log_rules=_log_rules(options),
        tag=tag,
        telemetry=telemetry,
        owns_telemetry=owns,
        local_ranks=local_ranks,
        lease_s=_lease(environ, options),
        may_renice=process.may_restore_priority(),
    )
    process.become_subreaper()
    try:
        code, why, leader = asyncio.run(_run(ground, judge))
        if leader is not None and environ.get("SLURM_JOB_ID") and leader.leaving.wants_requeue(code):
            _requeue_on_slurm(ground, leader)
        if code and why:
            ground.voice.say(f"giving up with exit code {code}: {why}")
        if leader is not None and leader.nodes.has_let_go:
            from holdfast.launch.own_slurm_job import leave_own_srun  # noqa: PLC0415 - seldom, at the very end

            if owns:
                shutil.rmtree(telemetry, ignore_errors=True)
            leave_own_srun(ground.environ, code)
        return code
    finally:
        if held is not None:
            shutil.rmtree(telemetry, ignore_errors=True)
            held.close()


def _telemetry(place: JobPlace) -> tuple[Path, contextlib.ExitStack | None]:
    """The folder of slots, and the lock on it where it is ours to delete; None: in the job's folder, or shared."""
    folder, owns = telemetry_root(place, secrets.token_hex(8))
    if owns:
        slot_folder.sweep(folder.parent)
        try:
            return folder, slot_folder.claim(folder)
        except OSError:
            folder = place.job_dir / "telemetry" / place.node
    return folder, None


def _requeue_on_slurm(ground: Ground, leader: Leader) -> None:
    """No controller does it: the owner's right is enough."""
    from holdfast.adapters.slurm.own_job import OwnJob, job_name  # noqa: PLC0415 - once, at the very end
    from holdfast.launch.own_slurm_job import requeue_own_job  # noqa: PLC0415

    own_job = OwnJob(job_name(ground.environ), ground.place.job_dir, ground.environ)
    refusal = requeue_own_job(leader, own_job, environ=ground.environ, voice=ground.voice)
    ground.voice.say(f"the job is not requeued: {refusal}")


def _load_matcher(rules: Sequence[str]) -> Matcher:
    from holdfast.adapters.catalogue_files import read_catalogue, read_matcher  # noqa: PLC0415 - in a thread of its own

    return read_matcher(read_catalogue(rules))


def _log_rules(options: RunOptions) -> tuple[LogRule, ...]:
    if not options.log_rules:
        return ()
    from holdfast.adapters.log_rule_files import read_log_rules  # noqa: PLC0415 - a YAML reader, for who needs it

    return read_log_rules(options.log_rules)


def _make_folders(place: JobPlace) -> None:
    try:
        for folder in ("logs", "drill") if place.drill_ok else ("logs",):
            (place.job_dir / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(place.job_dir, error) from error


def _lease(environ: Mapping[str, str], options: RunOptions) -> float:
    text = environ.get("HOLDFAST_LEASE_S", "").strip()
    try:
        return float(text) if text else options.lease_s
    except ValueError as error:
        raise UsageError(f"HOLDFAST_LEASE_S={text!r} must be a number of seconds") from error


async def _run(ground: Ground, judge: Judge) -> tuple[int, str, Leader | None]:
    if not ground.place.is_leader:
        return *await run_on(ground, judge, None), None
    from holdfast.launch.leading import ranks_outfit  # noqa: PLC0415 - followers need none of it

    outfit = ranks_outfit(ground, judge)
    return *await run_on(ground, judge, outfit), outfit.leader


async def run_on(ground: Ground, judge: Judge, outfit: Outfit | None) -> tuple[int, str]:
    """Lead with this outfit, or follow, to the end; returns the exit code and the reason for it."""
    remove = [str(ground.telemetry)] if ground.owns_telemetry else []
    guard = process.start_guard(ground.tag, remove=remove)
    try:
        if outfit is not None:
            from holdfast.launch.leading import lead  # noqa: PLC0415 - as above

            ended = await lead(ground, judge, outfit)
        else:
            ended = await _follow(ground)
        _bound_the_end(ground, ended[0])
        return ended
    finally:
        guard.send(signal.SIGKILL)


def _bound_the_end(ground: Ground, code: int) -> None:
    """Nothing runs any more, but the loop waits for its threads, and one may wait for a folder that does not answer."""

    def leave() -> None:
        if ground.owns_telemetry:
            shutil.rmtree(ground.telemetry, ignore_errors=True)
        os._exit(code)

    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(signum, leave)
    loop.call_later(_THREADS_S, leave)


# --- the follower ---


async def _follow(ground: Ground) -> tuple[int, str]:
    follower = Follower(
        ground.place,
        ground.options,
        network=ground.network,
        voice=ground.voice,
        lease_s=ground.lease_s,
        make_runner=ground.runner,
    )
    on_signals(follower.end_job, follower.runner.pass_signal)
    return await follower.run(ground.environ), follower.why
