"""Line numbers and errors of TOML files that people write."""

from __future__ import annotations

import enum
import tomllib
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from holdfast.errors import ConfigError
from holdfast.model.toml_lines import Places, build, load_toml, nearest

TEXT = '''# a comment with [brackets] and = signs
title = "x # not a comment"
[limits]
max_requeues = 3   # trailing

[groups.gpu.limits]
max_requeues = 5
"quoted key" = 1
[[steps]]
at_s = 1
text = """
[not.a.table]
key = 1
"""
[[steps]]
at_s = 2
[steps.deep]
x = { a = 1, b = [
  1,
  2, # two
] }
[other]
list = [
  "a",
  { name = "b" },
]
raw = \'\'\'
at_s = 9\'\'\'
dotted.key.here = 1
'''


class Colour(enum.StrEnum):
    RED = "red"
    GREEN = "green"


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=0, le=10)] = 1
    wait_s: Annotated[float, Meta(ge=0)] = 1.0
    colour: Colour = Colour.RED


class Cat(Struct, tag="cat", tag_field="kind"):
    lives: int = 9


class Dog(Struct, tag="dog", tag_field="kind"):
    name: str


class Outer(Struct):
    name: str = ""
    flag: bool = False
    maybe: int | None = None
    inner: Inner = Inner()
    many: dict[Colour, tuple[Colour, ...]] = {}
    named: dict[str, Inner] = {}
    animals: list[Cat | Dog] = []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("limits",), 3),
        (("limits", "max_requeues"), 4),
        (("groups", "gpu", "limits", "max_requeues"), 7),
        (("groups", "gpu", "limits", "quoted key"), 8),
        (("steps", 0, "at_s"), 10),
        (("steps", 1, "at_s"), 16),
        (("steps", 1, "deep", "x", "b", 1), 20),
        (("other", "list", 1, "name"), 25),
        (("other", "raw"), 27),
        (("other", "dotted", "key", "here"), 29),
        (("limits", "missing"), 3),
        (("nowhere",), 0),
    ],
)
def test_places(path, line):
    """Every key, array element and table is found at its own line; a missing one at its parent's; strings do not confuse."""
    tomllib.loads(TEXT)
    assert Places(TEXT).line(path) == line


def test_nearest():
    """The nearest word is named, one of wrong case first, and nothing when nothing is near."""
    assert nearest("max_requeue", ["max_requeues", "max_in_place"]) == "max_requeues"
    assert nearest("Max-Requeues", ["max_requeues", "max_requeue"]) == "max_requeues"
    assert nearest("zzz", ["max_requeues"]) is None


def test_build_makes_the_struct():
    """Right data becomes the struct, whole numbers stand for seconds too."""
    text = '[inner]\nwait_s = 3\ncolour = "green"\n[many]\nred = ["green"]\n[[animals]]\nkind = "dog"\nname = "x"\n'
    made = build(Outer, load_toml(text), text, "f.toml")
    assert made.inner == Inner(wait_s=3.0, colour=Colour.GREEN)
    assert made.many == {Colour.RED: (Colour.GREEN,)}
    assert made.animals == [Dog(name="x")]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("nam = 'x'", 1, ['unknown key "nam"', 'did you mean "name"?']),
        ("[inner]\ncount = 'three'", 2, ["inner.count must be a whole number", '"three"']),
        ("[inner]\ncount = true", 2, ["inner.count must be a whole number", "true"]),
        ("[inner]\n\ncount = 11", 3, ["inner.count must be at most 10"]),
        ("[inner]\nwait_s = -1", 2, ["inner.wait_s must be at least 0"]),
        ("[inner]\nwait_s = nan", 2, ["inner.wait_s must be a number"]),
        ("[inner]\ncolour = 'gren'", 2, ['inner.colour cannot be "gren"', 'did you mean "green"?']),
        ("[inner]\ncoulor = 'red'", 2, ['unknown key "coulor" in [inner]', 'did you mean "colour"?']),
        ("[many]\nredd = []", 2, ['unknown key "redd"', 'did you mean "red"?']),
        ("[many]\nred = ['green',\n 'blue']", 3, ['many.red[1] cannot be "blue"']),
        ("[named.a]\ncount = 1\n[named.b]\ncont = 1", 4, ['unknown key "cont" in [named.b]']),
        ("[[animals]]\nkind = 'cat'\nlifes = 9", 3, ['unknown key "lifes"', '"lives"']),
        ("[[animals]]\nkind = 'cow'", 2, ['"cow" is not known']),
        ("[[animals]]\nkind = 'dog'", 1, ['animals[0] lacks the key "name"']),
        ("inner = 3", 1, ["inner must be a table, not 3"]),
        ("flag = 'yes'", 1, ["flag must be true or false"]),
        ("maybe = 'x'", 1, ["maybe must be"]),
        ("a = 1\nb = = 2", 2, ["not valid TOML"]),
    ],
)
def test_build_names_what_is_wrong(text, line, words):
    """A wrong key, type or value is named with file, line and the nearest right one."""
    with pytest.raises(ConfigError) as caught:
        build(Outer, load_toml(text, "f.toml"), text, "f.toml")
    assert caught.value.line == line
    assert str(caught.value).startswith(f"f.toml:{line}: ")
    for word in words:
        assert word in str(caught.value)


def test_every_problem_is_named():
    """All wrong keys come in one error, in the order in which they stand, one line each."""
    text = "nam = 1\n[inner]\ncount = 11\n[named.q]\nx = 1\n"
    with pytest.raises(ConfigError) as caught:
        build(Outer, load_toml(text), text, "f.toml")
    assert [row.split(" ")[0] for row in str(caught.value).splitlines()] == ["f.toml:1:", "f.toml:3:", "f.toml:5:"]


@given(st.text(alphabet="[]{}=.,'\"#\\\n ab1", max_size=60))
def test_any_text_has_places(text):
    """Any text, TOML or not, is read to its end, and no line is named that does not exist."""
    assert 0 <= Places(text).line(("a",)) <= text.count("\n") + 1
