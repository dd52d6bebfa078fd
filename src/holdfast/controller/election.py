"""Who leads, found out without comparing clocks: of several controllers on one journal one is active, others stand by.

A standby looks at the lease again and again. Any renewal changes its row; one that has stayed the same for the holder's
time and a margin, by the standby's own monotonic clock, belongs to somebody who stopped acting a margin ago, and is
taken, provided that it is still that row. So it does not matter what time it is for whom. `Elector` is the pure part:
times come with the calls. `until_free` is its shell over a journal's lease or a Kubernetes Lease; the command line
calls it before `Controller.run`, which takes the lease, renews it, and stops acting when it cannot.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog
from msgspec import Struct

from holdfast.controller.acts import within
from holdfast.errors import FencedError, JournalBusyError, JournalDamagedError, JournalError, LinkError
from holdfast.ports import Clock, LeaseRow

_log = structlog.get_logger("holdfast.controller")

MARGIN = 0.25
"""Of the lease's time: what a holder's last deed may be on its way after it has stopped acting."""
LOOKS = 8
"""In a lease's time. More of them only find a lease that was given back sooner."""
SAME_S = 2.0
"""Clocks that differ by less are taken as equal: a look comes a while after the renewal."""
NEVER_HELD = LeaseRow("", 0, 0.0)


class Standing(Struct, frozen=True):
    """What a candidate makes of a look at the lease."""

    wait_s: float
    """The lease may be taken in so many seconds, if nothing changes; 0: now."""
    is_alive: bool
    """The holder has renewed it since the look before."""


class Elector:
    """One candidate's judgement. Reads no clock: `at` is its own monotonic time.

    Args:
        holder: its name; a lease under that name is its own, and may be taken at once.
        lease_s: how long a lease holds where its row does not say it.

    Attributes:
        ahead_s: how far our wall clock is ahead of the holder's, from when its renewals were seen; timers that it
            started would otherwise be too early or too late by as much. Never judged by.
    """

    def __init__(self, holder: str, *, lease_s: float) -> None:
        self.holder = holder
        self.lease_s = lease_s
        self._row = NEVER_HELD
        self._since = 0.0
        self.ahead_s = 0.0

    def see(self, row: LeaseRow | None, at: float, *, now: float = 0.0) -> Standing:
        """Judge a look at the lease; `now` is our Unix time."""
        if row is None or row.holder in {"", self.holder}:
            self._row = NEVER_HELD
            return Standing(0.0, is_alive=False)
        renewed = row != self._row
        was_seen = self._row.epoch > 0
        if renewed:
            self._row, self._since = row, at
            self._compare_clocks(row, now, was_seen=was_seen)
        # The longer of both: a holder that was started with a longer lease acts for longer.
        patience_s = max(self.lease_s, row.lease_s) * (1.0 + MARGIN)
        return Standing(max(0.0, self._since + patience_s - at), is_alive=renewed and was_seen)

    def _compare_clocks(self, row: LeaseRow, now: float, *, was_seen: bool) -> None:
        if row.lease_s <= 0.0:
            return
        ahead_s = now - (row.expires - row.lease_s)
        # A first look does not tell how long ago the renewal was; that it was not in the future is sure.
        self.ahead_s = ahead_s if was_seen else min(0.0, ahead_s)
        if abs(self.ahead_s) < SAME_S:
            self.ahead_s = 0.0


class Leading:
    """The other side: until when a holder may act. Pure as `Elector`.

    A renewal counts from when it was asked for, so that its way to the store and back is never time to act in.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.until = float("-inf")

    def renewed(self, asked_at: float) -> None:
        """The store has confirmed a renewal that was asked for at this time."""
        self.until = max(self.until, asked_at + self.lease_s)

    def lapse(self, at: float) -> None:
        """The alarm for the end has come; an alarm may come a little early, and nothing may be begun in that little."""
        self.until = min(self.until, at)

    def may_act(self, at: float) -> bool:
        """Is nobody else leading at this time, for sure?"""
        return at < self.until


class LeaseStore(Protocol):
    """The reading side of where a lease stands: a journal, or an adapter's object."""

    async def lease(self) -> LeaseRow | None:
        """The lease as it stands; None when nobody has ever held it. Raises JournalError, LinkError."""


