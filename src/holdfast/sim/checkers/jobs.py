"""Jobs: restarted within their budgets, never after a cancel nor beside themselves, and never forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import ENDED, JobKey, JobView, SchedulerState
from holdfast.model.events import Command
from holdfast.model.evidence import Remedy
from holdfast.model.policy import Limits
from holdfast.model.records import IncidentRecord, JobRecord, JobState
from holdfast.sim.checkers.incidents import EARLY_S
from holdfast.sim.checkers.orders import first_given, is_refused
from holdfast.sim.history import PERSON, Cancelled, History, RunBegan, Step, Wrote

S = SchedulerState
_OPERATOR = "operator."
"""Causes that are a person's word."""
_OVER = frozenset({S.COMPLETED, S.CANCELLED, S.TIMEOUT})


# --- how often --------------------------------------------------------------------------------------------------------


class _Ground:
    """How far one job's durable checkpoints have come, and what the next one must pass to be progress.

    By docs/policy.md, `[limits]`: the furthest step; after an attempt that resumed before it, where that attempt
    resumed; and once the job has fallen back to a step, what it regained counts against the next fall to that step.
    """

    def __init__(self) -> None:
        self._furthest = 0
        self._fallen: tuple[int, int] | None = None
        """(Step that it fell to, what it has regained)."""
        self._saved: set[int] = set()
        """Attempts of which a durable checkpoint or the place of their resumption is known."""

    def began(self, attempt: int, step: int) -> None:
        """An attempt resumed at this step, or not after it."""
        if attempt in self._saved:
            return
        self._saved.add(attempt)
        if (self._fallen is None or step > self._fallen[0]) and step < self.to_pass:
            self._fallen = (step, step)
        elif self._fallen is not None:
            self._fallen = (self._fallen[0], max(self._fallen[1], step))

    @property
    def to_pass(self) -> int:
        return self._fallen[1] if self._fallen is not None else self._furthest

    def saved(self, step: int, *, counts: bool) -> bool:
        """A durable checkpoint; `counts`: of the newest attempt. True when it is further than what was to be passed."""
        passed = step > self.to_pass
        if step > self._furthest:
            self._furthest = step
            if counts:
                self._fallen = None
        elif counts and self._fallen is not None:
            self._fallen = (self._fallen[0], max(self._fallen[1], step))
        return passed


class _Spent:
    """Restarts of one job since its last progress, as the journal shows them."""

    def __init__(self) -> None:
        self.requeues: list[tuple[int, int]] = []
        """Of each restart that cost a retry, the newest attempt and the restart count when it was ordered."""
        self.restarts = 0
        self.ground = _Ground()
        self.anew_from: int | None = None
        """Whoever queues it with such a restart count or a higher one begins anew: it has ended, or was given up."""
        self.requeued: set[int] = set()
        """Restart counts at which we ordered a requeue."""
        self.refused = False
        """A permanent failure of an order about it."""
        self.restarted_after = -1
        """Newest attempt at the last restart: what that one still reports is no progress since."""
        self.starts = 0
        """The scheduler's restart count."""
        self._run = -1
        """Restart count of the newest run that was seen."""
        self.start_at_release = 0
        self.asked = False
        """A person has asked for a restart, or it was asked to save and stop, and it has not been let start since."""
        self.let_at = 0.0
        """When it was last let start."""
        self.let = False
        """Released, and not seen to run since."""
        self.paid = False
        """The last restart cost a retry."""
        self.start_of: dict[int, int] = {}
        """Attempt -> the restart count that it belongs to."""

    @property
    def attempt(self) -> int:
        """Newest attempt that has started."""
        return max(self.start_of, default=-1)

    def restart(self, *, paid: bool) -> None:
        """Let start once more."""
        self.restarts += 1
        if paid:
            self.requeues.append((self.attempt, self.starts))
        self.paid = paid
        self.restarted_after = self.attempt
        self.start_at_release = self.starts

    def shown(self, view: JobView) -> None:
        """The scheduler shows the job; what had ended and was queued once more by somebody else begins anew."""
        if view.state in ENDED:
            self.anew_from = 0
        else:
            self._queued_anew(view.restart_count)
        self.starts = max(self.starts, view.restart_count)
        if view.state is SchedulerState.RUNNING:
            self._runs(view.restart_count)

    def _runs(self, restart_count: int) -> None:
        """The scheduler runs it for the first time by this count: by our release, or by somebody else.

        What the scheduler or a person started anew was a restart, too: the same crash has then come back all the same.
        """
        if restart_count <= self._run:
            return
        if self._run >= 0 and not self.let:
            self.restarts += 1
            self._queued_anew(restart_count)  # perhaps the first word of it, while nobody could look
        self.let = False
        self._run = restart_count

    def _queued_anew(self, restart_count: int) -> None:
        if self.anew_from is None or restart_count < self.anew_from:
            return
        self.anew_from = None
        if restart_count - 1 not in self.requeued:
            self.requeues.clear()

    def refuse(self, order: o.JobOrder) -> None:
        """An order about it came to nothing for good; a release that did has let it start no more."""
        self.refused = True
        if isinstance(order, o.ReleaseJob) and self.paid and self.let:
            self.requeues.pop()
            self.restarts -= 1

    def ran(self, event: e.AttemptStarted) -> None:
        """An attempt has started: in place, or with a run of the scheduler's."""
        is_new = event.attempt > self.attempt
        if is_new and event.in_place:
            self.restart(paid=False)
        self.start_of[event.attempt] = event.restart_count
        if is_new:
            self._runs(event.restart_count)

    def is_since(self, attempt: int) -> bool:
        """Was this attempt made after the last restart was ordered? Words of older ones may arrive late."""
        return self._is_after(attempt, self.restarted_after, self.start_at_release)

    def _is_after(self, attempt: int, restarted_after: int, start_at_release: int) -> bool:
        return attempt > restarted_after and self.start_of.get(attempt, self.starts) >= start_at_release

    def progress(self, attempt: int) -> None:
        """This attempt came further: restarts before it are behind the job, also when that is told of late."""
        self.requeues = [before for before in self.requeues if not self._is_after(attempt, *before)]
        if self.is_since(attempt):
            self.restarts, self.refused = 0, False


