"""Mode observe: what would have been ordered is written down, and nothing is ordered that changes the world."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.events import Command
from holdfast.model.policy import Mode
from holdfast.model.wire import kind_of
from holdfast.sim.checkers.orders import OWN
from holdfast.sim.history import History, RunBegan


def observes(history: History) -> bool:
    """Did the policy say observe for everything, all the time?"""
    site = history.policies.site
    if site.mode is not Mode.OBSERVE or site.modes:
        return False
    said = (step.event for step in history.steps)
    return not any(
        isinstance(event, e.PolicyLoaded)
        or (isinstance(event, e.OperatorCommand) and event.command in {Command.SET_MODE, Command.APPROVE})
        for event in said
    )


def observe_touches_nothing(history: History) -> Iterator[str]:
    """No order of the engine's own reaches a job or node; what a person asked of one is that person's."""
    if not observes(history):
        return
    asked: set[JobKey | str] = set()
    for step in history.steps:
        if isinstance(step.event, e.OperatorCommand):
            asked |= {target for target in (step.event.job, step.event.node) if target}
        for order in step.orders:
            target = getattr(order, "job", None) or getattr(order, "node", "")
            if not isinstance(order, OWN) and target not in asked:
                yield f"event {step.event.seq} orders {kind_of(order)} of {target}, although policy says observe"
    for deed in history.deeds:
        by_launcher = isinstance(deed, RunBegan) and (deed.by == "launcher" or deed.by.startswith("a"))
        if isinstance(deed, RunBegan) and by_launcher and deed.job not in asked:
            yield f"{deed.by} restarted job {deed.job} in place at {deed.at:.0f}, although policy says observe"
