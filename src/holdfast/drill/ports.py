"""What drills need from outside, as protocols: a breaker of nodes, and the controller's eyes.

`faults` and the runner use them; the embedded cluster's own client, `slurm_cluster` and `eyes` fulfil them, and in
tests parts in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from holdfast.model.cluster import JobKey
from holdfast.model.events import AnyEvent
from holdfast.model.records import IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.ports import Clock


class FaultPort(Protocol):
    """Breaks nodes on purpose. Every call raises RefusedError when the target is not open to drills.

    Undoing calls (`power_on`, `heal`, `free_disk`) succeed when there is nothing to undo.
    """

    async def kmsg(self, node: str, text: str) -> object:
        """Append a line to the node's kernel log."""

    async def power_off(self, node: str) -> object:
        """End everything on the node at once."""

    async def power_on(self, node: str) -> object:
        """Boot a node that is off."""

    async def cut(self, node: str) -> object:
        """Cut the node off the network."""

    async def heal(self, node: str) -> object:
        """Undo `cut`."""

    async def fill_disk(self, node: str) -> object:
        """Leave no space on the node's scratch file system."""

    async def free_disk(self, node: str) -> object:
        """Undo `fill_disk`."""


@runtime_checkable
class SchedulerFaultPort(FaultPort, Protocol):
    """Breaks, beside nodes, the scheduler itself and what it stands on. Undoing twice is fine here too."""

    async def kill_slurmd(self, node: str) -> object:
        """SIGKILL the node's slurmd; its job goes on."""

    async def start_slurmd(self, node: str) -> object:
        """Undo `kill_slurmd`."""

    async def reboot(self, node: str) -> object:
        """Power the node off and on again; returns when it is off."""

    async def kill_scheduler(self) -> object:
        """SIGKILL slurmctld."""

    async def start_scheduler(self) -> object:
        """Undo `kill_scheduler`; returns when it answers."""

    async def stop_accounting(self) -> object:
        """End slurmdbd."""

    async def start_accounting(self) -> object:
        """Undo `stop_accounting`."""

    async def fill_shared(self) -> object:
        """Leave no space on the file system that all nodes share."""

    async def free_shared(self) -> object:
        """Undo `fill_shared`."""


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
