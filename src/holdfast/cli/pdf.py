"""A report as PDF, printed by a Chromium that is installed here: the page is the HTML form, so that both show the same.

Called by `holdfast report -o FILE.pdf`. The browser runs without a network, in a profile that is removed afterwards.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from holdfast.errors import UserError
from holdfast.os.programs import Command, run_blocking

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT_S = 120.0


def print_pdf(html: str, path: Path) -> None:
    """Print a page.

    Raises:
        UserError: no browser is installed, or it printed nothing.
        OSError: the file cannot be written.
    """
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        names = ", ".join(BROWSERS)
        raise UserError(f"a PDF is printed by a browser, and none of {names} is installed; HTML needs none")
    with tempfile.TemporaryDirectory(prefix="holdfast-pdf-") as folder:
        page, made = Path(folder, "report.html"), Path(folder, "report.pdf")
        page.write_text(html, encoding="utf-8")
        argv = (
            browser,
            "--headless",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--no-pdf-header-footer",
            "--virtual-time-budget=10000",
            f"--user-data-dir={folder}/profile",
            f"--print-to-pdf={made}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            page.as_uri(),
        )
        ran = run_blocking(Command(argv=argv), LIMIT_S)
        if ran.hung:
            raise UserError(f"{browser} did not print the report within {LIMIT_S:g} s")
        if not made.exists():
            last = (ran.err.strip().splitlines() or ["it said nothing"])[-1]
            raise UserError(f"{browser} did not print the report: {last}")
        shutil.copyfile(made, path)
