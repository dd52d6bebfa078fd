"""What comes in: events and beats of agents and launchers, commands of operators.

An answer means: it is on disk. A source may send the same batch again; ids make it harmless. Agents and launchers may
say only what they can know: never an operator's word, never the controller's own events.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Annotated, Any

import structlog
from litestar import Request, post
from litestar.datastructures import State
from litestar.params import JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK
from msgspec import Raw, Struct, structs

from holdfast.api.auth import Identity, Role, needs
from holdfast.controller import Controller
from holdfast.errors import LinkError, RefusedError, WireError
from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.wire import Batch, Beat, BeatAnswer, IngestAnswer, check_version, decode, decode_event, kind_of

EVENTS_MAX = 1000
BEAT_WAIT_S_MAX = 30.0
TEXT_MAX = 256
REFUSED_SHOWN = 10

FROM_SOURCES = (
    e.LauncherAttached,
    e.LauncherLapsed,
    e.AttemptStarted,
    e.AttemptEnded,
    e.FirstStepDone,
    e.CheckpointSaved,
    e.StepReached,
    e.StacksCaptured,
    e.Escalated,
    e.FindingSeen,
    e.FindingCleared,
    e.AgentAttached,
    e.NodeGone,
    e.NodeValidated,
    e.OrderDone,
    e.OrderFailed,
    e.DrillFired,
)
"""Events that agents, launchers and drills may send."""
SOURCES = ("agent:", "launcher:", "drill:")

_log = structlog.get_logger("holdfast.api")


class CommandRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `OperatorCommand` without id and time; `who` is taken from the token unless it names several people."""

    command: e.Command
    who: str = ""
    why: str = ""
    node: str = ""
    job: JobKey | None = None
    order: str = ""
    group: str = ""
    value: str = ""
    remedy: str = ""
    id: str = ""
    """Given by a client that may send the command twice; empty: each request is a command of its own."""


class CommandAnswer(Struct, frozen=True):
    """The command is on disk; what came of it is in the events of this id."""

    seq: int
    id: str


@post("/ingest", guards=[needs(Role.AGENT)], status_code=HTTP_200_OK, tags=["report"])
async def ingest(request: Request[Any, Any, State], state: State) -> IngestAnswer:
    """Take in a batch of events; answers after the commit. Events that can never be taken are named in `refused`."""
    batch = decode(await request.body(), Batch)
    check_version(batch.version)
    _check_source(request.state.identity, batch.source)
    if len(batch.events) > EVENTS_MAX:
        raise WireError(f"{len(batch.events)} events in one batch: send at most {EVENTS_MAX}")
    controller: Controller = state.controller
    if controller.busy:
        raise LinkError("the controller has more waiting than it can take: come back later")
    oldest = controller.clock.now() - controller.settings.retain_s
    futures: list[asyncio.Future[int]] = []
    refused: list[str] = []
    for raw in batch.events:
        try:
            event = _event(raw, batch.source)
        except (WireError, RefusedError) as error:
            # One event that will never be taken must not keep its neighbours from being stored.
            refused.append(str(error))
            continue
        if event.at < oldest:
            # Ids that old are no longer known: taking it in could do again what was done long ago.
            _log.warning("an event is older than the journal's memory", id=event.id, source=batch.source)
            continue
        futures.append(controller.submit(event))
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, LinkError):
            raise outcome
    refused += [str(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
    if refused:
        _log.warning("events were refused", source=batch.source, count=len(refused), first=refused[0])
    stored = sum(not isinstance(outcome, BaseException) for outcome in outcomes)
    return IngestAnswer(seq=controller.seq, stored=stored, refused=refused[:REFUSED_SHOWN])


def _event(raw: Raw, source: str) -> e.AnyEvent:
    event = decode_event(raw)
    if not isinstance(event, FROM_SOURCES):
        raise RefusedError(f"{source} may not send {kind_of(event)}")
    return structs.replace(event, source=source, seq=0, received_at=0.0)


@post("/beat", guards=[needs(Role.AGENT)], status_code=HTTP_200_OK, tags=["report"])
async def beat(
    request: Request[Any, Any, State],
    state: State,
    wait: Annotated[float, QueryParameter(ge=0.0, le=BEAT_WAIT_S_MAX)] = 0.0,
) -> BeatAnswer:
    """Alive, with samples; answers with the orders for this source, as soon as there are some or `wait` is over."""
    said = decode(await request.body(), Beat)
    check_version(said.version)
    _check_source(request.state.identity, said.source)
    if request.state.identity.only.startswith("agent:") and said.source != f"agent:{said.node}":
        raise RefusedError(f"{said.source} may not beat for node {said.node!r}")
    controller: Controller = state.controller
    if not controller.ready.is_set():
        raise LinkError("the controller is not ready yet")
    return await controller.beat(said, wait_s=wait)


@post("/commands", guards=[needs(Role.OPERATOR)], status_code=HTTP_200_OK, tags=["operate"])
async def command(request: Request[Any, Any, State], state: State, data: JSONBody[CommandRequest]) -> CommandAnswer:
    """An operator's word; journalled with who and why before anything comes of it."""
    _check_command(data)
    identity: Identity = request.state.identity
    who = data.who or identity.name
    if identity.name not in {"local", who}:
        who = f"{who} (token of {identity.name})"
    controller: Controller = state.controller
    event = e.OperatorCommand(
        id=f"command:{data.id or uuid.uuid4().hex}",
        at=controller.clock.now(),
        source=f"operator:{who}",
        command=data.command,
        who=who,
        why=data.why,
        node=data.node,
        job=data.job,
        order=data.order,
        group=data.group,
        value=data.value,
        remedy=data.remedy,
    )
    return CommandAnswer(await controller.submit(event), event.id)


def _check_source(identity: Identity, source: str) -> None:
    if not source.startswith(SOURCES) or len(source) > TEXT_MAX:
        raise WireError(f"source {source[:TEXT_MAX]!r} must begin with agent:, launcher: or drill:")
    if identity.only and identity.only != source:
        raise RefusedError(f"the token of {identity.name!r} may report only as {identity.only}")


def _check_command(data: CommandRequest) -> None:
    targets = [name for name in ("node", "job", "order", "group") if getattr(data, name)]
    if len(targets) > 1:
        raise WireError(f"a command has one target, not {' and '.join(targets)}")
    if not targets and data.command is not e.Command.SET_MODE:
        raise WireError(f"{data.command} needs a target: node, job, order or group")
    for name in ("who", "why", "node", "order", "group", "value", "remedy", "id"):
        limit = 2000 if name == "why" else TEXT_MAX
        if len(getattr(data, name)) > limit:
            raise WireError(f"{name} is longer than {limit} characters")


HANDLERS = [ingest, beat, command]
