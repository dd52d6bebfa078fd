"""`[repair]` of holdfast.toml: read whole, mistakes by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.memory import MemoryOrchestrator
from holdfast.adapters.repair.settings import RepairConfig, Replacing, filled
from holdfast.errors import ConfigError
from holdfast.model.orders import RebootNode, ReplaceNode
from holdfast.wiring.repairs import make_repairs
from holdfast.wiring.settings import load_settings

WHOLE = """
[repair]
after_replace = [["/usr/local/sbin/forget-host-key", "{node}"]]
replace_per_hour = 5
[repair.command]
reset = ["ssh", "{node}", "nvidia-smi", "--gpu-reset", "-i", "{gpu}"]
reboot = ["ipmitool", "-H", "{node}-bmc", "chassis", "power", "cycle"]
limit_s = 600
[repair.ec2]
region = "us-east-1"
find = "tag:Name"
filters = { "tag:cluster" = ["train"] }
"""


def load(tmp_path: Path, text: str) -> RepairConfig:
    file = tmp_path / "holdfast.toml"
    file.write_text(text)
    return load_settings(file).config.repair


def test_the_whole_section_is_read(tmp_path: Path) -> None:
    """What docs/repair.md shows."""
    config = load(tmp_path, WHOLE)
    assert config.command.reboot[2] == "{node}-bmc"
    assert (config.ec2.find, config.ec2.replace, config.ec2.filters) == (
        "tag:Name", Replacing.TERMINATE, {"tag:cluster": ("train",)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[repair.command]\nreboot = ["x", "{noed}"]',
            r'holdfast.toml:2: .*"\{noed\}" is not known; did you mean "node"',
        ),
        ("[repair]\nafter_replace = [[]]", r"holdfast.toml:2: .*is empty"),
        ('[repair.ec2]\nregion = "r"\nfind = "tag:"', 'holdfast.toml:3: .*find cannot be "tag:"'),
        ('[repair.ec2]\nregion = "r"\nreplace = "launch"', "holdfast.toml:3: .*needs launch_template"),
        ('[repair.ec2]\nregion = "r"\nreplace = "lanch"', "holdfast.toml:3: "),
        ("[repair.ec2]\nreboot = true", "region"),
        ("[repair.command]\ntries = 0", "holdfast.toml:2: "),
    ],
)
def test_mistakes_are_named_by_line(tmp_path: Path, text: str, words: str) -> None:
    """Before anything is run with them."""
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, text)


def test_values_never_become_more_than_one_word() -> None:
    """Nor is a value filled in twice."""
    values = {"node": "a b {order}", "order": "o1"}
    assert filled(("x", "{node}", "[{order}]"), values) == ["x", "a b {order}", "[o1]"]


def test_nothing_configured_means_nothing_in_the_way(tmp_path: Path) -> None:
    """The scheduler's own ways are used as before; with hooks alone, its replacements pass through them."""
    scheduler = MemoryOrchestrator(SystemClock())
    assert make_repairs(RepairConfig(), scheduler, tmp_path, {}) == []
    first, command = make_repairs(RepairConfig(after_replace=(("true",),)), scheduler, tmp_path, {})
    assert first.can(ReplaceNode(id="o", cause=1, node="n"))
    assert not command.can(RebootNode(id="o", cause=1, node="n"))
