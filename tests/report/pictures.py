"""Takes the pictures of reports in the docs from the recordings, in a real Chromium: `python -m tests.report.pictures`. No test calls it.

The full report is of three drills on an embedded cluster, fleet and summary are of the simulated year.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from tests.report.test_audit import History

from holdfast.cli.pdf import BROWSERS
from holdfast.model.policy import Slo
from holdfast.report.gather import ReportData
from holdfast.report.html import render_html

IMAGES = Path(__file__).parents[2] / "docs" / "img"


def reports() -> dict[str, tuple[ReportData, str, int, int]]:
    """Picture -> (report, its kind, width and height in pixels)."""
    drills, year = History("embedded-drills").data, History("simulated-year").data
    drills.title, drills.cluster = "Holdfast report", "cluster-1"
    drills.slo = Slo(detect_s=5, recover_s=30, availability=99, performance_loss=5)
    year.title, year.cluster, year.slo = (
        "Holdfast report, last 365d",
        "sim",
        Slo(detect_s=60, recover_s=900, availability=99),
    )
    return {
        "report-full": (drills, "full", 1000, 1150), "report-fleet": (year, "fleet", 1100, 1250),
        "report-phone": (year, "summary", 500, 1000),
    }  # fmt: skip


def main() -> None:
    """Write the pictures."""
    path = next(found for name in BROWSERS if (found := shutil.which(name)))
    made = reports()
    with sync_playwright() as play, tempfile.TemporaryDirectory() as folder:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for name, (data, kind, width, height) in made.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            file = Path(folder) / f"{name}.html"
            file.write_text(render_html(data, kind=kind), encoding="utf-8")
            page.goto(file.as_uri())
            if kind == "full":
                page.wait_for_selector(".js-plotly-plot .main-svg")
            page.screenshot(path=IMAGES / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
