"""`holdfast simulate`: side by side, as JSON and as a page; what is wrong is said in one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conftest import Holdfast

FORMS = Path(__file__).resolve().parents[2] / "docs" / "json-forms.md"
QUICK = ("simulate", "--gpus", "64", "--days", "3", "--failures", "40")


def test_cases_stand_side_by_side(holdfast: Holdfast) -> None:
    """Two policies and two numbers of spares are four lines, each with ETTR and the formula."""
    Path("mine.toml").write_text("[limits]\nmax_requeues = 9\n")
    Path("other.toml").write_text('preset = "hyperpod-slurm"\n')
    cases = ("--policy", "mine.toml", "--policy", "other.toml", "--spares", "1", "--spares", "2")
    ran = holdfast(*QUICK, *cases, "--plot", columns=120)
    assert ran.code == 0
    for name in ("mine, 1 spare ", "mine, 2 spares", "other, 1 spare ", "other, 2 spares"):
        assert name in ran.out
    assert "lost:" in ran.out
    assert "over 90% effective" in ran.out


def test_json_holds_every_run(holdfast: Holdfast) -> None:
    """ETTR with its spread, goodput, badput by category, a digest per seed; the same again gives the same."""
    form = json.loads(holdfast(*QUICK, "--seeds", "2", "--json").out)
    [case] = form["cases"]
    assert form["version"] == 1
    assert case["ettr_min"] <= case["ettr"] <= case["ettr_max"]
    assert set(case["badput"]) == set(form["categories"])
    assert len({run["digest"] for run in case["runs"]}) == 2
    assert json.loads(holdfast(*QUICK, "--seeds", "2", "--json").out) == form


@pytest.mark.parametrize("kind", ["SIMULATION", "CASE", "RUN"])
def test_the_json_form_is_the_documented_one(holdfast: Holdfast, kind: str) -> None:
    """docs/json-forms.md names exactly the fields."""
    form = json.loads(holdfast(*QUICK, "--json").out)
    case = form["cases"][0]
    paragraph = re.search(rf"^{kind}: (.*?)\n\n", FORMS.read_text(), re.MULTILINE | re.DOTALL)
    assert paragraph is not None
    named = set(re.findall(r"`([a-z0-9_]+)`", re.sub(r"\([^()]*\)", "", paragraph[1])))
    assert named == set({"SIMULATION": form, "CASE": case, "RUN": case["runs"][0]}[kind])


def test_the_page_opens_without_a_network(holdfast: Holdfast) -> None:
    """Plotly is inside."""
    assert holdfast(*QUICK, "--html", "page.html").code == 0
    text = Path("page.html").read_text()
    assert "Plotly.newPlot" in text
    assert len(text) > 1_000_000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gpus", "65"], "no multiple of the 8 GPUs"),
        (["--failures", "often"], "neither a number nor one of llama3"),
        (["--causes", "ghosts"], "no table of causes 'ghosts'"),
        (["--days", "-1"], "--days -1"),
        (["--replay", "x", "--policy", "a", "--policy", "b"], "name one --policy"),
        ([word for number in range(65) for word in ("--spares", str(number))], "too many"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(holdfast: Holdfast, words: list[str], says: str) -> None:
    """With the option's name, before anything runs."""
    ran = holdfast(*QUICK, *words)
    assert ran.code == 2
    assert says in ran.sentence


def test_a_wrong_policy_is_named_with_its_line(holdfast: Holdfast) -> None:
    """As `holdfast policy check` would."""
    Path("wrong.toml").write_text("[limits]\nmax_requeue = 9\n")
    ran = holdfast(*QUICK, "--policy", "wrong.toml")
    assert ran.code == 78
    assert ran.sentence.startswith("wrong.toml:2: ")
    assert '"max_requeues"' in ran.sentence
