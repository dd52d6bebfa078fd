"""From the matches of whole logs to what attribution needs, and from its diagnosis to an explanation.

`holdfast explain` feeds every file through a `LineStream` and hands the matches to one `LogReading`. It keeps a bounded
number of findings, works out times where lines carry none, and sets aside what the job survived: an error after which
steps went on rising, and the noise of a process that ends after its work is done. Pure; memory does not grow with the
logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.detect.catalogue import UNNAMED, Catalogue, StreamKind
from holdfast.detect.dumped_stacks import StackFrame
from holdfast.detect.finding_times import MACHINE, FindingTimes, Kept, first_failure, waits_of
from holdfast.detect.findings import fingerprint, synthetic_finding, to_finding
from holdfast.detect.flight import Dump, Missing, missing_ranks
from holdfast.detect.hyperpod_rules import finding_rule
from holdfast.detect.log_rule_reading import RuleOutcome, is_hang
from holdfast.detect.matcher import Match, StreamSource
from holdfast.detect.stack_groups import group_stacks
from holdfast.detect.survived import (
    COLLECTIVE_WAITS,
    HANDLED,
    IGNORED_TRACE_BYTES,
    THREAD_TRACE_BYTES,
    LogFile,
    counts_often,
    set_aside,
)
from holdfast.detect.thin_evidence import WHO_KILLED, ended_without_reason, lasting_warnings
from holdfast.detect.unnamed import HELD_UP, best_left, ended_only, findings_of, names_a_cause, without_aftermath
from holdfast.model.evidence import Diagnosis, Domain, Evidence, EvidenceKind, Finding, Place, Role, Severity

KEPT_PER_TROUBLE = 12
"""Findings kept of one trouble (rule and fingerprint) and file; the others are counted."""
KEPT_IN_ALL = 20_000
GUESSED_YEAR_S = 180 * 86400.0
STEP_TIMES_MAX = 512
SILENCE_S = 1800.0
SILENCE_STEPS = 20.0
EVIDENCE_SHOWN = 24


_BACK = {
    "kernel.nfs.back": ("kernel.nfs.silent",),
    "kernel.lustre.restored": ("kernel.lustre.lost", "kernel.lnet"),
    "kernel.link_up": ("kernel.link_down",),
    "kernel.ceph.back": ("kernel.ceph", "kernel.ceph.refused", "kernel.ceph.hung", "kernel.ceph.evicted"),
    "kernel.iscsi.back": ("kernel.iscsi",),
    "ipmi.limit.back": ("ipmi.limit",),
    "slurm.database.back": ("slurm.database",),
    "k8s.pods_start": ("k8s.cni", "k8s.runtime", "k8s.api"),
    "k8s.api.back": ("k8s.api",),
    "k8s.scheduled": ("k8s.scheduling",),
    "k8s.started": ("k8s.scheduling", "k8s.mount", "k8s.sandbox", "k8s.image"),
    "health.service_up": ("health.service",),
    "k8s.driver_ready": ("k8s.driver_wait",),
    "k8s.device_registered": ("k8s.device_registration",),
}
"""Rules that say that what other rules reported is over."""


class EvidenceLine(Struct, frozen=True):
    """One line of the explanation's evidence."""

    file: str
    line: int
    text: str
    role: str
    rule: str


class Suspects(Struct, frozen=True):
    """Who is suspected, most likely first."""

    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()


class Explanation(Struct, frozen=True):
    """What `holdfast explain --json` prints: a stable form, described in the docs."""

    verdict: str
    """`healthy`, `fault` or `unknown`."""
    domain: str
    cause: str
    summary: str
    confidence: float
    restart_helps: bool | None
    suspects: Suspects
    evidence: tuple[EvidenceLine, ...]
    story: str

    @property
    def is_unrecognised(self) -> bool:
        """Whether there was nothing to judge: neither health nor a fault was seen."""
        return self.verdict == "unknown" and self.cause == "none"


