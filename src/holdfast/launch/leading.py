"""The leader as a program: its ranks first, then its judgement, and an orderly end of both.

Called by `program` on node rank 0. A restart waits for nothing but the processes it is for: where the job stands is
read from its journal by a glance, the followers join, the ranks start. Only then, in a thread, the engine, the journal
and the line to the controller are loaded and opened; what happened meanwhile is kept by `late_controller` and is judged
in its order. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from holdfast.adapters.journal import open_journal
from holdfast.adapters.journal.glance import last_record
from holdfast.errors import (
    EXIT_DO_NOT_REQUEUE,
    HoldfastError,
    JournalError,
    OrderError,
)
from holdfast.launch.allocation import AllocationOrchestrator, Judge
from holdfast.launch.core.follower import TELL_S
from holdfast.launch.crew import Crew
from holdfast.launch.folder import unusable
from holdfast.launch.ground import Ground, cancel_all, on_signals, until_over
from holdfast.launch.late_controller import LateController
from holdfast.launch.launcher_events import order_outcome
from holdfast.launch.launcher_nodes import LauncherNodes
from holdfast.launch.leader import Leader
from holdfast.launch.link import LeaderPort
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.model import events as e
from holdfast.model.cluster import JobView, RecoverySpec, SchedulerState
from holdfast.model.orders import AnyOrder, Notify
from holdfast.model.records import IncidentRecord, JobRecord
from holdfast.os.clock import steady_time
from holdfast.ports import Journal, Notifier, Orchestrator

if TYPE_CHECKING:
    from holdfast.launch.slurm_nodes import SlurmNodes
    from holdfast.launch.uplink import ControllerLine, Uplink

_NETWORK_FILE_SYSTEMS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "9p", "afs", "lustre", "beegfs", "gpfs", "ceph", "wekafs", "glusterfs",
    "fuse.ceph", "fuse.sshfs", "fuse.glusterfs",
})  # fmt: skip
JOURNAL_FILE = "journal.db"
_BEAT_S = 1.0
_RANKS_FIRST_S = 1.0
"""The judgement is loaded after this long at the latest: followers may be late, and the controller wants to hear."""
_END_S = 10.0
_FAILING_END_S = 0.5


class Outfit(Struct):
    """The leader and what it leads with; signals that end the job are told to `end_job`."""

    leader: Leader
    controller: LateController
    end_job: Callable[[int], None]


def ranks_outfit(ground: Ground, judge: Judge) -> Outfit:
    """The leader of ranks that launchers start themselves."""
    place, options = ground.place, ground.options
    view = job_view(place, options)
    crew = Crew(
        place,
        ground.runner(lambda report: crew.hear(place.node, report)),
        on_report=lambda node, report: leader.on_report(node, report),
        on_all_gone=lambda attempt: leader.on_all_gone(attempt),
    )
    controller = LateController()
    leader = Leader(
        ground,
        policy=judge.policy_for(view.partition, view.recovery.policy if view.recovery else ""),
        view=view,
        want_nodes=options.nnodes or len(place.nodes),
        crew=crew,
        controller=controller,
    )
    leader.nodes = LauncherNodes(
        crew,
        leader.events,
        leader.observer,
        voice=ground.voice,
        background=leader.background,
        scheduler=_slurm_nodes(ground) if len(place.nodes) > 1 and ground.environ.get("SLURM_JOB_ID") else None,
    )
    return Outfit(leader, controller, leader.end_job)


def _slurm_nodes(ground: Ground) -> SlurmNodes:
    from holdfast.adapters.slurm.own_job import OwnJob, job_name  # noqa: PLC0415 - only on Slurm
    from holdfast.launch.slurm_nodes import SlurmNodes  # noqa: PLC0415

    return SlurmNodes(OwnJob(job_name(ground.environ), ground.place.job_dir, ground.environ), ground.place.nodes)


async def lead(ground: Ground, judge: Judge, outfit: Outfit) -> tuple[int, str]:
    """Run the job to its end; returns the exit code and why.

    Raises:
        HoldfastError: the journal, the port or the job's folder cannot be used; nothing of the job runs any more.
    """
    leader = outfit.leader
    on_signals(outfit.end_job, lambda signum: leader.crew.pass_signal(signum, is_end=False))
    tasks: list[asyncio.Task[Any]] = []
    try:
        leader.attach(await _where_it_stands(ground.place))
        await _open_port(leader, ground)
        judged = _judge_it(leader, outfit.controller, ground, judge)
        work = [judged, leader.crew.runner.watch(), leader.look(), leader.own_lease.keep()]
        tasks += [asyncio.create_task(part) for part in work]
        leader.background.run(_start_first(leader, ground.voice))
        code = await until_over(leader.leaving.is_over, tasks)
        await _leave(leader, code)
    finally:
        await leader.crew.dismiss(1, "the leader failed", 0.0)
        await cancel_all(tasks[1:])
        await cancel_all(tasks[:1])
    return code, leader.leaving.why


async def _where_it_stands(place: JobPlace) -> JobRecord | None:
    """The job's record in the journal of the launchers before this one."""
    try:
        return last_record(place.job_dir / JOURNAL_FILE, str(place.job))
    except JournalError:
        journal = await asyncio.to_thread(_open_own, place.job_dir)
        try:
            return next(iter(await journal.jobs(job=str(place.job))), None)
        finally:
            await journal.close()


