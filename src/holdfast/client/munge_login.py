"""Log in by munge: the token of each request is taken in exchange for a credential, and renewed before it ends.

`AsyncClient` uses it where no token is named and `Trust.munge` says so. What reports as a source asks for a token of
that source. The credential goes wherever a token would, so `Trust.check` is asked before it, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable

import httpx
import msgspec
from msgspec import Struct

from holdfast.errors import HoldfastError, LinkError
from holdfast.model.answers import TokenAnswer, TokenPurpose, TokenRequest
from holdfast.model.wire import decode, encode
from holdfast.os import munge

PATH = "/v1/token"
RENEW_AT = 0.8
"""A token is renewed after this part of its time."""
SOURCE = "holdfast.source"
"""Extension of a request: what it reports as; missing: the user."""


class _Held(Struct, frozen=True):
    token: str
    renew_at: float


class MungeLogin(httpx.Auth):
    """See the module.

    Args:
        socket: of munged; empty: munge's own default.
        error_of: makes of an answer that refuses what is raised.
    """

    def __init__(
        self,
        socket: str,
        error_of: Callable[[httpx.Response], HoldfastError],
    ) -> None:
        self._socket = socket
        self._error_of = error_of
        self._held: dict[str, _Held] = {}

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Take a token where none is held, and once more where it is no longer accepted."""
        source = str(request.extensions.get(SOURCE, ""))
        held = self._held.get(source)
        is_new = held is None or time.monotonic() > held.renew_at
        if held is None or is_new:
            held = await self._taken(source, (yield await self._asking(request, source)))
        request.headers["Authorization"] = f"Bearer {held.token}"
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED and not is_new:
            held = await self._taken(source, (yield await self._asking(request, source)))
            request.headers["Authorization"] = f"Bearer {held.token}"
            yield request

    async def _asking(self, request: httpx.Request, source: str) -> httpx.Request:
        cluster = munge.slurm_cluster(os.environ)
        if not cluster:
            raise LinkError("a munge credential names its cluster: set HOLDFAST_CLUSTER to Slurm's ClusterName")
        purpose = msgspec.json.encode(TokenPurpose(cluster=cluster, source=source))
        credential = await munge.encode(purpose, self._socket)
        headers = {"Content-Type": "application/json"}
        return httpx.Request(
            "POST",
            request.url.copy_with(raw_path=PATH.encode()),
            content=encode(TokenRequest(credential)),
            headers=headers,
            extensions={"timeout": request.extensions.get("timeout", {})},
        )

    async def _taken(self, source: str, response: httpx.Response) -> _Held:
        await response.aread()
        if not response.is_success:
            self._held.pop(source, None)
            raise self._error_of(response)
        answer = decode(response.content, TokenAnswer)
        held = _Held(answer.token, time.monotonic() + RENEW_AT * answer.valid_s)
        self._held[source] = held
        return held
