"""What drills need from outside: the cluster and the job that they break, and a breaker of nodes, as a protocol.

`faults` and the runner use them; the embedded cluster's own client and `clusters` fulfil the protocol, and in tests
parts in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from holdfast.drill.eyes import ControllerEyes
from holdfast.model.cluster import JobKey
from holdfast.ports import Clock


class FaultPort(Protocol):
    """Breaks nodes on purpose, and in a lab the scheduler and what it stands on."""

    deeds: AbstractSet[str]
    """What it can do and undo; `faults.BREAKS` says what each is for."""

    async def do(self, deed: str, node: str = "", **facts: Any) -> object:
        """Do one of `deeds` to a node, or to what all nodes share. Undoing what was not done succeeds.

        Raises:
            RefusedError: the target is not open to drills.
        """


class Site(Struct, kw_only=True):
    """Where drills are run."""

    eyes: ControllerEyes
    job: JobKey
    clock: Clock
    breaker: FaultPort | None = None
    """None: faults inside the job only."""
    job_dir: Path | None = None
    """The job's folder, where the scheduler does not know it."""
    losses: Callable[[], float | None] | None = None
    """Largest difference of the job's losses to an undisturbed run; None: cannot be told."""
    step_s: float = 0.0
    """What a step takes, where the controller does not know."""
    on_story: Callable[[str], None] | None = None
    """Is told each line that the job's record gets; None: nobody reads along."""
    told: str = ""
    """The last line that was told."""
