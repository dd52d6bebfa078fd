"""Merging for open pages: one message for all, at most one a second, nothing lost by who is slow."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.cockpit.served import run

from holdfast.cockpit.live import BURST, MERGE_S, Hub, Viewer, encoded

pytestmark = pytest.mark.timeout(600)


class Source:
    """A page with one part that counts, and how often it was made."""

    def __init__(self) -> None:
        self.value = 0
        self.made = 0

    async def make(self, page: str, since: int) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
        self.made += 1
        return {"count": f"<b>{self.value}</b>", "still": "same"}, {}


def said(message: bytes) -> dict[str, Any]:
    return json.loads(message.split(b"data: ", 1)[1])


def test_many_changes_become_few_messages_and_the_last_word_arrives() -> None:
    """Two hundred changes within a second, for three viewers: a handful of renderings, the same bytes for all, the last value."""

    async def work() -> None:
        source = Source()
        hub = Hub(source.make, lambda _page, _since: {}, lambda: 7)
        got: list[list[bytes]] = [[], [], []]

        async def look(kept: list[bytes]) -> None:
            async for message in hub.follow("overview", 7):
                if message.startswith(b"event"):
                    kept.append(message)
                    if b"<b>200</b>" in message:
                        return

        looking = [asyncio.create_task(look(kept)) for kept in got]
        while hub.viewers < 3 or source.made < 1:
            await asyncio.sleep(0.01)
        began = asyncio.get_running_loop().time()
        for _ in range(200):
            source.value += 1
            hub.changed(frozenset({"overview"}), notable=False)
            await asyncio.sleep(0.002)
        await asyncio.gather(*looking)
        assert got[0] == got[1] == got[2]
        assert all(set(said(one)["parts"]) == {"count"} for one in got[0])
        assert source.made <= 3 + hub.messages
        # By the time that it took: a machine that is busy takes longer, and may send more.
        took_s = asyncio.get_running_loop().time() - began
        assert hub.messages <= BURST + 1 + took_s / MERGE_S
        while hub.viewers:
            await asyncio.sleep(0.01)

    run(work)


def test_what_a_person_should_see_does_not_wait_for_the_second() -> None:
    """Behind chatter that keeps the pace, something notable goes out at once."""

    async def work() -> None:
        source = Source()
        hub = Hub(source.make, lambda _page, _since: {}, lambda: 1)
        stream = hub.follow("jobs", 1)
        assert (await anext(stream)).startswith(b"retry")
        while source.made < 1:
            await asyncio.sleep(0.01)
        source.value = 1
        hub.changed(frozenset({"jobs"}), notable=False)
        assert "<b>1</b>" in said(await anext(stream))["parts"]["count"]
        # The allowance is below full now: chatter waits, a fault does not.
        source.value = 2
        hub.changed(frozenset({"jobs"}), notable=True)
        began = asyncio.get_running_loop().time()
        assert "<b>2</b>" in said(await anext(stream))["parts"]["count"]
        print(f"{asyncio.get_running_loop().time() - began:.3f} s of {MERGE_S} s, {BURST} at once")
        await stream.aclose()
        assert hub.viewers == 0

    run(work)


def test_a_slow_viewer_gets_everything_merged() -> None:
    """Parts and cells of messages that were not taken are joined; the newest of each wins."""
    viewer = Viewer()
    for seq, parts, cells in (
        (1, {"a": "1", "b": "1"}, {"n1": ("suspect", "x")}),
        (2, {"a": "2"}, {"n2": ("unknown", "y"), "n1": ("healthy", "z")}),
    ):
        viewer.push(seq, parts, cells, encoded(seq, parts, cells))
    assert said(viewer.take()) == {
        "seq": 2, "parts": {"a": "2", "b": "1"}, "cells": {"n1": ["healthy", "z"], "n2": ["unknown", "y"]},
    }  # fmt: skip
    whole = encoded(3, {"a": "3"}, {})
    viewer.push(3, {"a": "3"}, {}, whole)
    assert viewer.take() is whole


def test_a_closed_hub_ends_every_line() -> None:
    """Open pages do not keep a controller from ending."""

    async def work() -> None:
        hub = Hub(Source().make, lambda _page, _since: {}, lambda: 1)
        stream = hub.follow("overview", 1)
        await anext(stream)
        rest = asyncio.create_task(anext(stream, None))
        await asyncio.sleep(0)
        hub.close()
        assert await rest is None

    run(work)