def budgets_hold(history: History) -> Iterator[str]:
    """No job is requeued oftener than its budget allows without progress, and none is given up before that."""
    causes = {incident.id: incident for incident in history.incidents}
    records = {job.key: job for job in history.jobs}
    given = first_given(history)
    spent: dict[JobKey, _Spent] = {}
    for step in history.steps:
        event = step.event
        if not is_refused(step):
            _count(spent, event, given)
        for order in step.orders:
            approved = isinstance(event, e.OperatorCommand) and event.order == order.id
            if not isinstance(order, o.JobOrder) or (order.cause != event.seq and not approved):
                continue
            count = spent.setdefault(order.job, _Spent())
            incident = causes.get(order.incident)
            limits = _limits(history, records.get(order.job))
            if isinstance(order, o.ReleaseJob):
                count.restart(paid=not (_asked_for(incident, count) or count.asked))
                count.let, count.let_at, count.asked = True, event.received_at, False
                if len(count.requeues) > limits.max_requeues:
                    yield (
                        f"{order.id} lets job {order.job} start for the {len(count.requeues)}. time with no progress "
                        f"in between; its budget is {limits.max_requeues}"
                    )
            elif isinstance(order, o.RequeueHeld):
                count.requeued.add(order.restart_count)
                by_command = isinstance(event, e.OperatorCommand) and not event.order
                count.asked = count.asked or by_command or _asked_for(incident, count)
            elif isinstance(order, o.SaveAndStop):
                count.asked = True
            elif isinstance(order, o.GiveUp) and order.remedy is Remedy.STOP:
                yield from _too_early(order, count, limits, event, incident)
                count.requeued.clear()  # whoever queues it from now on, perhaps before it has ended, it is not us
                count.anew_from = count.starts + 1


def _asked_for(incident: IncidentRecord | None, count: _Spent) -> bool:
    """A person's wish for the end of this run is no failure, so it costs no retry. It says nothing of later runs."""
    since = count.let_at - EARLY_S
    return incident is not None and any(
        finding.rule.startswith(_OPERATOR) and finding.at >= since for finding in incident.findings
    )


def _too_early(
    order: o.GiveUp, count: _Spent, limits: Limits, event: e.AnyEvent, incident: IncidentRecord | None
) -> Iterator[str]:
    """Given up by us, although no budget was used up, nothing was refused and nobody asked."""
    diagnosis = incident.diagnosis if incident is not None else None
    # Bad numbers have no way through the queue on their ladder (docs/policy.md): without a launcher nothing is left.
    hopeless = diagnosis is not None and (diagnosis.restart_helps is False or diagnosis.cause.startswith("loss."))
    asked = isinstance(event, e.OperatorCommand | e.LauncherLapsed)
    least = min(limits.max_requeues, max(0, limits.max_same_fingerprint - 1))
    if asked or hopeless or count.refused or count.restarts >= least:
        return
    yield (
        f"{order.id} gives job {order.job} up after {count.restarts} restarts without progress; its budgets allow "
        f"{least} at least ({order.why})"
    )


