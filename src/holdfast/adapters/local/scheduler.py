"""Which waiting job starts on which nodes: pure gang scheduling, one job per node.

The daemon calls `plan` after every change. Jobs are served by priority, then by age; a job gets all its nodes at once
or none. The first job that could run on this cluster but does not fit now keeps later ones waiting: no backfilling, so
a requeued job cannot be starved. A job that no state of the cluster could satisfy blocks nobody. No time passes here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct


class Wish(Struct, frozen=True):
    """A job that may start."""

    job: str
    nodes: int
    queued_at: float
    priority: int = 0
    excluded: frozenset[str] = frozenset()


class Seat(Struct, frozen=True):
    """A node as the plan sees it: `free` means alive, not drained and without any process of a job."""

    node: str
    free: bool
    spare: bool = False


class Plan(Struct, frozen=True):
    """What to start now, and why the rest waits."""

    starts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    waits: dict[str, str] = {}
    lack_nodes: frozenset[str] = frozenset()
    """Of those that wait, the ones that free nodes would let start."""


def plan(wishes: Iterable[Wish], seats: Sequence[Seat]) -> Plan:
    """Serve the wishes in order. Ordinary nodes come before spares, each in order of their names."""
    taken: set[str] = set()
    starts: list[tuple[str, tuple[str, ...]]] = []
    waits: dict[str, str] = {}
    lack_nodes: set[str] = set()
    blocker = ""
    for wish in sorted(wishes, key=lambda w: (-w.priority, w.queued_at, w.job)):
        allowed = [seat for seat in seats if seat.node not in wish.excluded]
        if len(allowed) < wish.nodes:
            waits[wish.job] = f"needs {wish.nodes} nodes, only {len(allowed)} are left after its exclusions"
            lack_nodes.add(wish.job)
            continue
        if blocker:
            waits[wish.job] = f"waits behind job {blocker}"
            continue
        open_seats = [seat for seat in allowed if seat.free and seat.node not in taken]
        if len(open_seats) < wish.nodes:
            waits[wish.job] = f"needs {wish.nodes} nodes, {len(open_seats)} are free"
            lack_nodes.add(wish.job)
            blocker = wish.job
            continue
        chosen = sorted(open_seats, key=lambda seat: (seat.spare, seat.node))[: wish.nodes]
        names = tuple(sorted(seat.node for seat in chosen))
        taken.update(names)
        starts.append((wish.job, names))
    return Plan(starts=tuple(starts), waits=waits, lack_nodes=frozenset(lack_nodes))
