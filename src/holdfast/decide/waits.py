"""How long what a finding tells of had lasted when it was reported: time-outs and hangs are seen at their end. Pure."""

from __future__ import annotations

import re

from holdfast.detect.meaning import Trait, has
from holdfast.model.evidence import Finding

STUCK = "stuck_s"
"""Capture of a hang's finding: seconds for which nothing had moved."""
SLOW_STEP, USUAL_STEP = "slow_step_s", "usual_step_s"
"""Captures of a straggler's finding: how long steps take, and took before."""
WAIT_MAX_S = 86400.0
"""No collective waits longer; a larger number is a misprint."""
_SAID = (("elapsed_ms", 1e-3), ("timeout_ms", 1e-3), ("elapsed_s", 1.0), (STUCK, 1.0))
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,6})?")


def waited_s(finding: Finding) -> float:
    """Seconds for which its rank, or the job, had waited in vain when it was reported; 0: it tells of no wait."""
    if not has(finding.rule, Trait.WAIT):
        return 0.0
    said = (float(text) * unit_s for name, unit_s in _SAID if _NUMBER.fullmatch(text := finding.captures.get(name, "")))
    return min(WAIT_MAX_S, next(said, 0.0))


def waited_share(finding: Finding) -> float:
    """Share of a straggler's time for which the others waited for it, as its finding tells; 0: it tells of none."""
    slow, usual = (finding.captures.get(name, "") for name in (SLOW_STEP, USUAL_STEP))
    if not (_NUMBER.fullmatch(slow) and _NUMBER.fullmatch(usual)) or float(slow) <= 0:
        return 0.0
    return max(0.0, 1.0 - float(usual) / float(slow))
