"""Policies as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.policy_files import packaged_presets
from holdfast.errors import ConfigError
from holdfast.model.evidence import Remedy
from holdfast.model.policy import Limits, Mode, Policy, PolicySet, Proof, Trouble
from holdfast.model.policy_toml import parse_policy

PRESETS = {"strict": 'mode = "observe"\n[modes]\nreboot = "act"\n[limits]\nmax_requeues = 1\nmax_in_place = 0\n'}
R = Remedy


def test_an_empty_file_is_the_default_policy():
    """Nothing written, nothing changed."""
    assert parse_policy("", "p.toml") == PolicySet(site=Policy())


def test_everything_can_be_set():
    """Each section lands in its struct; whole numbers stand for seconds, too."""
    made = parse_policy(
        """
name = "site"
proof = "passed_fault"
[limits]
max_requeues = 7
[waits]
start_s = 30
[node]
ladder = ["reboot", "retire"]
[brake]
max_percent = 10
[hang]
multiple = 4
[straggler]
exclude = true
[ladders]
hang = ["requeue", "stop"]
"""
    ).site
    assert made.name == "site"
    assert made.proof is Proof.PASSED_FAULT
    assert made.limits.max_requeues == 7
    assert made.limits.max_in_place == Limits().max_in_place
    assert made.waits.start_s == 30.0
    assert made.node.ladder == (R.REBOOT, R.RETIRE)
    assert made.brake.max_percent == 10.0
    assert made.hang.multiple == 4.0
    assert made.straggler.exclude
    assert made.ladders[Trouble.HANG] == (R.REQUEUE, R.STOP)
    assert made.ladders[Trouble.HARDWARE] == Policy().ladders[Trouble.HARDWARE]


@pytest.mark.parametrize(
    "text",
    [
        'mode = "advise"\n[modes]\nreboot = "act"\n',
        '[mode]\ndefault = "advise"\nreboot = "act"\n',
        '[mode]\ndefault = "advise"\n[modes]\nreboot = "act"\n',
    ],
)
def test_mode_is_a_word_or_a_table(text):
    """`mode = ...`, `[mode]` with a default, and `[modes]` say the same thing."""
    made = parse_policy(text).site
    assert made.mode is Mode.ADVISE
    assert made.modes == {R.REBOOT: Mode.ACT}


def test_groups_override_the_site_and_names_can_be_asked_for():
    """A group takes the site's values and changes its own; so does a named policy; the most particular wins."""
    made = parse_policy(
        """
[limits]
max_requeues = 5
max_in_place = 5
[groups.gpu.limits]
max_requeues = 9
[groups.gpu.waits]
start_s = 1
[named.patient.limits]
max_in_place = 99
"""
    )
    assert (made.site.limits.max_requeues, made.site.limits.max_in_place) == (5, 5)
    gpu = made.for_group("gpu")
    assert (gpu.name, gpu.limits.max_requeues, gpu.limits.max_in_place, gpu.waits.start_s) == ("gpu", 9, 5, 1.0)
    assert made.for_group("cpu") is made.site
    assert made.for_job("gpu", "patient").limits.max_in_place == 99
    assert made.for_job("gpu", "nobody-knows") is gpu


