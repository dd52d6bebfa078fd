"""Unix time that goes on evenly, for processes whose waits are counted in the times that they tell of.

A launcher's findings, progress and limits are told and compared by one clock. Where the machine's clock is set while
it runs, an hour forward would be an hour of silence to it, and an hour back a fault that is never due. So it takes the
wall clock once and counts on by the monotonic one. Who hears of it knows from its beats how far it is off.
"""

from __future__ import annotations

import time

_BEGAN = time.time() - time.monotonic()


def steady_time() -> float:
    """Unix seconds, by the machine's clock as it stood when this process began."""
    return _BEGAN + time.monotonic()
