"""Which alerts of Prometheus fired over a span, and which should have, by what the journal knows of the incidents.

Called by `coverage`; `adapters.prometheus` brings the points. Pure. Two of the alerts that ship can be foretold from an
incident: `NodeFault` while a node of it was fenced, `IncidentNotRecovered` while it stayed open for long. Both are
expected only where the condition held longer than the rule and its evaluation need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.model.records import IncidentRecord, Mark

NODE_FAULT, NOT_RECOVERED = "NodeFault", "IncidentNotRecovered"
NODE_FAULT_S = 60.0 + 60.0
"""`for` of the rule, and two scrapes and evaluations of 30 s at most."""
NOT_RECOVERED_S = 1800.0 + 60.0 + 60.0
LATE_S = 300.0
"""An alert that begins so long after its reason has gone still belongs to it: scrape, `for` and evaluation add up."""


class Firing(Struct, frozen=True):
    """One alert from when it began to fire to when it stopped, Unix seconds."""

    name: str
    node: str
    """Of its labels, the node or the instance; empty: neither."""
    begins_at: float
    ends_at: float


class Alerts(Struct, frozen=True):
    """What Prometheus said of a span."""

    source: str
    firing: tuple[Firing, ...]
    up: dict[str, float]
    """Per scrape job: mean share of its targets that answered."""
    having: dict[str, int]
    """Per kind of metric (`GPU`, `network`): instances that had it at any time of the span."""


class Expected(Struct, frozen=True):
    """An alert that an incident should have raised."""

    name: str
    incident: str
    nodes: tuple[str, ...]
    begins_at: float
    ends_at: float


def firings(series: Sequence[tuple[Mapping[str, str], Sequence[float]]], step_s: float) -> tuple[Firing, ...]:
    """Of `ALERTS{alertstate="firing"}` sampled every `step_s` seconds: (labels, times at which it fired)."""
    found = []
    for labels, times in series:
        name, node = labels.get("alertname", ""), labels.get("node") or labels.get("instance", "")
        begin = last = 0.0
        for at in sorted(times):
            if begin and at - last > 1.5 * step_s:
                found.append(Firing(name, node, begin, last + step_s))
                begin = 0.0
            begin, last = begin or at, at
        if begin:
            found.append(Firing(name, node, begin, last + step_s))
    return tuple(sorted(found, key=lambda one: (one.begins_at, one.name, one.node)))


def expected(incidents: Sequence[IncidentRecord], until: float) -> list[Expected]:
    """What should have fired; `until`: the end of the span, for what still lasts."""
    found = []
    for one in incidents:
        if one.outcome == "observed":
            continue
        fenced = one.marks.get(Mark.ISOLATED)
        if fenced is not None and one.nodes:
            end = one.marks.get(Mark.NODE_RETURNED) or until
            if end - fenced > NODE_FAULT_S:
                found.append(Expected(NODE_FAULT, one.id, tuple(one.nodes), fenced, end))
        end = one.closed_at or until
        if end - one.opened_at > NOT_RECOVERED_S:
            found.append(Expected(NOT_RECOVERED, one.id, (), one.opened_at, end))
    return found


def missed(alerts: Alerts, wanted: Sequence[Expected]) -> list[Expected]:
    """Expected ones that did not fire."""
    return [one for one in wanted if not any(_fits(fired, one) for fired in alerts.firing)]


def unfounded(alerts: Alerts, incidents: Sequence[IncidentRecord], until: float) -> list[Firing]:
    """Firings of the two alerts at whose time no incident gives a reason, however short it lasted."""
    reasons = [
        Expected(NODE_FAULT, one.id, tuple(one.nodes), one.opened_at, one.marks.get(Mark.NODE_RETURNED) or until)
        for one in incidents
    ]
    reasons += [Expected(NOT_RECOVERED, one.id, (), one.opened_at, one.closed_at or until) for one in incidents]
    judged = [one for one in alerts.firing if one.name in {NODE_FAULT, NOT_RECOVERED}]
    return [one for one in judged if not any(_fits(one, reason) for reason in reasons)]


def _fits(fired: Firing, reason: Expected) -> bool:
    same = fired.name == reason.name and (not reason.nodes or not fired.node or fired.node in reason.nodes)
    return same and fired.begins_at <= reason.ends_at + LATE_S and fired.ends_at >= reason.begins_at


def counted(alerts: Alerts) -> str:
    """`NodeFault 3, GpuTooHot 1`, the most frequent first; a dash for none."""
    names = Counter(one.name for one in alerts.firing)
    return ", ".join(f"{name} {count}" for name, count in names.most_common(8)) or "-"
