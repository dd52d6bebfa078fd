"""A real controller with its API on a real port, in a thread, over a SQLite journal; ended by leaving the block.

The engine is a plain one: each `job_observed` makes the records of `journal_with_history`, commands change nothing;
one that says "refuse me" is refused as the engine does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from journal_with_history import T, records
from msgspec import Struct

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.journal import open_journal
from holdfast.adapters.memory import MemoryNotifier, MemoryOrchestrator
from holdfast.api import ApiServer, TokenBook
from holdfast.api.auth import ensure_tokens
from holdfast.controller import Controller, Settings
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView
from holdfast.model.orders import Notify, OrderStatus
from holdfast.model.records import OrderRecord
from holdfast.ports import Touched


class RecordingEngine:
    """See the module."""

    def __init__(self, _state: bytes | None = None) -> None:
        self._touched = Touched()

    def handle(self, event: e.AnyEvent) -> list:
        self._touched = records() if isinstance(event, e.JobObserved) else Touched()
        if isinstance(event, e.OperatorCommand) and event.why == "refuse me":
            topic, title = f"command:{event.id}", f"Refused: {event.command} {event.node}"
            notice = Notify(id=f"n{event.seq}", cause=event.seq, topic=topic, title=title, text="it is retired.")
            self._touched.orders.append(OrderRecord(notice, OrderStatus.DONE, event.received_at, event.received_at))
            return [notice]
        return []

    def touched(self) -> Touched:
        return self._touched

    def snapshot(self) -> bytes:
        return b"{}"

    def pending_orders(self) -> list:
        return []


class Live(Struct):
    """Where it is."""

    folder: Path
    url: str
    viewer_token: Path


async def _serve(folder: Path, up: threading.Event, done: asyncio.Event, found: list[Live]) -> None:
    home = folder / "controller"
    journal = open_journal(f"sqlite:///{home / 'journal.db'}")
    clock = SystemClock()
    controller = Controller(
        journal, RecordingEngine, MemoryOrchestrator(clock), [], [MemoryNotifier()], clock, holder="test",
        settings=Settings(watch=False),
    )  # fmt: skip
    book = ensure_tokens(home)
    with book.open("a") as file:
        from holdfast.api.auth import Role, book_line

        file.write(book_line("hft_viewer", Role.VIEWER, "ann"))
    viewer = folder / "viewer-token"
    viewer.write_text("hft_viewer\n")
    running = asyncio.create_task(controller.run())
    try:
        await asyncio.wait_for(controller.ready.wait(), 10)
        await controller.submit(e.JobObserved(id="e-1", at=T, job=JobView(JobKey("lab", "1778"), name="gpt")))
        async with ApiServer(controller, tokens=TokenBook.load(book)) as server:
            (home / "controller.json").write_text(f'{{"url": "{server.url}", "pid": 1}}')
            found.append(Live(folder, server.url, viewer))
            up.set()
            await done.wait()
    finally:
        controller.stop()
        await asyncio.wait_for(running, 10)
        await journal.close()


@contextlib.contextmanager
def live_controller(folder: Path) -> Iterator[Live]:
    """Serve until the block is left."""
    (folder / "controller").mkdir(parents=True)
    up, found, failed = threading.Event(), [], []
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    def work() -> None:
        try:
            loop.run_until_complete(_serve(folder, up, done, found))
        except BaseException as error:
            failed.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert up.wait(20)
        assert found, failed
        yield found[0]
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(done.set)
        thread.join(20)
        assert not thread.is_alive()
        loop.close()
    assert failed == []
