"""From the matches of whole logs to the findings that attribution needs.

`holdfast explain` feeds every file through a `LineStream` and hands the matches to one `LogReading`. It keeps a bounded
number of findings, works out times where lines carry none, and sets aside what the job survived: an error after which
steps went on rising, and the noise of a process that ends after its work is done. Pure; memory does not grow with the
logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.detect.catalogue import UNNAMED, Catalogue, StreamKind
from holdfast.detect.finding_times import MACHINE, FindingTimes, Kept, first_failure, waits_of
from holdfast.detect.findings import fingerprint, synthetic_finding, to_finding
from holdfast.detect.flight import Dump, Missing, missing_ranks
from holdfast.detect.hyperpod_rules import RuleState
from holdfast.detect.log_rule_reading import RuleOutcome
from holdfast.detect.log_rule_watch import finding_of
from holdfast.detect.matcher import Match, StreamSource
from holdfast.detect.meaning import Trait, has, meaning
from holdfast.detect.stack_groups import group_stacks
from holdfast.detect.survived import HANDLED, IGNORED_TRACE_BYTES, THREAD_TRACE_BYTES, LogFile, set_aside
from holdfast.detect.unnamed import best_left, ended_only, findings_of, names_a_cause, without_aftermath
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Role, Severity

if TYPE_CHECKING:
    from holdfast.telemetry.stacks import Frame

KEPT_PER_TROUBLE = 12
"""Findings kept of one trouble (rule and fingerprint) and file; the others are counted."""
KEPT_IN_ALL = 20_000
GUESSED_YEAR_S = 180 * 86400.0
SILENCE_S = 1800.0
SILENCE_STEPS = 20.0


class Troubles:
    """The findings of all logs, at most `KEPT_IN_ALL`.

    Attributes:
        by_id: those kept, by the id of their finding.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Kept] = {}
        self._alike: dict[tuple[str, str, int | None, int], list[Kept]] = {}

    def take(self, number: int, file: LogFile, match: Match, order: int) -> None:
        """Keep a match, or count it with the last of its like."""
        print_ = fingerprint(match.rule.id, match.captures, match.node)
        known = self._alike.setdefault((match.rule.id, print_, match.rank, number), [])
        if len(known) >= KEPT_PER_TROUBLE or len(self.by_id) >= KEPT_IN_ALL:
            if known:
                known[-1].count += 1
                known[-1].order = order
                known[-1].steps_then = dict(file.rises)
            return
        at = match.at if match.at is not None else file.last_at
        finding = to_finding(
            match,
            source_place=Place(),
            job=None,
            attempt=None,
            at=at if at is not None else 0.0,
            id_prefix=f"{number:06d}",
            file=file.name,
        )
        kept = Kept(finding, match, number, order, dict(file.rises))
        if file.thread_at is not None:
            kept.of_thread = match.offset - file.thread_at < THREAD_TRACE_BYTES
            file.thread_at = None
        if file.ignored_at is not None and match.rule.family in HANDLED:
            kept.ignored = match.offset - file.ignored_at < IGNORED_TRACE_BYTES
            file.ignored_at = None
        known.append(kept)
        self.by_id[finding.id] = kept

    def in_order(self) -> list[Kept]:
        """All, in the order of their lines."""
        return sorted((kept for alike in self._alike.values() for kept in alike), key=lambda kept: kept.order)

    def seen(self, rule: str, file: int) -> int:
        """How often a rule was seen in a log."""
        alike = (group for key, group in self._alike.items() if key[0] == rule and key[3] == file)
        return sum(kept.count for group in alike for kept in group)


