"""The page for people: readable by a screen reader, on a phone, in the dark, and in a real browser without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from tests.report.histories import BEGIN
from tests.report.test_forms import report
from tests.report.test_words import JA, rich_data

from holdfast.cli.pdf import BROWSERS, print_pdf
from holdfast.model.events import DrillFired
from holdfast.report.alerts import Alerts, Firing
from holdfast.report.gather import ReportData
from holdfast.report.html import render_html
from holdfast.report.words import ENGLISH, Words

BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), "")
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Collects what a screen reader goes by, and that every tag is closed where it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.open[-5:])

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data.strip())


def page(kind: str, words: Words = ENGLISH, script: str | None = "") -> str:
    made = report() if kind == "full" else rich_data()
    made.words = words
    for incident in made.incidents:
        incident.story = [*incident.story, f"ended by {'a-name-without-a-break/' * 12}"]
    return render_html(made, kind=kind, script=script)


@pytest.mark.parametrize("words", [ENGLISH, JA], ids=["en", "ja"])
@pytest.mark.parametrize("kind", ["full", "fleet", "summary"])
def test_a_screen_reader_finds_its_way(kind: str, words: Words) -> None:
    """Language, title, landmarks, one first heading, no skipped level, scoped column heads, labelled plots, a skip link."""
    reader = Reader()
    reader.feed(page(kind, words))
    assert reader.open == []
    names = [tag for tag, _ in reader.tags]
    assert dict(reader.tags)["html"]["lang"] == words.language
    assert reader.text["title"][0]
    assert names.count("main") == names.count("h1") == names.count("header") == 1
    levels = [int(tag[1]) for tag in names if re.fullmatch(r"h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(attrs.get("scope") == "col" for tag, attrs in reader.tags if tag == "th")
    assert all(attrs.get("aria-label") for _, attrs in reader.tags if attrs.get("role") == "img")
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert all(attrs["aria-labelledby"] in ids for _, attrs in reader.tags if "aria-labelledby" in attrs)
    assert any(tag == "a" and attrs.get("href") == "#main" for tag, attrs in reader.tags)


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_stands_out_in_light_and_dark() -> None:
    """Contrast of 4.5 and more (WCAG AA) of every text colour on both grounds, by day and by night."""
    schemes = re.findall(r":root \{([^}]*--ink[^}]*)\}", page("full"))
    assert len(schemes) == 3
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", re.sub(r"#(\w)(\w)(\w)\b", r"#\1\1\2\2\3\3", scheme)))
        for text in ("ink", "soft", "bad", "good"):
            for ground in ("ground", "panel"):
                light, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground, scheme)


PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const out = document.documentElement;
  out.dataset.wide = out.scrollWidth - innerWidth;
  const cells = [...document.querySelectorAll("[aria-labelledby=fleet] td")];
  out.dataset.cut = cells.filter((cell) => cell.getBoundingClientRect().right > innerWidth).length;
  out.dataset.plots = document.querySelectorAll(".plot svg.main-svg").length;
  out.dataset.asked = performance.getEntriesByType("resource").filter(r => !r.name.startsWith("data:")).length;
}, 500));
</script></body>"""


@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed here")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", ["full", "fleet", "summary"])
def test_a_real_browser_shows_it_from_disk(kind: str, width: int, tmp_path: Path) -> None:
    """On a phone's and a desk's width nothing hangs over the edge, plots are drawn, and nothing is fetched. Moments are
    the report's, wherever its reader lives."""
    path = tmp_path / "report.html"
    path.write_text(page(kind, script=None).replace("</body>", PROBE), encoding="utf-8")
    ran = subprocess.run(
        [
            BROWSER, "--headless", "--disable-gpu", "--no-sandbox", "--virtual-time-budget=6000", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path}/profile", f"--window-size={width},900", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True, env={**os.environ, "TZ": "Asia/Kolkata"},
    )  # fmt: skip
    ticks = re.findall(r'class="xtick"><text[^>]*>(?:<tspan[^>]*>)?(\d\d:\d\d:\d\d)', ran.stdout)
    assert bool(ticks) == (kind == "full")
    assert {tick[:4] for tick in ticks} <= {"08:0"}, ticks  # the report's 90 s begin at 08:00:00 UTC
    probe = dict(re.findall(r'data-(wide|cut|plots|asked)="(-?\d+)"', ran.stdout[:2000]))
    assert int(probe["wide"]) <= 0
    assert int(probe["cut"]) == 0, "figures of the fleet that are seen only by scrolling sideways"
    assert int(probe["asked"]) == 0
    assert (int(probe["plots"]) > 0) == (kind == "full")


def crowded() -> ReportData:
    """More of everything than a page can list: problems with long last words, proposals, drills, alerts, scrape jobs, notes."""
    made = rich_data()
    for number, incident in enumerate(made.incidents):
        incident.story = [f"Given up after {number} restarts: " + "the ranks end with the same trouble each time; " * 9]
        incident.id = f"ic{number}.1-{'x' * 12}"
    made.events = [
        DrillFired(id=f"d{n}", at=BEGIN, drill=f"{n}-a_drill_with_a_long_name", kind="kill9", job=made.jobs[0].key)
        for n in range(40)
    ]
    firing = tuple(Firing(f"AnAlertOfALongName{n}", f"node{n:03d}", BEGIN, BEGIN + 600) for n in range(40))
    up = {f"scrape-job-{n}": 0.99 for n in range(4)}
    made.alerts = Alerts("http://prometheus:9090", firing, up, {"GPU": 64, "network": 60})
    made.title = "Holdfast summary, last 365d"
    made.notes = [
        f"A note of some length, as those of journals that are damaged or being written are: number {n}."
        for n in (1, 2, 3)
    ]
    return made


@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed here")
@pytest.mark.parametrize("words", [ENGLISH, JA], ids=["en", "ja"])
def test_a_managers_summary_prints_on_one_page(words: Words, tmp_path: Path) -> None:
    """However much there is to tell; what was left out is counted, with where it stands."""
    made = crowded()
    made.words = words
    html = render_html(made, kind="summary")
    assert ("more: --kind full lists all" in html) == (words is ENGLISH)
    print_pdf(html, tmp_path / "summary.pdf")
    assert len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "summary.pdf").read_bytes())) == 1
