"""Loading rules: every mistake is named with file, line and the nearest right word; dangerous patterns are refused."""

import pytest

from holdfast.detect.catalogue import load_catalogue
from holdfast.detect.patterns import catastrophe, core
from holdfast.errors import ConfigError

GOOD = """family = "site"
[[rule]]
id = "site.broken"
domain = "hardware"
role = "root"
pattern = '''coolant pump (?P<unit>\\d+) stopped'''
matches = ["coolant pump 3 stopped"]
"""


def problems(text, name="site.toml"):
    with pytest.raises(ConfigError) as caught:
        load_catalogue({name: text.encode()})
    return str(caught.value).splitlines(), caught.value


def test_good_file():
    """A site's rule file becomes rules; its digest follows its content."""
    one = load_catalogue({"site.toml": GOOD.encode()})
    assert (one.get("site.broken").domain, one.get("site.broken").captures) == ("hardware", ("unit",))
    assert one.digest != load_catalogue({"site.toml": GOOD.replace("pump", "fan").encode()}).digest


def test_every_mistake_is_named_with_its_line():
    """Unknown key, wrong type, wrong word, unknown capture: each is told with file, line and a hint."""
    text = (
        GOOD.replace('domain = "hardware"', 'domian = "hardware"')
        .replace('role = "root"', 'role = "rot"')
        .replace("<unit>", "<nodee>")
    )
    lines, error = problems(text)
    assert (error.file, error.line) == ("site.toml", 4)
    assert lines == [
        'site.toml:4: unknown key "domian" in [rule[0]]; did you mean "domain"?',
        'site.toml:5: rule[0].role cannot be "rot"; did you mean "root"?',
    ]
    lines, _ = problems(GOOD.replace("<unit>", "<nodee>"))
    assert lines == ['site.toml:6: rule "site.broken": unknown capture "nodee"; did you mean "node"?']


def test_wrong_type_and_missing_pattern():
    """A number where text is wanted, a rule without a pattern, a file that is not TOML."""
    assert "precedence must be a whole number" in problems(GOOD + 'precedence = "high"\n')[0][0]
    assert "has no pattern" in problems('[[rule]]\nid = "a.b"\n')[0][0]
    lines, error = problems('family = "x"\n[[rule]\n')
    assert error.line == 2
    assert "not valid TOML" in lines[0]


def test_duplicate_and_override():
    """The same id twice is a mistake unless the later one says override; a site can disable a rule."""
    with pytest.raises(ConfigError, match=r"b.toml:3: rule .* already defined in a.toml:2"):
        load_catalogue({"a.toml": GOOD.encode(), "b.toml": GOOD.encode()})
    changed = GOOD.replace("pattern", "override = true\npattern").replace("hardware", "network")
    assert load_catalogue({"a.toml": GOOD.encode(), "b.toml": changed.encode()}).get("site.broken").domain == "network"
    assert "site.broken" not in load_catalogue({"a.toml": GOOD.encode(), "b.toml": b'disable = ["site.broken"]'}).rules
    with pytest.raises(ConfigError, match=r'b.toml:1: no rule "site.brokn" to disable; did you mean "site.broken"'):
        load_catalogue({"a.toml": GOOD.encode(), "b.toml": b'disable = ["site.brokn"]'})


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a|aa)+b",
        "(ab?a?)+c",
        "(.*)*x",
        r"(\w+\s?)+$",
        r"\s*\s*x",
        r"(\d+)*z",
        ".*foo.*bar.*baz.*qux",
        r"((ab)*)*x",
        r"(x+x+)+y",
    ],
)
def test_catastrophic_patterns_are_refused(pattern):
    """Patterns that backtrack for ever are refused with the rule's file and line."""
    assert catastrophe(pattern)
    lines, error = problems(GOOD.replace(r"coolant pump (?P<unit>\d+) stopped", "coolant pump " + pattern))
    assert error.line == 6
    assert "catastrophic" in lines[0]


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:[a-z]+\.)*Error",
        r"\d+(?:\.\d+)?",
        r"(a|b)+c",
        r"foo.*bar",
        r"(?:\w+, )*x",
        r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*: ",
    ],
)
def test_harmless_patterns_pass(pattern):
    """Repeats with a fence between their rounds are fine."""
    assert catastrophe(pattern) == ""


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"^NVRM: Xid \((?P<x>\d+)\)", "NVRM\\x3a Xid \\x28(?:(?:[\\d])+)\\x29"),
        (r"foo.*a longer literal\d*", "a longer literal"),
        (r"(?i)Stale file", "(?i)Stale file"),
    ],
)
def test_core(pattern, expected):
    """The core is the stretch with the longest literal, without anchors and variable ends."""
    assert core(pattern) == expected
