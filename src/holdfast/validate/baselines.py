"""What hardware should reach: TOML per node type, with sources; learned ones from healthy nodes. Judging is pure.

A baseline is chosen by name, else by what matches the node (GPU's name, instance type, processor). Each entry has an
expected figure, a tolerance (beyond it: warn) and a limit (beyond it: fail), both shares of the expected figure. The
packaged ones come from public figures; `--learn` writes one from a run's own nodes. Time: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from statistics import median

from msgspec import Struct
from msgspec.structs import asdict, astuple, replace

from holdfast.errors import ConfigError, NotFoundError
from holdfast.model.toml_lines import Problem, build, config_error, did_you_mean, load_toml, written
from holdfast.validate.results import Item, NodeResult, Verdict, number, spread

LEARN_LEAST = 0.10
"""Least tolerance of a learned figure."""
LEARN_SPREADS = 4.0
"""A learned tolerance is at least so many robust deviations."""


class Expected(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one item should be."""

    value: float
    better: str = "higher"
    """`higher` or `lower`."""
    tolerance: float = 0.10
    """Worse by more than this share: warn."""
    limit: float | None = None
    """Worse by more than this share: fail. Default: twice the tolerance."""
    source: str = ""
    """Where the figure comes from; without one the file's own."""


class Kind(Struct, frozen=True, forbid_unknown_fields=True):
    """What a node is. Of a baseline: which nodes it is for; all that is said must hold, nothing said means none."""

    gpu: str = ""
    """The GPU's name; of a baseline a part of it."""
    instance: str = ""
    """The cloud's instance type; of a baseline its beginning."""
    cpu: str = ""
    """The processor's name; of a baseline a part of it."""


class Baseline(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file."""

    name: str
    about: str = ""
    source: str = ""
    match: Kind = Kind()
    expected: dict[str, Expected] = {}
    """By item, such as `"gpu.matmul.bfloat16"`."""


def parse(text: str, file: str = "") -> Baseline:
    """Read one. Raises ConfigError with file and line."""
    found = build(Baseline, load_toml(text, file), text, file)
    problems = [
        Problem(("expected", name, "better"), f'better is "{one.better}": higher or lower')
        for name, one in found.expected.items()
        if one.better not in {"higher", "lower"}
    ]
    problems += [
        Problem(("expected", name, "value"), f"value must be above zero, not {one.value:g}")
        for name, one in found.expected.items()
        if one.value <= 0
    ]
    if problems:
        raise config_error(problems, text, file)
    return found


def packaged() -> dict[str, Baseline]:
    """Those that ship, by name."""
    folder = files("holdfast.validate") / "baselines"
    read = [parse(one.read_text(encoding="utf-8"), one.name) for one in folder.iterdir() if one.name.endswith(".toml")]
    return {one.name: one for one in sorted(read, key=lambda one: one.name)}


def choose(asked: str, kind: Kind) -> Baseline | None:
    """The baseline for a node.

    Args:
        asked: a file, a packaged name, `none`, or empty: what matches.
        kind: what the node is.

    Raises:
        NotFoundError: neither a file nor a name.
        ConfigError: the file is wrong.
    """
    if asked == "none":
        return None
    if asked:
        path = Path(asked)
        if path.suffix == ".toml" or path.is_file():
            try:
                return parse(path.read_text(encoding="utf-8"), asked)
            except OSError as error:
                raise ConfigError(f"cannot be read: {error.strerror}", file=asked) from error
        known = packaged()
        if asked not in known:
            raise NotFoundError(f'there is no baseline "{asked}"{did_you_mean(asked, [*known, "none"])}')
        return known[asked]
    fitting = [one for one in packaged().values() if matches(one.match, kind)]
    # The one that says most about the node.
    return max(fitting, key=lambda one: sum(map(bool, astuple(one.match))), default=None)


def matches(match: Kind, kind: Kind) -> bool:
    """Does it hold for this node?"""
    return match != Kind() and (
        match.gpu.lower() in kind.gpu.lower()
        and match.cpu.lower() in kind.cpu.lower()
        and kind.instance.startswith(match.instance)
    )


def judged(items: Sequence[Item], baseline: Baseline | None) -> tuple[Item, ...]:
    """The items with the baseline's verdicts. What an item says of itself stays when it is worse."""
    if baseline is None:
        return tuple(items)
    return tuple(_judge(item, baseline.expected.get(item.name), baseline) for item in items)


def _judge(item: Item, expected: Expected | None, baseline: Baseline) -> Item:
    if expected is None or item.value is None or item.verdict is Verdict.FAIL:
        return item
    sign = 1.0 if expected.better == "higher" else -1.0
    worse = sign * (expected.value - item.value) / expected.value
    limit = 2 * expected.tolerance if expected.limit is None else expected.limit
    source = expected.source or baseline.source or baseline.name
    bound = f"{'at least' if sign > 0 else 'at most'} {number(expected.value * (1 - sign * expected.tolerance))}"
    words = f"{number(expected.value)} ({bound} {item.unit})".replace(" )", ")")
    if worse <= expected.tolerance:
        return replace(item, expected=words, source=source)
    verdict = Verdict.FAIL if worse > limit else Verdict.WARN
    why = item.why or f"{worse:.0%} worse than {baseline.name} should reach"
    advice = item.advice or "compare it with its neighbours and with its own past; see docs/validation.md"
    return replace(item, expected=words, source=source, verdict=verdict, why=why, advice=advice)


def learned(nodes: Sequence[NodeResult], name: str, source: str) -> Baseline:
    """A baseline from healthy nodes: medians, with a tolerance of the spread between them.

    Raises:
        NotFoundError: no node is healthy, or none has a figure.
    """
    healthy = [node for node in nodes if node.verdict is not Verdict.FAIL]
    values: dict[str, list[float]] = {}
    better: dict[str, str] = {}
    for node in healthy:
        for item in node.items:
            if item.better and item.value is not None and item.value > 0:
                values.setdefault(item.name, []).append(item.value)
                better[item.name] = item.better
    if not values:
        raise NotFoundError("nothing to learn from: no healthy node has a figure")
    expected = {}
    for item_name, found in sorted(values.items()):
        middle = median(found)
        tolerance = max(LEARN_LEAST, LEARN_SPREADS * spread(found, middle) / middle)
        expected[item_name] = Expected(
            value=float(f"{middle:.5g}"), better=better[item_name], tolerance=round(tolerance, 3)
        )
    return Baseline(name=name, about=f"learned from {len(healthy)} nodes", source=source, expected=expected)


def as_toml(baseline: Baseline) -> str:
    """The file's text."""
    lines = [f"{name} = {written(getattr(baseline, name))}" for name in ("name", "about", "source")]
    if match := [f"{key} = {written(value)}" for key, value in asdict(baseline.match).items() if value]:
        lines += ["", "[match]", *match]
    for name, one in baseline.expected.items():
        lines += ["", f"[expected.{written(name)}]"]
        lines += [f"{key} = {written(value)}" for key, value in asdict(one).items() if value not in {None, ""}]
    return "\n".join(lines) + "\n"
