"""Judges of simulated histories: what must hold whatever goes wrong, and what must have come about once nothing does.

Each judge takes a `History` and yields complaints, one sentence each; nothing to say is the verdict that all is well.
They know `model` and the world's deeds only, never the code they judge. `fuzz` and the tests call `judged`. Safety is
judged over the whole history; liveness only when faults had stopped for as long as the history's bound says.
How time passes: not at all; a history brings its times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from msgspec import Struct

from holdfast.sim.checkers.hostile import about_the_liar, lies_change_nothing_of_others
from holdfast.sim.checkers.incidents import incidents_close, stories_name_the_cause
from holdfast.sim.checkers.jobs import (
    attempts_do_not_overlap,
    budgets_hold,
    holds_are_respected,
    no_restart_after_cancel,
    retries_are_used,
)
from holdfast.sim.checkers.journal import Replay, journal_is_sound, replay_is_the_same
from holdfast.sim.checkers.nodes import (
    brake_is_kept,
    drains_are_our_own,
    no_drain_is_forgotten,
    returns_rest_on_checks,
)
from holdfast.sim.checkers.observe import observe_touches_nothing, observes
from holdfast.sim.checkers.orders import every_order_has_a_cause, no_order_twice, orders_end
from holdfast.sim.checkers.restarts import not_onto_a_bad_node
from holdfast.sim.checkers.trust import approvals_are_counted, reporters_are_braked, two_witnesses_are_heard
from holdfast.sim.history import FaultsOver, History

Judge = Callable[[History], Iterator[str]]

SAFETY: tuple[Judge, ...] = (
    journal_is_sound,
    no_order_twice,
    every_order_has_a_cause,
    brake_is_kept,
    drains_are_our_own,
    returns_rest_on_checks,
    not_onto_a_bad_node,
    budgets_hold,
    holds_are_respected,
    no_restart_after_cancel,
    attempts_do_not_overlap,
    stories_name_the_cause,
    observe_touches_nothing,
    two_witnesses_are_heard,
    reporters_are_braked,
    approvals_are_counted,
)
"""What must hold at every moment."""

LIVENESS: tuple[Judge, ...] = (
    incidents_close,
    orders_end,
    retries_are_used,
    no_drain_is_forgotten,
)
"""What must have come about when nothing has gone wrong for long enough."""

COMPLAINTS_MAX = 5
"""Complaints kept per judge: the first ones tell the story."""


class Complaint(Struct, frozen=True, order=True):
    """What a judge has to say."""

    judge: str
    text: str


def came_to_rest_in_time(history: History) -> bool:
    """Did faults stop, and the simulation go on for as long as it may take to come to rest?"""
    over = [deed for deed in history.deeds if isinstance(deed, FaultsOver)]
    return bool(over) and history.ended_at >= over[-1].at + over[-1].bound_s


def judged(history: History, replay: Replay | None = None) -> list[Complaint]:
    """All complaints: safety always, liveness when there was time for it, the replay when one is given."""
    is_live = came_to_rest_in_time(history) and not observes(history)  # who only observes brings nothing about
    judges = [*SAFETY, *(LIVENESS if is_live else ())]
    excused = about_the_liar(history)
    said = [
        Complaint(judge.__name__, text)
        for judge in judges
        for text in islice((text for text in judge(history) if not excused(text)), COMPLAINTS_MAX)
    ]
    if replay is not None:
        found = islice(replay_is_the_same(history, replay), COMPLAINTS_MAX)
        said += [Complaint("replay_is_the_same", text) for text in found]
        lies = islice(lies_change_nothing_of_others(history, replay), COMPLAINTS_MAX)
        said += [Complaint("lies_change_nothing_of_others", text) for text in lies]
    return said


__all__ = ["LIVENESS", "SAFETY", "Complaint", "Judge", "Replay", "came_to_rest_in_time", "judged"]
