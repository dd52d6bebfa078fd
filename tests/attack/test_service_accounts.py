"""ServiceAccount tokens that are not an agent's or a launcher's to use, as the API server tells of them.

What a real API server says of real tokens is in tests/deploy/test_on_api_server.py; its answers stand here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from attack_fixture import Attempt
from holdfast.adapters.kubernetes import reviews
from holdfast.adapters.kubernetes.api import ApiError
from holdfast.adapters.kubernetes.reviews import TokenReviews

ACCOUNT = "system:serviceaccount:holdfast:holdfast-agent"
TOKEN = "head.claims.seal"
POD = {"metadata": {"name": "agent-x", "uid": "u1"}, "spec": {"nodeName": "n1"}}
EXTRA = {
    "authentication.kubernetes.io/pod-name": ["agent-x"],
    "authentication.kubernetes.io/pod-uid": ["u1"],
}
ON_N1 = {**EXTRA, "authentication.kubernetes.io/node-name": ["n1"]}


class Server:
    """An API server that has one pod, and says this of every token."""

    def __init__(self, status: Mapping[str, Any], pod: Mapping[str, Any] = POD) -> None:
        self._status, self._pod = status, pod

    async def create(self, _path: str, _body: Any) -> dict[str, Any]:
        return {"status": dict(self._status)}

    async def get(self, path: str) -> Any:
        if not path.endswith("/pods/agent-x"):
            raise ApiError(404, "NotFound", "")
        return self._pod

    async def close(self) -> None:
        """Nothing is open."""


def said(account: str = ACCOUNT, extra: Mapping[str, Any] = ON_N1, audiences: tuple[str, ...] = ("holdfast",)) -> Any:
    return {"authenticated": True, "audiences": audiences, "user": {"username": account, "extra": extra}}


def source(server: Server) -> str:
    """What the holder of the token may report as."""

    async def make() -> Any:
        return server

    async def work() -> str:
        return await TokenReviews(make, "holdfast/holdfast-agent", lambda: 0.0).source_of(TOKEN)

    return asyncio.run(work())


def test_an_agents_own_token_is_its_nodes() -> None:
    """By the node that it is bound to, or, from servers that do not say it, by its pod's."""
    assert source(Server(said())) == source(Server(said(extra=EXTRA))) == "agent:n1"


@pytest.mark.attempt(
    actor="A pod of another tenant, with ServiceAccount tokens",
    asset="a node",
    removed="adapters.kubernetes.reviews.is_for_us, adapters.kubernetes.reviews.is_account, adapters.kubernetes.reviews.is_same",
)
@pytest.mark.parametrize(
    ("check", "instead", "server"),
    [
        ("is_for_us", lambda _status: True, Server(said(audiences=("vault",)))),
        ("is_account", lambda _name, _agents: True, Server(said("system:serviceaccount:holdfast:default"))),
        ("is_account", lambda _name, _agents: True, Server(said("system:serviceaccount:tenant:holdfast-agent"))),
        ("is_same", lambda _uid, _found: True, Server(said(extra=EXTRA), {**POD, "metadata": {"uid": "u2"}})),
    ],
    ids=["for another service", "of another account", "of that name elsewhere", "of a pod that is another one now"],
)
def test_a_token_of_others_is_no_agents(attempt: Attempt, check: str, instead: Any, server: Server) -> None:
    """Show a whole token, which the API server knows, and which says nothing of a node to this controller."""
    attempt.without(reviews, check, instead)
    attempt.judge(succeeded=source(server) == "agent:n1")


@pytest.mark.attempt(
    actor="A pod of another tenant, with ServiceAccount tokens",
    asset="a node, a job",
    removed="adapters.kubernetes.reviews.is_bound",
)
def test_a_token_that_outlives_its_pod_is_nobodys(attempt: Attempt) -> None:
    """Show a token that is not bound to a pod, as a Secret of old holds it."""
    attempt.without(reviews, "is_bound", lambda _pods: True)
    node_alone = {"authentication.kubernetes.io/node-name": ["n1"]}
    attempt.judge(succeeded=source(Server(said(extra=node_alone))) == "agent:n1")


@pytest.mark.parametrize(
    "status", [{}, {"authenticated": False, "error": "expired"}, {**said(), "authenticated": False}]
)
def test_what_the_server_does_not_know_is_nobodys(status: Any) -> None:
    """Forged, expired, revoked with its pod: the server's word decides."""
    assert source(Server(status)) == ""
