"""A validation as the command asks for it: finds its role, opens the line, runs the examination or serves it.

Called by `cli.validate`. Time: joining is bounded by `join_s`, everything after by the steps' own limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.errors import LinkError
from holdfast.ports import Clock
from holdfast.validate.baselines import Kind, choose
from holdfast.validate.examination import Advise, Examination
from holdfast.validate.hands import Alone, Fleet, Hands
from holdfast.validate.place import FILE, Leader, Place, addresses, find_leader, hello_of, leader_at, publish
from holdfast.validate.results import Run
from holdfast.validate.results_kept import Results
from holdfast.validate.under_test import Asked, NodesUnderTest
from holdfast.validate.worker import Worker

JOIN_S = 180.0


class Session(Struct, frozen=True, kw_only=True):
    """What is to be done, and where this process stands in it."""

    asked: Asked
    place: Place
    env: Mapping[str, str]
    clock: Clock
    folder: Path | None = None
    """Where the run is kept, and where a fleet meets."""
    resume: bool = False
    leader: str = ""
    """`HOST:PORT`, where the fleet does not meet in a folder."""
    secret: str = ""
    join_s: float = JOIN_S
    advise: Advise = lambda _text: ""
    progress: Callable[[str], None] = lambda _line: None


async def run(session: Session) -> Run | None:
    """The run; None on a node that only served one.

    Raises:
        LinkError: nobody joined, or the leader was not found or broke off.
        UserError: what was asked does not fit together.
    """
    if session.place.world <= 1:
        hands = Alone(hello_of(session.place, session.env, "127.0.0.1"), session.env)
        return await _examine(session, hands)
    if session.place.rank:
        await _serve(session)
        return None
    return await _lead(session)


async def _examine(session: Session, hands: Hands) -> Run:
    baseline = functools.cache(functools.partial(choose, session.asked.baseline))
    for hello in hands.nodes:  # a wrong name is told before anything runs
        baseline(Kind(hello.gpu, hello.instance, hello.cpu))
    nodes = NodesUnderTest(
        hands,
        session.asked,
        clock=session.clock,
        results=Results(session.folder, resume=session.resume),
        progress=session.progress,
    )
    examination = Examination(nodes, baselines=baseline, advise=session.advise)
    return await examination.run(resume=session.resume)


async def _lead(session: Session) -> Run:
    place = session.place
    secret = session.secret or secrets.token_hex(16)
    fleet = Fleet(place.world, secret, place.names)
    hosts = addresses(place.node)
    port = await fleet.open("", leader_at(session.leader)[1] if session.leader else 0)
    mine = asyncio.create_task(_own_worker(session, hosts[0], port, secret))
    try:
        if session.folder is not None and not session.leader:
            publish(session.folder, Leader(run=place.run, hosts=hosts, port=port, secret=secret))
        await fleet.gather(session.join_s)
        session.progress(f"{len(fleet.nodes)} of {place.world} nodes joined")
        return await _examine(session, fleet)
    finally:
        await fleet.close()
        mine.cancel()
        await asyncio.gather(mine, return_exceptions=True)
        if session.folder is not None:
            with contextlib.suppress(OSError):
                (session.folder / FILE).unlink(missing_ok=True)


async def _own_worker(session: Session, address: str, port: int, secret: str) -> None:
    with contextlib.suppress(LinkError):
        await Worker(hello_of(session.place, session.env, address), session.env).run("127.0.0.1", port, secret)


async def _serve(session: Session) -> None:
    place = session.place
    hosts: tuple[str, ...]
    if session.leader:
        host, port = leader_at(session.leader)
        hosts, secret = (host,), session.secret
    else:
        found = await find_leader(session.folder or Path(), place.run, session.join_s)
        hosts, port, secret = found.hosts, found.port, found.secret
    worker = Worker(hello_of(place, session.env), session.env)
    until = session.clock.monotonic() + session.join_s
    while True:
        why = LinkError("the leader has no address")
        for host in hosts:
            try:
                await worker.run(host, port, secret)
            except LinkError as error:
                why = error
                if worker.admitted:
                    raise
            else:
                return
        if session.clock.monotonic() > until:
            raise why
        await session.clock.sleep(1.0)
