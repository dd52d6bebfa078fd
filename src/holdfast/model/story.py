"""Sentences: how records tell what happened to them and why, for the page, the message and the error.

Called wherever a record changes. Stories are bounded: the beginning and the newest lines are kept. Times are those of
the events, written in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.model.evidence import Diagnosis, Finding

STORY_LINES_MAX = 200
_KEPT_HEAD = 40


def clock(at: float) -> str:
    """`14:03:07Z` of a Unix time."""
    return datetime.fromtimestamp(at, tz=UTC).strftime("%H:%M:%SZ")


def tell(story: list[str], at: float, sentence: str) -> None:
    """Add one sentence; the oldest ones behind the beginning make room."""
    line = f"{clock(at)} {sentence}"
    if story and story[-1] == line:
        return
    story.append(line)
    if len(story) > STORY_LINES_MAX:
        del story[_KEPT_HEAD]


def seconds(value: float) -> str:
    """`0.4 s`, `12 s`, `5 min`, `3.5 h`, `2 days`: as a person would say it."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h" if value < 172800 else f"{value / 86400:.0f} days"


def listed(names: list[str] | tuple[str, ...], most: int = 6) -> str:
    """`a`, `a and b`, `a, b and c`, `a, b and 61 more`."""
    shown = list(names)
    if len(shown) > most:
        return f"{', '.join(shown[: most - 1])} and {len(shown) - most + 1} more"
    return " and ".join(part for part in (", ".join(shown[:-1]), shown[-1]) if part) if shown else "nobody"


def of_finding(finding: Finding) -> str:
    """One line: what was seen and where."""
    what = finding.summary or finding.rule
    times = f", {finding.count} times" if finding.count > 1 else ""
    return f"{what} ({finding.place}{times})"


def of_diagnosis(diagnosis: Diagnosis) -> str:
    """One sentence: the cause, how sure, and whom it points at."""
    suspects = [*diagnosis.gpus[:3]] or [*diagnosis.nodes[:3]] or [f"rank {rank}" for rank in diagnosis.ranks[:3]]
    what = diagnosis.clause
    told = any(name in what for name in suspects) or any(f"on {name}" in what for name in diagnosis.nodes)
    where = f", on {listed(suspects)}" if suspects and not told else ""
    return f"{what}{where} (domain {diagnosis.domain}, {diagnosis.confidence:.0%} sure)."
