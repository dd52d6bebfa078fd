"""HyperPod's `logMonitoringConfiguration` entries, accepted as they are and behaving as theirs.

A job that moves over from HyperPod keeps its rules: each watches the job's lines for a pattern and is WAITING, HEALTHY,
SLOW, HANGING or FAULTED. The launcher feeds lines and asks once a second what has changed; each change for the worse
becomes a finding `hyperpod.hang`, `hyperpod.slow` or `hyperpod.fault`. Times are handed in. Source of the meaning:
Amazon SageMaker AI developer guide, "Using the training operator to run jobs", and what HyperPod's elastic agent
(1.1.3) does: patterns are matched from the start of the line, a fault goes before a stop, and a stop is for good.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.detect.patterns import catastrophe
from holdfast.errors import ConfigError
from holdfast.model.toml_lines import did_you_mean


class RuleState(StrEnum):
    """What a rule says of the job."""

    WAITING = "WAITING"
    """No line has matched yet, and there is time left."""
    HEALTHY = "HEALTHY"
    SLOW = "SLOW"
    """The metric was on the wrong side of its threshold for so many matches in a row."""
    HANGING = "HANGING"
    """The first match, or the next, did not come in time."""
    FAULTED = "FAULTED"
    """A pattern that stands for a fault matched."""


_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "gt": operator.gt,
    "lt": operator.lt,
    "eq": operator.eq,
    "gteq": operator.ge,
    "lteq": operator.le,
}
LINE_MAX = 4096
"""Of a line so much is judged."""
METRIC_MAX = 64
_KEYS: dict[str, Any] = {
    "name": str,
    "logPattern": str,
    "expectedStartCutOffInSeconds": (int, float),
    "expectedRecurringFrequencyInSeconds": (int, float),
    "metricThreshold": (int, float),
    "operator": str,
    "metricEvaluationDataPoints": int,
    "stopPattern": str,
    "faultOnMatch": bool,
}


class LogRule(Struct, frozen=True):
    """One entry of `logMonitoringConfiguration`. `slow_when` holds when the metric is bad."""

    name: str
    pattern: str
    start_limit_s: float | None = None
    recur_limit_s: float | None = None
    threshold: float | None = None
    compare: str = ""
    data_points: int = 1
    stop: str = ""
    fault_on_match: bool = False


def log_rules(entries: Sequence[Mapping[str, Any]], *, file: str = "") -> tuple[LogRule, ...]:
    """Check the entries and give them names.

    Raises:
        ConfigError: an unknown key (with the nearest right one), a wrong type, a pattern that does not compile or
            could take catastrophic time, or a threshold without an operator or a group that captures the metric.
    """
    return tuple(_rule(index, entry, file) for index, entry in enumerate(entries))


def _rule(index: int, entry: Mapping[str, Any], file: str) -> LogRule:
    where = f'logMonitoringConfiguration[{index}] "{entry.get("name", "")}"'
    for key, value in entry.items():
        if key not in _KEYS:
            raise ConfigError(f'{where}: unknown key "{key}"{did_you_mean(key, _KEYS)}', file=file)
        if not isinstance(value, _KEYS[key]) or (isinstance(value, bool) and _KEYS[key] is not bool):
            raise ConfigError(f"{where}: {key} has the wrong type: {value!r}", file=file)
    for key in ("name", "logPattern"):
        if not entry.get(key):
            raise ConfigError(f"{where}: {key} is missing", file=file)
    pattern = _checked(where, "logPattern", entry["logPattern"], file)
    stop = _checked(where, "stopPattern", entry["stopPattern"], file) if entry.get("stopPattern") else ""
    threshold = entry.get("metricThreshold")
    compare = entry.get("operator", "")
    if threshold is not None:
        if compare not in _OPERATORS:
            raise ConfigError(f'{where}: operator "{compare}" is not one of {", ".join(_OPERATORS)}', file=file)
        if re.compile(pattern).groups < 1:
            raise ConfigError(
                f"{where}: metricThreshold needs a group in logPattern that captures the metric", file=file
            )
    return LogRule(
        name=entry["name"],
        pattern=pattern,
        start_limit_s=entry.get("expectedStartCutOffInSeconds"),
        recur_limit_s=entry.get("expectedRecurringFrequencyInSeconds"),
        threshold=threshold,
        compare=compare,
        data_points=entry.get("metricEvaluationDataPoints", 1),
        stop=stop,
        fault_on_match=entry.get("faultOnMatch", False),
    )


def _checked(where: str, key: str, pattern: str, file: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{where}: {key} is not a regular expression: {error}", file=file) from error
    if why := catastrophe(searched(pattern) or pattern.removeprefix("^").removeprefix(".*"), exponential_only=True):
        raise ConfigError(f"{where}: {key} could take catastrophic time: {why}", file=file)
    return pattern


def searched(pattern: str) -> str:
    """What may be searched for anywhere in a line in place of matching `.*...` from its start; empty: match as it is.

    Most rules are written to match whole lines; a search for their middle gives the same and is many times quicker.
    """
    bare = pattern.removeprefix("^")
    if not bare.startswith(".*") or bare.startswith((".*?", ".*+")) or "|" in _outside_groups(bare):
        return ""
    bare = bare.removeprefix(".*")
    bare = bare.removesuffix("$") if bare.endswith(".*$") else bare
    return bare.removesuffix(".*") if not bare.endswith("\\.*") else bare


def _outside_groups(pattern: str) -> str:
    """The pattern without escapes, classes and what stands in parentheses."""
    flat = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "", pattern)
    while "(" in flat and (inner := re.sub(r"\([^()]*\)", "", flat)) != flat:
        flat = inner
    return flat


class RuleChange(Struct, frozen=True):
    """A rule's state is another now."""

    rule: str
    before: RuleState
    after: RuleState
    at: float
    why: str
    for_s: float = 0.0
    """How long it had waited in vain (HANGING only)."""
    text: str = ""
    """The line that changed it, empty when time did."""


