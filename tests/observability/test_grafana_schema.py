"""The dashboards keep to Grafana's published schema, and the check refuses those that do not.

A Grafana itself cannot be installed here by a package manager; what it would refuse or misread is found by its schema.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.observability.grafana_schema import problems

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "observability" / "grafana" / "dashboards"
BOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_keeps_to_the_schema(name: str) -> None:
    """Every field is known, of its type, and of its enumeration: panels, options, queries, variables, annotations."""
    assert problems(BOARDS[name]) == []


def put(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(board: dict[str, Any]) -> None:
        place: Any = board
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = to

    return change


PANEL = ("panels", 4)
BREAKS = {
    "a panel that Grafana does not have": (put(*PANEL, "type", to="timeserie"), "there is no panel 'timeserie'"),
    "a title that is a number": (put(*PANEL, "title", to=7), "title: 7 is no str"),
    "options that are null, as our own maker left them": (put(*PANEL, "options", to=None), "it cannot be read: TypeError"),
    "an option misspelt": (put(*PANEL, "options", "legends", to={}), "the schema has no 'legends'"),
    "an option of another enumeration": (
        put(*PANEL, "options", "legend", "placement", to="left"), "placement: 'left' is none of 'bottom', 'right'",
    ),
    "a query for a data source of another kind": (
        put(*PANEL, "datasource", "type", to="promtheus"), "no data source is known",
    ),
    "a query's field misspelt": (put(*PANEL, "targets", 0, "legend", to="x"), "the schema has no 'legend'"),
    "a query that is no text": (put(*PANEL, "targets", 0, "expr", to=["up"]), "expr: ['up'] is no str"),
    "a unit that is a number": (put(*PANEL, "fieldConfig", "defaults", "unit", to=3), "unit: 3 is no str"),
    "a threshold mode that does not exist": (
        put("panels", 0, "fieldConfig", "defaults", "thresholds", "mode", to="relative"), "'relative' is none of",
    ),
    "a place that is text": (put(*PANEL, "gridPos", "w", to="wide"), "w: 'wide' is no int"),
    "a refresh that is a number": (put("refresh", to=30), "refresh: 30 is no str"),
    "a field that dashboards do not have": (put("refreshes", to="30s"), "the schema has no 'refreshes'"),
    "panels that are none": (put("panels", to="all"), "it cannot be read"),
    "a variable of another kind": (put("templating", "list", 0, "type", to="prometheus"), "type: 'prometheus' is none of"),
    "an annotation without its switch": (put("annotations", "list", 0, "enable", to="yes"), "enable: 'yes' is no bool"),
}  # fmt: skip


@pytest.mark.parametrize("what", BREAKS)
def test_the_check_refuses(what: str) -> None:
    """One thing is broken in a dashboard that was well; the check names the place."""
    change, said = BREAKS[what]
    board = copy.deepcopy(BOARDS["slurm-jobs"])
    change(board)
    found = problems(board)
    assert [one for one in found if said in one], found
