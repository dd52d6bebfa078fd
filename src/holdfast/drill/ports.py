"""What drills need from outside, as protocols: a breaker of nodes, and the controller's eyes.

`faults` and the runner use them; the embedded cluster's own client, `clusters` and `eyes` fulfil them, and in tests
parts in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from holdfast.model.cluster import JobKey
from holdfast.model.events import AnyEvent
from holdfast.model.records import IncidentRecord, JobRecord, NodeRecord, OrderRecord
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


class Eyes(Protocol):
    """What the controller knows. Every call raises LinkError when it cannot be reached."""

    async def job(self, key: JobKey) -> JobRecord:
        """The job's record. Raises NotFoundError."""

    async def nodes(self) -> list[NodeRecord]:
        """All nodes."""

    async def incidents(self) -> list[IncidentRecord]:
        """All incidents, newest first."""

    async def orders(self) -> list[OrderRecord]:
        """Orders, newest first, bounded."""

    async def wait(self, after: int, timeout_s: float) -> int:
        """Wait until an event with a sequence number above `after` is stored, or the time is over; the newest one."""

    async def tell(self, events: Sequence[AnyEvent]) -> None:
        """Hand events of one source, one at least, to the controller (the true time of a fault)."""

    async def step_times(self, key: JobKey, attempt: int) -> list[float]:
        """Seconds that steps of an attempt took, oldest first; empty when nobody measured any."""


class Site(Struct, kw_only=True):
    """Where drills are run."""

    eyes: Eyes
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