def _open_own(job_dir: Path) -> Journal:
    try:
        return open_journal(journal_url(job_dir))
    except JournalError as error:
        raise _refused(job_dir, error) from error


def _refused(job_dir: Path, error: JournalError) -> HoldfastError:
    """What a refusal of the journal tells about its folder; one that is damaged or another's speaks for itself."""
    return unusable(job_dir, error) if type(error) is JournalError else error


async def _judge_it(leader: Leader, late: LateController, ground: Ground, judge: Judge) -> None:
    """Once the ranks run: the journal, the engine in its controller, and the line to the cluster's; until cancelled."""
    orchestrator = AllocationOrchestrator(leader, leader.crew, want_nodes=leader.want_nodes, now=steady_time)
    try:
        await _ranks_first(leader)
        # In a thread: what is loaded here takes longer than everything before it, and the ranks must be watched.
        journal = await asyncio.to_thread(_open_own, ground.place.job_dir)
        try:
            notifiers: list[Notifier] = [VoiceNotifier(ground.voice, journal, ground.place.job_dir)]
            make = functools.partial(judge.controller, journal, orchestrator, notifiers, ground.place.source)
            real = await asyncio.to_thread(make)
            if not await leader.own_lease.is_ours_now():
                return  # a judgement that begins ends that of the launcher that has the job
            try:
                _write_stories(ground.place.job_dir, await journal.incidents())
                await _run_parts(leader, orchestrator, ground, late.run(real))
            except JournalError as error:
                raise _refused(ground.place.job_dir, error) from error
        finally:
            await journal.close()
    finally:
        late.end()


