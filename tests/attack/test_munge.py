"""Credentials and tokens of munge that are not the attacker's to use: each is refused, by the check that is named.

A real munged makes and reads the credentials. Its address is that of node n1; job 7 is mei's, job 8 is root's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.api.engine_house import engine_served, run
from tests.api.test_exchange import KEY, NOBODY, Nodes

from attack_fixture import Attempt, only_root
from holdfast.api import exchange as api_exchange
from holdfast.api.auth import Identity, Role
from holdfast.api.exchange import Exchange
from holdfast.client import AsyncClient
from holdfast.controller import Controller
from holdfast.errors import HoldfastError, RefusedError
from holdfast.model.wire import Beat
from holdfast.os import munge
from munge_fixture import Munged, munged, node_munged

__all__ = ["node_munged"]


@pytest.fixture(scope="module")
def foreign_munged() -> Iterator[Munged]:
    """A daemon with another key, as any user may start one."""
    with munged(b"x" * 128) as one:
        yield one


def taken(tmp_path: Path, node_munged: Munged, tries: Callable[[Exchange, Controller], Awaitable[object]]) -> bool:
    """Did this attempt at the exchange of a real controller get through?"""

    async def work() -> bool:
        exchange = Exchange(partial(munge.decode, socket=node_munged.socket), Nodes(), KEY)
        async with engine_served(tmp_path, exchange=exchange) as house:
            try:
                await tries(exchange, house.controller)
            except RefusedError:
                return False
            return True

    return run(work)


@pytest.mark.attempt(
    actor="A user, or a taken node, that shows munge credentials",
    asset="all of it",
    removed="os.munge.decode",
)
def test_a_credential_of_another_key_is_forged(
    attempt: Attempt, tmp_path: Path, node_munged: Munged, foreign_munged: Munged
) -> None:
    """Start a munged of one's own, and show its credential."""
    only_root("asks for the agent of a node")
    real = munge.decode
    attempt.without(munge, "decode", lambda credential, socket: real(credential, foreign_munged.socket))
    forged = foreign_munged.make(source="agent:n1")
    attempt.judge(succeeded=taken(tmp_path, node_munged, lambda exchange, seen: exchange.take(seen, forged)))


@pytest.mark.attempt(
    actor="A user, or a taken node, that shows munge credentials",
    asset="all of it",
    removed="os.munge.is_good",
)
def test_a_credential_is_good_once(attempt: Attempt, tmp_path: Path, node_munged: Munged) -> None:
    """Show again a credential that was seen on the line, to a controller started anew, too."""
    only_root("asks for the agent of a node")
    attempt.without(munge, "is_good", lambda _code: True)
    seen_on_the_line = node_munged.make(source="agent:n1")

    async def tries(exchange: Exchange, controller: Controller) -> None:
        await exchange.take(controller, seen_on_the_line)
        anew = Exchange(partial(munge.decode, socket=node_munged.socket), Nodes(), KEY)
        await anew.take(controller, seen_on_the_line)

    attempt.judge(succeeded=taken(tmp_path, node_munged, tries))


