"""Where the controller is, and the connection to it.

The embedded cluster's controller may start after the agents, die and come back on another port: its `controller.json`
is read before each request. While an embedded node is cut off, nothing passes: neither requests nor answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import httpx
import msgspec

from holdfast.adapters.local.link import NodeLink
from holdfast.client import AsyncClient
from holdfast.client.http import Transport
from holdfast.errors import ConfigError, LinkError
from holdfast.model.wire import ADDRESS_SIZE_MAX, ControllerAddress
from holdfast.os.files import read_bounded
from holdfast.os.tls import DEFAULT_TRUST, Stamp, Trust
from holdfast.os.tokens import token_in

LOOK_S = 0.1
"""Between two looks while no controller is known."""
CALL_S = 5.0
"""Longest wait for one answer: a controller that hangs must not keep the agent from the next one."""


class CutTransport(Transport):
    """The network of an embedded node, as far as the agent's requests go."""

    def __init__(self, url: str, trust: Trust, node: NodeLink) -> None:
        super().__init__(url, trust)
        self._node = node

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass a request on, unless the node is cut off before it leaves or by the time its answer is there."""
        self._check(request)
        response = await super().handle_async_request(request)
        self._check(request)
        return response

    def _check(self, request: httpx.Request) -> None:
        try:
            self._node.check()
        except LinkError as error:
            raise httpx.ConnectError(str(error), request=request) from error


class ControllerLink:
    """The client for the controller that is known now. Fulfils `holdfast.client.ClientSource`.

    Args:
        url: its address; empty when `file` names where it stands.
        file: a `controller.json` that may come, change and go; its folder need not exist yet.
        token_file: read at every new connection, because a new controller may have written a new token; None: the
            socket beside `file` where it answers, else `agent-token` there.
        trust: certificates; read again when they change.
        node_dir: the embedded node's folder, whose cut holds everything back; None on a real node.
    """

    def __init__(
        self,
        url: str = "",
        file: Path | None = None,
        *,
        token_file: Path | None = None,
        trust: Trust = DEFAULT_TRUST,
        node_dir: Path | None = None,
    ) -> None:
        self.address = ControllerAddress(url) if url else None
        self._file = file
        self._token_file = token_file
        self._trust = trust
        self._stamp: Stamp = ()
        self._node_dir = node_dir
        self._connected: ControllerAddress | None = None
        self._client: AsyncClient | None = None
        self._former: AsyncClient | None = None

    async def __call__(self) -> AsyncClient:
        """Wait until a controller is known, and give its client.

        Raises:
            LinkError: a certificate cannot be read, or the token file holds something else.
            RefusedError: the token would cross a network unencrypted.
        """
        self._look()
        while self.address is None:
            await asyncio.sleep(LOOK_S)
            self._look()
        stamp = self._trust.stamp()
        if self._client is None or self.address != self._connected or stamp != self._stamp:
            client = self._made(self.address.url)
            if self._former is not None:
                await self._former.close()
            # A request may still be on its way by the client before this one: it is closed at the next change.
            self._former = self._client
            self._connected, self._client, self._stamp = self.address, client, stamp
        return self._client

    def _made(self, url: str) -> AsyncClient:
        """A new client. Raises LinkError while the certificates cannot be read: they may be in the making."""
        token_file = self._token_file
        if self._file is not None and (local := self._trust.socket_beside(self._file, token_file)):
            url = local
        elif self._file is not None and token_file is None and self._trust.munge is None:
            token_file = self._file.with_name("agent-token")
        try:
            return AsyncClient(
                url,
                _token(token_file),
                timeout_s=CALL_S,
                trust=self._trust,
                transport=CutTransport(url, self._trust, NodeLink(self._node_dir))
                if self._node_dir is not None
                else None,
            )
        except ConfigError as error:
            raise LinkError(str(error)) from error

    def _look(self) -> None:
        """Read the file. A torn or missing one changes nothing: the last address is still the best guess."""
        if self._file is not None:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                self.address = msgspec.json.decode(read_bounded(self._file, ADDRESS_SIZE_MAX), type=ControllerAddress)

    async def close(self) -> None:
        """Close the connections."""
        for client in (self._client, self._former):
            if client is not None:
                await client.close()


def _token(path: Path | None) -> str:
    """A missing file means that the controller asks for none, or that it has refused us and will say so.

    Raises:
        ConfigError: the file holds something else.
    """
    try:
        return token_in(path) if path is not None else ""
    except OSError:
        return ""