async def _ranks_first(leader: Leader) -> None:
    begun = asyncio.ensure_future(leader.until_begun())
    first: list[asyncio.Future[Any]] = [begun, leader.leaving.is_over]
    try:
        await asyncio.wait(first, timeout=_RANKS_FIRST_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        begun.cancel()


async def _run_parts(
    leader: Leader, orchestrator: Orchestrator, ground: Ground, controller: Coroutine[Any, Any, None]
) -> None:
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(controller, name="controller")]
    tasks.append(asyncio.create_task(leader.keep_own_beat()))
    from holdfast.launch.pods import reporting  # noqa: PLC0415 - only now is there something to forward
    from holdfast.launch.uplink import controller_line  # noqa: PLC0415 - as above

    line = controller_line(reporting(ground.environ))
    if line is not None:
        leader.leaving.uplink = uplink = _uplink(leader, orchestrator, ground, line)
        tasks += [asyncio.create_task(uplink.forward()), asyncio.create_task(uplink.beat(_BEAT_S))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await cancel_all(tasks[1:])
        if leader.leaving.uplink is not None:
            await leader.leaving.uplink.close()
        own = leader.events.controller
        own.stop()
        with contextlib.suppress(TimeoutError, HoldfastError):
            await asyncio.wait_for(tasks[0], _FAILING_END_S if own.failing else _END_S)
        await cancel_all(tasks[:1])


_ALLOCATION_ONLY = (e.NodeSilent, e.NodeHeard)
"""Whether a node is heard here says nothing of whether the cluster hears it: its agent does."""


def _uplink(leader: Leader, orchestrator: Orchestrator, ground: Ground, line: ControllerLine) -> Uplink:
    from holdfast.launch.uplink import Uplink  # noqa: PLC0415 - as above

    return Uplink(
        line,
        source=ground.place.source,
        events_after=lambda after, wait_s: leader.events.controller.events_after(after, wait_s=wait_s),
        is_ours=lambda event: event.source == ground.place.source and not isinstance(event, _ALLOCATION_ONLY),
        beat=lambda: leader.observer.beats.for_cluster(steady_time()),
        on_order=lambda order: _foreign_order(leader, orchestrator, order),
        on_answer=leader.own_lease.renew,
        on_unknown=leader.attach_again,
        job_dir=ground.place.job_dir,
        is_cut=lambda: ground.network.is_cut,
        on_line=ground.voice.say,
    )


async def _open_port(leader: Leader, ground: Ground) -> None:
    if len(ground.place.nodes) == 1:
        return
    port = LeaderPort(
        ground.place,
        network=ground.network,
        lease_s=ground.lease_s,
        may_grant=lambda: not leader.own_lease.is_over,
        on_join=leader.crew.joined_again,
        on_report=leader.crew.hear,
        on_lost=leader.nodes.on_lost,
    )
    leader.crew.port = port
    try:
        await port.open()
    except OSError as error:
        raise unusable(ground.place.job_dir, error) from error


async def _foreign_order(leader: Leader, orchestrator: Orchestrator, order: AnyOrder) -> None:
    leader.events.submit(await order_outcome(order, orchestrator, leader.events))


async def _start_first(leader: Leader, voice: Voice) -> None:
    waits = asyncio.create_task(_say_who_is_missing(leader, voice))
    try:
        await leader.start_first()
    except OrderError as error:
        leader.leaving.finish(EXIT_DO_NOT_REQUEUE, f"the ranks could not be started: {error}")
    else:
        await leader.nodes.begun()
    finally:
        waits.cancel()


async def _say_who_is_missing(leader: Leader, voice: Voice) -> None:
    await asyncio.sleep(TELL_S)
    missing = sorted(set(leader.place.nodes) - set(leader.crew.here))
    if len(leader.crew.here) < leader.want_nodes:
        voice.say(f"waiting for {', '.join(missing)} to join")


async def _leave(leader: Leader, code: int) -> None:
    """End everything, say that we go, write the stories."""
    await leader.crew.dismiss(code, leader.leaving.why, 0.0)
    with contextlib.suppress(HoldfastError):
        seq, uplink = await leader.leaving.say_left(code), leader.leaving.uplink
        if uplink is not None and uplink.is_reachable:
            await uplink.flush(seq, 2.0)
        await _explain(leader, code)


async def _explain(leader: Leader, code: int) -> None:
    """Why the launcher leaves, with what is known of the newest incident."""
    leaving = leader.leaving
    incidents = await leader.events.controller.journal.incidents()
    _write_stories(leader.place.job_dir, incidents)
    if not incidents:
        return
    # What the job has recovered from is not why it ends now.
    newest = incidents[0].diagnosis if incidents[0].outcome != "recovered" else None
    if code and newest is not None and newest.clause not in leaving.why:
        leaving.why = f"{newest.clause}; {leaving.why}" if leaving.why else newest.clause
    if code:
        leaving.why = f"{leaving.why} (story: {story_file(leader.place.job_dir)})"


def _write_stories(job_dir: Path, incidents: Sequence[IncidentRecord]) -> None:
    """Of these incidents, newest first; a folder that refuses stops nothing."""
    parts = []
    for incident in reversed(incidents):
        head = f"Incident {incident.id}" + (f": {incident.diagnosis.summary}" if incident.diagnosis else "")
        story = incident.diagnosis.story if incident.diagnosis else ""
        parts.append("\n".join([head, *([story] if story else []), *(f"  - {line}" for line in incident.story)]))
    text = "\n\n".join(parts or ["No incident so far."]) + "\n"
    with contextlib.suppress(OSError):
        story_file(job_dir).write_text(text, encoding="utf-8")


def story_file(job_dir: Path) -> Path:
    """Where the incidents' stories are written: from the first attempt on, and again with each notice."""
    return job_dir / "story.txt"


class VoiceNotifier:
    """Tells whoever reads the launcher's output, and keeps the story file."""

    def __init__(self, voice: Voice, journal: Journal, job_dir: Path) -> None:
        self._voice = voice
        self._journal = journal
        self._job_dir = job_dir

    async def send(self, notice: Notify) -> None:
        """See `ports.Notifier`."""
        self._voice.say(*spoken(notice).splitlines())
        with contextlib.suppress(JournalError):
            _write_stories(self._job_dir, await self._journal.incidents())


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
        started_at=view.started_at or steady_time(),
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
    return f"sqlite:///{job_dir / JOURNAL_FILE}" + ("?wal=0" if _on_network(job_dir) else "")


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
