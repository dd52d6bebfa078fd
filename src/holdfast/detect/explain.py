"""What `holdfast explain` answers: a diagnosis in the documented form, with a verdict. Pure.

Called once, when all logs are read. A log may say how something ended and not why: then the verdict is `unknown`, with
the candidates. A bare "Killed" is the kernel's doing for memory, the scheduler's, or a person's; a link that went down
is a cause only of what came after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.detect.meaning import Trait, has
from holdfast.detect.reading import LogReading
from holdfast.model.evidence import Diagnosis, Finding, Role, Severity

EVIDENCE_SHOWN = 24
SHOWN_PER_RULE = 4
_OWN_FAULTS = frozenset({"4", "6", "7", "8", "11", "SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV"})
"""Signals that a process brings on itself."""
_WHO_KILLED = (
    "No line says who ended it: the kernel or the cgroup for memory (see the node's kernel log), the scheduler (see "
    "its accounting), or a person."
)


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

    @property
    def names_no_reason(self) -> bool:
        """Whether it says at most how something ended: lines that the job never printed before may say why."""
        return self.verdict == "unknown" or has(self.cause, Trait.NO_REASON)


def explanation(reading: LogReading, diagnosis: Diagnosis, root: str) -> Explanation:
    """The diagnosis in the documented form, with a verdict.

    Args:
        reading: of the logs.
        diagnosis: of its findings.
        root: id of the finding that is the diagnosis's cause; empty: none is.
    """
    shown = _evidence(reading, diagnosis, root)
    if diagnosis.cause == "unknown":
        return _without_cause(reading, diagnosis, shown)
    if _ended_without_reason(diagnosis, reading.findings):
        return _unknown(diagnosis, shown, diagnosis.summary, f"{diagnosis.story} {_WHO_KILLED}")
    return Explanation(
        verdict="fault",
        domain=str(diagnosis.domain),
        cause=diagnosis.cause,
        summary=diagnosis.summary,
        confidence=diagnosis.confidence,
        restart_helps=diagnosis.restart_helps,
        suspects=Suspects(diagnosis.nodes, diagnosis.ranks, diagnosis.gpus),
        evidence=shown,
        story=diagnosis.story,
    )


def _without_cause(reading: LogReading, diagnosis: Diagnosis, shown: tuple[EvidenceLine, ...]) -> Explanation:
    troubled = [f for f in reading.findings if f.severity in {Severity.ERROR, Severity.FATAL}]
    if troubled:
        return _unknown(diagnosis, shown, "Something failed, but no line names a cause.", diagnosis.story)
    if lasting := _lasting_warnings(reading):
        nodes = tuple(dict.fromkeys(f.place.node for f in lasting if f.place.node))
        seen = f"{lasting[-1].summary}, and no line says that it came back or that a job failed of it."
        return _unknown(replace(diagnosis, nodes=diagnosis.nodes or nodes), shown, seen, diagnosis.story)
    known = sum(file.recognised for file in reading.files)
    if not known:
        return _nothing(reading)
    lines = sum(file.progress_lines for file in reading.files)
    done = any(file.completed is not None for file in reading.files)
    facts = [f"{lines} progress lines" if lines else "", "the work was completed" if done else ""]
    facts.append(f"{len(reading.aside)} errors that the job survived" if reading.aside else "")
    if known < len(reading.files):
        facts.append(f"nothing is recognised in {len(reading.files) - known} of {len(reading.files)} files")
    told = "; ".join(fact for fact in facts if fact)
    story = f"No line speaks of a fault{f' ({told})' if told else ''}."
    # A log that says little about itself proves little about its health.
    confidence = 0.95 if done else 0.85 if lines else 0.6
    return Explanation(
        "healthy", "unknown", "none", "Nothing is wrong in these logs.", confidence, None, Suspects(), (), story
    )


def _nothing(reading: LogReading) -> Explanation:
    """Neither health nor a fault: all that was read says nothing."""
    size = sum(file.size for file in reading.files)
    read = (
        f"{len(reading.files)} files"
        if len(reading.files) > 1
        else reading.files[0].name
        if reading.files
        else "no log"
    )
    what = f"{size} bytes of {read} were read: no line" if size else f"Nothing stands in {read}: no line"
    if reading.beside.dumps:
        what = f"{reading.beside.dumps} flight-recorder dumps agree on what every rank began. {what}"
    story = f"{what} shows progress, an end of the work or an error, and none has the form of a log's line."
    summary = "There is nothing to judge in these logs."
    return Explanation("unknown", "unknown", "none", summary, 0.0, None, Suspects(), (), story)


def _ended_without_reason(diagnosis: Diagnosis, findings: Sequence[Finding]) -> bool:
    """Whether all that is told is a bare "Killed" or "Terminated"."""
    if not has(diagnosis.cause, Trait.FROM_OUTSIDE):
        return False
    if any(f.rule == diagnosis.cause and f.captures.get("signal") in _OWN_FAULTS for f in findings):
        return False
    return not any(has(f.rule, Trait.LAUNCHER_SAW) for f in findings)


def _lasting_warnings(reading: LogReading) -> list[Finding]:
    """Warnings of a root's kind that no later line takes back."""
    return [
        f
        for f in reading.findings
        if has(f.rule, Trait.LASTING)
        and f.role is Role.ROOT
        and f.severity is Severity.WARNING
        and f.id not in reading.passed
    ]


def _unknown(diagnosis: Diagnosis, shown: tuple[EvidenceLine, ...], summary: str, story: str) -> Explanation:
    suspects = Suspects(diagnosis.nodes, diagnosis.ranks, diagnosis.gpus)
    return Explanation("unknown", "unknown", "unknown", summary, diagnosis.confidence, None, suspects, shown, story)


def _evidence(reading: LogReading, diagnosis: Diagnosis, root: str) -> tuple[EvidenceLine, ...]:
    """Lines with the root first, then cascade, then context; in order of the logs within each."""
    rank = {Role.ROOT: 0, Role.CASCADE: 1}
    by_id = {finding.id: finding for finding in reading.findings}
    judged = sorted(
        (j for j in diagnosis.judged if j.finding in by_id),
        key=lambda j: (j.finding != root, rank.get(j.role, 2)),
    )
    lines: list[EvidenceLine] = []
    seen: dict[str, int] = {}
    for j in judged:
        seen[j.rule] = seen.get(j.rule, 0) + 1
        if seen[j.rule] > SHOWN_PER_RULE or len(lines) >= EVIDENCE_SHOWN:
            continue
        evidence = by_id[j.finding].evidence[0]
        lines.append(EvidenceLine(evidence.file, evidence.line, evidence.text, str(j.role), j.rule))
    return tuple(lines)


def with_novelty(explained: Explanation, lines: Sequence[EvidenceLine]) -> Explanation:
    """An explanation without a cause, with lines that the job never printed before."""
    told = {(line.file, line.line) for line in explained.evidence}
    lines = [line for line in lines if (line.file, line.line) not in told]
    if not lines:
        return explained
    quoted = "; ".join(f'"{line.text.strip()[:120]}"' for line in lines[:3])
    story = f"{explained.story} Printed near the end and never before: {quoted}."
    return replace(explained, story=story, evidence=(*explained.evidence, *lines))
