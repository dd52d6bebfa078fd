"""Every rule's own examples match it and its look-alikes do not, by pattern and through Hyperscan."""

import pytest

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.lines import take_apart
from holdfast.detect.matcher import Matcher, StreamSource

CATALOGUE = read_catalogue()
MATCHER = Matcher(CATALOGUE)


@pytest.mark.parametrize("rule", CATALOGUE.scanned, ids=lambda rule: rule.id)
def test_examples(rule):
    """The rule's pattern takes its examples, refuses its look-alikes, and Hyperscan points at every example."""
    assert rule.matches, "a rule without examples proves nothing"
    for example in rule.matches:
        assert MATCHER.captures(rule, take_apart(example, 2025)) is not None, example
        stream = MATCHER.stream(StreamSource(kind=StreamKind.ANY))
        matched = stream.feed(example.encode() + b"\n", 0.0)
        assert matched or rule.record or rule.precedence < 0, example
    for example in rule.rejects:
        assert MATCHER.captures(rule, take_apart(example, 2025)) is None, example


def test_ids_are_families():
    """Synthetic families answer for every member; an unknown id gets a bare rule."""
    assert CATALOGUE.get("exit.signal.33").id == "exit.signal.33"
    assert "signal 33" in CATALOGUE.get("exit.signal.33").title
    assert CATALOGUE.get("nonsense.rule").id == "nonsense.rule"
    assert "exit.code.7" in CATALOGUE
    assert "nonsense.rule" not in CATALOGUE
