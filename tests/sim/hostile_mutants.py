"""Checks of what reporters and users may say, taken away one at a time: the judge of lies must see each of them.

`opened(name)` is a context in which the check is not made. `caught_by` looks for a seed by which the judge sees it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from holdfast.api import authority, operate
from holdfast.api.auth import Identity
from holdfast.api.authority import MAY, Kind, Reporter
from holdfast.controller.claims import Claims
from holdfast.model import events as e
from holdfast.model.wire import Beat
from holdfast.sim.checkers import Complaint
from holdfast.sim.checkers.hostile import lies_change_nothing_of_others
from holdfast.sim.judging import complaints_about
from holdfast.sim.options import EDITION_5, draw
from holdfast.sim.run import simulate

Opened = Callable[[], contextlib.AbstractContextManager[object]]
JUDGE = lies_change_nothing_of_others.__name__


def unchecked(kind: Kind, *events: type[e.Event]) -> Opened:
    """The table lets this kind of reporter send these events, whatever is in them."""
    return lambda: patch.dict(MAY, {event: {**MAY.get(event, {}), kind: ()} for event in events})


def _claims_are_believed() -> contextlib.AbstractContextManager[object]:
    """A launcher's report that a node is gone needs no second word, and any reporter's is one."""

    async def confirmed(_self: Claims, claim: e.NodeGone) -> e.NodeGone:
        return claim

    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(Claims, "confirmed", confirmed))
    stack.enter_context(patch.dict(MAY, {e.NodeGone: {Kind.AGENT: (), Kind.LAUNCHER: ()}}))
    return stack


def _token_speaks_for_all() -> contextlib.AbstractContextManager[object]:
    """A token is bound to no source."""
    real = Reporter.__init__

    def made(self: Reporter, controller: Any, identity: Identity, source: str) -> None:
        real(self, controller, replace(identity, only=""), source)

    return patch.object(Reporter, "__init__", made)


def _ids_are_anybodys() -> contextlib.AbstractContextManager[object]:
    """Ids are taken as they are sent."""
    return patch.object(Reporter, "_own_id", lambda _self, said: said)


def _beats_are_anybodys() -> contextlib.AbstractContextManager[object]:
    """A beat is taken in, whomever it names."""

    async def taken(_self: Reporter, beat: Beat) -> Beat:
        return beat

    return patch.object(Reporter, "check_beat", taken)


def _orders_are_anybodys() -> contextlib.AbstractContextManager[object]:
    """An order's outcome is believed from everybody."""
    rows = {Kind.AGENT: (), Kind.LAUNCHER: ()}
    return patch.dict(MAY, {e.OrderDone: rows, e.OrderFailed: rows})


def _jobs_are_anybodys() -> contextlib.AbstractContextManager[object]:
    """Users command each other's jobs."""
    return patch.object(operate, "_commands", lambda *_given: True)


def _any_node_is_left_out() -> contextlib.AbstractContextManager[object]:
    """A launcher names any node, and the scheduler need not know it."""

    async def checked(*_given: object, **_named: object) -> None:
        return

    return patch.object(authority.Reporter, "check_job_nodes", checked)


def _left_nodes_are_its_own() -> contextlib.AbstractContextManager[object]:
    """A launcher accuses nodes that its job has left and another has."""
    return patch.object(Reporter, "_is_given_away", lambda *_given: False)


OPENED: dict[str, Opened] = {
    "an agent reports findings of other nodes": unchecked(Kind.AGENT, e.FindingSeen),
    "an agent clears findings of other nodes": unchecked(Kind.AGENT, e.FindingCleared),
    "an agent reports checks of other nodes": unchecked(Kind.AGENT, e.NodeValidated),
    "an agent tells of the progress of other jobs": unchecked(Kind.AGENT, e.CheckpointSaved, e.StepReached),
    "a launcher ends attempts of other jobs": unchecked(Kind.LAUNCHER, e.AttemptEnded, e.LauncherLapsed),
    "a launcher names nodes that are not its job's": _any_node_is_left_out,
    "an agent speaks as the scheduler": unchecked(Kind.AGENT, e.JobObserved, e.NodeObserved, e.NodeVanished),
    "a launcher accuses a node of another job": _left_nodes_are_its_own,
    "a node is gone by anybody's word": _claims_are_believed,
    "a token speaks for all sources": _token_speaks_for_all,
    "an id is anybody's": _ids_are_anybodys,
    "a beat is anybody's": _beats_are_anybodys,
    "an order is anybody's": _orders_are_anybodys,
    "a job is any user's": _jobs_are_anybodys,
}


@contextlib.contextmanager
def opened(name: str) -> Iterator[None]:
    """The check is not made."""
    with OPENED[name]():
        yield


def complaints(seed: int) -> list[Complaint]:
    """What the judges say of a seed of the swarm."""
    return complaints_about(simulate(draw(seed)))


def caught_by(name: str, seeds: Iterable[int]) -> int:
    """The first seed with a liar by which the judge of lies sees that the check is gone; -1: none of these."""
    with opened(name):
        for seed in seeds:
            if draw(seed).hostiles and any(one.judge == JUDGE for one in complaints(seed)):
                return seed
    return -1


if __name__ == "__main__":
    for one in OPENED:
        print(one, caught_by(one, range(EDITION_5, EDITION_5 + 300)), flush=True)