def _count(spent: dict[JobKey, _Spent], event: e.AnyEvent, given: dict[str, tuple[o.AnyOrder, e.AnyEvent]]) -> None:
    match event:
        case e.CheckpointSaved() if event.durable:
            count = spent.setdefault(event.job, _Spent())
            is_newest = event.attempt == count.attempt
            if is_newest:
                count.ground.began(event.attempt, event.step)
            is_since = count.is_since(event.attempt)
            if count.ground.saved(event.step, counts=is_newest or is_since):
                count.progress(event.attempt)
        case e.FirstStepDone():
            count = spent.setdefault(event.job, _Spent())
            if event.attempt == count.attempt:
                count.ground.began(event.attempt, event.resumed_from)
        case e.AttemptStarted():
            spent.setdefault(event.job, _Spent()).ran(event)
        case e.OrderFailed() if event.permanent:
            found = given.get(event.order)
            if found is not None and isinstance(found[0], o.JobOrder):
                spent.setdefault(found[0].job, _Spent()).refuse(found[0])
        case e.JobObserved() if event.job.state in _OVER:
            spent.pop(event.job.key, None)
        case e.JobObserved():
            spent.setdefault(event.job.key, _Spent()).shown(event.job)
        case e.OperatorCommand() if event.job is not None and event.command in {Command.REQUEUE, Command.RELEASE}:
            count = spent.setdefault(event.job, _Spent())
            count.requeues.clear()  # restarts before it are what they were: a loop may be known by then
            count.asked = True
        case _:
            pass


def _limits(history: History, record: JobRecord | None) -> Limits:
    """What holds for the job: the policy's numbers with those of its owner."""
    recovery = record.view.recovery if record is not None else None
    partition = record.view.partition if record is not None else ""
    limits = history.policies.for_job(partition, recovery.policy if recovery is not None else "").limits
    if recovery is None:
        return limits
    return Limits(
        max_in_place=limits.max_in_place if recovery.max_in_place is None else recovery.max_in_place,
        max_requeues=limits.max_requeues if recovery.max_requeues is None else recovery.max_requeues,
        max_same_fingerprint=limits.max_same_fingerprint,
        max_restarts_per_node=limits.max_restarts_per_node,
    )


# --- never ------------------------------------------------------------------------------------------------------------


def no_restart_after_cancel(history: History) -> Iterator[str]:
    """What a person cancelled stays cancelled, unless a person queues it once more."""
    ended: set[JobKey] = set()
    for deed in history.deeds:
        if isinstance(deed, Cancelled):
            ended.add(deed.job)
        elif isinstance(deed, RunBegan) and deed.job in ended:
            if deed.by.startswith(PERSON):
                ended.discard(deed.job)
            else:
                yield f"job {deed.job} was cancelled, and {deed.by or 'somebody'} started it at {deed.at:.0f}"
    over: dict[JobKey, int] = {}
    """Job -> the start of it that was cancelled."""
    for step in history.steps:
        event = step.event
        if isinstance(event, e.JobObserved) and event.job.state is S.CANCELLED:
            over[event.job.key] = event.job.restart_count
        elif isinstance(event, e.JobObserved) and event.job.state not in ENDED:
            over.pop(event.job.key, None)
        elif isinstance(event, e.LauncherAttached) and event.restart_count > over.get(event.job, event.restart_count):
            del over[event.job]  # whoever queued it again did so while the scheduler could not be read
        for order in step.orders:
            starts = isinstance(order, o.RequeueHeld | o.ReleaseJob | o.RestartInPlace)
            if starts and isinstance(order, o.JobOrder) and order.job in over and order.cause == event.seq:
                yield f"event {event.seq} orders {type(order).__name__} of job {order.job}, which was cancelled"


