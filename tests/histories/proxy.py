"""The line between clients and a controller, which a test cuts, slows or makes deaf in one direction."""

from __future__ import annotations

import asyncio
import contextlib


class Proxy:
    """Forwards TCP connections to a port of this machine.

    Attributes:
        delay_s: each piece of data waits so long, in both directions.
        deaf: what clients send is swallowed.
        mute: what the controller answers is swallowed.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self.port = 0
        self.is_cut = False
        self.delay_s = 0.0
        self.deaf = self.mute = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """End all connections, and each new one at once, until `heal`."""
        self.is_cut = True
        for line in self._lines:
            line.cancel()

    def heal(self) -> None:
        """Forward again. Lines that have lost something stay broken, as a network would have reset them."""
        if self.deaf or self.mute:
            for line in self._lines:
                line.cancel()
        self.is_cut = self.deaf = self.mute = False
        self.delay_s = 0.0

    async def end(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        try:
            if not self.is_cut:
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await self._forward(reader, writer)
        finally:
            self._lines.discard(line)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        ways = [
            asyncio.create_task(self._pump(reader, back, lambda: self.deaf)),
            asyncio.create_task(self._pump(there, writer, lambda: self.mute)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            back.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, swallowed) -> None:
        while data := await source.read(65536):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if not swallowed():
                sink.write(data)
                await sink.drain()
