"""What a line of progress or of a checkpoint tells: which step, where, and how long it took.

Used by the launcher and the agent, which make events of it. Pure.
"""

from __future__ import annotations

import re

from holdfast.detect.matcher import Match
from holdfast.model.bounds import STEP_MAX
from holdfast.model.evidence import Role

__all__ = ["is_durable", "path_told", "seconds_told", "step_told"]

_STEP_IN_PATH = re.compile(r"(?<![A-Za-z])(?:global_)?(?:step|iter|iteration|checkpoint)[=_-]?(\d+)")


def step_told(match: Match) -> int | None:
    """The step that the line names, for a checkpoint also in its path (`/ckpt/iter_0000120`); at most `STEP_MAX`."""
    named = match.captures.get("step", "")
    if not named.isdecimal():
        named = (_STEP_IN_PATH.findall(path_told(match)) or [""])[-1] if match.rule.role is Role.CHECKPOINT else ""
    step = int(named) if named else STEP_MAX + 1
    return step if step <= STEP_MAX else None


def path_told(match: Match) -> str:
    """The path of a checkpoint that the line names; empty: none."""
    return match.captures.get("path", "") or match.captures.get("file", "")


def seconds_told(match: Match) -> float | None:
    """The seconds that the line tells."""
    for name, unit in (("elapsed_s", 1.0), ("elapsed_ms", 1000.0)):
        try:
            return float(match.captures[name]) / unit
        except (KeyError, ValueError):
            continue
    return None


def is_durable(match: Match) -> bool:
    """Whether the line says that the checkpoint lies on storage.

    "Finished staging" and "saving (or staging if async is enabled)" are no proof of anything on disk.
    """
    return "staging" not in match.text.lower()
