"""Proof that a node does not run: nobody answers there, twice, while somebody else is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.adapters.slurm import daemons
from holdfast.adapters.slurm.daemons import Knock, NodeAddress, knock, why_gone
from holdfast.adapters.slurm.node_output import SlurmNode

IDLE, DOWN = frozenset({"IDLE"}), frozenset({"IDLE", "NOT_RESPONDING"})


def nodes(**states: frozenset[str]) -> dict[str, SlurmNode]:
    return {name: SlurmNode(name=name, address=name, states=kept) for name, kept in states.items()}


def answering(told: dict[str, list[Knock]]) -> Callable[[NodeAddress], Awaitable[Knock]]:
    async def knocked(where: NodeAddress, *_: object) -> Knock:
        assert where.port == 6818
        return told[where.address].pop(0)

    return knocked


@pytest.mark.parametrize(
    ("quiet", "other", "is_gone"),
    [
        ([Knock.NOBODY, Knock.NOBODY], Knock.OPEN, True),
        ([Knock.NOBODY, Knock.NOBODY], Knock.REFUSED, True),
        ([Knock.NOBODY, Knock.NOBODY], Knock.NOBODY, False),
        ([Knock.NOBODY, Knock.NOBODY], Knock.STARVED, False),
        ([Knock.NOBODY, Knock.OPEN], Knock.OPEN, False),
        ([Knock.NOBODY, Knock.REFUSED], Knock.OPEN, False),
        ([Knock.NOBODY, Knock.STARVED], Knock.OPEN, False),
        ([Knock.OPEN, Knock.NOBODY], Knock.OPEN, False),
    ],
)
def test_only_two_silences_beside_an_answer_are_a_proof(
    monkeypatch: pytest.MonkeyPatch, quiet: list[Knock], other: Knock, *, is_gone: bool
) -> None:
    """Where a kernel refuses, a machine runs; where nobody at all answers, or we did not run, it may be us."""
    monkeypatch.setattr(daemons, "knock", answering({"n1": list(quiet), "n2": [other]}))
    why = asyncio.run(why_gone("n1", nodes(n1=DOWN, n2=IDLE), 6818))
    assert bool(why) is is_gone
    assert not is_gone or "n1" in why


def test_without_another_node_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that the scheduler misses too says nothing about our own line, and an unknown node is not asked."""
    monkeypatch.setattr(daemons, "knock", answering({"n1": [Knock.NOBODY] * 4}))
    assert asyncio.run(why_gone("n1", nodes(n1=IDLE), 6818)) == ""
    assert asyncio.run(why_gone("n1", nodes(n1=IDLE, n2=DOWN), 6818)) == ""
    assert asyncio.run(why_gone("n9", nodes(n1=IDLE, n2=IDLE), 6818)) == ""


def test_a_knock_tells_a_listener_from_a_closed_port_and_a_starved_caller() -> None:
    """With real sockets; a time limit that comes late is our own lateness, not the node's silence."""

    async def scene() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        where = NodeAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        assert await knock(where) is Knock.OPEN
        server.close()
        await server.wait_closed()
        assert await knock(where) is Knock.REFUSED

    asyncio.run(scene())


@pytest.mark.parametrize(("late_s", "found"), [(0.0, Knock.NOBODY), (1.0, Knock.STARVED)])
def test_a_silence_that_lasted_too_long_was_our_own(
    monkeypatch: pytest.MonkeyPatch, late_s: float, found: Knock
) -> None:
    """As after a SIGSTOP: the clock has gone on, and nothing was tried meanwhile."""

    async def scene() -> Knock:
        clock = asyncio.get_running_loop()
        real, shift = clock.time, [0.0]
        monkeypatch.setattr(clock, "time", lambda: real() + shift[0])

        async def nobody(*_: object) -> tuple[None, None]:
            shift[0] = daemons.CONNECT_S + late_s
            raise TimeoutError

        monkeypatch.setattr(asyncio, "open_connection", nobody)
        return await knock(NodeAddress("127.0.0.1", 1))

    assert asyncio.run(scene()) is found
