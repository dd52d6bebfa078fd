"""Where the controller is, and the connection to it.

The embedded cluster's controller may start after the agents, die and come back on another port: `ControllerFile`
follows `controller.json`, so that a new address is known as soon as it is written. `ControllerLink` gives the client to
use now. While an embedded node is cut off, nothing passes: neither requests nor answers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import msgspec

from holdfast.adapters.local.link import NodeLink
from holdfast.adapters.tail import Tailer
from holdfast.client import AsyncClient
from holdfast.errors import LinkError
from holdfast.model.wire import ControllerAddress

CALL_S = 5.0
"""Longest wait for one answer: a controller that hangs must not keep the agent from the next one."""


class CutTransport(httpx.AsyncHTTPTransport):
    """The network of an embedded node, as far as the agent's requests go."""

    def __init__(self, node: NodeLink) -> None:
        super().__init__()
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


class ControllerFile:
    """The address in a `controller.json` that may come, change and go.

    Args:
        path: the file; its folder need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.address: ControllerAddress | None = None
        self.changed = asyncio.Event()
        """Set at every change; whoever waits for the next one clears it before."""
        self._tailer: Tailer | None = None

    def start(self) -> None:
        """Read the file now and follow it."""
        self.look()
        self._tailer = Tailer(lambda _path, _data: self.look())
        self._tailer.add(self._path)
        self._tailer.start()

    def look(self) -> None:
        """Read the file. A torn or missing one changes nothing: the last address is still the best guess."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=ControllerAddress)
        except (OSError, msgspec.MsgspecError):
            return
        if found != self.address:
            self.address = found
            self.changed.set()

    def close(self) -> None:
        """Stop following."""
        if self._tailer is not None:
            self._tailer.close()


class FixedAddress:
    """The address that a configuration names; it never changes. Has the form of `ControllerFile`."""

    def __init__(self, url: str) -> None:
        self.address: ControllerAddress | None = ControllerAddress(url)
        self.changed = asyncio.Event()

    def start(self) -> None:
        """There is nothing to follow."""

    def close(self) -> None:
        """There is nothing to stop."""


AddressSource = ControllerFile | FixedAddress


class ControllerLink:
    """The client for the controller that is known now. Fulfils `holdfast.client.ClientSource`.

    Args:
        source: where its address comes from.
        token_file: read at every new connection, because a new controller may have written a new token.
        ca_file: certificate authority that its certificate is checked against.
        node_dir: the embedded node's folder, whose cut holds everything back; None on a real node.
    """

    def __init__(
        self,
        source: AddressSource,
        *,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        node_dir: Path | None = None,
    ) -> None:
        self.source = source
        self._token_file = token_file
        self._ca_file = ca_file
        self._node_dir = node_dir
        self._address: ControllerAddress | None = None
        self._client: AsyncClient | None = None
        self._former: AsyncClient | None = None

    async def __call__(self) -> AsyncClient:
        """Wait until a controller is known, and give its client."""
        while self.source.address is None:
            self.source.changed.clear()
            await self.source.changed.wait()
        if self._client is None or self.source.address != self._address:
            if self._former is not None:
                await self._former.close()
            # A request may still be on its way by the client before this one: it is closed at the next change.
            self._former = self._client
            self._address = self.source.address
            self._client = AsyncClient(
                self._address.url,
                _token(self._token_file),
                timeout_s=CALL_S,
                ca_file=self._ca_file,
                transport=CutTransport(NodeLink(self._node_dir)) if self._node_dir is not None else None,
            )
        return self._client

    async def close(self) -> None:
        """Close the connections and stop following the address."""
        self.source.close()
        for client in (self._client, self._former):
            if client is not None:
                await client.close()


def _token(path: Path | None) -> str:
    """A missing file means that the controller asks for none, or that it has refused us and will say so."""
    try:
        return path.read_text(encoding="ascii").strip() if path is not None else ""
    except (OSError, UnicodeDecodeError):
        return ""