def test_a_preset_is_a_base():
    """What follows overrides the preset; a new general mode ends the preset's modes of single rungs."""
    made = parse_policy('preset = "strict"\n[limits]\nmax_requeues = 4\n', "p.toml", PRESETS)
    assert made.site.name == "strict"
    assert (made.site.mode, made.site.limits.max_requeues, made.site.limits.max_in_place) == (Mode.OBSERVE, 4, 0)
    assert made.site.modes == {R.REBOOT: Mode.ACT}
    assert parse_policy('preset = "strict"\nmode = "act"\n', "p.toml", PRESETS).site.modes == {}
    grouped = parse_policy('[groups.gpu]\npreset = "strict"\n', "p.toml", PRESETS)
    assert (grouped.site.mode, grouped.for_group("gpu").mode) == (Mode.ACT, Mode.OBSERVE)
    assert grouped.for_job("cpu", "strict").mode is Mode.OBSERVE


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[limits]\nmax_requeue = 1", 2, ['unknown key "max_requeue"', '"max_requeues"']),
        ("[limit]\nmax_requeues = 1", 1, ['unknown key "limit"', '"limits"']),
        ("[limits]\nmax_requeues = -1", 2, ["limits.max_requeues must be at least 0"]),
        ("[limits]\nmax_requeues = 'many'", 2, ["must be a whole number"]),
        ("[brake]\nmax_percent = 101", 2, ["must be at most 100"]),
        ("[hang]\nmultiple = 0.5", 2, ["must be at least 1"]),
        ("[waits]\nsettle_s = -0.1", 2, ["must be at least 0"]),
        ("mode = 'Act'", 1, ['mode cannot be "Act"', '"act"']),
        ("[mode]\ndefault = 'act'\nrebot = 'act'", 3, ['unknown key "rebot"', '"reboot"']),
        ("[mode]\nreboot = 'maybe'", 2, ['reboot cannot be "maybe"']),
        ("[modes]\nreboot = 'atc'", 2, ['"act"']),
        ("[ladders]\nhangs = ['stop']", 2, ['unknown key "hangs"', '"hang"']),
        ("[ladders]\nhang = ['requeue',\n 'stopp']", 3, ['"stop"']),
        ("[ladders]\nhang = ['reboot']", 2, ["is a node's rung"]),
        ("[node]\nladder = ['requeue']", 2, ["repairs no node"]),
        ("preset = 'hyperpod'", 1, ['there is no preset "hyperpod"']),
        ("[groups.gpu.limits]\nmax_reques = 1", 2, ['unknown key "max_reques" in [groups.gpu.limits]']),
        ("[groups.gpu]\nwaitz = {}", 2, ['unknown key "waitz" in [groups.gpu]', '"waits"']),
        ("[groups]\ngpu = 3", 2, ["write [groups.NAME]"]),
        ("groups = 3", 1, ["[groups.NAME]"]),
        ("[groups.a.groups.b]", 1, ['unknown key "groups"']),
        ("[limits\n", 1, ["not valid TOML"]),
    ],
)
def test_each_wrong_key_is_named(text, line, words):
    """File, line, the key, and the nearest right one."""
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, "p.toml", {"hyperpod-slurm": ""})
    assert str(caught.value).startswith(f"p.toml:{line}: ")
    for word in words:
        assert word in str(caught.value)


def test_all_mistakes_come_at_once():
    """Three mistakes, three lines."""
    with pytest.raises(ConfigError) as caught:
        parse_policy("mod = 1\n[limits]\nmax_requeues = -1\n[groups.g.waits]\nstart_s = 'x'\n", "p.toml")
    assert [line.split(" ")[0] for line in str(caught.value).splitlines()] == ["p.toml:1:", "p.toml:3:", "p.toml:5:"]


def test_a_broken_preset_names_itself():
    """The mistake is in the preset, so that is the place named."""
    with pytest.raises(ConfigError, match="preset bad:1"):
        parse_policy("", "p.toml", {"bad": "x = 1"})


def test_packaged_presets_are_read():
    """The shipped files parse, as bases and as names, and say what they are for in their first line."""
    texts = packaged_presets()
    assert sorted(texts) == ["auto-resume", "hyperpod-eks", "hyperpod-slurm", "mission-control", "parallelcluster"]
    for name, text in texts.items():
        assert text.startswith("# ")
        made = parse_policy(f'preset = "{name}"', "p.toml", texts)
        assert made.site == made.for_job("", name)
        assert made.site.name == name


@given(st.text(max_size=80))
def test_any_text_is_a_policy_or_one_clear_error(text):
    """Whatever is in the file, there is never a traceback."""
    with contextlib.suppress(ConfigError):
        parse_policy(text, "p.toml")
