"""What the controller and the launcher need from the outside, as protocols. Adapters fulfil them; `cli/` wires them.

Time passes only behind these ports: in production by the machine's clock, in simulation by a virtual one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from holdfast.model.cluster import WorldView
from holdfast.model.events import AnyEvent
from holdfast.model.orders import AnyOrder, Notify
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.records import Touched as Touched  # noqa: PLC0414 - part of this contract


class Clock(Protocol):
    """The time, and waiting for it."""

    def now(self) -> float:
        """Unix seconds."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never go back."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Have `callback` called once; the returned function cancels it."""


class Orchestrator(Protocol):
    """A scheduler: looks at the world and carries out orders about jobs and nodes."""

    name: str

    async def observe(self) -> WorldView:
        """One snapshot of all jobs and nodes. Raises LinkError when the scheduler cannot be read."""

    async def wait_change(self, timeout_s: float) -> bool:
        """Return True as soon as a new look is worth while, False after `timeout_s`."""

    def can(self, order: AnyOrder) -> bool:
        """Does this adapter carry out orders of this kind?"""

    async def execute(self, order: AnyOrder) -> str:
        """Bring about what the order asks ("ensure": already so is success). Returns one line of detail.

        Raises:
            TemporaryOrderError: worth another try later.
            PermanentOrderError: no further try will help.
        """


@runtime_checkable
class Witness(Protocol):
    """Can prove, from the scheduler's side, that a node does not run."""

    async def why_gone(self, node: str, *, claimed: bool = False) -> str:
        """The proof in words; empty when there is none: then it may run.

        Args:
            node: its name.
            claimed: the kernel of this node is said to have reset a connection. Then it suffices that the scheduler's
                daemon on it takes none; without such a word that is proof of nothing.

        Raises:
            LinkError: nobody could be asked.
        """


@runtime_checkable
class Closable(Protocol):
    """Has things under way or open that are to be ended before the program is."""

    async def close(self) -> None:
        """End them; nothing of it is asked afterwards."""


class Repair(Protocol):
    """Repairs nodes: reset, reboot, replace. Same contract as `Orchestrator.execute`."""

    def can(self, order: AnyOrder) -> bool:
        """Does this adapter carry out orders of this kind?"""

    async def execute(self, order: AnyOrder) -> str:
        """See `Orchestrator.execute`."""


class Notifier(Protocol):
    """Tells people. Delivery is at least once; the journal retries what failed."""

    async def send(self, notice: Notify) -> None:
        """Deliver. Raises TemporaryOrderError when it should be tried again."""


class Entry(Struct):
    """One step of history: the event (with its `seq`), the orders it led to, the records it changed."""

    event: AnyEvent
    orders: list[AnyOrder]
    touched: Touched


class Sample(Struct, frozen=True):
    """One point of a series (`step`, `loss`, `step_s`, `gpu_temp`...) about a subject (`job:1778(0)/rank:3`)."""

    series: str
    subject: str
    at: float
    value: float


class LeaseRow(Struct, frozen=True):
    """Who holds a lease, as it stands in its store. Any renewal changes it."""

    holder: str
    """Empty: it was given back."""
    epoch: int
    expires: float
    """Unix seconds by the holder's clock. Others, whose clocks differ, may only see whether it changes."""
    lease_s: float = 0.0
    """How long the holder may act after it last renewed; 0: not known."""


class Journal(Protocol):
    """The store of events and orders, and the authority over who is the active controller."""

    async def lease(self) -> LeaseRow | None:
        """The lease as it stands; None when nobody has ever held it."""

    async def acquire(self, holder: str, *, lease_s: float, now: float, seen: LeaseRow | None = None) -> int:
        """Take the lease; returns the fencing epoch.

        With `seen` it is taken from a holder that was seen to be silent for long enough, by whatever clock, and only
        if the row is still that one. Without, it is taken when it has expired by `now`, which is right only where
        holder and caller share a clock.

        Raises:
            JournalBusyError: another's lease is alive.
        """

    async def renew(self, *, now: float) -> None:
        """Keep the lease. Raises FencedError when a newer epoch exists."""

    async def release(self) -> None:
        """Give the lease back so that a standby can take over at once."""

    async def load(self) -> tuple[bytes | None, int, Iterable[AnyEvent]]:
        """The newest engine snapshot (or None), its seq, and all events after it in order."""

    async def append(self, entries: Sequence[Entry]) -> None:
        """Store in one transaction, fenced by the epoch. Raises FencedError, JournalError."""

    async def snapshot(self, state: bytes, seq: int) -> None:
        """Store the engine's state as of `seq`."""

    async def seen(self, event_ids: Sequence[str]) -> set[str]:
        """Which of these event ids are stored already."""

    async def last_seq(self) -> int:
        """Sequence number of the newest event, 0 when empty."""

    async def events(
        self, *, after: int = 0, before: int = 0, limit: int = 1000, newest: bool = False, **where: Any
    ) -> list[AnyEvent]:
        """Events with seq > after (and < before, unless that is 0), oldest first; with `newest` the last `limit`.

        `where`: incident, job, node, kind.
        """

    async def entries(self, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        """Events with seq > after and the orders they led to (`touched` is not kept and stays empty)."""

    async def entry(self, event_id: str) -> Entry | None:
        """The event of this id and the orders it led to; None: it is not stored, or no longer."""

    async def entries_before(self, before: int, *, kinds: Sequence[str], limit: int = 100) -> list[Entry]:
        """Events of these kinds with seq < before and the orders they led to, newest first: the audit's pages."""

    async def jobs(self, *, job: str | Sequence[str] = "") -> list[JobRecord]:
        """Read model; `job` as `str(JobKey)` writes it asks for one, a sequence for several."""

    async def nodes(self, *, node: str | Sequence[str] = "") -> list[NodeRecord]:
        """Read model; `node` asks for one, a sequence for several."""

    async def brakes(self) -> list[BrakeRecord]:
        """Read model."""

    async def incidents(
        self,
        *,
        incident: str = "",
        job: str = "",
        node: str = "",
        open_only: bool = False,
        limit: int = 1000,
        before: tuple[float, str] | None = None,
    ) -> list[IncidentRecord]:
        """Read model, newest first; `incident` asks for one, `before` (opened_at, id) for the page behind that one.

        `job` (as `str(JobKey)` writes it) and `node`: those that concern it. The limit counts what is asked for alone.
        """

    async def orders(
        self,
        *,
        order: str = "",
        incident: str = "",
        job: str = "",
        node: str = "",
        pending_only: bool = False,
        limit: int = 1000,
        before: tuple[float, str] | None = None,
    ) -> list[OrderRecord]:
        """Read model, newest first; `order` asks for one, `before` (issued_at, id) for the page behind that one.

        `job`, `node`: those about it. `pending_only`: those without an outcome, proposed and under way. The limit
        counts what is asked for alone.
        """

    async def add_samples(self, samples: Sequence[Sample]) -> None:
        """Append to the bounded series store; outside replay, may drop the oldest."""

    async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
        """Points of a series in order of time; `subject` may end in `*`."""

    async def retain(self, before: float) -> int:
        """Drop what was received before that time, is behind the newest snapshot and of closed incidents only.

        Returns the number of events dropped. Open incidents keep all of theirs.
        """

    async def close(self) -> None:
        """Flush and close."""
