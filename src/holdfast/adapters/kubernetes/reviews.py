"""Who a ServiceAccount token belongs to, by the API server's own word (TokenReview): how agents in pods log in.

`api/auth.py` asks it about tokens that its book does not know. An agent's token must be made for the audience
`holdfast` and bound to its pod; it may then report only as the node that the pod runs on. Answers are kept for two
minutes, and for ten while the API server cannot be reached: agents must be heard most of all then. Times are the
caller's monotonic seconds.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import structlog

from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.errors import LinkError

AUDIENCE = "holdfast"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
KEPT_S = 120.0
REFUSAL_KEPT_S = 10.0
CUT_OFF_KEPT_S = 600.0
KEPT_MAX = 20_000
TOKEN_MAX = 8192
"""A ServiceAccount token has about a thousand characters."""
_USER = "system:serviceaccount:"
_POD = "authentication.kubernetes.io/pod-name"
_NODE = "authentication.kubernetes.io/node-name"

_log = structlog.get_logger("holdfast.kubernetes")


class TokenReviews:
    """Asks the API server about tokens.

    Args:
        api: makes a connection at the first question.
        account: `NAMESPACE/NAME` of the agents' ServiceAccount.
        monotonic: the caller's clock.
    """

    def __init__(self, api: Callable[[], Awaitable[KubeApi]], account: str, monotonic: Callable[[], float]) -> None:
        self._make = api
        self._api: KubeApi | None = None
        self._namespace, _, self._name = account.partition("/")
        self._monotonic = monotonic
        self._known: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """Token's hash -> when it was asked about, and its node; no node: it was refused."""

    async def node_of(self, token: str) -> str:
        """The node whose agent holds this token; empty: it is nobody's that we know.

        Raises:
            LinkError: the API server cannot tell now.
        """
        if token.count(".") != 2 or len(token) > TOKEN_MAX:
            return ""
        digest, now = hashlib.sha256(token.encode("utf-8", "replace")).hexdigest(), self._monotonic()
        asked_at, node = self._known.get(digest, (-CUT_OFF_KEPT_S, ""))
        if now - asked_at < (KEPT_S if node else REFUSAL_KEPT_S):
            return node
        try:
            found = await self._ask(token)
        except LinkError:
            if node and now - asked_at < CUT_OFF_KEPT_S:
                return node
            raise
        self._known[digest] = (now, found)
        self._known.move_to_end(digest)
        if len(self._known) > KEPT_MAX:
            self._known.popitem(last=False)
        return found

    async def close(self) -> None:
        """Close the connection."""
        if self._api is not None:
            await self._api.close()

    async def _ask(self, token: str) -> str:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        try:
            if self._api is None:
                self._api = await self._make()
            status = (await self._api.create(REVIEWS, body)).get("status", {})
            user = status.get("user", {})
            if not status.get("authenticated") or AUDIENCE not in status.get("audiences", ()):
                return ""
            if user.get("username") != f"{_USER}{self._namespace}:{self._name}":
                _log.warning("a token of another account was refused", user=user.get("username"))
                return ""
            return await self._node(user.get("extra", {}))
        except ApiError as error:
            hint = ": give the controller create of tokenreviews and get of its pods" if error.status == 403 else ""
            raise LinkError(f"tokens cannot be reviewed: {error}{hint}") from error

    async def _node(self, extra: dict[str, list[str]]) -> str:
        if extra.get(_NODE):
            return extra[_NODE][0]
        if not extra.get(_POD) or self._api is None:
            return ""
        try:
            pod = await self._api.get(f"/api/v1/namespaces/{self._namespace}/pods/{extra[_POD][0]}")
        except ApiError as error:
            if error.gone:
                return ""
            raise
        return str(pod.get("spec", {}).get("nodeName", ""))
