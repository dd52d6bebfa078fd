"""Sentences: times, lists, durations, and that stories are bounded."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY

from holdfast.decide.records.turn import describe
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.evidence import Diagnosis, Domain, Finding, Place


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.42, "0.4 s"), (12.3, "12 s"), (119.0, "119 s"), (300.0, "5 min"), (7200.0, "2.0 h"), (172800.0, "2 days")],
)
def test_durations_as_a_person_says_them(value, words):
    """Seconds, minutes, hours, days."""
    assert story.seconds(value) == words


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "nobody"),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        ([str(i) for i in range(8)], "0, 1, 2, 3, 4 and 3 more"),
    ],
)
def test_lists(names, words):
    """Long ones are cut."""
    assert story.listed(names) == words


def test_times_are_utc():
    """The same everywhere."""
    assert story.clock(0.0) == "00:00:00Z"
    assert story.clock(1_700_000_000.0) == "22:13:20Z"


def test_stories_are_bounded_and_keep_their_beginning():
    """200 lines: how it began, and what was last."""
    lines: list[str] = []
    for number in range(1000):
        story.tell(lines, float(number), f"line {number}")
    assert len(lines) == story.STORY_LINES_MAX
    assert lines[0].endswith("line 0")
    assert lines[-1].endswith("line 999")


def test_the_same_sentence_at_the_same_time_is_told_once():
    """Fan-out does not fill the page."""
    lines: list[str] = []
    story.tell(lines, 1.0, "x")
    story.tell(lines, 1.0, "x")
    story.tell(lines, 2.0, "x")
    assert len(lines) == 2


def test_findings_and_diagnoses_name_place_and_certainty():
    """What, where, how sure."""
    finding = Finding(id="f", rule="nvidia.xid.74", at=0.0, summary="Xid 74", place=Place(node="n2", gpu=3), count=4)
    assert story.of_finding(finding) == "Xid 74 (n2, GPU 3, 4 times)"
    diagnosis = Diagnosis(cause="c", domain=Domain.HARDWARE, summary="NVLink broke", nodes=("n2",), confidence=0.9)
    for words in ("NVLink broke", "n2", "hardware", "90% sure"):
        assert words in story.of_diagnosis(diagnosis)


def test_a_diagnosis_names_its_place_once():
    """Also where its summary writes the GPU otherwise than the list of suspects does."""
    said = Diagnosis(cause="c", summary="Xid 74, on n2, GPU 3.", nodes=("n2",), gpus=("n2/3",))
    assert story.of_diagnosis(said) == "Xid 74, on n2, GPU 3 (domain unknown, 0% sure)."


def test_a_diagnosis_names_three_suspects_at_most():
    """GPUs go before nodes and nodes before ranks; of many the first three are named."""
    many = ("a", "b", "c", "d")
    shown = "x, on a, b and c (domain unknown, 0% sure)."
    assert story.of_diagnosis(Diagnosis(cause="x", gpus=many, nodes=("n",), ranks=(1,))) == shown
    assert story.of_diagnosis(Diagnosis(cause="x", nodes=many, ranks=(1,))) == shown
    assert story.of_diagnosis(Diagnosis(cause="x", ranks=(1, 2, 3, 4))) == shown.replace(
        "a, b and c", "rank 1, rank 2 and rank 3"
    )


def test_orders_are_described_for_a_person():
    """What is asked for approval."""
    order = o.QuarantineNode(id="c1.1", cause=1, node="n2", why="Xid 74")
    assert describe(order) == "Quarantine node n2: Xid 74"
    assert describe(o.RequeueHeld(id="c1.2", cause=1, job=KEY, restart_count=0)) == "Requeue held 7"
