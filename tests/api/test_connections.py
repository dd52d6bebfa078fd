"""Every agent keeps a connection: thousands of idle ones keep nobody out."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.journal import open_journal
from holdfast.adapters.memory import MemoryNotifier, MemoryOrchestrator
from holdfast.api import ApiServer
from holdfast.client import AsyncClient
from holdfast.controller import Controller
from holdfast.decide.engine import Engine
from holdfast.model.policy import PolicySet

KEPT = 1500
"""More than the backlog, which the server would take as its limit by itself."""


def test_more_agents_than_the_backlog_keep_their_connections(tmp_path: Path) -> None:
    """1,500 connections that have asked once stay open; the next one is answered, and so are they again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * KEPT + 500
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, wanted)), hard))

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return head[9:12] + (await reader.readexactly(length))[:0]

    async def body() -> None:
        clock = SystemClock()
        journal = open_journal(f"sqlite:///{tmp_path / 'journal.db'}")
        controller = Controller(
            journal, lambda _: Engine(PolicySet()), MemoryOrchestrator(clock), [], [MemoryNotifier()], clock, holder="t"
        )
        running = asyncio.create_task(controller.run())
        await controller.ready.wait()
        async with ApiServer(controller) as api:
            host, port = api.url.removeprefix("http://").split(":")
            lines = []
            for _ in range(KEPT):
                lines.append(await asyncio.open_connection(host, int(port)))
                assert await ask(*lines[-1]) == b"200"
            client = AsyncClient(api.url)
            assert (await client.state()).seq == controller.seq
            await client.close()
            assert await ask(*lines[0]) == b"200"
            for _, writer in lines:
                writer.close()
        controller.stop()
        await running
        await journal.close()

    try:
        asyncio.run(asyncio.wait_for(body(), 100))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
