"""Doubts: whoever is quiet is asked about elsewhere, and only what is proven there is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.controller.cases import KEY, House, running

from holdfast.adapters.clock import run_virtual
from holdfast.controller import Controller
from holdfast.errors import LinkError
from holdfast.model import events as e
from holdfast.model.cluster import JobView, SchedulerState
from holdfast.model.wire import Beat

LAUNCHER = Beat(source="launcher:7", node="n1", cluster="test", job="7")
AGENT = Beat(source="agent:n2", node="n2", boot_id="b", instance_id="m")
KINDS = ("launcher_lapsed", "node_gone", "node_silent")


class Witness:
    """Says what `answer` gives; `asked` are the nodes and times of its questions."""

    def __init__(self, answer: Callable[[str], Awaitable[str]]) -> None:
        self.asked: list[tuple[str, float]] = []
        self._answer = answer

    async def why_gone(self, node: str) -> str:
        self.asked.append((node, asyncio.get_running_loop().time()))
        return await self._answer(node)


async def gone(_: str) -> str:
    return "nobody answers there"


async def no_proof(_: str) -> str:
    return ""


async def nobody_to_ask(_: str) -> str:
    raise LinkError("no cluster")


async def said(controller: Controller) -> list[tuple[str, float]]:
    return [(type(one).__name__, one.at) for one in await controller.journal.events(kind=KINDS)]


async def beats(controller: Controller, beat: Beat, seconds: int) -> None:
    for _ in range(seconds):
        await controller.beat(beat)
        await asyncio.sleep(1.0)


@asynccontextmanager
async def doubted(witness: Witness) -> AsyncIterator[tuple[House, Controller]]:
    """A controller that asks this witness, with a launcher attached."""
    house = House(watch=False)
    async with running(house.controller(witness=witness)) as controller:
        await controller.submit(e.LauncherAttached(id="l", at=1.0, job=KEY, restart_count=0, lease_s=10.0))
        yield house, controller


def test_a_launcher_on_a_machine_that_is_gone_is_not_given_its_lease() -> None:
    """Two seconds after its last beat both are said, the launcher first: its job is the controller's to bring back."""

    async def work() -> None:
        witness = Witness(gone)
        async with doubted(witness) as (house, controller):
            await beats(controller, LAUNCHER, 60)
            assert witness.asked == []
            last = house.clock.now() - 1.0
            await asyncio.sleep(9)
            (first, at), (second, _), *more = await said(controller)
            assert (first, second) == ("LauncherLapsed", "NodeGone")
            assert 2.0 <= at - last <= 2.5
            assert more == []
            [event] = await controller.journal.events(kind="node_gone")
            assert (event.node, event.evidence, event.source) == ("n1", "nobody answers there", "controller")

    run_virtual(work())


@pytest.mark.parametrize("answer", [no_proof, nobody_to_ask])
def test_without_a_proof_a_launcher_has_its_lease(answer: Callable[[str], Awaitable[str]]) -> None:
    """It may be slow, or its line broken. Its node is asked about again, less and less often, and never blamed."""

    async def work() -> None:
        witness = Witness(answer)
        async with doubted(witness) as (house, controller):
            await beats(controller, LAUNCHER, 5)
            last = house.clock.now() - 1.0
            await asyncio.sleep(60)
            [(kind, at)] = await said(controller)
            assert kind == "LauncherLapsed"
            assert 10.0 <= at - last <= 12.5
            pauses = [after - before for (_, before), (_, after) in zip(witness.asked, witness.asked[1:], strict=False)]
            assert pauses == sorted(pauses)
            assert len(witness.asked) == 3

    run_virtual(work())


def test_what_is_heard_while_one_asks_counts() -> None:
    """The question took long, and the launcher beat meanwhile: the answer is of another time."""

    async def slowly(_: str) -> str:
        await asyncio.sleep(1.5)
        return "nobody answers there"

    async def work() -> None:
        witness = Witness(slowly)
        async with doubted(witness) as (_, controller):
            await controller.beat(LAUNCHER)
            await asyncio.sleep(3)
            assert witness.asked
            await beats(controller, LAUNCHER, 20)
            assert await said(controller) == []

    run_virtual(work())


@pytest.mark.parametrize("has_job", [True, False])
def test_a_silent_node_is_asked_about_when_a_job_runs_there(*, has_job: bool) -> None:
    """Without a launcher the agent's silence is what there is; an idle machine may be switched off by who owns it."""

    async def work() -> None:
        house = House(watch=False)
        witness = Witness(gone)
        async with running(house.controller(witness=witness)) as controller:
            await controller.beat(AGENT)
            if has_job:
                view = JobView(key=KEY, state=SchedulerState.RUNNING, nodes=("n2", "n3"))
                await controller.submit(e.JobObserved(id="j", at=1.0, job=view))
            await asyncio.sleep(31)
            kinds = [kind for kind, _ in await said(controller)]
            assert kinds == (["NodeSilent", "NodeGone"] if has_job else ["NodeSilent"])
            assert bool(witness.asked) is has_job

    run_virtual(work())


def test_a_loss_that_could_not_be_stored_is_said_again() -> None:
    """The disk was full when it was said."""

    async def work() -> None:
        async with doubted(Witness(gone)) as (_, controller):
            await controller.beat(LAUNCHER)
            submit, refused = controller.presence.announcer._submit, []

            def full(event: e.AnyEvent) -> asyncio.Future[int]:
                refused.append(event)
                future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                future.set_exception(LinkError("no space left"))
                return future

            controller.presence.announcer._submit = full
            await asyncio.sleep(3)
            assert [type(event).__name__ for event in refused] == ["LauncherLapsed", "NodeGone"]
            controller.presence.announcer._submit = submit
            await asyncio.sleep(3)
            assert [kind for kind, _ in await said(controller)] == ["LauncherLapsed", "NodeGone"]

    run_virtual(work())