class LogReading:
    """Collects the matches of all logs of one job.

    Attributes:
        findings: made by `finish`: what attribution judges, in order.
        progress_at: when steps last rose; 0.0 when no line said.
        ranks: node -> ranks as far as the logs tell.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.files: list[LogFile] = []
        self.kept: dict[tuple[str, str, int | None, int], list[Kept]] = {}
        self.order = 0
        self.total = 0
        self.findings: tuple[Finding, ...] = ()
        self.progress_at = 0.0
        self.ranks: dict[str, tuple[int, ...]] = {}
        self.aside: dict[str, str] = {}
        self._places: dict[str, Kept] = {}
        self._ruled: dict[str, tuple[Finding, int, int]] = {}
        self._timeouts: set[int] = set()
        self._passed: set[str] = set()
        self._ranks: set[int] = set()
        self._flight: Missing | None = None
        self._dumps = 0
        self._odd: tuple[int, ...] = ()
        self._stacks: Mapping[int, Sequence[StackFrame]] = {}
        self._counts_steps: dict[str, bool] = {}

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
            role = match.rule.role
            if match.at is not None:
                if file.progress_at is not None and file.progress_at - match.at > GUESSED_YEAR_S:
                    file.progress_at = match.at  # Stamps without a year were read with a later one than theirs.
                file.last_at = match.at
            if role is Role.PROGRESS or role is Role.CHECKPOINT:
                file.alive = max(file.alive, match.offset)
                self._progress(file, match)
            elif match.rule.kind == UNNAMED:
                file.unnamed.take(match)
            elif match.rule.kind == "completed":
                file.completed = self.order
                file.steps_after = 0
            elif match.rule.kind in {"checkpoint-loaded", "attempt-start"}:
                file.restarts.append(self.order)
            elif match.rule.id == "python.thread":
                file.thread_at = match.offset
            elif match.rule.id == "benign.ignored":
                file.ignored_at = match.offset
            elif match.rule.id in _BACK:
                file.back.update(dict.fromkeys(_BACK[match.rule.id], self.order))
            elif role in {Role.ROOT, Role.CASCADE} or match.rule.id in HELD_UP:
                self._keep(number, file, match)

    @property
    def no_job(self) -> bool:
        """All that was found was told by kernels, and nothing by a job."""
        has_job = any(file.progress_lines or file.completed is not None for file in self.files)
        return not has_job and all(k.match.rule.family in MACHINE for k in self._places.values())

    def recognise(self, number: int) -> None:
        """The log has the form of one, whatever its lines say."""
        self.files[number].recognised = True

    def flight(self, dumps: Sequence[Dump]) -> None:
        """Flight-recorder dumps of the job's ranks lie beside its logs."""
        self._dumps = len(dumps)
        self._flight = missing_ranks(dumps)

    def stacks(self, stacks: Mapping[int, Sequence[StackFrame]]) -> None:
        """Dumps of ranks' stacks lie beside the logs."""
        if len(stacks) > 1:
            self._odd = group_stacks(stacks)[1]
            self._stacks = stacks

    def _standing_apart(self, odd: Sequence[int], at: float) -> Finding:
        frames = self._stacks.get(odd[0], ())
        user = next((f for f in frames if "site-packages" not in f.file), frames[0] if frames else None)
        where = f", in {user.function} ({user.file}:{user.line})" if user is not None else ""
        return synthetic_finding(
            self.catalogue,
            "hang.rank",
            id="stacks:odd",
            at=at,
            place=Place(rank=odd[0]),
            summary=f"By the stacks, {listed_ranks(odd)} stands elsewhere while the others wait{where}",
            kind=EvidenceKind.STACK,
        )

    def _desync(self, missing: Missing, at: float) -> Finding:
        what = f"{listed_ranks(missing.ranks)} {missing.why}{f' ({missing.op})' if missing.op else ''}"
        return synthetic_finding(
            self.catalogue,
            "torch.desync",
            id="flight:desync",
            at=at,
            place=Place(rank=missing.ranks[0]),
            summary=f"By the flight recorder, {what}{f', last at {missing.frame}' if missing.frame else ''}",
            kind=EvidenceKind.STACK,
            captures={"seq": str(missing.collective)},
        )

    def ruled(self, number: int, outcomes: Sequence[RuleOutcome]) -> None:
        """What the job's own log rules say of this log."""
        for outcome in outcomes:
            change = outcome.change
            if is_hang(change) and self.files[number].completed is not None:
                continue
            finding = synthetic_finding(
                self.catalogue,
                finding_rule(change.after),
                id=f"{number:06d}:rule:{change.rule}",
                at=change.at,
                place=Place(),
                summary=f'Log rule "{change.rule}" is {change.after}: {change.why}',
                kind=EvidenceKind.LOG,
                text=change.text or f"{change.rule}: {change.why}",
                captures={"what": change.rule} | ({"elapsed_s": f"{change.for_s:.0f}"} if change.for_s else {}),
            )
            shown = replace(finding.evidence[0], file=self.files[number].name)
            self._ruled[finding.id] = (replace(finding, evidence=(shown,)), number, outcome.offset)

    def end(self, number: int, size: int) -> None:
        """The log is read to its end; it had so many bytes."""
        self.files[number].size = size

    def _progress(self, file: LogFile, match: Match) -> None:
        if match.rule.role is Role.CHECKPOINT:
            file.saves += 1
            return
        file.progress_lines += match.count
        file.last_progress = match
        file.step_after_end(match)
        name = match.rule.id
        numbers = match.numbers or _numbers(match)
        if name not in self._counts_steps:
            self._counts_steps[name] = "step" in match.rule.captures
        counted = numbers if self._counts_steps[name] else ()
        before = file.numbers.get(name)
        if match.at is not None:
            took = _line_time(match, file.progress_at, before, counted)
            if took is not None and len(file.step_times) < STEP_TIMES_MAX:
                file.step_times.append(took)
            file.progress_at = match.at
        if not counted:
            file.rises[name] = file.rises.get(name, 0) + match.count
            return
        for value in counted:
            if before is None or value > before:
                file.rises[name] = file.rises.get(name, 0) + 1
            elif value < before:
                file.restarts.append(self.order)
            before = value
        file.numbers[name] = counted[-1]

    def _keep(self, number: int, file: LogFile, match: Match) -> None:
        file.last_trouble = match.offset
        if match.rank is not None:
            self._ranks.add(match.rank)
            if match.rule.id in COLLECTIVE_WAITS:
                self._timeouts.add(match.rank)
        print_ = fingerprint(match.rule.id, match.captures, match.node)
        key = (match.rule.id, print_, match.rank, number)
        known = self.kept.setdefault(key, [])
        if len(known) >= KEPT_PER_TROUBLE or self.total >= KEPT_IN_ALL:
            if known:
                known[-1].count += 1
                known[-1].order = self.order
                known[-1].steps_then = dict(file.rises)
            return
        self.total += 1
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
        kept = Kept(finding, match, number, self.order, dict(file.rises))
        if file.thread_at is not None:
            kept.of_thread = match.offset - file.thread_at < THREAD_TRACE_BYTES
            file.thread_at = None
        if file.ignored_at is not None and match.rule.family in HANDLED:
            kept.ignored = match.offset - file.ignored_at < IGNORED_TRACE_BYTES
            file.ignored_at = None
        known.append(kept)
        self._places[finding.id] = kept

    def finish(self) -> None:
        """No more matches: work out times, set survived errors aside."""
        kept = sorted((k for group in self.kept.values() for k in group), key=lambda k: k.order)
        known = [file.last_at for file in self.files if file.last_at is not None]
        end = max(known, default=0.0)
        self.progress_at = max((f.progress_at for f in self.files if f.progress_at is not None), default=0.0)
        early = FindingTimes(kept, None, end)
        first = first_failure([k for k in kept if not self._why_aside(k, early)])
        times = FindingTimes(kept, first, end)
        findings: list[Finding] = []
        for k in kept:
            file = self.files[k.file]
            finding = replace(k.finding, at=times.of(k), count=k.count, captures=waits_of(k))
            if file.back.get(finding.rule, 0) > k.order:
                # It came back by itself: a cause only where a time-out points at it.
                finding = replace(finding, severity=Severity.WARNING)
                self._passed.add(finding.id)
            why = self._why_aside(k, times)
            if why:
                self.aside[finding.id] = why
            else:
                findings.append(finding)
        if all(f.domain is Domain.OPERATOR for f in findings if f.role is Role.ROOT):
            findings += self._silences()
        findings += [finding for finding, _, _ in self._ruled.values()]
        findings += self._without_name(findings, end)
        findings = best_left(findings)
        if self._flight is not None:
            findings.append(self._desync(self._flight, first if first is not None else end))
        if self._odd:
            findings.append(self._standing_apart(self._odd, (first if first is not None else end) - 0.5))
        self.findings = tuple(findings)
        if len(self._timeouts) > 1:
            self.ranks = {"": tuple(range(max(self._ranks) + 1))}

    def _why_aside(self, kept: Kept, times: FindingTimes) -> str:
        """Why a finding is no trouble; empty when it may be."""
        rule = kept.finding.rule
        alike = (group for key, group in self.kept.items() if key[0] == rule and key[3] == kept.file)
        seen = sum(k.count for group in alike for k in group) if counts_often(rule) else 0
        return set_aside(kept, self.files, at=times.of(kept), seen=seen)

    def _without_name(self, findings: Sequence[Finding], end: float) -> list[Finding]:
        """What ended the logs when no rule names a cause: errors known by their severity alone."""
        if self._flight is not None or self._odd or any(names_a_cause(f) for f in findings):
            return []
        found: list[Finding] = []
        told = {f.id for f in findings}
        ended = [f for f in findings if f.id in self._places and ended_only(f)]
        beside_job = any(file.progress_lines or file.completed is not None for file in self.files)
        for number, file in enumerate(self.files):
            if file.completed is not None:
                continue
            # The lines around an error that was set aside tell of the same error.
            over = [k.match.offset for k in self._places.values() if k.file == number and k.finding.id not in told]
            chain = file.unnamed.ending(
                size=file.size,
                after=max([file.alive, *over]),
                progressed=bool(file.progress_lines),
                beside_job=beside_job,
            )
            ends = [self._places[f.id].match.offset for f in ended if self._places[f.id].file == number]
            chain = without_aftermath(chain, min(ends, default=None))
            made = findings_of(chain, file=file.name, prefix=f"{number:06d}", at=end)
            for finding, match in zip(made, chain, strict=True):
                self._places[finding.id] = Kept(finding, match, number, self.order, {})
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
                    self._places[silence.id] = Kept(silence, last, number, self.order, {})
                found.append(silence)
        return found

    # --- the outcome ---

    def explanation(self, diagnosis: Diagnosis) -> Explanation:
        """The diagnosis in the documented form, with a verdict."""
        if diagnosis.cause == "unknown":
            return self._without_cause(diagnosis)
        if ended_without_reason(diagnosis, self.findings):
            return self._unknown(diagnosis, diagnosis.summary, f"{diagnosis.story} {WHO_KILLED}")
        return Explanation(
            verdict="fault",
            domain=str(diagnosis.domain),
            cause=diagnosis.cause,
            summary=diagnosis.summary,
            confidence=diagnosis.confidence,
            restart_helps=diagnosis.restart_helps,
            suspects=Suspects(diagnosis.nodes, diagnosis.ranks, diagnosis.gpus),
            evidence=self._evidence(diagnosis),
            story=diagnosis.story,
        )

    def _without_cause(self, diagnosis: Diagnosis) -> Explanation:
        troubled = [f for f in self.findings if f.severity in {Severity.ERROR, Severity.FATAL}]
        if troubled:
            return self._unknown(diagnosis, "Something failed, but no line names a cause.", diagnosis.story)
        if lasting := lasting_warnings(self.findings, frozenset(self._passed)):
            nodes = tuple(dict.fromkeys(f.place.node for f in lasting if f.place.node))
            seen = f"{lasting[-1].summary}, and no line says that it came back or that a job failed of it."
            return self._unknown(replace(diagnosis, nodes=diagnosis.nodes or nodes), seen, diagnosis.story)
        known = sum(file.recognised for file in self.files)
        if not known:
            return self._nothing()
        lines = sum(file.progress_lines for file in self.files)
        done = any(file.completed is not None for file in self.files)
        facts = [f"{lines} progress lines" if lines else "", "the work was completed" if done else ""]
        facts.append(f"{len(self.aside)} errors that the job survived" if self.aside else "")
        if known < len(self.files):
            facts.append(f"nothing is recognised in {len(self.files) - known} of {len(self.files)} files")
        told = "; ".join(fact for fact in facts if fact)
        story = f"No line speaks of a fault{f' ({told})' if told else ''}."
        # A log that says little about itself proves little about its health.
        confidence = 0.95 if done else 0.85 if lines else 0.6
        return Explanation(
            "healthy", "unknown", "none", "Nothing is wrong in these logs.", confidence, None, Suspects(), (), story
        )

    def _nothing(self) -> Explanation:
        """Neither health nor a fault: all that was read says nothing."""
        size = sum(file.size for file in self.files)
        read = f"{len(self.files)} files" if len(self.files) > 1 else self.files[0].name if self.files else "no log"
        what = f"{size} bytes of {read} were read: no line" if size else f"Nothing stands in {read}: no line"
        if self._dumps:
            what = f"{self._dumps} flight-recorder dumps agree on what every rank began. {what}"
        story = f"{what} shows progress, an end of the work or an error, and none has the form of a log's line."
        summary = "There is nothing to judge in these logs."
        return Explanation("unknown", "unknown", "none", summary, 0.0, None, Suspects(), (), story)

    def _unknown(self, diagnosis: Diagnosis, summary: str, story: str) -> Explanation:
        suspects = Suspects(diagnosis.nodes, diagnosis.ranks, diagnosis.gpus)
        shown = self._evidence(diagnosis)
        return Explanation("unknown", "unknown", "unknown", summary, diagnosis.confidence, None, suspects, shown, story)

    def _evidence(self, diagnosis: Diagnosis) -> tuple[EvidenceLine, ...]:
        """Lines with the root first, then cascade, then context; in order of the logs within each."""
        rank = {Role.ROOT: 0, Role.CASCADE: 1}
        by_id = {finding.id: finding for finding in self.findings}
        judged = sorted(
            (j for j in diagnosis.judged if j.finding in by_id),
            key=lambda j: (j.why != "the first that nothing else explains", rank.get(j.role, 2)),
        )
        lines: list[EvidenceLine] = []
        seen: dict[str, int] = {}
        for j in judged:
            seen[j.rule] = seen.get(j.rule, 0) + 1
            if seen[j.rule] > 4 or len(lines) >= EVIDENCE_SHOWN:
                continue
            evidence = by_id[j.finding].evidence[0]
            lines.append(EvidenceLine(evidence.file, evidence.line, evidence.text, str(j.role), j.rule))
        return tuple(lines)

    def with_novelty(self, explained: Explanation, lines: Sequence[EvidenceLine]) -> Explanation:
        """An explanation without a cause, with lines that the job never printed before."""
        told = {(line.file, line.line) for line in explained.evidence}
        lines = [line for line in lines if (line.file, line.line) not in told]
        if not lines:
            return explained
        quoted = "; ".join(f'"{line.text.strip()[:120]}"' for line in lines[:3])
        story = f"{explained.story} Printed near the end and never before: {quoted}."
        return replace(explained, story=story, evidence=(*explained.evidence, *lines))

    def place_of(self, finding_id: str) -> tuple[int, int] | None:
        """(file number, byte offset) of a finding's line, for counting its line number afterwards."""
        if finding_id in self._ruled:
            _, file, offset = self._ruled[finding_id]
            return (file, offset) if offset >= 0 else None
        kept = self._places.get(finding_id)
        return (kept.file, kept.match.offset) if kept is not None else None


def _numbers(match: Match) -> tuple[float, ...]:
    text = match.captures.get("step") or match.captures.get("done") or ""
    return (float(text),) if text.isdigit() else ()


def _line_time(match: Match, last: float | None, before: float | None, steps: Sequence[float]) -> float | None:
    """Seconds from one line of progress to the next; of many in one match by their steps, as lines may be left unread.

    Args:
        match: the lines.
        last: the time on the line of progress that was read before them, Unix seconds.
        before: the step on it.
        steps: those on the lines; empty where the rule counts none.
    """
    if match.at is None or last is None:
        return None
    if match.count == 1:
        return match.at - last
    if before is None or not steps or not before < steps[0] < steps[-1]:
        return None
    return (match.at - last) / (steps[-1] - before) * (steps[-1] - steps[0]) / (match.count - 1)


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
    return StreamSource(kind=StreamKind.ANY, name=name, node=node, rank=rank)