class RanksBeside:
    """What lies beside the logs: flight recorders' dumps and dumps of stacks, one for each rank.

    Attributes:
        dumps: how many flight recorders' dumps there are.
    """

    def __init__(self) -> None:
        self.dumps = 0
        self._missing: Missing | None = None
        self._odd: tuple[int, ...] = ()
        self._stacks: Mapping[int, Sequence[Frame]] = {}

    def flight(self, dumps: Sequence[Dump]) -> None:
        """Flight-recorder dumps of the job's ranks."""
        self.dumps = len(dumps)
        self._missing = missing_ranks(dumps)

    def stacks(self, stacks: Mapping[int, Sequence[Frame]]) -> None:
        """The calls of the thread that trains, by rank."""
        if len(stacks) > 1:
            self._odd = group_stacks(stacks)[1]
            self._stacks = stacks

    @property
    def names_ranks(self) -> bool:
        """Whether some rank stands apart by them."""
        return self._missing is not None or bool(self._odd)

    def findings(self, catalogue: Catalogue, at: float) -> Iterator[Finding]:
        """The ranks that did not join the others at this time, Unix seconds."""
        if (missing := self._missing) is not None:
            what = f"{listed_ranks(missing.ranks)} {missing.why}{f' ({missing.op})' if missing.op else ''}"
            yield synthetic_finding(
                catalogue,
                "torch.desync",
                id="flight:desync",
                at=at,
                place=Place(rank=missing.ranks[0]),
                summary=f"By the flight recorder, {what}{f', last at {missing.frame}' if missing.frame else ''}",
                kind=EvidenceKind.STACK,
                captures={"seq": str(missing.collective)},
            )
        if self._odd:
            frames = self._stacks.get(self._odd[0], ())
            user = next((f for f in frames if "site-packages" not in f.file), frames[0] if frames else None)
            where = f", in {user.function} ({user.file}:{user.line})" if user is not None else ""
            yield synthetic_finding(
                catalogue,
                "hang.rank",
                id="stacks:odd",
                at=at - 0.5,
                place=Place(rank=self._odd[0]),
                summary=f"By the stacks, {listed_ranks(self._odd)} stands elsewhere while the others wait{where}",
                kind=EvidenceKind.STACK,
            )


