"""`holdfast run` as a program: finds out where it is, becomes leader or follower, and leaves nothing behind.

Called by `cli.run`, which hands in how a controller is made (`make_controller`), because the controller is built
beside this package and not below it. Time passes in the asyncio loop that `launch` opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.journal import open_journal
from holdfast.adapters.local.link import NodeLink
from holdfast.detect.matcher import Matcher
from holdfast.errors import EXIT_DO_NOT_REQUEUE, HoldfastError, OrderError, UsageError
from holdfast.failpoint import site_path
from holdfast.launch import process
from holdfast.launch.allocation import AllocationController, AllocationOrchestrator
from holdfast.launch.crew import Crew
from holdfast.launch.follower import Follower
from holdfast.launch.leader import Leader, cancel_all, story_file
from holdfast.launch.link import LeaderPort
from holdfast.launch.node import NodeRunner
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace, read_place, telemetry_root
from holdfast.launch.reading import LateMatcher
from holdfast.launch.uplink import Uplink, controller_line
from holdfast.model import events as e
from holdfast.model.cluster import JobView, RecoverySpec, SchedulerState
from holdfast.model.orders import AnyOrder, Notify
from holdfast.model.policy import PolicySet
from holdfast.ports import Journal, Notifier, Orchestrator

MakeController = Callable[[Journal, Orchestrator, "list[Notifier]", str], AllocationController]
"""(journal, orchestrator, notifiers, holder) -> a controller in scope `allocation`."""

_NETWORK_FILE_SYSTEMS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "9p", "afs", "lustre", "beegfs", "gpfs", "ceph", "wekafs", "glusterfs",
    "fuse.ceph", "fuse.sshfs", "fuse.glusterfs",
})  # fmt: skip
_BEAT_S = 1.0


class Ground(Struct):
    """What leader and follower stand on alike."""

    place: JobPlace
    options: RunOptions
    policies: PolicySet
    environ: Mapping[str, str]
    voice: Voice
    matcher: LateMatcher
    tag: str
    telemetry: Path
    owns_telemetry: bool
    local_ranks: int
    lease_s: float
    may_renice: bool

    def runner(self, report: Callable[[Any], None]) -> NodeRunner:
        """This node's runner."""
        base = dict(self.environ)
        base[process.TAG] = self.tag
        if self.place.drill_ok:
            base["HOLDFAST_DRILL_DIR"] = str(self.place.job_dir / "drill")
            before = base.get("PYTHONPATH", "")
            base["PYTHONPATH"] = site_path() + (os.pathsep + before if before else "")
        else:
            base.pop("HOLDFAST_DRILL_DIR", None)
        return NodeRunner(
            self.place,
            self.options,
            local_ranks=self.local_ranks,
            base=base,
            telemetry_root=self.telemetry,
            matcher=self.matcher,
            report=report,
            voice=self.voice,
            may_renice=self.may_renice,
        )


def launch(
    options: RunOptions, environ: Mapping[str, str], *, policies: PolicySet, make_controller: MakeController
) -> int:
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
    telemetry, owns = telemetry_root(place, secrets.token_hex(3))
    ground = Ground(
        place=place,
        options=options,
        policies=policies,
        environ=environ,
        voice=Voice(lambda: time.strftime("%Y-%m-%d %H:%M:%S")),
        matcher=LateMatcher(_load_matcher),
        tag=tag,
        telemetry=telemetry,
        owns_telemetry=owns,
        local_ranks=local_ranks,
        lease_s=_lease(environ, options),
        may_renice=process.may_restore_priority(),
    )
    process.become_subreaper()
    try:
        return asyncio.run(_run(ground, make_controller))
    finally:
        if owns:
            shutil.rmtree(telemetry, ignore_errors=True)


def _load_matcher() -> Matcher:
    return read_matcher(read_catalogue())


def _make_folders(place: JobPlace) -> None:
    try:
        for folder in ("logs", "drill") if place.drill_ok else ("logs",):
            (place.job_dir / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the job's folder {place.job_dir} cannot be made: {error.strerror}") from error


def _lease(environ: Mapping[str, str], options: RunOptions) -> float:
    text = environ.get("HOLDFAST_LEASE_S", "").strip()
    try:
        return float(text) if text else options.lease_s
    except ValueError as error:
        raise UsageError(f"HOLDFAST_LEASE_S={text!r} must be a number of seconds") from error


async def _run(ground: Ground, make_controller: MakeController) -> int:
    remove = [str(ground.telemetry)] if ground.owns_telemetry else []
    guard = process.start_guard(ground.tag, remove=remove)
    try:
        if ground.place.is_leader:
            code, why = await _lead(ground, make_controller)
        else:
            code, why = await _follow(ground)
    finally:
        guard.send(signal.SIGKILL)
    if code and why:
        ground.voice.say(f"giving up with exit code {code}: {why}")
    return code


def _on_signals(end: Callable[[int], None], forward: Callable[[int], None]) -> None:
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(signum, end, int(signum))
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(signum, forward, int(signum))


# --- the follower ---


async def _follow(ground: Ground) -> tuple[int, str]:
    follower = Follower(ground.place, ground.options, voice=ground.voice, lease_s=ground.lease_s)
    follower.runner = ground.runner(follower.report)
    _on_signals(follower.end_job, follower.runner.pass_signal)
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(follower.runner.watch()),
        asyncio.create_task(follower.link.run()),
        asyncio.create_task(follower.keep_lease()),
    ]
    try:
        code = await _until_over(follower.is_over, tasks)
        await follower.leave(code)
    finally:
        await cancel_all(tasks)
        await follower.runner.close(0.0)
    return code, ""


