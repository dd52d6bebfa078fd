"""The two events by which an agent tells of findings. Pure; times are Unix seconds."""

from __future__ import annotations

from holdfast.model.events import FindingCleared, FindingSeen
from holdfast.model.evidence import Finding


def seen(finding: Finding, source: str) -> FindingSeen:
    """A finding, as this source tells it."""
    return FindingSeen(id=f"seen:{finding.id}", at=finding.at, source=source, finding=finding)


def cleared(rule: str, node: str, source: str, at: float) -> FindingCleared:
    """What a rule had found on a node is no longer there."""
    return FindingCleared(id=f"cleared:{source}:{rule}:{at:.3f}", at=at, source=source, rule=rule, node=node)
