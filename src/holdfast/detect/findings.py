"""Matches, exits and detectors' results made into findings: named, placed, timed, bounded, with a fingerprint.

Launchers, agents and `holdfast explain` call this; the engine and `decide.diagnosis` read the outcome. The time of a
finding is the caller's, not the line's.
"""

from __future__ import annotations

import hashlib
import re
import signal as signals
from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.detect.catalogue import Catalogue, Rule
from holdfast.detect.lines import place_number
from holdfast.detect.matcher import Match
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Evidence, EvidenceKind, Finding, Place

EVIDENCE_TEXT_MAX = 400
CAPTURE_TEXT_MAX = 200

_STRIPPED = re.compile(
    r"0x[0-9a-fA-F_]+"
    r"|\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\b"
    r"|\b\d{4}-\d\d-\d\d[T ]?|\b\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
)
_IDENTIFYING = (
    "type",
    "message",
    "file",
    "function",
    "line",
    "what",
    "reason",
    "op",
    "code",
    "signal",
    "link",
    "verdict",
)
"""Captures that tell one trouble from another; ranks, nodes, pids, steps and times do not."""


def fingerprint(rule_id: str, captures: Mapping[str, str], node: str = "") -> str:
    """Same trouble, same text: the rule and a hash of what identifies it, without rank, node, address and time."""
    parts = [rule_id]
    for name in _IDENTIFYING:
        value = captures.get(name, "")
        if not value:
            continue
        if node:
            value = value.replace(node, "")
        if name not in {"code", "signal", "link", "line", "op"}:
            value = _STRIPPED.sub("#", value)
        parts.append(f"{name}={value}")
    if len(parts) == 1:
        return rule_id
    return f"{rule_id}:{hashlib.blake2b('|'.join(parts).encode(), digest_size=6).hexdigest()}"


def to_finding(
    match: Match,
    *,
    source_place: Place,
    job: JobKey | None,
    attempt: int | None,
    at: float,
    id_prefix: str,
    file: str = "",
) -> Finding:
    """The finding that a match stands for.

    Args:
        match: from a `LineStream`.
        source_place: where the stream is read; what the line itself says goes before it.
        job: the job that runs there, if known.
        attempt: its attempt.
        at: when it was seen, Unix seconds on this machine.
        id_prefix: makes the id unique among sources, such as `node07:kern`; place in the stream is appended.
        file: the stream's name as shown beside the evidence.
    """
    rule = match.rule
    captures = {name: value[:CAPTURE_TEXT_MAX] for name, value in match.captures.items()}
    place = _place(match, source_place)
    return Finding(
        id=f"{id_prefix}:{match.offset}:{rule.id}",
        rule=rule.id,
        at=at,
        domain=rule.domain,
        role=rule.role,
        severity=rule.severity,
        remedy=rule.remedy,
        place=place,
        job=job,
        attempt=attempt,
        summary=summary_of(rule, captures),
        fingerprint=fingerprint(rule.id, captures, place.node),
        evidence=(Evidence(EvidenceKind.LOG, match.text.strip()[:EVIDENCE_TEXT_MAX], file=file, line=match.line_no),),
        captures=captures,
    )


def summary_of(rule: Rule, captures: Mapping[str, str]) -> str:
    """One clause about what was seen, without its place."""
    title = rule.title or rule.id
    if kind := captures.get("type"):
        text = f"{kind}: {captures.get('message', '').lstrip(': ')}".rstrip(": ")
        where = f" at {captures['file']}:{captures.get('line', '?')}" if captures.get("file") else ""
        return f"{title}: {text[:160]}{where}"
    if link := captures.get("link"):
        return f"{title} (link {link})"
    return title


def _place(match: Match, source: Place) -> Place:
    captures = match.captures
    gpu = place_number(captures.get("gpu", ""))
    return Place(
        node=match.node or source.node,
        rank=match.rank if match.rank is not None else source.rank,
        gpu=gpu if gpu is not None else source.gpu,
        gpu_id=captures.get("gpu_id", source.gpu_id),
        link=captures.get("link", source.link),
        path=captures.get("path", source.path)[:CAPTURE_TEXT_MAX],
    )


def synthetic_finding(
    catalogue: Catalogue,
    rule_id: str,
    *,
    id: str,  # noqa: A002 - the field's own name
    at: float,
    place: Place,
    job: JobKey | None = None,
    attempt: int | None = None,
    summary: str = "",
    kind: EvidenceKind = EvidenceKind.EXIT,
    text: str = "",
    captures: Mapping[str, str] | None = None,
    confidence: float = 1.0,
) -> Finding:
    """A finding that no line shows: an exit, a hang, a lost node, a failed check."""
    rule = catalogue.get(rule_id)
    known = dict(captures or {})
    return Finding(
        id=id,
        rule=rule_id,
        at=at,
        domain=rule.domain,
        role=rule.role,
        severity=rule.severity,
        remedy=rule.remedy,
        place=place,
        job=job,
        attempt=attempt,
        summary=summary or summary_of(rule, known),
        fingerprint=fingerprint(rule_id, known, place.node),
        evidence=(Evidence(kind, (text or summary or rule.title)[:EVIDENCE_TEXT_MAX]),),
        captures=known,
        confidence=confidence,
    )


def exit_rule(*, exit_code: int | None, signal: int | None) -> str:
    """`exit.signal.11`, `exit.code.1`; a shell's 128+n counts as the signal. Empty for a clean end."""
    if signal:
        return f"exit.signal.{signal}"
    if exit_code is None or exit_code == 0:
        return ""
    if exit_code < 0:
        return f"exit.signal.{-exit_code}"
    if 128 < exit_code < 128 + 65 and exit_code - 128 in {int(known) for known in signals.Signals}:
        return f"exit.signal.{exit_code - 128}"
    return f"exit.code.{exit_code}"


class RuleRates:
    """Keeps a chatty rule from flooding: at most `rate_per_min` findings of one rule and writer a minute.

    What is held back is counted and told with the next one that passes. Time comes with each call.
    """

    def __init__(self) -> None:
        self._windows: dict[tuple[str, int | None], tuple[float, int, int]] = {}

    def admit(self, rule: Rule, rank: int | None, at: float) -> int:
        """How many matches the finding stands for: 0 means hold it back, 3 that two were held back before."""
        key = (rule.id, rank)
        start, passed, held = self._windows.get(key, (at, 0, 0))
        if not 0 <= at - start < 60:
            start, passed = at, 0
        if passed >= rule.rate_per_min:
            self._windows[key] = (start, passed, held + 1)
            return 0
        self._windows[key] = (start, passed + 1, 0)
        return held + 1


def counted(finding: Finding, count: int) -> Finding:
    """The finding, standing for `count` of its like."""
    return finding if count == 1 else replace(finding, count=count)