async def _until_over(over: asyncio.Future[int], tasks: list[asyncio.Task[Any]]) -> int:
    """The exit code; an error of a background task ends everything and is raised."""
    await asyncio.wait([over, *tasks], return_when=asyncio.FIRST_COMPLETED)
    if over.done():
        return over.result()
    for task in tasks:
        if task.done():
            task.result()
    return await over


# --- the leader ---


async def _lead(ground: Ground, make_controller: MakeController) -> tuple[int, str]:
    place, options = ground.place, ground.options
    view = job_view(place, options)
    leader = Leader(
        place,
        options,
        policy=ground.policies.for_job(view.partition, view.recovery.policy if view.recovery else ""),
        view=view,
        want_nodes=options.nnodes or len(place.nodes),
        catalogue=lambda: ground.matcher.get().catalogue,
        voice=ground.voice,
        lease_s=ground.lease_s,
    )
    runner = ground.runner(lambda report: leader.crew.hear(place.node, report))
    leader.crew = Crew(place, runner, on_report=leader.on_report, on_all_gone=leader.on_all_gone)
    _on_signals(leader.end_job, lambda signum: leader.crew.pass_signal(signum, is_end=False))
    orchestrator = AllocationOrchestrator(leader, leader.crew, want_nodes=leader.want_nodes, now=time.time)
    journal = open_journal(journal_url(place.job_dir))
    leader.controller = make_controller(journal, orchestrator, [VoiceNotifier(ground.voice)], place.source)
    tasks: list[asyncio.Task[Any]] = []
    try:
        record = await journal.jobs(job=str(place.job))
        tasks.append(asyncio.create_task(leader.controller.run(), name="controller"))
        await _ready(leader, tasks[0])
        await _open_port(leader, ground)
        tasks += _leader_tasks(leader, runner, orchestrator, ground)
        await leader.attach(record[0] if record else None)
        leader.run_soon(_start_first(leader))
        code = await _until_over(leader.is_over, tasks)
        await _leave(leader, code)
    finally:
        await leader.crew.dismiss(1, "the leader failed", 0.0)
        await cancel_all(tasks[1:])
        if leader.uplink is not None:
            await leader.uplink.close()
        if tasks:
            leader.controller.stop()
            with contextlib.suppress(TimeoutError, HoldfastError):
                await asyncio.wait_for(tasks[0], 10.0)
        await cancel_all(tasks[:1])
        await journal.close()
    return code, leader.why


