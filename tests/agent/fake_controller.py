"""A controller's two routes for agents, on a real socket: keeps what it gets, hands out what the test puts."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.model.events import AnyEvent
from holdfast.model.orders import AnyOrder
from holdfast.model.wire import Batch, Beat, BeatAnswer, IngestAnswer, decode, decode_event, encode


class FakeController:
    """Speaks just enough HTTP/1.1 for keep-alive clients."""

    def __init__(self) -> None:
        self.events: dict[str, AnyEvent] = {}
        self.arrived: dict[str, float] = {}
        """Event id -> time.time() at its first arrival."""
        self.deliveries = 0
        self.beats: list[Beat] = []
        self.requests: list[AnyOrder] = []
        self.refuse: Callable[[bytes], bool] = lambda _raw: False
        self.status = 200
        self.refused = 0
        """Deliveries answered with `status`."""
        self.news = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, controller_dir: Path | None = None) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        if controller_dir is not None:
            controller_dir.mkdir(parents=True, exist_ok=True)
            fresh = controller_dir / ".controller.json.new"
            fresh.write_text(json.dumps({"url": url, "pid": os.getpid()}))
            fresh.rename(controller_dir / "controller.json")
        return url

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.close()
            self._server = None

    async def until(self, holds: Callable[[], Any], limit_s: float = 10.0) -> Any:
        """Wait until `holds()` is true."""
        deadline = time.monotonic() + limit_s
        while True:
            found = holds()
            if found:
                return found
            self.news.clear()
            left = deadline - time.monotonic()
            assert left > 0, f"not within {limit_s} s; got {[type(e).__name__ for e in self.events.values()]}"
            try:
                await asyncio.wait_for(self.news.wait(), left)
            except TimeoutError:
                continue

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events.values() if isinstance(event, kind)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                status, answer = self._answer(lines[0].split()[1], body)
                out = f"HTTP/1.1 {status} X\r\ncontent-length: {len(answer)}\r\ncontent-type: application/json\r\n\r\n"
                writer.write(out.encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self.status != 200:
            self.refused += path == "/v1/ingest"
            self.news.set()
            return self.status, b"{}"
        try:
            if path == "/v1/beat":
                self.beats.append(decode(body, Beat))
                return 200, encode(BeatAnswer(lease_s=10.0, requests=self.requests))
            batch = decode(body, Batch)
            if any(self.refuse(bytes(raw)) for raw in batch.events):
                return 422, b'{"detail":"not an event"}'
            self.deliveries += len(batch.events)
            for raw in batch.events:
                event = decode_event(msgspec.Raw(raw))
                self.arrived.setdefault(event.id, time.time())
                self.events.setdefault(event.id, event)
            return 200, encode(IngestAnswer(seq=len(self.events)))
        finally:
            self.news.set()