class RuleHit(Struct, frozen=True, kw_only=True):
    """A line in which one of a rule's patterns was found."""

    rule: int
    """Its place among the rules."""
    matched: bool = False
    stopped: bool = False
    """Its stop pattern was."""
    metric: Annotated[str, Meta(max_length=METRIC_MAX)] = ""
    """What the pattern captures, where the rule has a threshold."""
    text: Annotated[str, Meta(max_length=LINE_MAX)] = ""
    """The line."""


class RuleFinder:
    """The patterns of one rule.

    Args:
        rule: from `log_rules`.
        number: its place among the rules.
    """

    def __init__(self, rule: LogRule, number: int) -> None:
        self._number = number
        self._has_metric = rule.threshold is not None
        # A metric is what the pattern captures when it is matched as it stands: greedily, the last one in the line.
        self._match = re.compile(rule.pattern).match if self._has_metric else _finder(rule.pattern)
        self._stop = _finder(rule.stop) if rule.stop else None

    def read(self, text: str) -> RuleHit | None:
        """What is found in this line, of which `LINE_MAX` characters count; None: nothing."""
        text = text[:LINE_MAX]
        found = self._match(text)
        stopped = self._stop is not None and self._stop(text) is not None
        if found is None and not stopped:
            return None
        metric = (found[1] or "")[:METRIC_MAX] if found is not None and self._has_metric else ""
        return RuleHit(rule=self._number, matched=found is not None, stopped=stopped, metric=metric, text=text)


class _Watch:
    """One rule at work."""

    def __init__(self, rule: LogRule, number: int, at: float) -> None:
        self.rule = rule
        self.finder = RuleFinder(rule, number)
        self.state = RuleState.WAITING
        self.began = at
        self.matched_at: float | None = None
        self.bad = 0
        self.active = True

    @property
    def is_over(self) -> bool:
        """No line changes it any more."""
        return not self.active or self.state is RuleState.FAULTED

    def take(self, hit: RuleHit, at: float) -> tuple[RuleState, str]:
        if self.is_over:
            return self.state, ""
        if hit.matched:
            self.matched_at = at
            if self.rule.fault_on_match:
                return RuleState.FAULTED, f"matched: {hit.text[:200]}"
        if hit.stopped:
            self.active = False
            return RuleState.HEALTHY, "its stop pattern matched"
        return self._judge(hit.metric)

    def _judge(self, found: str) -> tuple[RuleState, str]:
        rule = self.rule
        if rule.threshold is None:
            return RuleState.HEALTHY, "matched"
        try:
            metric = float(found)
        except ValueError:
            return self.state, ""
        self.bad = self.bad + 1 if _OPERATORS[rule.compare](metric, rule.threshold) else 0
        if self.bad >= rule.data_points:
            return RuleState.SLOW, f"{metric:g} is {rule.compare} {rule.threshold:g}, {self.bad} times in a row"
        if self.state is RuleState.SLOW and self.bad:
            return self.state, ""
        return RuleState.HEALTHY, "matched"

    def tick(self, at: float) -> tuple[RuleState, str]:
        rule = self.rule
        if self.is_over:
            return self.state, ""
        if self.matched_at is None:
            if rule.start_limit_s is not None and at - self.began > rule.start_limit_s:
                return RuleState.HANGING, f"no line matched within {rule.start_limit_s:g} s of the start"
        elif rule.recur_limit_s is not None and at - self.matched_at > rule.recur_limit_s:
            return RuleState.HANGING, f"no line matched for {rule.recur_limit_s:g} s"
        return self.state, ""


class LogRuleMonitor:
    """All rules of one attempt. Start a new one for each attempt.

    Args:
        rules: from `log_rules`.
        at: when the attempt started, Unix seconds.
    """

    def __init__(self, rules: Sequence[LogRule], at: float) -> None:
        self._watches = [_Watch(rule, number, at) for number, rule in enumerate(rules)]

    @property
    def states(self) -> dict[str, RuleState]:
        """Rule name -> state."""
        return {watch.rule.name: watch.state for watch in self._watches}

    def line(self, text: str, at: float) -> list[RuleChange]:
        """Take one line of any rank's output."""
        hits = [hit for watch in self._watches if not watch.is_over and (hit := watch.finder.read(text)) is not None]
        return self.take(hits, at)

    def take(self, hits: Sequence[RuleHit], at: float) -> list[RuleChange]:
        """Take what the finders of these rules have found."""
        watches = self._watches
        return [c for hit in hits if (c := _changed(watches[hit.rule], *watches[hit.rule].take(hit, at), at, hit.text))]

    def tick(self, at: float) -> list[RuleChange]:
        """Time has passed."""
        return [change for watch in self._watches if (change := _changed(watch, *watch.tick(at), at))]


def _changed(watch: _Watch, state: RuleState, why: str, at: float, text: str = "") -> RuleChange | None:
    before = watch.state
    if state is before:
        return None
    watch.state = state
    waited = at - (watch.began if watch.matched_at is None else watch.matched_at)
    return RuleChange(watch.rule.name, before, state, at, why, waited if state is RuleState.HANGING else 0.0, text)


def _finder(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(middle).search if (middle := searched(pattern)) else re.compile(pattern).match


def finding_rule(state: RuleState) -> str:
    """The catalogue's rule for a state that calls for action; empty for the others."""
    return {
        RuleState.HANGING: "hyperpod.hang",
        RuleState.SLOW: "hyperpod.slow",
        RuleState.FAULTED: "hyperpod.fault",
    }.get(state, "")
