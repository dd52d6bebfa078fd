"""docs/json-forms.md names exactly the fields that `--json` prints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from journal_with_history import NOW, make, records

from conftest import Holdfast

PAGE = Path(__file__).resolve().parents[2] / "docs" / "json-forms.md"


def named(kind: str) -> set[str]:
    """Fields that the page's paragraph `KIND: ...` gives, those in brackets left out."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^{kind}: (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert found, kind
    outside = re.sub(r"\([^()]*(?:\([^()]*\)[^()]*)*\)", "", found[1])
    return set(re.findall(r"`([a-z_]+)`", outside))


@pytest.fixture
def ask(holdfast: Holdfast, journal: Path) -> Any:
    def run(command: str) -> Any:
        ran = holdfast(*command.split(), "--json", "--journal", journal)
        assert (ran.code, ran.err) == (0, "")
        return json.loads(ran.out)

    return run


def test_jobs(ask: Any) -> None:
    """JOB and ATTEMPT."""
    form = ask("jobs")
    assert set(form) == {"version", "jobs"}
    assert [job["job"] for job in form["jobs"]] == ["1778", "1779"]
    assert all(set(job) == named("JOB") for job in form["jobs"])
    job = ask("job 1778")["job"]
    assert set(job) == named("JOB") | {"incidents", "orders", "checkpoints", "story", "training"}
    assert "`{" + ", ".join(job["training"]).removesuffix(", attempts") + "}`" in PAGE.read_text(encoding="utf-8")
    assert all(set(attempt) == named("ATTEMPT") for attempt in job["attempts"])
    assert [attempt["attempt"] for attempt in job["attempts"]] == ["1778(0)", "1778(1)"]
    assert set(job["incidents"][0]) == named("INCIDENT")
    assert set(job["orders"][0]) == named("ORDER")


def test_nodes(ask: Any) -> None:
    """NODE and BRAKE."""
    form = ask("nodes")
    assert set(form) == {"version", "nodes", "brakes"}
    assert all(set(node) == named("NODE") for node in form["nodes"])
    assert set(form["brakes"][0]) == named("BRAKE")
    assert ask("brakes") == {"version": 1, "brakes": form["brakes"]}
    node = ask("node show node04")["node"]
    assert set(node) == named("NODE") | {"incidents", "orders", "story"}
    assert set(node["incidents"][0]) == named("INCIDENT")


def test_incidents(ask: Any) -> None:
    """INCIDENT, with evidence on its own page."""
    form = ask("incidents")
    assert [incident["id"] for incident in form["incidents"]] == ["i-2", "i-1"]
    fields = named("INCIDENT") | {"jobs", "nodes"}
    assert all(set(incident) == fields for incident in form["incidents"])
    incident = ask("incident i-1")["incident"]
    assert set(incident) == fields | {"findings", "findings_dropped", "judged", "orders"}
    assert set(incident["suspects"]) == {"nodes", "ranks", "gpus"}
    assert set(incident["phases"][0]) == {"name", "seconds", "percent"}


def test_lines_of_an_incident(ask: Any, holdfast: Holdfast, tmp_path: Path) -> None:
    """LINE and SIMILAR."""
    form = ask("incident i-1 --timeline")
    assert set(form) == {"version", "incident", "lines"}
    touched = records()
    touched.incidents.append(records().incidents[0])
    touched.incidents[-1].id = "i-0"
    path = make(tmp_path / "two.db", touched, at=NOW - 170)
    ran = holdfast("incident", "i-1", "--timeline", "--journal", path, "--json")
    lines = json.loads(ran.out)["lines"]
    assert lines
    assert all(set(line) == named("LINE") for line in lines)
    alike = json.loads(holdfast("incident", "i-1", "--similar", "--journal", path, "--json").out)
    assert set(alike) == {"version", "incident", "similar"}
    assert [set(one) for one in alike["similar"]] == [named("SIMILAR")]


def test_orders(ask: Any) -> None:
    """ORDER: without `--all` only those that wait for something, without the engine's timers."""
    assert [order["order"] for order in ask("orders")["orders"]] == ["o-2"]
    form = ask("orders --all")
    assert len(form["orders"]) == 3
    assert all(set(order) == named("ORDER") for order in form["orders"])


def test_report(ask: Any) -> None:
    """The totals and the jobs of a report."""
    form = ask("report")
    text = PAGE.read_text(encoding="utf-8")
    assert "`{" + ", ".join(form) + "}`" in text
    assert set(form["totals"]) == named("`totals`")
    assert "`{" + ", ".join(form["jobs"][0]) + "}`" in text
    assert set(form["incidents"][0]) == named("INCIDENT") | {"tables"}
    for table in form["incidents"][0]["tables"]:
        assert "`{" + ", ".join(table) + "}`" in text
