"""What hardware should reach: files, choice, verdicts, learning."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import ConfigError, NotFoundError
from holdfast.validate.baselines import Kind, as_toml, choose, judged, learned, packaged, parse
from holdfast.validate.results import Item, NodeResult, Verdict

TEXT = """
name = "mine"
source = "a test"

[expected."gpu.h2d"]
value = 50.0
tolerance = 0.1

[expected."storage.fsync"]
value = 10.0
better = "lower"
tolerance = 0.5
limit = 4.0
"""


def test_every_packaged_figure_names_its_source() -> None:
    """Public figures only: each has a source of its own or of its file."""
    known = packaged()
    assert {"h100-sxm", "h200-sxm", "a100-sxm", "a10g", "cpu"} <= set(known)
    for one in known.values():
        assert one.source
        for name, expected in one.expected.items():
            assert expected.source, f"{one.name}: {name}"
            assert expected.limit is None or expected.limit > expected.tolerance


def test_the_baseline_follows_from_the_gpu() -> None:
    """By the name that the driver gives; a machine without a known GPU has none unless it is named."""
    assert choose("", Kind(gpu="NVIDIA H100 80GB HBM3")).name == "h100-sxm"
    assert choose("", Kind(gpu="NVIDIA A10G", instance="g5.48xlarge")).name == "a10g"
    assert choose("", Kind(gpu="NVIDIA A100-SXM4-40GB")).name == "a100-sxm"
    assert choose("", Kind(cpu="AMD EPYC")) is None
    assert choose("cpu", Kind()).name == "cpu"
    assert choose("none", Kind(gpu="NVIDIA A10G")) is None


def test_verdicts_follow_tolerance_and_limit() -> None:
    """Within: pass; beyond the tolerance: warn; beyond the limit (twice the tolerance): fail; both directions."""
    base = parse(TEXT)
    values = {48.0: Verdict.PASS, 44.0: Verdict.WARN, 39.0: Verdict.FAIL, 90.0: Verdict.PASS}
    for value, verdict in values.items():
        (item,) = judged([Item(name="gpu.h2d", value=value, unit="GB/s", better="higher")], base)
        assert (item.verdict, item.source) == (verdict, "a test"), value
    for value, verdict in {12.0: Verdict.PASS, 30.0: Verdict.WARN, 60.0: Verdict.FAIL, 1.0: Verdict.PASS}.items():
        (item,) = judged([Item(name="storage.fsync", value=value, unit="ms", better="lower")], base)
        assert item.verdict is verdict, value


def test_a_judged_item_says_what_was_expected_and_why_it_fails() -> None:
    """Measured, expected, source, reason, advice: all there."""
    (item,) = judged([Item(name="gpu.h2d", value=30.0, unit="GB/s", better="higher")], parse(TEXT))
    assert item.expected == "50 (at least 45 GB/s)"
    assert item.why == "40% worse than mine should reach"
    assert item.advice


def test_an_item_that_fails_by_itself_stays_failed() -> None:
    """A baseline never makes it better."""
    (item,) = judged([Item(name="gpu.h2d", value=60.0, verdict=Verdict.FAIL, why="wrong")], parse(TEXT))
    assert (item.verdict, item.why) == (Verdict.FAIL, "wrong")


def test_wrong_files_are_told_by_line(tmp_path: Path) -> None:
    """A misspelt key, a direction that is none, a value that cannot be, a name that is none."""
    with pytest.raises(ConfigError, match=r"b.toml:3: .*tolerence"):
        parse('name = "x"\n[expected."a.b"]\ntolerence = 0.1\nvalue = 1.0\n', "b.toml")
    with pytest.raises(ConfigError, match=r'better is "up": higher or lower'):
        parse('name = "x"\n[expected."a.b"]\nvalue = 1.0\nbetter = "up"\n')
    with pytest.raises(ConfigError, match="above zero"):
        parse('name = "x"\n[expected."a.b"]\nvalue = 0.0\n')
    with pytest.raises(NotFoundError, match='did you mean "h100-sxm"'):
        choose("h100-smx", Kind())
    with pytest.raises(ConfigError, match="cannot be read"):
        choose(str(tmp_path / "absent.toml"), Kind())


def test_what_is_learned_can_be_read_again_and_judges_its_own_nodes_well(tmp_path: Path) -> None:
    """Medians and spreads of healthy nodes only, as a file that --baseline takes."""
    nodes = [
        NodeResult(node=f"n{number}", items=(Item(name="gpu.h2d", value=value, unit="GB/s", better="higher"),))
        for number, value in enumerate([50.0, 51.0, 49.0, 50.5])
    ]
    bad = NodeResult(node="bad", items=(Item(name="gpu.h2d", value=5.0, better="higher", verdict=Verdict.FAIL),))
    path = tmp_path / "ours.toml"
    path.write_text(as_toml(learned([*nodes, bad], "ours", 'run "v1"')))
    found = choose(str(path), Kind())
    assert found.source == 'run "v1"'
    assert 49.0 <= found.expected["gpu.h2d"].value <= 51.0
    assert {judged(node.items, found)[0].verdict for node in nodes} == {Verdict.PASS}
    assert judged([Item(name="gpu.h2d", value=30.0)], found)[0].verdict is Verdict.FAIL


def test_nothing_healthy_teaches_nothing() -> None:
    """Said in a sentence."""
    with pytest.raises(NotFoundError, match="nothing to learn from"):
        learned([NodeResult(node="a", lost="gone")], "x", "y")
