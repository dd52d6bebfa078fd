"""The quarantine brake of a group: so that a wrong rule or one dead switch cannot fence a fleet.

`nodes.py` asks before each new quarantine. A tripped brake stops new quarantines only: repairs, returns and restarts of
jobs never ask here. Times come from the caller; the engine's timer `brake:GROUP` calls `reopen`.
"""

from __future__ import annotations

from holdfast.model.policy import Brake
from holdfast.model.records import BrakeRecord

ROUNDING_S = 0.01
"""Looked at this much after the window has moved on, so that rounding does not make it look a moment too early."""


def limit(brake: Brake, record: BrakeRecord) -> int:
    """How many nodes of the group may be quarantined inside the window: the smaller of both limits, at least one."""
    share = int(record.nodes * brake.max_percent / 100.0)
    return max(1 if brake.max_nodes > 0 and brake.max_percent > 0 else 0, min(brake.max_nodes, share))


def prune(brake: Brake, record: BrakeRecord, now: float) -> None:
    """Forget quarantines that have left the window."""
    start = now - brake.window_s
    if record.recent and record.recent[0] <= start:
        record.recent = [at for at in record.recent if at > start]


def allows(brake: Brake, record: BrakeRecord, now: float) -> bool:
    """May one more node be quarantined now?"""
    prune(brake, record, now)
    return not record.tripped_at and len(record.recent) < limit(brake, record)


def took(record: BrakeRecord, now: float) -> None:
    """One node was quarantined."""
    record.recent.append(now)


def hold_back(record: BrakeRecord, node: str, now: float) -> bool:
    """Trip the brake (again) for this node. True when it was not tripped before."""
    if node not in record.waiting:
        record.waiting.append(node)
    first = not record.tripped_at
    if first:
        record.tripped_at = now
    return first


def reopen(brake: Brake, record: BrakeRecord, now: float) -> list[str]:
    """The calm spell is over: which waiting nodes may be quarantined now. It closes when none is left waiting."""
    prune(brake, record, now)
    room = max(0, limit(brake, record) - len(record.recent))
    freed, record.waiting = record.waiting[:room], record.waiting[room:]
    if not record.waiting:
        record.tripped_at = 0.0
    return freed


def next_look(brake: Brake, record: BrakeRecord, now: float) -> float:
    """Seconds until it is worth trying again."""
    if not record.waiting or len(record.recent) < limit(brake, record) or not record.recent:
        return brake.calm_s
    return max(brake.calm_s, record.recent[0] + brake.window_s - now + ROUNDING_S)


def reset(record: BrakeRecord) -> list[str]:
    """By hand: the window starts anew. Returns the nodes that waited."""
    freed = record.waiting
    record.waiting = []
    record.recent = []
    record.tripped_at = 0.0
    return freed
