"""Node-days: for how long each node was observed within a span, and the rate of failures over that time. Pure.

Called by `fleet`, for the whole span and for each of its weeks, and by `published`. A rate over the span that somebody
asks for would depend on the question: an hour of history would look calmer over 30 days than over one. Times are Unix
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from holdfast.model.records import NodeRecord

DAY_S = 86400.0

Stay = tuple[float, float]
"""From when a node was observed, and until when; infinite: it is still there."""


def stays(nodes: Iterable[NodeRecord], *, known_since: float) -> list[Stay]:
    """When each node was observed, in the order of `nodes`.

    Args:
        nodes: of the cluster, those that left it among them.
        known_since: when the history begins; for a node whose record does not say when it was first seen.
    """
    return [(node.first_seen_at or known_since, node.left_at or inf) for node in nodes]


def node_days(found: Sequence[Stay], since: float, until: float) -> float:
    """Days for which nodes were observed between two moments, summed over the nodes."""
    return sum([max(0.0, min(until, end) - max(since, begin)) for begin, end in found]) / DAY_S


def per_1000_node_days(failures: int, days: float) -> float | None:
    """Failures per 1000 node-days; None when no node was observed."""
    return 1000.0 * failures / days if days > 0 else None
