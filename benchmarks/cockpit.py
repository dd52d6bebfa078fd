"""The cockpit over a large journal: 2,000 nodes, 5,000 jobs, 100,000 findings in SQLite, 200 findings a second coming in.

Server time of every page (one client, a process of its own), size of the overview, processor time that 200 open
overviews cost, and the time from an event in the journal to the open page in Chromium (when one is installed).
`--quick` takes a tenth of the findings.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
import sys
import time

import httpx
import msgspec
from filled import FINDINGS, RATE, filled_controller, finding

from holdfast.api import ApiServer, TokenBook
from holdfast.cockpit import Cockpit, router
from holdfast.controller import Controller
from holdfast.model import events as e

VIEWERS, ROUNDS, LIVE_S, SHOTS = 200, 60, 20.0, 40
PATHS = (
    "/", "/jobs", "/jobs?q=u3&state=running", "/jobs/17", "/nodes", "/nodes/n0017", "/incidents", "/incidents?q=xid.79",
    "/orders", "/audit", "/efficiency", "/drills", "/settings",
)  # fmt: skip


NUMBERS = itertools.count(FINDINGS + 1)
"""Ids are never used twice: the controller would drop what it knows."""


async def noise(controller: Controller) -> None:
    """Findings on all nodes; every second some nodes fall silent and are heard again, so that pages have news."""
    while True:
        for _ in range(RATE // 10):
            number = next(NUMBERS)
            _ = controller.submit(finding(number if number % 2000 != 17 else number + 1, time.time()))
        node = f"n{number % 997:04}"
        _ = controller.submit(e.NodeSilent(id=f"s{number}", at=time.time(), source="controller", node=node, for_s=30.0))
        await asyncio.sleep(0.1)
        _ = controller.submit(e.NodeHeard(id=f"h{number}", at=time.time(), source="controller", node=node))


async def ask(url: str, incident: str) -> dict[str, list[float]]:
    """Median and p95 in milliseconds, and kB, of each page."""
    out = {}
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        # Figures of the whole journal are made once in the background; what follows is not measured beside that.
        while "Cost and return" not in (await http.get("/efficiency")).text:
            await asyncio.sleep(0.2)
        for path in (*PATHS, f"/incidents/{incident}"):
            took = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                answer = await http.get(path)
                took.append((time.perf_counter() - began) * 1000)
                answer.raise_for_status()
            took.sort()
            out[path] = [took[len(took) // 2], took[int(len(took) * 0.95)], len(answer.content) / 1000]
    return out


async def watch(url: str, count: int, seconds: float) -> dict[str, int]:
    """Keep so many overviews open; counts messages and bytes."""
    async with httpx.AsyncClient(base_url=url) as http:
        secret = (await http.get("/")).cookies["holdfast_session"]
    host, port = url.removeprefix("http://").split(":")
    told = {"messages": 0, "bytes": 0}

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        ask = f"GET /live?on=overview&since=0 HTTP/1.1\r\nHost: {host}\r\nCookie: holdfast_session={secret}\r\n\r\n"
        writer.write(ask.encode())
        async with asyncio.timeout(seconds):
            while data := await reader.read(65536):
                told["messages"] += data.count(b"event: update")
                told["bytes"] += len(data)

    await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)
    return told


async def in_chromium(url: str, controller: Controller) -> list[float]:
    """Seconds from the event on disk to the changed cell on the page, for events at odd moments."""
    from playwright.async_api import async_playwright

    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    if not browser_path:
        return []
    took = []
    async with async_playwright() as play:
        browser = await play.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        page = await browser.new_page()
        await page.goto(url)
        await page.wait_for_selector("html[data-scripts=ready]")
        await asyncio.sleep(2)
        for number in range(SHOTS):
            node = f"n{1000 + number * 7:04}"
            await page.evaluate(
                """node => { window.seen = 0; const cell = document.querySelector(`#grid a[href="/nodes/${node}"]`);
                new MutationObserver((_, me) => { window.seen = Date.now(); me.disconnect(); })
                  .observe(cell, {attributes: true, attributeFilter: ["class"]}); }""",
                node,
            )
            await asyncio.sleep(random.random() * 2)
            event = e.NodeSilent(id=f"c{number}", at=time.time(), source="controller", node=node, for_s=30.0)
            await controller.submit(event)
            stored = time.time()
            for _ in range(1000):
                seen = await page.evaluate("window.seen")
                if seen:
                    took.append(seen / 1000 - stored)
                    break
                await asyncio.sleep(0.05)
        await browser.close()
    return sorted(took)


async def elsewhere(*arguments: str) -> dict:
    """This file in a process of its own, so that its time is not the server's."""
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return msgspec.json.decode(said)


async def measure(controller: Controller, cockpit: Cockpit, url: str) -> None:
    incident = next(iter(cockpit.board.incidents))
    for name, busy in (("calm", None), ("with 200 findings/s", noise)):
        task = asyncio.create_task(busy(controller)) if busy else None
        figures = await elsewhere("ask", url, incident)
        for path, (median, p95, size) in figures.items():
            print(f"{name:20} {path:28} median {median:6.1f} ms   p95 {p95:6.1f} ms   {size:7.1f} kB")
        print(f"{name}: worst p95 {max(row[1] for row in figures.values()):.1f} ms; overview {figures['/'][2]:.0f} kB")
        if task:
            task.cancel()
    task = asyncio.create_task(noise(controller))
    await asyncio.sleep(2)
    used = {}
    for count in (0, VIEWERS, 0, VIEWERS):
        began, made = time.process_time(), cockpit.hub.messages
        told = await elsewhere("watch", url, str(count), str(LIVE_S)) if count else await asyncio.sleep(LIVE_S)
        used.setdefault(count, []).append((time.process_time() - began) / LIVE_S * 100)
        if told:
            print(
                f"{count} viewers: {told['messages']} messages, {told['bytes'] / 1e6:.1f} MB, made {cockpit.hub.messages - made}"
            )
    cost = min(used[VIEWERS]) - min(used[0])
    print(f"processor: {used} % of a core without and with {VIEWERS} viewers; they cost {cost:.1f} %")
    took = await in_chromium(url, controller)
    if took:
        print(
            f"event to page in Chromium, 200 findings/s: median {took[len(took) // 2]:.3f} s, p95 {took[int(len(took) * 0.95)]:.3f} s, n={len(took)}"
        )
    task.cancel()


async def main() -> None:
    findings = FINDINGS // 10 if "--quick" in sys.argv else FINDINGS
    async with filled_controller(findings) as (controller, folder, presets):
        tokens = TokenBook()
        cockpit = Cockpit(controller, tokens, presets, drills=folder / "drills")
        api = ApiServer(controller, tokens=tokens, pages=[router(cockpit)], sessions=cockpit.sessions)
        async with api, cockpit:
            await measure(controller, cockpit, api.url)


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:
        print(json.dumps(asyncio.run(ask(*sys.argv[2:]))))
    elif sys.argv[1:2] == ["watch"]:
        print(json.dumps(asyncio.run(watch(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))))
    else:
        asyncio.run(main())