def holds_are_respected(history: History) -> Iterator[str]:
    """What a person holds, through us or in the queue, we do not release before they do.

    A hold that appears in the queue while a requeue of ours has no answer may be ours: no scheduler says whose it is.
    The first one after the answer is ours, when none was shown before.
    """
    held: dict[JobKey, int] = {}
    """Job -> the event by which a person held it."""
    ours = _OurHolds()
    views: dict[JobKey, JobView] = {}
    for step in history.steps:
        event = step.event
        match event:
            case e.OperatorCommand() if event.job is not None and event.command is Command.HOLD:
                if not is_refused(step):
                    held.setdefault(event.job, event.seq)
            case e.OperatorCommand() if event.job is not None and event.command in _LET_GO:
                held.pop(event.job, None)
            case e.JobVanished():
                held.pop(event.job, None)
            case e.JobObserved():
                _note_hold(held, views.get(event.job.key), event, ours=event.job.key in ours.awaited)
                views[event.job.key] = event.job
            case _:
                pass
        ours.take(step, views)
        for order in step.orders:
            if isinstance(order, o.ReleaseJob) and order.cause == event.seq and order.job in held:
                yield f"event {event.seq} releases job {order.job}, which a person holds (event {held[order.job]})"


class _OurHolds:
    """Jobs of which a hold that appears in the queue may be ours."""

    def __init__(self) -> None:
        self.awaited: dict[JobKey, str] = {}
        """Job -> our requeue that has no answer yet; empty: it is done, and its hold was not shown yet."""

    def take(self, step: Step, views: Mapping[JobKey, JobView]) -> None:
        """Fold one event and its orders in. `views`: what the scheduler has shown last."""
        event = step.event
        match event:
            case e.JobObserved() if event.job.state is not S.PENDING and self.awaited.get(event.job.key) == "":
                del self.awaited[event.job.key]
            case e.OrderDone() | e.OrderFailed(permanent=True):
                for job in [job for job, order in self.awaited.items() if order == event.order]:
                    is_shown = job in views and views[job].state is S.HELD
                    self.awaited[job] = ""
                    if is_shown or isinstance(event, e.OrderFailed):
                        del self.awaited[job]
            case _:
                pass
        self.awaited |= {order.job: order.id for order in step.orders if isinstance(order, o.RequeueHeld)}


_LET_GO = frozenset({Command.RELEASE, Command.REQUEUE, Command.GIVE_UP})


def _note_hold(held: dict[JobKey, int], before: JobView | None, event: e.JobObserved, *, ours: bool) -> None:
    """Take in what the scheduler shows: a job that nobody requeued is held in the queue, or a held one goes on.

    `ours`: a hold that appears now may be ours.
    """
    view = event.job
    if view.state in _OVER or before is None:
        held.pop(view.key, None)
    elif before.state is S.PENDING and view.state is S.HELD and before.restart_count == view.restart_count:
        if not ours:
            held.setdefault(view.key, event.seq)
    elif before.state is not view.state and (
        view.state is S.RUNNING or (before.state is S.HELD and view.state is not S.UNKNOWN)  # it may have ended unseen
    ):
        held.pop(view.key, None)


def attempts_do_not_overlap(history: History) -> Iterator[str]:
    """Each run of a job has a larger epoch than the one before, and no older one's checkpoint is taken beside it."""
    newest: dict[JobKey, int] = {}
    for deed in history.deeds:
        if isinstance(deed, RunBegan):
            before = newest.get(deed.job)
            if before is not None and deed.epoch <= before:
                yield f"job {deed.job} began with epoch {deed.epoch} at {deed.at:.3f}, after epoch {before}"
            newest[deed.job] = max(deed.epoch, before or 0)
        elif isinstance(deed, Wrote) and deed.epoch < newest.get(deed.job, 0):
            yield (
                f"epoch {deed.epoch} of job {deed.job} published step {deed.step} at {deed.at:.3f}, while epoch "
                f"{newest[deed.job]} ran"
            )


# --- in the end -------------------------------------------------------------------------------------------------------


def retries_are_used(history: History) -> Iterator[str]:
    """No job whose recovery is wished for is left lying: held by nobody, failed, or forgotten by the engine."""
    if history.final is None:
        return
    records = {job.key: job for job in history.jobs}
    starved = history.starved()
    cancelled = {deed.job for deed in history.deeds if isinstance(deed, Cancelled)}
    for view in history.final.jobs:
        record = records.get(view.key)
        wished = view.recovery is not None and view.recovery.enabled
        if record is None or not wished or view.key in cancelled or record.state is JobState.GIVEN_UP:
            continue
        if view.key in starved:
            continue
        if view.state is S.HELD and not record.held_by:
            yield f"job {view.key} is held, and nobody holds it (engine: {record.state})"
        elif view.state in {S.FAILED, S.NODE_FAIL}:
            yield f"job {view.key} has ended as {view.state}, and nothing came of it (engine: {record.state})"
        elif record.state not in {JobState.WATCHING, JobState.COMPLETED, JobState.CANCELLED} and not record.held_by:
            yield f"job {view.key} is still {record.state} ({view.state} in the scheduler)"
