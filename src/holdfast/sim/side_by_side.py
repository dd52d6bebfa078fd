"""Two accounts of the same history beside each other: what was done then, and what another policy would have done.

`counterfactual.replay` makes the second account; the first is the journal's own. Incidents are matched by their
evidence, orders by what they do and to whom, in order. Pure; times are those of the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import chain
from typing import Any

from msgspec import Struct, structs

from holdfast.model.orders import OrderStatus
from holdfast.model.records import IncidentRecord, OrderRecord
from holdfast.model.wire import kind_of
from holdfast.sim.counterfactual import OWN, Told, key_of

VERSION = 1
NEAR_S = 120.0
"""Incidents of the same job or node that opened this near to each other are the same trouble."""
_NOT_DONE = frozenset({OrderStatus.PROPOSED, OrderStatus.OBSERVED, OrderStatus.EXPIRED, OrderStatus.REJECTED})


class Line(Struct, frozen=True, kw_only=True):
    """One order on either side, or on both."""

    after_s: float
    """Seconds after the incident was opened, of the left side when both gave it."""
    then: str = ""
    now: str = ""
    why: str = ""
    assumed: bool = False
    """The right side rests on a guess about how an earlier order would have ended."""


class Case(Struct, frozen=True, kw_only=True):
    """One trouble in both accounts."""

    incident: str
    """Its id in the journal; empty: only the new policy would have opened one."""
    opened_at: float
    about: tuple[str, ...]
    """Jobs and nodes."""
    cause_then: str
    cause_now: str
    outcome_then: str
    outcome_now: str
    lines: tuple[Line, ...]

    @property
    def differs(self) -> bool:
        """Would anything have been done differently?"""
        return any(line.then != line.now for line in self.lines)


def compare(then: Told, now: Told) -> list[Case]:
    """Every trouble of either account, oldest first."""
    left_orders, right_orders = _by_incident(then.orders), _by_incident(now.orders)
    cases = []
    for left, right in _matched(then.incidents, now.incidents):
        mine = left_orders.pop(left.id, []) if left is not None else []
        other = right_orders.pop(right.id, []) if right is not None else []
        cases.append(_case(left, right, mine, other, now.assumed))
    rest_left, rest_right = ([*chain(*orders.values())] for orders in (left_orders, right_orders))
    if rest_left or rest_right:
        cases.append(_case(None, None, rest_left, rest_right, now.assumed))
    return sorted(cases, key=lambda case: (case.opened_at, case.incident))


def totals(told: Told) -> dict[str, int]:
    """Kind of order -> how often it was given, whether done, proposed or only recorded."""
    counts = Counter(kind_of(record.order) for record in told.orders if not isinstance(record.order, OWN))
    return dict(sorted(counts.items()))


def form(cases: Sequence[Case], then: Told, now: Told, **facts: Any) -> dict[str, Any]:
    """The stable JSON form of the comparison (docs/json-forms.md)."""
    return {
        "version": VERSION,
        **facts,
        "orders": {"then": totals(then), "now": totals(now)},
        "incidents": [
            {
                "incident": case.incident or None,
                "opened_at": case.opened_at,
                "about": list(case.about),
                "differs": case.differs,
                "cause": {"then": case.cause_then or None, "now": case.cause_now or None},
                "outcome": {"then": case.outcome_then or None, "now": case.outcome_now or None},
                "orders": [
                    structs.asdict(line)
                    | {"after_s": round(line.after_s, 3), "then": line.then or None, "now": line.now or None}
                    for line in case.lines
                ],
            }
            for case in cases
        ],
    }


def _by_incident(records: Iterable[OrderRecord]) -> dict[str, list[OrderRecord]]:
    found: dict[str, list[OrderRecord]] = {}
    for record in sorted(records, key=lambda one: (one.issued_at, one.order.cause, one.order.id)):
        if not isinstance(record.order, OWN):
            found.setdefault(record.order.incident, []).append(record)
    return found


def _matched(
    left: Sequence[IncidentRecord], right: Sequence[IncidentRecord]
) -> list[tuple[IncidentRecord | None, IncidentRecord | None]]:
    """Pairs by shared findings, else by shared job or node and time."""
    free = list(right)
    pairs: list[tuple[IncidentRecord | None, IncidentRecord | None]] = []
    for one in sorted(left, key=lambda incident: (incident.opened_at, incident.id)):
        best = max(free, key=lambda other: _likeness(one, other), default=None)
        if best is not None and _likeness(one, best) > 0.0:
            free.remove(best)
            pairs.append((one, best))
        else:
            pairs.append((one, None))
    return [*pairs, *((None, other) for other in free)]


def _likeness(left: IncidentRecord, right: IncidentRecord) -> float:
    shared = {finding.id for finding in left.findings} & {finding.id for finding in right.findings}
    apart = abs(left.opened_at - right.opened_at)
    nearness = 1.0 / (1.0 + apart)
    if shared:
        return len(shared) + nearness
    same = set(left.jobs) & set(right.jobs) or set(left.nodes) & set(right.nodes)
    return nearness if same and apart <= NEAR_S else 0.0


def _case(
    left: IncidentRecord | None,
    right: IncidentRecord | None,
    mine: Sequence[OrderRecord],
    other: Sequence[OrderRecord],
    assumed: frozenset[str],
) -> Case:
    shown = left or right
    first = min((record.issued_at for record in (*mine, *other)), default=0.0)
    opened = shown.opened_at if shown is not None else first
    return Case(
        incident=left.id if left is not None else "",
        opened_at=opened,
        about=(*(str(key) for key in shown.jobs), *shown.nodes) if shown is not None else (),
        cause_then=_cause(left),
        cause_now=_cause(right),
        outcome_then=_outcome(left),
        outcome_now=_outcome(right),
        lines=tuple(_lines(mine, other, opened, assumed)),
    )


def _cause(incident: IncidentRecord | None) -> str:
    return incident.diagnosis.cause if incident is not None and incident.diagnosis is not None else ""


def _outcome(incident: IncidentRecord | None) -> str:
    return "" if incident is None else incident.outcome if incident.closed_at else "open"


def _lines(
    mine: Sequence[OrderRecord], other: Sequence[OrderRecord], opened: float, assumed: frozenset[str]
) -> Iterable[Line]:
    keys_left, keys_right = ([(key_of(one.order), one.status in _NOT_DONE) for one in side] for side in (mine, other))
    matcher = SequenceMatcher(None, keys_left, keys_right, autojunk=False)
    for _, a, b, c, d in matcher.get_opcodes():
        for one, another in _in_line(mine[a:b], other[c:d]):
            shown = one or another
            if shown is not None:
                yield Line(
                    after_s=shown.issued_at - opened,
                    then=words(one) if one is not None else "",
                    now=words(another) if another is not None else "",
                    why=shown.order.why,
                    assumed=another is not None and another.order.id in assumed,
                )


def _in_line(
    left: Sequence[OrderRecord], right: Sequence[OrderRecord]
) -> Iterable[tuple[OrderRecord | None, OrderRecord | None]]:
    """Orders of both sides, on one line when they are about the same node or job."""
    others = list(right)
    for one in left:
        if others and key_of(others[0].order)[1] == key_of(one.order)[1]:
            yield one, others.pop(0)
        else:
            yield one, None
    for another in others:
        yield None, another


def words(record: OrderRecord) -> str:
    """An order in a few words: `replace node node07`, `requeue held 1778 (proposed)`."""
    order = record.order
    kind, about = key_of(order)
    nodes = getattr(order, "nodes", ()) or getattr(order, "exclude_nodes", ())
    more = f" without {', '.join(nodes)}" if nodes else ""
    status = f" ({record.status})" if record.status in _NOT_DONE else ""
    return f"{kind.replace('_', ' ')} {about}{more}{status}"
