"""Which step a checkpoint's name tells: `iter_0000120`, `step=400`, `global_step120`. Pure.

Called by `frameworks` for names of folders and files, and by `integrations.nvrx` for a path that is saved to.
"""

from __future__ import annotations

import re

_STEP = re.compile(r"(?<![A-Za-z])(?:global_)?(?:step|iter|iteration|it)[=_-]?(\d+)")


def step_in(*names: str) -> int | None:
    """The last step that one of the names tells; None when none does. A word that only ends so (`unit_3`) is none."""
    found = [number for name in names for number in _STEP.findall(name)]
    return int(found[-1]) if found else None