async def until_free(
    store: LeaseStore,
    elector: Elector,
    clock: Clock,
    *,
    stopped_within: Callable[[float], Awaitable[bool]],
    patient: bool,
) -> LeaseRow | None:
    """Wait until the lease may be taken.

    Args:
        store: where it stands.
        elector: whose judgement counts.
        clock: only its monotonic time and its waiting are used.
        stopped_within: waits so many seconds; True when this process shall end.
        patient: a standby waits while another leads; otherwise it is said after one renewal was seen.

    Returns:
        The row that may be taken, if it is still that one; None when the process shall end.

    Raises:
        JournalBusyError: another is leading, and `patient` was not asked for.
        JournalError, LinkError: the lease cannot be read, and `patient` was not asked for.
    """
    said = ""
    while True:
        try:
            row = await store.lease()
        except JournalDamagedError:
            raise
        except (JournalError, LinkError) as error:
            if not patient:
                raise
            row, wait_s, why = None, elector.lease_s, f"the lease cannot be read: {error}"
        else:
            standing = elector.see(row, clock.monotonic(), now=clock.now())
            if standing.wait_s <= 0.0:
                return row if row is not None else NEVER_HELD
            holder = row.holder if row is not None else ""
            if standing.is_alive and not patient:
                raise JournalBusyError(
                    f"{holder!r} is the active controller of this journal: stop it first, or stand by with --standby"
                )
            wait_s, why = standing.wait_s, f"{holder!r} leads, or has until lately"
        if why != said:
            _log.info("standing by", why=why)
            said = why
        if await stopped_within(min(wait_s, elector.lease_s / LOOKS)):
            return None


class ElectingLease(LeaseStore, Protocol):
    """A lease that elects, beside the journal's, which fences."""

    async def take(self, holder: str, *, lease_s: float, now: float, seen: LeaseRow) -> None:
        """Take it if it is still as seen. Raises JournalBusyError, LinkError."""

    async def renew(self, *, now: float) -> None:
        """Keep it. Raises FencedError, LinkError."""

    async def release(self, *, now: float) -> None:
        """Give it back. Raises FencedError, LinkError."""


async def win(
    store: ElectingLease,
    holder: str,
    clock: Clock,
    *,
    lease_s: float,
    stopped_within: Callable[[float], Awaitable[bool]],
    patient: bool,
) -> Leading | None:
    """Wait until this lease may be taken, and take it; None when the process shall end. Raises as `until_free`."""
    elector = Elector(holder, lease_s=lease_s)
    while True:
        seen = await until_free(store, elector, clock, stopped_within=stopped_within, patient=patient)
        if seen is None:
            return None
        leading = Leading(lease_s)
        asked_at = clock.monotonic()
        try:
            await store.take(holder, lease_s=lease_s, now=clock.now(), seen=seen)
        except (JournalBusyError, LinkError):
            if not patient:
                raise
            if await stopped_within(lease_s / LOOKS):
                return None
        else:
            leading.renewed(asked_at)
            return leading


async def keep(store: ElectingLease, leading: Leading, clock: Clock) -> None:
    """Renew until it fails: returns before anybody else may lead, with the reason in the log."""
    while True:
        await clock.sleep(max(0.0, min(leading.lease_s / 3, leading.until - clock.monotonic())))
        asked_at = clock.monotonic()
        left_s = leading.until - asked_at
        try:
            if left_s <= 0:
                raise TimeoutError  # noqa: TRY301 - the same end as a renewal that takes too long
            await within(clock, left_s, store.renew(now=clock.now()))
        except FencedError as error:
            _log.error("another was elected: this controller ends", why=str(error))
            return
        except TimeoutError:
            _log.error("the election's lease could not be renewed in time: this controller ends")
            return
        except LinkError as error:
            _log.warning("the election's lease could not be renewed", why=str(error))
            await clock.sleep(min(leading.lease_s / 10, max(0.0, leading.until - clock.monotonic())))
        else:
            leading.renewed(asked_at)