@pytest.mark.attempt(
    actor="A user, or a taken node, that shows munge credentials",
    asset="all of it",
    removed="api.exchange.is_fresh",
)
def test_a_credential_grows_old(
    attempt: Attempt, tmp_path: Path, node_munged: Munged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show a credential that was made to last an hour, two minutes later."""
    only_root("asks for the agent of a node")
    attempt.without(api_exchange, "is_fresh", lambda _age_s: True)
    old = node_munged.make(source="agent:n1", ttl_s=3600)

    async def tries(exchange: Exchange, controller: Controller) -> None:
        now = exchange._now()
        monkeypatch.setattr(exchange, "_now", lambda: now + 120.0)
        await exchange.take(controller, old)

    attempt.judge(succeeded=taken(tmp_path, node_munged, tries))


CHECKS = {
    "another cluster of the same key": ("is_here", lambda _asked, _cluster: True),
    "made for another service": ("is_ours", lambda _purpose: True),
    "a user as the node": ("is_root", lambda _uid: True),
    "root of another node": ("is_at", lambda _address, _addresses: True),
    "another user's job": ("owns", lambda _user, _owners: True),
}
MADE: dict[str, Callable[[Munged], str]] = {
    "another cluster of the same key": lambda one: one.make(cluster="other", source="agent:n1"),
    "made for another service": lambda one: one.make(
        b'{"purpose": "another", "cluster": "test", "source": "agent:n1"}'
    ),
    "a user as the node": lambda one: one.make(uid=NOBODY, source="agent:n1"),
    "root of another node": lambda one: one.make(source="agent:n2"),
    "another user's job": lambda one: one.make(uid=NOBODY, source="launcher:7"),
}


@pytest.mark.attempt(
    actor="A user, or a taken node, that shows munge credentials",
    asset="all of it",
    removed="api.exchange.is_here, api.exchange.is_ours, api.exchange.is_root, api.exchange.is_at, api.exchange.owns",
)
@pytest.mark.parametrize("what", CHECKS)
def test_a_credential_is_good_for_its_maker_and_purpose(
    attempt: Attempt, tmp_path: Path, node_munged: Munged, what: str
) -> None:
    """Show a whole credential of the right key for what is not its maker's, or was not asked for."""
    only_root("makes credentials of several users")
    name, instead = CHECKS[what]
    attempt.without(api_exchange, name, instead)
    made = MADE[what](node_munged)
    attempt.judge(succeeded=taken(tmp_path, node_munged, lambda exchange, seen: exchange.take(seen, made)))


@pytest.mark.parametrize(
    "payload", [b"hello", b"{}", b'{"source": 7}', b'{"purpose": "holdfast token 1", "more": 1}', b"\n\nUID: 0\n"]
)
def test_what_slurm_or_others_have_signed_gets_no_token(tmp_path: Path, node_munged: Munged, payload: bytes) -> None:
    """A payload of another form is refused, and none is read as what munged vouches for."""
    made = node_munged.make(payload)
    assert not taken(tmp_path, node_munged, lambda exchange, seen: exchange.take(seen, made))


@pytest.mark.parametrize(
    "credential",
    ["", "MUNGE:", "--socket=/tmp/x", "MUNGE:AAAA:\nMUNGE:AAAA:", "MUNGE:" + "A" * 5000 + ":", "MUNGE:AwQFAADF:"],
)
def test_what_is_no_credential_reaches_no_program(tmp_path: Path, node_munged: Munged, credential: str) -> None:
    """Neither options nor endless text go to unmunge."""
    assert not taken(tmp_path, node_munged, lambda exchange, seen: exchange.take(seen, credential))


@pytest.mark.attempt(
    actor="A user, or a taken node, that shows munge credentials",
    asset="tokens",
    removed="api.exchange.is_sealed",
)
def test_a_token_is_signed(attempt: Attempt, tmp_path: Path) -> None:
    """Write an operator's token."""
    attempt.without(api_exchange, "is_sealed", lambda _seal, _expected: True)
    forged = exchange_with(b"a" * 32).sign(Identity("mei", Role.OPERATOR))
    attempt.judge(succeeded=reads_all(tmp_path, forged))


@pytest.mark.attempt(
    actor="A user, or a taken node, that shows munge credentials",
    asset="tokens",
    removed="api.exchange.is_current",
)
def test_a_token_ends(attempt: Attempt, tmp_path: Path) -> None:
    """Show a token that was found in an old log."""
    attempt.without(api_exchange, "is_current", lambda _until, _now: True)
    old = Exchange(munge.decode, Nodes(), KEY, now=lambda: 1.0).sign(Identity("mei", Role.OPERATOR))
    attempt.judge(succeeded=reads_all(tmp_path, old))


def exchange_with(key: bytes) -> Exchange:
    return Exchange(munge.decode, Nodes(), key)


def reads_all(tmp_path: Path, token: str) -> bool:
    """Does the token open the whole cluster's state?"""

    async def work() -> bool:
        async with (
            engine_served(tmp_path, exchange=exchange_with(KEY)) as house,
            AsyncClient(house.server.url, token) as client,
        ):
            try:
                await client.state()
            except HoldfastError:
                return False
            return True

    return run(work)


def test_a_token_of_one_node_is_no_other_nodes(tmp_path: Path) -> None:
    """The token is bound: with that of n1 nothing is said of n2, and nothing is read."""

    async def work() -> None:
        exchange = exchange_with(KEY)
        token = exchange.sign(Identity("agent of n1", Role.AGENT, only="agent:n1"))
        async with (
            engine_served(tmp_path, exchange=exchange) as house,
            AsyncClient(house.server.url, token) as client,
        ):
            await client.beat(Beat(source="agent:n1", node="n1"))
            for call in (client.beat(Beat(source="agent:n2", node="n2")), client.jobs()):
                with pytest.raises(RefusedError):
                    await call

    run(work)


def test_a_loop_of_exchanges_is_slowed_down(tmp_path: Path, node_munged: Munged) -> None:
    """Each costs a program: one address gets so many, refused ones fewer."""

    async def work() -> None:
        exchange = Exchange(partial(munge.decode, socket=node_munged.socket), Nodes(), KEY)
        async with engine_served(tmp_path, exchange=exchange) as house:
            import httpx

            async with httpx.AsyncClient(base_url=house.server.url) as http:
                codes = [(await http.post("/v1/token", json={"credential": "x"})).status_code for _ in range(80)]
        assert codes[:40] == [401] * 40
        assert 429 in codes

    run(work)
