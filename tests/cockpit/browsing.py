"""A real headless Chromium for tests, driven by Playwright; every page that is opened is watched for faults."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright
from tests.cockpit.served import TOKENS, Served

from holdfast.api import Role

BROWSER = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), "")
needs_chromium = pytest.mark.skipif(not BROWSER, reason="left out: no Chromium here (make test installs it as root)")
WAIT_MS = 150_000
"""Machines are busy: a page that is right gets all the time it needs."""


class Watched:
    """What must not happen on a page: errors of scripts, and what the policy of contents refused."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def on(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.errors.append(f"script: {error}"))
        page.on("console", self._said)
        page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))

    def _said(self, message: ConsoleMessage) -> None:
        # Plotly tries to set style attributes, which the policy refuses: the drawing does not need them.
        if message.type == "error" and "inline style" not in message.text and "ERR_" not in message.text:
            self.errors.append(message.text)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as play:
        # As root Chromium runs only without its sandbox; the pages are our own.
        browser = await play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def context(
    browser: Browser, house: Served, role: Role | None = Role.OPERATOR, *, width: int = 1280, **options: object
) -> AsyncIterator[tuple[BrowserContext, Page, Watched]]:
    """A browser of its own, logged in through the log-in page."""
    made = await browser.new_context(viewport={"width": width, "height": 900}, base_url=house.url, **options)
    made.set_default_timeout(WAIT_MS)
    watched = Watched()
    page = await made.new_page()
    watched.on(page)
    try:
        if role is not None:
            await log_in(page, role)
        yield made, page, watched
    finally:
        await made.close()
    assert watched.errors == []


async def log_in(page: Page, role: Role, path: str = "/") -> None:
    await page.goto(f"/login?next={path}")
    await page.fill("#token", TOKENS[role])
    await page.click("button.primary")
    await page.wait_for_selector("header.top")


async def ready(page: Page, path: str) -> None:
    """Open a page and wait until its scripts follow it."""
    await page.goto(path)
    await page.wait_for_selector("html[data-scripts=ready]")


async def following(page: Page) -> None:
    """Wait until the page's line to the server is open."""
    await becomes(page, "document.getElementById('live-state').textContent.startsWith('live')")


async def becomes(page: Page, expression: str) -> None:
    """Wait until something is so on the page. Playwright's own wait evaluates strings, which the pages' policy refuses."""
    async with asyncio.timeout(WAIT_MS / 1000):
        while not await page.evaluate(expression):
            await asyncio.sleep(0.02)
