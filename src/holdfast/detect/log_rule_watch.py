"""HyperPod's log rules at work on one output of a job: lines in, findings out.

As HyperPod's agent does, each node judges the output of its first rank. The launcher hands in the lines of that rank
(or of its command), an agent those of a log file that it was told to watch; both ask once a second whether time alone
has changed anything. Pure: times come in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from holdfast.detect.catalogue import Catalogue
from holdfast.detect.findings import synthetic_finding
from holdfast.detect.hyperpod_rules import (
    LINE_MAX,
    LogRule,
    LogRuleMonitor,
    RuleChange,
    RuleHit,
    RuleState,
    finding_rule,
)
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import EvidenceKind, Finding, Place

TICK_S = 1.0
TOLD_MAX = 8
"""Findings of one rule and state in one attempt; a rule that flaps says no more after that."""


class LogRuleWatch:
    """The rules of one attempt on one node.

    Args:
        rules: from the job's file.
        at: when the attempt's ranks were started, Unix seconds.
        job: its key; None when only the node tells which job it is.
        node: this one.
        attempt: its number, if known.
        rank: the rank whose output is judged; None for a command or a file.
        id_prefix: makes ids of findings unique among launchers.
        catalogue: gives findings their role and remedy.
    """

    def __init__(
        self,
        rules: Sequence[LogRule],
        at: float,
        *,
        job: JobKey | None,
        node: str,
        attempt: int | None,
        rank: int | None,
        id_prefix: str,
        catalogue: Callable[[], Catalogue],
    ) -> None:
        self._monitor = LogRuleMonitor(rules, at)
        self._job, self._node, self._attempt, self._rank = job, node, attempt, rank
        self._id_prefix = id_prefix
        self._catalogue = catalogue
        self._ticked = at
        self._told: dict[tuple[str, RuleState], int] = {}
        self._said = [_sentence(rule.name, RuleState.WAITING) for rule in rules]

    @property
    def states(self) -> dict[str, RuleState]:
        """Rule name -> state."""
        return self._monitor.states

    def lines(self, lines: Sequence[bytes], at: float) -> list[Finding]:
        """New lines of the watched output."""
        changes: list[RuleChange] = []
        for line in lines:
            changes += self._monitor.line(line[:LINE_MAX].decode(errors="replace").rstrip("\r"), at)
        return self._findings(changes)

    def hits(self, hits: Sequence[RuleHit], at: float) -> list[Finding]:
        """What finders of the same rules have found in lines of the watched output."""
        return self._findings(self._monitor.take(hits, at))

    def tick(self, at: float) -> list[Finding]:
        """Asked often; looks once a second."""
        if at - self._ticked < TICK_S:
            return []
        self._ticked = at
        return self._findings(self._monitor.tick(at))

    def said(self) -> tuple[str, ...]:
        """A sentence for people about each state since the last call, from `WAITING` on."""
        said, self._said = tuple(self._said), []
        return said

    def _findings(self, changes: Sequence[RuleChange]) -> list[Finding]:
        found = []
        for change in changes:
            told = self._told.get((change.rule, change.after), 0) + 1
            if told > TOLD_MAX:
                continue
            self._told[change.rule, change.after] = told
            self._said.append(f"{_sentence(change.rule, change.after)}: {change.why}")
            if finding_rule(change.after):
                found.append(self._finding(change, told))
        return found

    def _finding(self, change: RuleChange, told: int) -> Finding:
        # A line that does not come is no word about the rank whose output was watched; a fault's line is.
        # Where the job is not known, its node is what leads to it.
        placed = change.after is RuleState.FAULTED or self._job is None
        return finding_of(
            self._catalogue(),
            change,
            id=f"{self._id_prefix}/rule:{change.rule}:{change.after}:{told}",
            place=Place(node=self._node, rank=self._rank) if placed else Place(),
            job=self._job,
            attempt=self._attempt,
        )


def finding_of(
    catalogue: Catalogue,
    change: RuleChange,
    *,
    id: str,  # noqa: A002 - the field's own name
    place: Place,
    job: JobKey | None = None,
    attempt: int | None = None,
) -> Finding:
    """The finding that a change for the worse stands for."""
    return synthetic_finding(
        catalogue,
        finding_rule(change.after),
        id=id,
        at=change.at,
        place=place,
        job=job,
        attempt=attempt,
        summary=f"{_sentence(change.rule, change.after)}: {change.why}",
        kind=EvidenceKind.LOG,
        text=change.text or f"{change.rule}: {change.why}",
        captures={"what": change.rule} | ({"elapsed_s": str(math.ceil(change.for_s))} if change.for_s else {}),
    )


def _sentence(rule: str, state: RuleState) -> str:
    return f'Log rule "{rule}" is {state}'
