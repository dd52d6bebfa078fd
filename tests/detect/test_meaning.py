"""What rules mean stands in the catalogue: it is complete, it is read rightly, and no code asks for a rule by its id."""

import ast
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.detect.catalogue import load_catalogue
from holdfast.detect.meaning import Meaning, Meanings, Trait, Weight, has, meaning, packaged, packaged_sources
from holdfast.errors import ConfigError

SRC = Path(holdfast.__file__).parent
JUDGES = sorted(
    [*SRC.glob("detect/*.py"), *SRC.glob("agent/*.py"), *SRC.glob("cli/explain*.py")]
    + [SRC / f"decide/{name}.py" for name in ("diagnosis", "diagnosis_story", "lost_peers", "waits", "weights")]
)


def test_each_rule_of_the_catalogue_has_a_meaning():
    """Rules, NVIDIA's codes among them, are known by id; what they name as taken back or followed are rules, too."""
    catalogue = read_catalogue()
    assert set(packaged().rules) == set(catalogue.rules)
    named = {name for said in packaged().rules.values() for name in (*said.takes_back, *said.follows)}
    assert named <= set(catalogue.rules)


def test_each_trait_is_some_rule_s_and_is_asked_for():
    """No word stands for nothing."""
    given = set().union(*(said.traits for said in (*packaged().rules.values(), *packaged().groups.values())))
    code = "".join(path.read_text() for path in SRC.rglob("*.py"))
    assert given == set(Trait)
    assert [trait for trait in Trait if f"Trait.{trait.name}" not in code] == []


def test_errors_without_a_name_say_how_strong_they_are():
    """Each that ends a log can be put in order, and each says what may follow it."""
    unnamed = [rule for rule in read_catalogue() if rule.kind == "unnamed-error"]
    assert [rule.id for rule in unnamed if not (meaning(rule.id).strength and meaning(rule.id).tail_bytes)] == []


def test_own_meaning_goes_before_that_of_groups():
    """The rule's own weight counts, then that of the longest prefix; traits add up; a family speaks for its members."""
    made = Meanings(
        [
            {
                "group": [{"prefix": "a.", "weight": "exit", "traits": ["parting"]}, {"prefix": "a.b", "weight": "signal"}],
                "rule": [{"id": "a.b.c", "weight": "lost", "title": "x"}, {"id": "a.x.*", "traits": ["wait"], "often": 2}],
                "xid": [{"code": 7, "follows": ["a.b.c"]}],
            }
        ]
    )  # fmt: skip
    assert made.of("a.b.c") == Meaning(weight=Weight.LOST, traits=frozenset({Trait.PARTING}))
    assert made.of("a.b.of_a_site").weight is Weight.SIGNAL
    assert made.of("a.x.11") == Meaning(weight=Weight.EXIT, traits=frozenset({Trait.PARTING, Trait.WAIT}), often=2)
    assert made.of("nvidia.xid.7").follows == ("a.b.c",)
    assert made.of("elsewhere") == Meaning()


@pytest.mark.parametrize("wrong", [{"traits": ["wiat"]}, {"weight": "heavy"}, {"often": "5"}])
def test_a_slip_of_the_pen_is_refused(wrong):
    """An unknown trait, weight or type."""
    with pytest.raises(msgspec.ValidationError):
        Meanings([{"rule": [{"id": "a.b", **wrong}]}])


def test_a_site_s_rule_states_no_meaning():
    """Controllers know no site's rules: such a rule has the meaning of the group that its id falls into."""
    file = b'[[rule]]\nid = "nccl.ours"\npattern = "NCCL OURS"\ntraits = ["wait"]\n'
    with pytest.raises(ConfigError, match=r"site\.toml.*4.*unknown key \"traits\""):
        load_catalogue(packaged_sources() | {"site.toml": file})
    assert has("nccl.ours", Trait.PARTING)


@pytest.mark.parametrize("path", JUDGES, ids=lambda path: path.relative_to(SRC).as_posix())
def test_no_code_asks_for_a_rule_by_its_id(path):
    """Detectors name the rule of what they found; nobody compares ids, or keeps lists of them."""
    ids = {rule.id.removesuffix(".*") for rule in read_catalogue()}
    heads = {".".join(name.split(".")[:count]) for name in ids for count in range(1, name.count(".") + 1)}

    def is_id(node):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        return ("." in text and text in ids) or (text.endswith(".") and text[:-1] in heads)

    tree = ast.parse(path.read_text())
    made = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    asked = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare | ast.Tuple | ast.List | ast.Set)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith")
    ]
    found = {(part.lineno, part.value) for node in asked for part in ast.walk(node) if part not in made and is_id(part)}
    assert sorted(found) == []
