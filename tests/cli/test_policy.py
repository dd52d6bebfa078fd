"""`holdfast policy`: wrong files are named by line and nearest key; what is shown is itself a policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Holdfast
from holdfast.adapters.policy_files import packaged_presets
from holdfast.cli.policy import toml_lines
from holdfast.model.policy import Policy
from holdfast.model.policy_toml import parse_policy


def test_a_wrong_key_is_named(holdfast: Holdfast) -> None:
    """File, line, the key and the nearest right one; exit code 78."""
    Path("p.toml").write_text('mode = "act"\n\n[limits]\nmax_requeue = 5\n')
    ran = holdfast("policy", "check", "p.toml")
    assert (ran.code, ran.out) == (78, "")
    assert ran.sentence.startswith("p.toml:4: ")
    assert '"max_requeue"' in ran.sentence
    assert '"max_requeues"' in ran.sentence


def test_a_good_file_is_called_good(holdfast: Holdfast) -> None:
    """With its mode, what differs from the defaults, and its groups."""
    Path("p.toml").write_text('mode = "advise"\n[limits]\nmax_requeues = 5\n[groups.gpu.brake]\nmax_nodes = 2\n')
    ran = holdfast("policy", "check", "p.toml")
    assert ran.code == 0
    assert ran.out.startswith(
        "p.toml is a good policy: mode advise, 2 values differ from the defaults.\n  groups gpu\n"
    )
    Path("one.toml").write_text('mode = "observe"\n')
    assert "mode observe, 1 value differs from the defaults." in holdfast("policy", "check", "one.toml").out
    form = json.loads(holdfast("policy", "check", "p.toml", "--json").out)
    assert (form["ok"], form["policy"]["limits"]["max_requeues"]) == (True, 5)
    assert form["policy"]["groups"]["gpu"]["brake"]["max_nodes"] == 2


def test_what_is_shown_is_a_policy(holdfast: Holdfast) -> None:
    """The output reads back as the same policy; what differs says its default."""
    Path("p.toml").write_text('[mode]\ndefault = "advise"\nreboot = "observe"\n[waits]\nsettle_s = 2\n')
    Path("holdfast.toml").write_text('policy = "p.toml"\n')
    ran = holdfast("policy", "show")
    assert 'mode = "advise"  # (default: "act")' in ran.out
    assert "settle_s = 2.0  # (default: 0.15)" in ran.out
    again = parse_policy(ran.out).site
    assert again == parse_policy(Path("p.toml").read_text()).site
    assert holdfast("policy", "show", "p.toml").out == ran.out


def test_groups_are_shown(holdfast: Holdfast) -> None:
    """`--group` shows what holds there; an unknown one is named."""
    Path("p.toml").write_text("[groups.gpu.brake]\nmax_nodes = 2\n")
    assert "max_nodes = 2  # (default: 4)" in holdfast("policy", "show", "p.toml", "--group", "gpu").out
    ran = holdfast("policy", "show", "p.toml", "--group", "gpus")
    assert (ran.code, ran.sentence) == (1, 'no group "gpus" in this policy; did you mean "gpu"?')


@pytest.mark.parametrize("name", sorted(packaged_presets()))
def test_every_preset_is_shown_and_says_what_it_is_for(name: str, holdfast: Holdfast) -> None:
    """Listed with a sentence, shown as the policy that it is."""
    listed = {one["name"]: one["about"] for one in json.loads(holdfast("policy", "presets", "--json").out)["presets"]}
    assert listed[name]
    shown = holdfast("policy", "show", "--preset", name)
    assert shown.code == 0
    site = parse_policy(f'preset = "{name}"', "", packaged_presets()).site
    assert toml_lines(parse_policy(shown.out).site) == toml_lines(site)


def test_what_is_not_there(holdfast: Holdfast) -> None:
    """No such file: 78, as with every file of settings; no such preset: 1."""
    ran = holdfast("policy", "check", "no.toml")
    assert (ran.code, ran.sentence) == (78, "no.toml: the policy cannot be read: No such file or directory")
    ran = holdfast("policy", "show", "--preset", "no")
    assert ran.code == 1
    assert ran.sentence.startswith('no preset "no"')


def test_defaults_are_shown_without_a_file(holdfast: Holdfast) -> None:
    """Nothing differs from itself."""
    ran = holdfast("policy", "show")
    assert "(default" not in ran.out
    assert toml_lines(parse_policy(ran.out).site) == toml_lines(Policy())
