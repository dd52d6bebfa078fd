"""A drill on an embedded cluster of real processes, watched live in a real Chromium, and a person who takes over."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page
from tests.cockpit.browsing import WAIT_MS, Watched, chromium, following, needs_chromium, ready

from holdfast.adapters.clock import SystemClock
from holdfast.api import Role
from holdfast.api.auth import book_line
from holdfast.drill.clusters import StageSettings
from holdfast.drill.runner import Patience, Site, run_drill
from holdfast.drill.scenario import find
from holdfast.drill.stage import Stage
from holdfast.drill.training import TrainingJob

pytestmark = [needs_chromium, pytest.mark.cluster, pytest.mark.timeout(900)]
VIEWER = "hft_" + hashlib.sha256(b"a viewer of this test").hexdigest()[:40]
PATIENCE = Patience(steady_s=300.0, inject_s=120.0, margin_s=300.0)


def test_a_drill_is_watched_live_and_a_person_takes_over(tmp_path: Path) -> None:
    """Log in; a node's fatal Xid shows on the open overview without a reload, as a drill, and so does its recovery;
    another word of the person is carried out and audited; a viewer may look only; after the log-out nobody may."""

    async def work() -> None:
        # A loaded machine may bring incidents of its own: only the drill's is looked for.
        async with Stage(StageSettings(folder=tmp_path / "c", nodes=2, spares=0, up_limit_s=240.0)) as stage:
            key = await stage.submit(TrainingJob(nodes=1, step_s=0.25, checkpoint_every=4, standbys="0"))
            site = Site(
                eyes=stage.eyes, job=key, clock=SystemClock(), breaker=stage.breaker, job_dir=stage.job_dir(key)
            )
            token = (stage.folder / "controller" / "token").read_text().strip()
            async with chromium() as browser:
                made = await browser.new_context(base_url=stage.eyes.url, viewport={"width": 1280, "height": 900})
                made.set_default_timeout(WAIT_MS)
                page, watched = await made.new_page(), Watched()
                watched.on(page)
                await log_in(page, token)
                await ready(page, "/")
                await following(page)
                await page.evaluate("window.kept = 'same page'")
                drill = asyncio.create_task(
                    run_drill(find("xid_74_replace"), site, drill_id="seen", patience=PATIENCE), name="drill"
                )
                # A browser that was starved may see the incident only when it is settled already.
                await shows(page, drill, "[data-part=incidents] tr, [data-part=recent] tr", "xid.74", "drill")
                await shows(page, drill, "[data-part=recent] tr", "xid.74", "drill", "recovered")
                assert await page.evaluate("window.kept") == "same page"
                await drill
                await take_over(page, stage)
                await log_out(page)
                await as_viewer(page, stage)
                await made.close()
            assert watched.errors == []

    asyncio.run(work())


async def shows(page: Page, drill: asyncio.Task, rows: str, *words: str) -> None:
    """One of these rows of the open page comes to say all of it; an error that ends the drill ends the wait."""
    said = """([rows, words]) => [...document.querySelectorAll(rows)]
        .some(row => words.every(word => row.textContent.includes(word)))"""
    async with asyncio.timeout(WAIT_MS / 1000 * 3):
        while not await page.evaluate(said, [rows, list(words)]):
            if drill.done():
                drill.result()
            await asyncio.sleep(0.05)


async def log_in(page: Page, token: str) -> None:
    await page.goto("/login?next=/")
    await page.fill("#token", token)
    await page.click("button.primary")
    await page.wait_for_selector("header.top")


async def take_over(page: Page, stage: Stage) -> None:
    """Drain a node with a reason; the scheduler has it, and the audit says who and why."""
    await ready(page, "/nodes/node02")
    await page.fill("#why", "the fan is loud")
    await page.click('button[value="drain"]')
    await page.wait_for_selector(".banner.good >> text=will be drained")

    async def drained() -> bool:
        world = await stage.cluster.breaker.observe()
        return any(node.name == "node02" and node.drained for node in world.nodes)

    async with asyncio.timeout(WAIT_MS / 1000):
        while not await drained():
            await asyncio.sleep(0.05)
    await page.goto("/audit")
    await page.wait_for_selector("text=the fan is loud")


async def log_out(page: Page) -> None:
    await page.click("text=Log out")
    await page.wait_for_url("**/login")
    await page.goto("/nodes/node02")
    assert "/login" in page.url


async def as_viewer(page: Page, stage: Stage) -> None:
    """A viewer's token, made while the controller runs, opens pages without a form that changes something."""
    book = stage.folder / "controller" / "tokens"
    staged = book.with_name("staged")
    staged.write_text(book.read_text() + book_line(VIEWER, Role.VIEWER, "ana"))
    staged.chmod(0o600)
    staged.replace(book)
    # The book is read again within a moment; a script's tries are no wrong guesses of a person.
    headers = {"Authorization": f"Bearer {VIEWER}"}
    async with httpx.AsyncClient(base_url=stage.eyes.url, headers=headers, timeout=120) as http:
        async with asyncio.timeout(WAIT_MS / 1000):
            while (await http.get("/v1/brakes")).status_code != 200:
                await asyncio.sleep(0.05)
    await log_in(page, VIEWER)
    for path in ("/", "/nodes/node01", "/drills", "/settings"):
        await page.goto(path)
        assert await page.locator('form[method="post"]:not([action="/logout"])').count() == 0, path
