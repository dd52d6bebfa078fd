"""What a node hears in its ranks' output: findings and progress of the catalogue's rules, log rules, strange lines.

Made by the node runner on first use, never before its ranks run: this loads the matcher's modules, for which a restart
must not wait. What is printed meanwhile stands in the log files and is read then. No time passes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.detect.hyperpod_rules import LogRule
from holdfast.detect.log_rule_watch import LogRuleWatch
from holdfast.detect.matcher import LineStream, StreamSource
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.late_matcher import LateMatcher
from holdfast.launch.line_watch import LineWatch
from holdfast.launch.novel_lines import NovelLines
from holdfast.launch.place import JobPlace
from holdfast.launch.reading import OutputReader


class Heard(NamedTuple):
    """The two that judge one attempt's lines."""

    reader: OutputReader
    lines: LineWatch


class Listener:
    """One node's ears.

    Args:
        place: job and node.
        matcher: of the catalogue.
        log_rules: HyperPod's rules of the job.
        is_command: the output is that of a command, not of ranks.
    """

    def __init__(
        self, place: JobPlace, matcher: LateMatcher, log_rules: Sequence[LogRule], *, is_command: bool
    ) -> None:
        self._place = place
        self._matcher = matcher
        self._log_rules = tuple(log_rules)
        self._is_command = is_command
        self._novel = NovelLines(place.job_dir, place.node)

    def stream(self, rank: int | None) -> LineStream:
        """The matcher's stream of one log file; waits for the matcher. Raises ConfigError as loading it does."""
        return self._matcher.get().stream(StreamSource(node=self._place.node, rank=rank))

    def attempt(self, spec: AttemptSpec, at: float) -> Heard:
        """Begin to listen to an attempt that was started at `at` (Unix seconds)."""
        place = self._place
        source = f"{place.source}/{place.restart_count}"
        first = None if self._is_command else spec.ranks_of(place.node).start
        about: dict[str, Any] = {
            "job": place.job,
            "node": place.node,
            "attempt": spec.attempt,
            "id_prefix": f"{source}/{place.node}/a{spec.attempt}",
            "catalogue": lambda: self._matcher.get().catalogue,
        }
        rules = LogRuleWatch(self._log_rules, at, rank=first, **about) if self._log_rules else None
        return Heard(
            OutputReader(job=place.job, node=place.node, attempt=spec.attempt, source=source),
            LineWatch(self._novel, rules, first_rank=first, **about),
        )
