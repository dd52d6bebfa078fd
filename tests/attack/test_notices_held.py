"""A user of the cluster uses up the hour's messages, so that a request for approval waits behind their own noise.

What is protected: a refused command is answered to whoever gave it and told to nobody else; what a person must act on
is never held back by `per_hour`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.controller.cases import until

from attack_fixture import Attempt
from holdfast.adapters.clock import VirtualClock, run_virtual
from holdfast.adapters.memory import MemoryNotifier, MemoryOrchestrator
from holdfast.adapters.notice_settings import Destination, NotifyConfig
from holdfast.adapters.notify import routing
from holdfast.adapters.notify.outbox import Outbox
from holdfast.controller import Settings
from holdfast.controller.executors import Executors
from holdfast.controller.mailbox import Mailboxes
from holdfast.controller.state import ShellState
from holdfast.model.events import AnyEvent
from holdfast.model.evidence import Severity
from holdfast.model.orders import Notify

USER = "A user of the cluster whose names and log lines people read"
ATTENTION = "people's attention"


@pytest.mark.attempt(actor=USER, asset=ATTENTION, removed="model.orders.Notify.is_answer")
def test_refused_commands_are_no_notices(attempt: Attempt) -> None:
    """Repeat a command that is refused, each time with another id, so that each is a matter of its own."""
    attempt.without(Notify, "is_answer", False)
    notifier = MemoryNotifier()

    async def work() -> None:
        clock, said = VirtualClock(), []

        async def outcome(event: AnyEvent) -> int:
            said.append(event)
            return len(said)

        executors = Executors(
            orchestrator=MemoryOrchestrator(clock),
            repairs=[],
            notifiers=[notifier],
            mailboxes=Mailboxes(),
            clock=clock,
            settings=Settings(),
            outcome=outcome,
            may_act=lambda: True,
            storing=lambda: 0,
            state=ShellState,
        )
        for topic in ("command:command:1", "command:command:2", "command:of a label"):
            executors.dispatch(Notify(id=topic, cause=1, topic=topic, title="Refused: requeue 7"))
        await until(lambda: len(said) == 3)

    run_virtual(work())
    assert "command:of a label" in [one.topic for one in notifier.sent]  # nobody else is answered there
    attempt.judge(succeeded=len(notifier.sent) > 1)


@pytest.mark.attempt(actor=USER, asset=ATTENTION, removed="adapters.notify.routing._goes_above_limit")
def test_a_request_for_approval_does_not_wait_behind_warnings(attempt: Attempt, tmp_path: Path) -> None:
    """Submit jobs whose comments are not understood until the hour's messages are used up."""

    def by_gravity(message: routing.Message, only_from: Severity | None) -> bool:
        return only_from is None or routing.GRAVITY[message.severity] >= routing.GRAVITY[only_from]

    attempt.without(routing, "_goes_above_limit", by_gravity)
    clock, titles = VirtualClock(), []

    class Kept:
        async def deliver(self, _to: Destination, message: routing.Message, _thread: str) -> str:
            titles.append(message.title)
            return ""

        async def refused(self, _to: Destination) -> str:
            return ""

    async def work() -> None:
        config = NotifyConfig(group_s=0.0, to=(Destination(name="a", url="x", per_hour=2),))
        async with Outbox(config, tmp_path / "o", Kept(), lambda _notice: routing.Facts(), clock) as box:
            for name in ("m1", "m2", "m3"):
                await box.send(Notify(id=name, cause=1, topic=name, severity=Severity.WARNING, title=name))
                await clock.sleep(10)
            asked = Notify(id="q", cause=1, topic="i9", severity=Severity.WARNING, title="Approve c9.1?", asks=True)
            await box.send(asked)
            await clock.sleep(10)

    run_virtual(work())
    attempt.judge(succeeded="Approve c9.1?" not in titles)
