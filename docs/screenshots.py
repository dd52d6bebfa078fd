"""Pictures of pages for the docs, in a real Chromium: `python docs/screenshots.py`, and `... DEMO` for the report's.

Without an argument it runs drills on an embedded cluster and takes the cockpit's pictures meanwhile; with the folder of
a demo (`holdfast demo` leaves `holdfast-demo`) it takes README's picture of that report. Not a generated page: what
is seen is one real run, so it is made by hand when a page changes, and looked at before it is kept.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright

IMAGES = Path(__file__).with_name("img")
DRILLS = ("hang_allreduce", "xid_74_replace", "kill9")
"""While the last one waits for a steady job, the pages of the one before it are there."""
PATIENCE_S = 240.0
OPEN = "document.body.innerText.includes('NVLINK') && document.body.innerText.includes('repairing')"
AGAIN = (
    "(document.querySelector('.js-plotly-plot')?.data ?? []).some(line => line.name === '1(2)' && line.x.length > 3)"
)
LIVE = "document.documentElement.dataset.scripts === 'ready'"


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The browser of this machine."""
    path = next(found for name in ("chromium", "chromium-browser") if (found := shutil.which(name)))
    async with async_playwright() as play:
        browser = await play.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            await browser.close()


async def becomes(page: Page, expression: str) -> None:
    """Wait until it is so on the page."""
    async with asyncio.timeout(PATIENCE_S):
        while not await page.evaluate(expression):  # noqa: ASYNC110 - the page is in another process
            await asyncio.sleep(0.1)


async def controller(folder: Path) -> tuple[str, str]:
    """Address and token of the drills' controller, once it is there."""
    place = folder / "cluster-1" / "controller"
    async with asyncio.timeout(PATIENCE_S):
        while not (place / "controller.json").exists():  # noqa: ASYNC110 - so is the controller
            await asyncio.sleep(0.1)
    return json.loads((place / "controller.json").read_text())["url"], (place / "token").read_text().strip()


async def logged_in(browser: Browser, url: str, token: str, *, width: int, height: int, scheme: str) -> Page:
    """The overview."""
    context = await browser.new_context(
        viewport={"width": width, "height": height}, base_url=url, color_scheme=scheme, timezone_id="UTC"
    )
    page = await context.new_page()
    await page.goto("/login?next=/")
    await page.fill("#token", token)
    await page.click("button.primary")
    await becomes(page, LIVE)
    return page


async def cockpit() -> None:
    """Overview and phone while the incident is open; its page and the job's when it is closed."""
    folder = Path(tempfile.mkdtemp()) / "drills"
    argv = ("drill", "run", *DRILLS, "--workload", "gpt", "--out", str(folder), "--keep")
    drills = await asyncio.create_subprocess_exec(sys.executable, "-m", "holdfast", *argv)
    try:
        url, token = await controller(folder)
        async with chromium() as browser:
            desk = await logged_in(browser, url, token, width=1280, height=860, scheme="light")
            phone = await logged_in(browser, url, token, width=390, height=844, scheme="dark")
            await becomes(desk, OPEN)
            await desk.screenshot(path=IMAGES / "cockpit-overview.png")
            await phone.screenshot(path=IMAGES / "cockpit-phone.png")
            await becomes(desk, "!document.querySelector('main').innerText.includes('repairing')")
            await becomes(desk, "document.querySelector('main').innerText.includes('No incident is open')")
            await desk.goto("/jobs/1")
            await becomes(desk, AGAIN)
            await becomes(desk, "document.querySelectorAll('.js-plotly-plot .scatterlayer .trace').length > 2")
            await desk.screenshot(path=IMAGES / "cockpit-job.png")
            await desk.goto("/incidents")
            await desk.click("a:has-text('NVLINK')")
            await becomes(desk, f"{LIVE} && document.body.innerText.includes('recovered')")
            await desk.screenshot(path=IMAGES / "cockpit-incident.png")
    finally:
        await drills.wait()


async def report(address: str) -> None:
    """A report's plots."""
    async with chromium() as browser:
        context = await browser.new_context(viewport={"width": 1100, "height": 1000}, offline=True)
        opened = await context.new_page()
        await opened.goto(address)
        await becomes(opened, "document.querySelector('.js-plotly-plot .main-svg') !== null")
        await opened.evaluate("document.getElementById('job-1').scrollIntoView()")
        await asyncio.sleep(1.0)
        await opened.screenshot(path=IMAGES / "report.png")


if __name__ == "__main__":
    asyncio.run(report((Path(sys.argv[1]) / "report.html").absolute().as_uri()) if len(sys.argv) > 1 else cockpit())
