"""Numbers of the shell: batch sizes, intervals, limits. Judgement has its own in the policy."""

from __future__ import annotations

from msgspec import Struct


class Settings(Struct, frozen=True, kw_only=True):
    """Durations in seconds."""

    watch: bool = True
    """Look at the orchestrator. A launcher whose own events say all there is to see turns it off."""
    watch_s: float = 5.0
    """At most this long between two looks; `wait_change` brings the next one earlier."""
    watch_pause_s: float = 0.02
    """At least this long between two looks, so that a stream of changes does not become a stream of looks."""
    observe_limit_s: float = 30.0
    blind_after_s: float = 15.0
    """The orchestrator has been unreadable for this long: say so."""
    silent_after_s: float = 30.0
    """Three missed beats of an agent (one per 10 s)."""
    lease_margin_s: float = 1.0
    """Beyond a launcher's lease: what its beat may take on the way."""
    doubt_after_s: float = 2.0
    """A launcher that beats every second has missed one and is late with the next: its node is asked about."""
    doubt_tick_s: float = 0.25
    tick_s: float = 0.5
    """Between two looks for silence."""
    batch_max: int = 512
    queue_max: int = 20_000
    """More events waiting than this: the API asks sources to wait."""
    snapshot_every: int = 5_000
    recent: int = 20_000
    """Events kept in memory for long polls, and ids for telling duplicates without a query."""
    order_limit_s: float = 120.0
    repair_limit_s: float = 3600.0
    notify_limit_s: float = 3600.0
    retry_first_s: float = 0.2
    retry_max_s: float = 30.0
    journal_retry_max_s: float = 2.0
    samples_s: float = 1.0
    samples_max: int = 50_000
    """Samples waiting to be written; beyond it the oldest are dropped."""
    retain_s: float = 30 * 86400.0
    """Events older than this are dropped once their incidents are closed; an older one that arrives is ignored."""
    retain_every_s: float = 3600.0
    beat_lease_s: float = 10.0
    """What a beat's answer asks for when the launcher named no lease of its own."""
