"""What one node makes of its ranks' lines beside the catalogue: HyperPod's log rules, and lines never printed before.

One `LineWatch` per attempt, fed by the ranks' log files as they are read and emptied by the node runner's loop. No
clock is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.detect.catalogue import Catalogue
from holdfast.detect.findings import synthetic_finding
from holdfast.detect.log_rule_watch import LogRuleWatch
from holdfast.launch.novel_lines import NovelLines
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import EvidenceKind, Finding, Place, Role

EXPLAINED_S = 60.0
"""A fault that a rule saw this shortly before the end explains it: lines that are merely new are not asked for."""


class LineWatch:
    """The lines of one attempt on this node.

    Args:
        novel: the node's memory of what the job prints when it is well.
        log_rules: the attempt's log rules, None when the job has none.
        first_rank: the rank whose lines the rules judge (this node's first), None for a command.
        job: the job's key.
        node: this one.
        attempt: its number.
        id_prefix: makes ids of findings unique among launchers.
        catalogue: gives findings their role.
    """

    def __init__(
        self,
        novel: NovelLines,
        log_rules: LogRuleWatch | None,
        *,
        first_rank: int | None,
        job: JobKey,
        node: str,
        attempt: int,
        id_prefix: str,
        catalogue: Callable[[], Catalogue],
    ) -> None:
        self._novel = novel
        self._log_rules = log_rules
        self._first_rank = first_rank
        self._job, self._node, self._attempt = job, node, attempt
        self._id_prefix = id_prefix
        self._catalogue = catalogue
        self._found: list[Finding] = []
        self._fault_at = float("-inf")
        novel.begin()

    def lines(self, rank: int | None, lines: Sequence[bytes], at: float) -> None:
        """New lines of one rank."""
        if self._log_rules is not None and rank == self._first_rank:
            self._found += self._log_rules.lines(lines, at)
        self._novel.lines(rank, lines, at)

    def matched(self, findings: Sequence[Finding]) -> None:
        """The catalogue's rules have found these in the lines."""
        faults = [finding.at for finding in findings if finding.role in {Role.ROOT, Role.CASCADE}]
        self._fault_at = max([self._fault_at, *faults])

    def progress(self, at: float, rank: int | None = None, steps: Sequence[str] = ()) -> None:
        """Steps have risen; `steps` are the lines of this rank that said so, when lines did."""
        self._novel.progress(at)
        if len(steps) > 1:
            self._novel.proven(rank, steps[-2], at)
        self._novel.save(at)

    def look(self, at: float) -> tuple[Finding, ...]:
        """What log rules have found since the last call."""
        if self._log_rules is not None:
            self._found += self._log_rules.tick(at)
        found, self._found = tuple(self._found), []
        return found

    def said(self) -> tuple[str, ...]:
        """The states of log rules for people, since the last call."""
        return self._log_rules.said() if self._log_rules is not None else ()

    def strange(self, rank: int | None, at: float) -> tuple[Finding, ...]:
        """This rank has failed or stands still: lines that it never printed while well, when no rule says more."""
        if at - self._fault_at <= EXPLAINED_S:
            return ()
        return tuple(
            synthetic_finding(
                self._catalogue(),
                "novelty.line",
                id=f"{self._id_prefix}/novel:{'cmd' if rank is None else rank}:{number}",
                at=at,
                place=Place(node=self._node, rank=rank),
                job=self._job,
                attempt=self._attempt,
                kind=EvidenceKind.LOG,
                text=line,
            )
            for number, line in enumerate(self._novel.strangest(rank))
        )

    def end(self, at: float, *, well: bool) -> None:
        """The attempt is over on this node."""
        if well:
            self._novel.ended_well(at)
        self._novel.save(at, now=True)
