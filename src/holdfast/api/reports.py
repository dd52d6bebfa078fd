"""Takes in what reporters send, once it is read: their events and beats pass the checks of `authority` here.

The routes of `routes_ingest` call it, and so does the simulation's hostile reporter. Time passes while the journal
writes, and while the scheduler is looked at for what a report is ahead of.
"""

from __future__ import annotations

import asyncio

import structlog
from msgspec import structs

from holdfast.api.auth import Identity
from holdfast.api.authority import Refusals, Reporter
from holdfast.api.newest import DOUBT_S, check_newest
from holdfast.api.stored import check_writable, stored
from holdfast.controller import Controller
from holdfast.controller.state import ShellState
from holdfast.errors import JournalError, LinkError, RefusedError, WireError
from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.wire import Batch, Beat, BeatAnswer, IngestAnswer, decode_event

EVENTS_MAX = 1000
REFUSED_SHOWN = 10
TURN_EVENTS = 32
"""Events that are checked before others have their turn."""

_log = structlog.get_logger("holdfast.api")


async def take_batch(controller: Controller, identity: Identity, batch: Batch, refusals: Refusals) -> IngestAnswer:
    """Have the events of a batch stored that are the reporter's to send; `refused` names the others.

    Args:
        controller: stores them.
        identity: whose token the request carries.
        batch: of a known version.
        refusals: counts what is refused.

    Raises:
        WireError: not a source, or too many events.
        RefusedError: the token does not allow this source.
        LinkError: come back later; some of the batch may be stored.
    """
    if len(batch.events) > EVENTS_MAX:
        raise WireError(f"{len(batch.events)} events in one batch: send at most {EVENTS_MAX}")
    if controller.busy:
        raise LinkError("the controller has more waiting than it can take: come back later")
    check_writable(controller)
    reporter = await _reporter(controller, identity, batch.source, refusals)
    checked: list[e.AnyEvent] = []
    refused: list[str] = []
    too_early: LinkError | None = None
    for number, raw in enumerate(batch.events):
        if number % TURN_EVENTS == TURN_EVENTS - 1:
            await asyncio.sleep(0)  # a large batch must not hold up the beats of others
        try:
            event = structs.replace(decode_event(raw), source=batch.source, seq=0, received_at=0.0)
            event = await reporter.check_event(event)
        except (WireError, RefusedError) as error:
            # One event that will never be taken must not keep its neighbours from being stored.
            refused.append(str(error))
            continue
        except LinkError as error:
            too_early = error
            break
        checked.append(event)
    if refused:
        refusals.add(controller, batch.source, refused)
    # In parallel: claims about many nodes are answered in the time of one.
    taken = await asyncio.gather(*(_taken(controller, event) for event in checked))
    outcomes = await stored(controller, [event for event in taken if event is not None])
    for outcome in (too_early, *outcomes):
        if isinstance(outcome, LinkError):
            raise outcome
    failed = [str(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
    if failed:
        _log.warning("events could not be taken", source=batch.source, count=len(failed), first=failed[0])
    return IngestAnswer(
        seq=controller.seq, stored=len(outcomes) - len(failed), refused=[*refused, *failed][:REFUSED_SHOWN]
    )


async def take_beat(
    controller: Controller, identity: Identity, said: Beat, refusals: Refusals, *, wait_s: float = 0.0
) -> BeatAnswer:
    """Take in that the reporter is alive, and answer with the orders for it. Arguments as `take_batch`, and its errors.

    What another controller may have decided anew is asked when the wait is over: LinkError where another leads. While
    the journal cannot tell, the answer has no orders.
    """
    if not controller.ready.is_set() or controller.ended:
        raise LinkError("the controller is not ready yet, or has ended")
    reporter = await _reporter(controller, identity, said.source, refusals)
    try:
        said = await reporter.check_beat(said)
    except RefusedError as error:
        refusals.add(controller, said.source, [str(error)])
        raise
    answer = await controller.beat(said, wait_s=wait_s)
    try:
        async with asyncio.timeout(DOUBT_S):
            await check_newest(controller)
    except (JournalError, TimeoutError):
        return structs.replace(answer, requests=[])
    return answer


async def _reporter(controller: Controller, identity: Identity, source: str, refusals: Refusals) -> Reporter:
    """Who reports, once it is known to be somebody.

    Raises:
        WireError, RefusedError, LinkError: as `Reporter` does.
    """
    try:
        reporter = Reporter(controller, identity, source)
        await reporter.check_itself()
    except RefusedError as error:
        refusals.add(controller, source, [str(error)])
        raise
    return reporter


async def _taken(controller: Controller, event: e.AnyEvent) -> e.AnyEvent | None:
    """The event as it goes to the engine; None: it does not."""
    if event.at < controller.clock.now() - controller.settings.retain_s:
        # Ids that old are no longer known: taking it in could do again what was done long ago.
        _log.warning("an event is older than the journal's memory", id=event.id, source=event.source)
        return None
    if isinstance(event, e.NodeGone):
        return await controller.claims.confirmed(event)
    return _known(event, controller.shell())


def _known(event: e.AnyEvent, shell: ShellState) -> e.AnyEvent:
    """The event about the job as the scheduler's adapter knows it, see `ShellState.known_as`."""
    if isinstance(event, e.FindingSeen):
        job = event.finding.job
        key = shell.known_as(job) if job is not None else None
        return event if key == job else structs.replace(event, finding=structs.replace(event.finding, job=key))
    job = getattr(event, "job", None)
    key = shell.known_as(job) if isinstance(job, JobKey) else None
    return event if key is None or key == job else structs.replace(event, job=key)
