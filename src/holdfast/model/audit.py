"""The audit's chain: one line for each act, bound to the one before it, so that a change anywhere shows.

A line is canonical JSON: keys sorted, no spaces, ASCII. It holds its number, the hash of the line before it and the
act; its own hash is the SHA-256 of these bytes. The journal writes lines with the acts (`adapters/journal/chain.py`),
`holdfast audit` gives and checks them. Who can write the journal can forge the whole chain: only a head that was noted
elsewhere shows that. No time passes here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import UsageError
from holdfast.model.events import AnyEvent, PolicyLoaded

AUDITED = ("operator_command", "policy_loaded", "controller_started", "drill_fired", "drill_run")
"""Kinds of events that are somebody's act. Tokens are made and revoked beside the events."""
ORDERS = "orders"
"""Of an act: the hash of what came of it. Lines of before have none."""
DROPPED = "acts_dropped"
"""Act of retention, which names the acts whose events it took."""
NOTHING = "0" * 64
"""Stands for the hash before the first line."""


class Head(Struct, frozen=True):
    """The newest line of a chain."""

    number: int = 0
    hash: str = NOTHING

    def __str__(self) -> str:
        """`NUMBER:HASH`, as people note it."""
        return f"{self.number}:{self.hash}"


class ChainError(UsageError):
    """A line that does not fit."""


def read_head(text: str) -> Head:
    """A head that was noted. Raises UsageError."""
    number, mark, digest = text.strip().partition(":")
    if not mark or not number.isdecimal() or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise UsageError(f"{text!r} is not a head: write NUMBER:HASH, as `holdfast audit verify` prints it")
    return Head(int(number), digest)


def act_of(event: AnyEvent, orders: str = "[]") -> dict[str, Any]:
    """What the audit keeps of an event: all of it, but of a policy's text and of the orders that came of it the hash.

    Args:
        event: the act.
        orders: what came of it, as the journal's row has it.
    """
    act: dict[str, Any] = msgspec.to_builtins(event)
    act.pop("received_at", None)
    act[ORDERS] = _sealed(orders)
    if isinstance(event, PolicyLoaded):
        act["toml"] = _sealed(event.toml)
    return act


def dropped(seqs: Iterable[int], before: float) -> dict[str, Any]:
    """The line of retention: these acts are no longer among the events, since they came before that time."""
    return {"event": DROPPED, "before": before, "seqs": sorted(seqs)}


def _sealed(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def chained(act: dict[str, Any], before: Head) -> tuple[str, Head]:
    """The line of an act behind `before`, and the chain's head with it."""
    line = _canonical({"number": before.number + 1, "previous": before.hash, "act": act})
    return line, Head(before.number + 1, _hash(line))


def followed(lines: Iterable[str], *, before: Head | None = None) -> Iterator[tuple[str, Head]]:
    """Follow lines in their order; each with the head that it makes.

    Args:
        lines: of a chain.
        before: the head that they follow on; None: whatever the first one says it follows on.

    Raises:
        ChainError: names the first line that does not fit.
    """
    head, rest = before, iter(lines)
    for line in rest:
        found = _read(line, head)
        if head is None:
            head = Head(found["number"] - 1, found["previous"])
            if head.number == 0 and head.hash != NOTHING:
                raise ChainError("line 1 does not begin a chain: it was changed")
        wanted = head.number + 1
        if found["number"] != wanted:
            raise ChainError(_out_of_order(found["number"], head, rest))
        if found["previous"] != head.hash:
            raise ChainError(f"line {wanted} does not fit line {head.number}: one of the two was changed")
        head = Head(wanted, _hash(line))
        yield line, head


def verified(lines: Iterable[str], *, before: Head | None = None) -> Head:
    """The head in which lines end. Arguments and errors are those of `followed`."""
    end = before if before is not None else Head()
    for _, head in followed(lines, before=before):
        end = head
    return end


def _out_of_order(number: int, head: Head, rest: Iterable[str]) -> str:
    """What has become of the line behind `head`, where `number` stands in its place."""
    wanted = head.number + 1
    if number < wanted:
        return f"line {number} stands again behind line {head.number}: it was copied, or these lines are out of order"
    if any(f'"number":{wanted},' in line and _read(line, head)["number"] == wanted for line in rest):
        return f"line {wanted} stands behind line {number}: lines have changed places"
    return f"line {wanted} is missing: line {number} follows line {head.number}"


def _read(line: str, head: Head | None) -> dict[str, Any]:
    where = f"the line after line {head.number}" if head is not None else "the first line"
    try:
        found = json.loads(line)
        fits = set(found) == {"number", "previous", "act"} and type(found["number"]) is int and found["number"] > 0
        if fits and _canonical(found) == line:
            return dict(found)
    except (ValueError, TypeError, RecursionError):
        pass
    raise ChainError(f"{where} was changed: it is not a line of an audit")


def _canonical(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _hash(line: str) -> str:
    return hashlib.sha256(line.encode("ascii")).hexdigest()
