"""Phases and texts can be told from their grounds, in light and dark, on pages of the cockpit and of reports: by computation.

WCAG 2.2: 3:1 for what is drawn (1.4.11), 4.5:1 for text (1.4.3). Colours are read from the style that a browser gets.
"""

from __future__ import annotations

import re
from importlib.resources import files as package_files

import pytest
from tests.report.test_page import luminance, page

from holdfast.cockpit import files, phases
from holdfast.model.cluster import JobKey
from holdfast.model.records import PHASE_MARKS, IncidentRecord, Mark
from holdfast.report.gather import ReportData
from holdfast.report.html import render_html
from holdfast.report.timeline import PHASE_NAMES, timeline

SCHEMES = ("light", "dark")
STATES = ("good", "warn", "bad", "busy", "odd", "quiet")
Colours = dict[str, str]


def cockpit() -> str:
    """The style of a page of the cockpit."""
    served = files.get("phases.css", gzip=False)[0] if "phases.css" in files.NAMES else b""
    return (package_files("holdfast.cockpit") / "static" / "cockpit.css").read_text() + served.decode()


def report() -> str:
    """The style of a report's page."""
    found = re.search(r"<style>(.*?)</style>", page("full"), re.DOTALL)
    assert found
    return found.group(1)


PAGES = {"cockpit": cockpit, "report": report}


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def variables(style: str, name: str, scheme: str) -> list[Colours]:
    """What each rule for a scheme sets, of those that set `--name`: media query, switch of the page, print."""
    whole = re.sub(r"#(\w)(\w)(\w)\b", r"#\1\1\2\2\3\3", style)
    rules = re.findall(rf"((?:@media[^{{}}]*\{{)?[^{{}}]*)\{{([^{{}}]*--{name}:[^{{}}]*)\}}", whole)
    bodies = [body for head, body in rules if ("dark" in head) == (scheme == "dark")]
    assert bodies, f"nothing sets --{name} for {scheme}"
    return [dict(re.findall(r"--([\w-]+): (#[0-9A-Fa-f]{6})", body)) for body in bodies]


def colour(style: str, number: int, scheme: str) -> list[str]:
    """The colours that phase `number` is drawn with."""
    drawn = re.search(rf"\.t{number} \{{ fill: ([^;}}]+)", style)
    assert drawn, f"phase {number} is drawn in no colour, which is black"
    if drawn[1].startswith("#"):
        return [drawn[1].strip()]
    return [one[f"t{number}"] for one in variables(style, f"t{number}", scheme)]


def incident(*marks: Mark, id: str = "i1") -> IncidentRecord:  # noqa: A002 - the record's own word
    times = {mark: 1000.0 + 10.0 * place for place, mark in enumerate(PHASE_MARKS) if mark in {Mark.FAULT, *marks}}
    return IncidentRecord(id=id, opened_at=1000.0, jobs=[JobKey("c", "7")], marks=times, closed_at=2000.0)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("where", PAGES)
def test_every_phase_stands_out_from_its_ground(where: str, scheme: str) -> None:
    """3:1 against the page's ground and its panels; no two phases share a colour."""
    style = PAGES[where]()
    drawn = phases.bars(timeline(incident(*PHASE_MARKS)))
    assert [bar.name for bar in drawn] == list(PHASE_NAMES.values())
    seen = []
    for bar in drawn:
        for mine in colour(style, bar.tone, scheme):
            seen.append(mine)
            for grounds in variables(style, "ground", scheme):
                for ground in (grounds["ground"], grounds["panel"]):
                    assert contrast(mine, ground) >= 3.0, (bar.name, mine, ground)
    assert len(set(seen)) == len(drawn)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_of_the_cockpit_stands_out(scheme: str) -> None:
    """4.5:1: words on the ground and on panels, states on their own fills, the page one is on in the navigation."""
    for one in variables(cockpit(), "ink", scheme):
        pairs = [(one[text], one[on]) for text in ("ink", "soft", "link") for on in ("ground", "panel")]
        pairs += [(one[state], one[f"{state}-fill"]) for state in STATES]
        pairs += [(one[state], one["panel"]) for state in ("good", "warn", "bad")]
        pairs += [(one["ink"], one["quiet-fill"]), (one["panel"], one["link"])]
        for text, on in pairs:
            assert contrast(text, on) >= 4.5, (text, on)


def test_a_phase_has_one_colour_in_all_incidents_of_a_report() -> None:
    """One incident has every phase, another is never isolated nor requeued: `prove` looks the same in both."""
    two = [incident(*PHASE_MARKS), incident(Mark.DETECTED, Mark.STOPPED, Mark.PROVEN, id="i2")]
    html = render_html(ReportData("t", "c", 3000.0, incidents=two), script="")
    for name in PHASE_NAMES.values():
        drawn = re.findall(rf'<div class="(t\d+)" style="[^"]*" title="{name}:', html)
        assert len(drawn) == (2 if name in {"detect", "stop", "prove"} else 1)
        assert len(set(drawn)) == 1
        assert re.search(rf'<i class="{drawn[0]}"></i> {name} ', html), "the key names it"
