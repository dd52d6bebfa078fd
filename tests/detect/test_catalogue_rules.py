"""Every rule's own examples match it and its look-alikes do not, by pattern and through Hyperscan."""

from holdfast.detect.catalogue import UNNAMED, StreamKind
from holdfast.detect.matcher import StreamSource
from holdfast.detect.proof import prove
from whole_logs import MATCHER

CATALOGUE = MATCHER.catalogue


def test_every_example_holds():
    """No rule of the packaged catalogue breaks a promise of its own, and there are 200 or more that read lines."""
    assert [(c.rule.id, c.what) for c in prove(CATALOGUE, MATCHER)] == []
    assert len(CATALOGUE.scanned) >= 200


def test_every_rule_says_what_it_is():
    """A rule has a title, and what is a root has a domain and a remedy or says that it is unknown."""
    assert [rule.id for rule in CATALOGUE if not rule.title] == []
    assert [
        rule.id for rule in CATALOGUE if rule.role == "root" and rule.domain == "hardware" and rule.remedy == "none"
    ] == []


def test_examples_are_owned_by_a_rule_of_their_role():
    """A whole line goes to one rule: an example is never owned by a rule of another role, unless that one is more exact."""
    stray = []
    for rule in CATALOGUE.scanned:
        if rule.record or rule.remark or rule.kind == UNNAMED:
            continue
        for example in rule.matches:
            matches = MATCHER.stream(StreamSource(kind=StreamKind.ANY)).feed(example.encode() + b"\n", 0.0)
            owner = next((m.rule for m in matches if not m.rule.remark), None)
            if owner is None or (owner.role != rule.role and not rule.decode and owner.precedence <= rule.precedence):
                stray.append((rule.id, owner.id if owner else None, example[:80]))
    assert stray == []


def test_ids_are_families():
    """Synthetic families answer for every member; an unknown id gets a bare rule."""
    assert CATALOGUE.get("exit.signal.33").id == "exit.signal.33"
    assert "signal 33" in CATALOGUE.get("exit.signal.33").title
    assert CATALOGUE.get("nonsense.rule").id == "nonsense.rule"
    assert "exit.code.7" in CATALOGUE
    assert "nonsense.rule" not in CATALOGUE
