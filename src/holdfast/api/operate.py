"""A person's word, from wherever it comes: the JSON API, a form of the cockpit, `holdfast top`. One way in for all.

It checks who may say it about what, looks at the world afresh before a proposal is approved, has it journalled with
who and why, and says whether the engine took it. Called by the routes and by the cockpit. Time passes while the
journal writes and, before an approval, while the scheduler is read.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Sequence
from typing import Any

import xxhash
from msgspec import Struct, structs

from holdfast.api.auth import LOOK_AGAIN_S, Identity, Role, TokenBook
from holdfast.api.stored import stored
from holdfast.controller import Controller
from holdfast.controller.acts import within
from holdfast.controller.fleet import Fleet
from holdfast.errors import LinkError, NotFoundError, RefusedError, StaleError, WireError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.answers import CommandAnswer, CommandRequest
from holdfast.model.orders import OrderStatus
from holdfast.model.records import BrakeRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.wire import encode
from holdfast.ports import Entry

LOOK_S = 10.0
"""An approval waits at most this long for the fresh look at the world."""
TEXT_MAX = 256
WHY_MAX = 2000
_OF_BOOK = re.compile(r".+ ([0-9a-f]{12})")
"""Name and id of a token of the book; what is given for a munge credential has another id, and no end that counts."""
OWNERS = frozenset(
    {
        e.Command.REQUEUE,
        e.Command.HOLD,
        e.Command.RELEASE,
        e.Command.GIVE_UP,
        e.Command.EVACUATE,
        e.Command.APPROVE,
        e.Command.REJECT,
        e.Command.WITHDRAW,
    }
)
"""What an owner may say about their own jobs, and an operator with a scope about its jobs and about their orders."""


async def operate(
    controller: Controller,
    identity: Identity,
    asked: CommandRequest,
    *,
    if_match: str = "",
    tokens: TokenBook | None = None,
) -> CommandAnswer:
    """Have a command journalled; returns what the engine said to it.

    Args:
        controller: whose cluster it is about.
        identity: who asks, as the guard found it.
        asked: the command.
        if_match: `etag_of` the target as the person saw it, or `gist_of` it; empty or `*`: whatever it is by now.
        tokens: the book; earlier approvals of its tokens count while these are accepted.

    Raises:
        RefusedError: this identity may not say it.
        NotFoundError: there is no such target.
        StaleError: the target is no longer what the person saw.
        WireError: it names no target, or several, or a field is too long.
        LinkError: the world could not be looked at before an approval; nothing was done.
    """
    check_form(asked)
    if identity.role is Role.OWNER or identity.sees:
        await _check_jobs(controller, identity, asked)
    elif not identity.may(Role.OPERATOR):
        raise RefusedError(f"the token of {identity.name!r} is {identity.role.one}'s; commands need an operator's")
    if asked.command is e.Command.APPROVE:
        await _look(controller)
    if if_match not in {"", "*"}:
        target = await target_of(controller, asked)
        seen = {tag.strip() for tag in if_match.split(",")}
        if target is None or not seen & {etag_of(target), gist_of(target)}:
            raise StaleError("it has changed since you looked: look again, then decide")
    event = e.OperatorCommand(
        id=f"command:{asked.id or uuid.uuid4().hex}",
        at=controller.clock.now(),
        source=f"operator:{_who(identity, asked)}",
        command=asked.command,
        who=_who(identity, asked),
        why=asked.why,
        node=asked.node,
        job=asked.job,
        order=asked.order,
        group=asked.group,
        value=asked.value,
        remedy=asked.remedy,
        by=identity.person,
        void=await _void(controller, asked, tokens),
    )
    return await _submit(controller, event)


async def _void(controller: Controller, asked: CommandRequest, tokens: TokenBook | None) -> tuple[str, ...]:
    """Of the approvals that the order has those whose tokens the book no longer accepts."""
    if asked.command is not e.Command.APPROVE or tokens is None:
        return ()
    record = await _order(controller, asked.order)
    return _voided(record, tokens) if record is not None else ()


def _voided(record: OrderRecord, tokens: TokenBook) -> tuple[str, ...]:
    given = [known.by for known in record.approvals]
    return tuple(by for by in given if (held := _OF_BOOK.fullmatch(by)) and tokens.known(held[1]) is None)


async def follow_book(controller: Controller, fleet: Fleet, tokens: TokenBook) -> None:
    """Have approvals counted no more as soon as their tokens hold no more. Runs while the API is served."""
    while True:
        await controller.clock.sleep(LOOK_AGAIN_S)
        for record in [one for one in fleet.proposed.values() if one.approvals]:
            void = _voided(record, tokens)
            if not void or not controller.may_act():
                continue
            event = e.OperatorCommand(
                id=f"command:{uuid.uuid4().hex}",
                at=controller.clock.now(),
                source="operator:token book",
                command=e.Command.WITHDRAW,
                who="token book",
                why="tokens were revoked, or have ended",
                order=record.order.id,
                void=void,
            )
            with contextlib.suppress(LinkError):  # the next look says it again
                await stored(controller, [event])


async def _submit(controller: Controller, event: e.OperatorCommand) -> CommandAnswer:
    """Store it and hear, from its own commit, what the engine made of it."""
    mine: list[Entry] = []
    waits = ""

    def listen(entries: Sequence[Entry]) -> None:
        nonlocal waits
        mine.extend(entry for entry in entries if entry.event.id == event.id)
        for record in [record for entry in mine for record in entry.touched.orders]:  # they change with the next event
            waits = _waits(event, record) or waits

    controller.listeners.append(listen)
    try:
        outcome = (await stored(controller, [event]))[0]
    finally:
        controller.listeners.remove(listen)
    if isinstance(outcome, BaseException):
        raise outcome
    entry = mine[0] if mine else await controller.journal.entry(event.id)
    if entry is None:
        return CommandAnswer(outcome, event.id)
    if structs.replace(entry.event, at=0.0, received_at=0.0, seq=0, void=()) != structs.replace(event, at=0.0, void=()):
        raise WireError(f"the id {event.id.partition(':')[2]!r} is another command's: give each command its own")
    if not mine and event.order and (now := await _order(controller, event.order)) is not None:
        waits = _waits(event, now)
    return CommandAnswer(entry.event.seq, event.id, refusal(event.id, entry.orders), waits)


def _waits(event: e.OperatorCommand, record: OrderRecord) -> str:
    """What an approval that was taken, or withdrawn, waits for still."""
    if record.order.id != event.order or record.status is not OrderStatus.PROPOSED:
        return ""
    brake = f"; {record.waits_for}" if record.is_approved else ""
    return f"{len(record.approvals)} of {record.approvals_needed} approvals{brake}"


def refusal(command_id: str, orders: Sequence[o.AnyOrder]) -> str:
    """Why the engine did not do a command, read from the orders that it led to; empty: it was taken."""
    said = [one for one in orders if isinstance(one, o.Notify) and one.topic == f"command:{command_id}"]
    return f"{said[0].title}: {said[0].text}".rstrip(".") if said else ""


def _who(identity: Identity, asked: CommandRequest) -> str:
    if identity.role is Role.OWNER:
        return identity.name
    who = asked.who or identity.name
    return who if identity.name in {"local", who} else f"{who} (token of {identity.name})"


def check_form(asked: CommandRequest) -> None:
    """Exactly one target, and fields of a sane length.

    Raises:
        WireError: names what is wrong.
    """
    targets = [name for name in ("node", "job", "order", "group") if getattr(asked, name)]
    if len(targets) > 1:
        raise WireError(f"a command has one target, not {' and '.join(targets)}")
    if not targets and asked.command is not e.Command.SET_MODE:
        raise WireError(f"{asked.command} needs a target: node, job, order or group")
    for name in ("who", "why", "node", "order", "group", "value", "remedy", "id"):
        limit = WHY_MAX if name == "why" else TEXT_MAX
        if len(getattr(asked, name)) > limit:
            raise WireError(f"{name} is longer than {limit} characters")
        _check_text(name, getattr(asked, name))
    if asked.job is not None and max(len(asked.job.cluster), len(asked.job.id)) > TEXT_MAX:
        raise WireError(f"job is longer than {TEXT_MAX} characters")


def _check_text(name: str, text: str) -> None:
    if name == "id" and not text.isprintable():
        raise WireError("id holds control characters")
    if any(ord(one) < 32 and one not in "\n\t" for one in text):
        raise WireError(f"{name} holds control characters")


async def _look(controller: Controller) -> None:
    """A fresh look at the world, so that an approval is judged by what is, not by what was seen some seconds ago."""
    if not controller.settings.watch:
        return
    try:
        await within(controller.clock, LOOK_S, controller.watch.look_once())
    except TimeoutError as error:
        raise LinkError(f"the cluster could not be looked at within {LOOK_S:g} s: nothing was approved") from error


async def _check_jobs(controller: Controller, identity: Identity, asked: CommandRequest) -> None:
    """Return when the command is about a job of this owner's, or of this operator's scope. Raises RefusedError."""
    if not identity.may(Role.OWNER):
        raise RefusedError(f"the token of {identity.name!r} is {identity.role.one}'s; commands need an operator's")
    if asked.command not in OWNERS:
        whose = "is an owner" if identity.role is Role.OWNER else f"sees {', '.join(identity.sees)} alone"
        raise RefusedError(f"{asked.command.replace('_', ' ')} needs an operator's token; {identity.name!r} {whose}")
    key = asked.job
    if asked.order:
        record = await _order(controller, asked.order)
        key = getattr(record.order, "job", None) if record is not None else None
    if key is None:
        raise RefusedError(f"{identity.name!r} may command only jobs of their own")
    found = await controller.journal.jobs(job=str(key))
    # The same answer whether the job is another's or is not there: an owner learns nothing by asking.
    if not any(job.key == key and _commands(identity, job) for job in found):
        raise RefusedError(f"job {key} is not one of {identity.name!r}")


def _commands(identity: Identity, job: JobRecord) -> bool:
    if identity.role is Role.OWNER and job.view.user != identity.name:
        return False
    return not identity.sees or bool({f"user:{job.view.user}", f"project:{job.view.project}"} & set(identity.sees))


async def _order(controller: Controller, order: str) -> OrderRecord | None:
    found = await controller.journal.orders(order=order)
    return found[0] if found else None


async def target_of(
    controller: Controller, asked: CommandRequest
) -> JobRecord | NodeRecord | OrderRecord | BrakeRecord | None:
    """The record that a command is about, as the journal has it; None for a command about the whole cluster.

    Raises:
        NotFoundError: there is none.
    """
    found: Sequence[Any] = []
    what = ""
    if asked.node:
        what, found = f"node {asked.node!r}", await controller.journal.nodes(node=asked.node)
    elif asked.job is not None:
        jobs = await controller.journal.jobs(job=str(asked.job))
        what, found = f"job {str(asked.job)!r}", [job for job in jobs if job.key == asked.job]
    elif asked.order:
        what, found = f"order {asked.order!r}", await controller.journal.orders(order=asked.order)
    elif asked.group:
        brakes = await controller.journal.brakes()
        what, found = f"group {asked.group!r}", [brake for brake in brakes if brake.group == asked.group]
    if what and not found:
        raise NotFoundError(f"no {what}")
    return found[0] if found else None


def etag_of(record: Struct) -> str:
    """A strong entity tag: equal records have equal tags, and a record that changes gets another one."""
    return f'"{xxhash.xxh3_64_hexdigest(encode(record))}"'


def gist_of(record: Struct) -> str:
    """A tag of what a person's decision about it rests on.

    A job's steps, a node's times of beats and the like may change meanwhile; another attempt, incident, machine or hold
    may not. Forms of pages carry it: while somebody writes a reason, a training job does not stand still.
    """
    match record:
        case NodeRecord():
            view = record.view
            gist: tuple[Any, ...] = (
                "node", record.name, record.state, record.incident, record.instance_id or view.instance_id,
                view.drained, sorted(view.jobs),
            )  # fmt: skip
        case JobRecord():
            number = record.attempt.number if record.attempt is not None else -1
            gist = ("job", str(record.key), number, record.incident, record.held_by, record.over)
        case _:
            return etag_of(record)
    return f'"gist-{xxhash.xxh3_64_hexdigest(encode(gist))}"'