async def _ready(leader: Leader, running: asyncio.Task[Any]) -> None:
    ready = asyncio.create_task(leader.controller.ready.wait())
    await asyncio.wait([ready, running], return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    if running.done():
        running.result()


async def _open_port(leader: Leader, ground: Ground) -> None:
    if len(ground.place.nodes) == 1:
        return
    port = LeaderPort(
        ground.place,
        lease_s=ground.lease_s,
        may_grant=lambda: not leader.own_lease.is_over,
        on_join=leader.crew.joined_again,
        on_report=leader.crew.hear,
        on_lost=leader.on_lost,
    )
    leader.crew.port = port
    await port.open()


def _leader_tasks(
    leader: Leader, runner: NodeRunner, orchestrator: Orchestrator, ground: Ground
) -> list[asyncio.Task[Any]]:
    work = [runner.watch(), leader.look(), leader.own_lease.keep(), leader.keep_own_beat()]
    line = controller_line(ground.environ)
    if line is not None:
        link = NodeLink(ground.place.node_dir)
        leader.uplink = Uplink(
            line,
            source=ground.place.source,
            events_after=lambda after, wait_s: leader.controller.events_after(after, wait_s=wait_s),
            is_ours=lambda event: event.source == ground.place.source,
            beat=lambda: leader.beats.for_cluster(time.time()),
            on_order=lambda order: _foreign_order(leader, orchestrator, order),
            on_answer=leader.own_lease.lease.renew,
            on_unknown=leader.attach_again,
            job_dir=ground.place.job_dir,
            is_cut=lambda: link.is_cut,
            on_line=ground.voice.say,
        )
        work += [leader.uplink.forward(), leader.uplink.beat(_BEAT_S)]
    return [asyncio.create_task(part) for part in work]


async def _foreign_order(leader: Leader, orchestrator: Orchestrator, order: AnyOrder) -> None:
    """An order of the cluster's controller: carry out, and send its outcome back with our other events."""
    outcome: e.AnyEvent
    try:
        detail = await orchestrator.execute(order)
    except OrderError as error:
        outcome = e.OrderFailed(
            id=leader.event_id(), at=time.time(), source=leader.place.source, order=order.id, why=str(error)
        )
    else:
        outcome = e.OrderDone(
            id=leader.event_id(), at=time.time(), source=leader.place.source, order=order.id, detail=detail
        )
    leader.submit(outcome)


async def _start_first(leader: Leader) -> None:
    try:
        await leader.start_first()
    except OrderError as error:
        leader.finish(EXIT_DO_NOT_REQUEUE, f"the ranks could not be started: {error}")


async def _leave(leader: Leader, code: int) -> None:
    """End everything, say that we go, write the stories."""
    await leader.crew.dismiss(code, leader.why, 0.0)
    left = e.LauncherLapsed(
        id=leader.event_id(),
        at=time.time(),
        source=leader.place.source,
        job=leader.place.job,
        left=True,
        exit_code=code,
    )
    with contextlib.suppress(HoldfastError):
        seq = await leader.controller.submit(left)
        if leader.uplink is not None and leader.uplink.is_reachable:
            await leader.uplink.flush(seq, 2.0)
        await _write_stories(leader, code)


async def _write_stories(leader: Leader, code: int) -> None:
    incidents = await leader.controller.journal.incidents()
    if not incidents:
        return
    path = story_file(leader.place.job_dir)
    parts = []
    for incident in reversed(incidents):
        head = f"Incident {incident.id}" + (f": {incident.diagnosis.summary}" if incident.diagnosis else "")
        story = incident.diagnosis.story if incident.diagnosis else ""
        parts.append("\n".join([head, *([story] if story else []), *(f"  - {line}" for line in incident.story)]))
    with contextlib.suppress(OSError):
        path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    newest = incidents[0].diagnosis
    if code and newest is not None and newest.summary and newest.summary not in leader.why:
        leader.why = f"{newest.summary}; {leader.why}" if leader.why else newest.summary
    if code:
        leader.why = f"{leader.why} (story: {path})"


class VoiceNotifier:
    """Tells whoever reads the launcher's output."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice

    async def send(self, notice: Notify) -> None:
        """See `ports.Notifier`."""
        self._voice.say(*spoken(notice).splitlines())


def spoken(notice: Notify) -> str:
    """Title and text; a text that begins with what the title says is not told twice."""
    title, text = notice.title.strip().rstrip("."), notice.text.strip()
    subject, mark, said = title.partition(": ")
    if mark and said and text.startswith(said):
        return f"{subject}: {text}"
    return f"{title}: {text}" if text else notice.title.strip()


def job_view(place: JobPlace, options: RunOptions) -> JobView:
    """This job as the engine is told of it: what the scheduler wrote down, else what is known here."""
    written = _written_view(place.job_dir)
    asked = written.recovery if written is not None and written.recovery is not None else RecoverySpec()
    if options.max_restarts is not None:
        asked = structs.replace(asked, enabled=options.max_restarts > 0, max_in_place=options.max_restarts)
    view = written or JobView(key=place.job, name=place.name or Path(options.argv[0]).name)
    return structs.replace(
        view,
        key=place.job,
        user=view.user or place.user,
        partition=view.partition or place.partition,
        state=SchedulerState.RUNNING,
        restart_count=place.restart_count,
        nodes=place.nodes,
        want_nodes=options.nnodes or len(place.nodes),
        recovery=asked,
        drill_ok=place.drill_ok,
        job_dir=str(place.job_dir),
        started_at=view.started_at or time.time(),
        ended_at=0.0,
        exit_code=None,
        signal=None,
    )


def _written_view(job_dir: Path) -> JobView | None:
    class Written(Struct):
        view: JobView

    try:
        return msgspec.json.decode((job_dir / "job.json").read_bytes(), type=Written).view
    except (OSError, msgspec.MsgspecError):
        return None


def journal_url(job_dir: Path) -> str:
    """The allocation's journal; without shared memory (WAL) where the folder is on a network file system."""
    return f"sqlite:///{job_dir}/journal.db" + ("?wal=0" if _on_network(job_dir) else "")


def _on_network(path: Path) -> bool:
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        _, where, fstype, *_ = line.split(" ")
        where = where.replace("\\040", " ")
        if len(where) > len(best) and (str(path) + "/").startswith(where.rstrip("/") + "/"):
            best, kind = where, fstype
    return kind in _NETWORK_FILE_SYSTEMS