class LogReading:
    """Collects the matches of all logs of one job.

    Attributes:
        beside: what lies beside the logs.
        findings: made by `finish`: what attribution judges, in order.
        passed: made by `finish`: ids of findings that a later line took back.
        aside: made by `finish`: why findings are no trouble, by id.
        progress_at: when steps last rose; 0.0 when no line said.
        ranks: node -> ranks as far as the logs tell.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.files: list[LogFile] = []
        self.beside = RanksBeside()
        self.order = 0
        self.findings: tuple[Finding, ...] = ()
        self.passed: set[str] = set()
        self.aside: dict[str, str] = {}
        self.progress_at = 0.0
        self.ranks: dict[str, tuple[int, ...]] = {}
        self._troubles = Troubles()
        self._ruled: dict[str, tuple[Finding, int, int]] = {}
        """Findings of log rules, with the log and the place in it."""

    def file(self, name: str) -> int:
        """Begin a log; its number is given to `take`."""
        self.files.append(LogFile(name))
        return len(self.files) - 1

    def take(self, number: int, matches: Sequence[Match]) -> None:
        """The next matches of this log, in the order of their places in it: steps after an error show it survived."""
        file = self.files[number]
        file.recognised = file.recognised or bool(matches)
        for read in matches:
            match = file.scheduler.corrected(read)
            self.order += 1
            role, rule = match.rule.role, match.rule.id
            if match.at is not None:
                if file.progress_at is not None and file.progress_at - match.at > GUESSED_YEAR_S:
                    file.progress_at = match.at  # Stamps without a year were read with a later one than theirs.
                file.last_at = match.at
            if role is Role.PROGRESS or role is Role.CHECKPOINT:
                file.take_progress(match, self.order)
            elif match.rule.kind == UNNAMED:
                file.unnamed.take(match)
            elif match.rule.kind == "completed":
                file.completed = self.order
                file.steps_after = 0
            elif match.rule.kind in {"checkpoint-loaded", "attempt-start"}:
                file.restarts.append(self.order)
            elif has(rule, Trait.THREAD):
                file.thread_at = match.offset
            elif has(rule, Trait.IGNORED):
                file.ignored_at = match.offset
            elif over := meaning(rule).takes_back:
                file.back.update(dict.fromkeys(over, self.order))
            elif role in {Role.ROOT, Role.CASCADE} or has(rule, Trait.HELD_UP):
                file.last_trouble = match.offset
                self._troubles.take(number, file, match, self.order)

    @property
    def no_job(self) -> bool:
        """All that was found was told by kernels, and nothing by a job."""
        told = self._troubles.by_id.values()
        return not self._shows_a_job and all(kept.match.rule.family in MACHINE for kept in told)

    @property
    def _shows_a_job(self) -> bool:
        return any(file.progress_lines or file.completed is not None for file in self.files)

    def recognise(self, number: int) -> None:
        """The log has the form of one, whatever its lines say."""
        self.files[number].recognised = True

    def ruled(self, number: int, outcomes: Sequence[RuleOutcome]) -> None:
        """What the job's own log rules say of this log."""
        file = self.files[number]
        for change, offset in ((outcome.change, outcome.offset) for outcome in outcomes):
            if change.after is RuleState.HANGING and file.completed is not None:
                continue
            finding = finding_of(self.catalogue, change, id=f"{number:06d}:rule:{change.rule}", place=Place())
            shown = replace(finding.evidence[0], file=file.name)
            self._ruled[finding.id] = replace(finding, evidence=(shown,)), number, offset

    def end(self, number: int, size: int) -> None:
        """The log is read to its end; it had so many bytes."""
        self.files[number].size = size

    def finish(self) -> None:
        """No more matches: work out times, set survived errors aside."""
        kept = self._troubles.in_order()
        known = [file.last_at for file in self.files if file.last_at is not None]
        end = max(known, default=0.0)
        self.progress_at = max((f.progress_at for f in self.files if f.progress_at is not None), default=0.0)
        early = FindingTimes(kept, None, end)
        first = first_failure([k for k in kept if not self._why_aside(k, early)])
        times = FindingTimes(kept, first, end)
        findings: list[Finding] = []
        for k in kept:
            finding = replace(k.finding, at=times.of(k), count=k.count, captures=waits_of(k))
            if self.files[k.file].back.get(finding.rule, 0) > k.order:
                # It came back by itself: a cause only where a time-out points at it.
                finding = replace(finding, severity=Severity.WARNING)
                self.passed.add(finding.id)
            if why := self._why_aside(k, times):
                self.aside[finding.id] = why
            else:
                findings.append(finding)
        if all(f.domain is Domain.OPERATOR for f in findings if f.role is Role.ROOT):
            findings += self._silences()
        findings += [finding for finding, _, _ in self._ruled.values()]
        findings += self._without_name(findings, end)
        findings = best_left(findings)
        findings += self.beside.findings(self.catalogue, first if first is not None else end)
        self.findings = tuple(findings)
        waited = {k.match.rank for k in kept if k.match.rank is not None and has(k.finding.rule, Trait.COLLECTIVE)}
        if len(waited) > 1:
            highest = max(k.match.rank for k in kept if k.match.rank is not None)
            self.ranks = {"": tuple(range(highest + 1))}

    def _why_aside(self, kept: Kept, times: FindingTimes) -> str:
        """Why a finding is no trouble; empty when it may be."""
        rule = kept.finding.rule
        seen = self._troubles.seen(rule, kept.file) if meaning(rule).often else 0
        return set_aside(kept, self.files, at=times.of(kept), seen=seen)

    def _without_name(self, findings: Sequence[Finding], end: float) -> list[Finding]:
        """What ended the logs when no rule names a cause: errors known by their severity alone."""
        if self.beside.names_ranks or any(names_a_cause(f) for f in findings):
            return []
        found: list[Finding] = []
        told = {f.id for f in findings}
        kept = self._troubles.by_id
        ended = [f for f in findings if f.id in kept and ended_only(f)]
        for number, file in enumerate(self.files):
            if file.completed is not None:
                continue
            # The lines around an error that was set aside tell of the same error.
            over = [k.match.offset for k in kept.values() if k.file == number and k.finding.id not in told]
            chain = file.unnamed.ending(
                size=file.size,
                after=max([file.alive, *over]),
                progressed=bool(file.progress_lines),
                beside_job=self._shows_a_job,
            )
            ends = [kept[f.id].match.offset for f in ended if kept[f.id].file == number]
            chain = without_aftermath(chain, min(ends, default=None))
            made = findings_of(chain, file=file.name, prefix=f"{number:06d}", at=end)
            for finding, match in zip(made, chain, strict=True):
                kept[finding.id] = Kept(finding, match, number, self.order, {})
            found += made
        return found

    def _silences(self) -> list[Finding]:
        """A log whose end comes long after its last step: the job hung before something ended it."""
        found: list[Finding] = []
        for number, file in enumerate(self.files):
            if file.progress_at is None or file.last_at is None or file.completed is not None or not file.step_times:
                continue
            rhythm = sorted(file.step_times)[len(file.step_times) // 2]
            gap = file.last_at - file.progress_at
            if gap > max(SILENCE_S, SILENCE_STEPS * rhythm):
                silence = synthetic_finding(
                    self.catalogue,
                    "hang.silence",
                    id=f"{number:06d}:silence",
                    at=file.progress_at + rhythm,
                    place=Place(),
                    summary=f"No step for {gap / 60:.0f} minutes before the end, where one took {rhythm:.0f} s",
                    kind=EvidenceKind.LOG,
                    confidence=0.7,
                )
                if (last := file.last_progress) is not None:
                    shown = Evidence(EvidenceKind.LOG, last.text[:400], file=file.name, line=last.line_no)
                    silence = replace(silence, evidence=(shown,))
                    self._troubles.by_id[silence.id] = Kept(silence, last, number, self.order, {})
                found.append(silence)
        return found

    def place_of(self, finding_id: str) -> tuple[int, int] | None:
        """(file number, byte offset) of a finding's line, for counting its line number afterwards."""
        if (ruled := self._ruled.get(finding_id)) is not None:
            return ruled[1:] if ruled[2] >= 0 else None
        kept = self._troubles.by_id.get(finding_id)
        return (kept.file, kept.match.offset) if kept is not None else None


def listed_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 3, 5`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}"


_RANK_IN_NAME = (
    re.compile(r"(?:^|[/_.-])rank[_-]?(\d{1,6})(?=[/_.-]|$)", re.IGNORECASE),
    re.compile(r"/attempt_\d+/(\d{1,6})/(?:(?:stdout|stderr)\.log|error\.json)$"),
    re.compile(r"(?:^|/)(?:stdout|stderr|log)[_.](\d{1,6})(?:\.\w+)?$"),
    re.compile(r"(?:stack|stacks|py-?spy|faulthandler)[_.-]?(\d{1,6})(?:\.\w+)?$", re.IGNORECASE),
)
_KERNEL_NAME = re.compile(r"dmesg|kern|kmsg|messages|syslog|journal", re.IGNORECASE)
_NODE_IN_NAME = re.compile(
    r"(?:dmesg|kern|kmsg|messages|syslog|journal|slurmd)[_.-]([A-Za-z][\w-]*\d[\w-]*)"
    r"|(?:^|/)([a-z][\w-]*\d)[_.-](?:dmesg|kern|kmsg|messages|syslog)",
    re.IGNORECASE,
)


def source_of(name: str) -> StreamSource:
    """What a file's name says about its lines: rank, node. Lines of every kind are believed: a person gave the file."""
    rank = next((int(found[1]) for pattern in _RANK_IN_NAME if (found := pattern.search(name))), None)
    node = ""
    if _KERNEL_NAME.search(name) and (found := _NODE_IN_NAME.search(name)):
        node = (found[1] or found[2] or "").removesuffix(".log")
    return StreamSource(kind=StreamKind.ANY, node=node, rank=rank)
