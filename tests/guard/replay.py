"""Feeds recorded events to the engine of whichever Holdfast is imported, and keeps what comes of each.

`record` runs it with the base's code to learn what is expected, `__main__` and `mutants` with the code under test. The
engine is pure, so no cluster, clock or process is needed; how time passes stands in the events.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec
from msgspec import Raw

from holdfast.adapters.policy_files import packaged_presets
from holdfast.decide.engine import Engine
from holdfast.model.policy import PolicySet
from holdfast.model.policy_toml import parse_policy
from holdfast.model.wire import decode, decode_event, encode

from .journal import Head, Line

presets = functools.cache(packaged_presets)


@functools.cache
def policies(toml: str, json: bytes = b"null") -> PolicySet:
    """The policy that a journal's engine begins with."""
    return parse_policy(toml, "", presets()) if json == b"null" else decode(json, PolicySet)


class Replay:
    """One engine on its way through a journal, and the records that it has touched."""

    def __init__(self, head: Head, snapshot: bytes | None = None) -> None:
        given = policies(head.policy, bytes(head.policies))
        if snapshot is None:
            self.engine = Engine(given, scope=head.scope, presets=presets())
        else:
            self.engine = Engine.restore(snapshot, given, presets=presets())
        self.records: dict[str, dict[str, bytes]] = {
            kind: {} for kind in ("jobs", "nodes", "incidents", "orders", "brakes")
        }

    def take(self, line: Line) -> bytes:
        """Handle one event; the orders as JSON. What is raised comes back as text: it is an answer, too."""
        try:
            orders = encode(self.engine.handle(decode_event(bytes(line.event))))
        except Exception as error:  # whatever a changed engine raises is the difference that is looked for
            return msgspec.json.encode([{"raised": f"{type(error).__name__}: {error}"[:300]}])
        touched = self.engine.touched()
        records = self.records
        for job in touched.jobs:
            records["jobs"][str(job.key)] = encode(job)
        for node in touched.nodes:
            records["nodes"][node.name] = encode(node)
        for incident in touched.incidents:
            records["incidents"][incident.id] = encode(incident)
        for order in touched.orders:
            records["orders"][order.order.id] = encode(order)
        for brake in touched.brakes:
            records["brakes"][brake.group] = encode(brake)
        return orders

    def all(self, lines: list[Line]) -> Iterator[bytes]:
        """`take` for each."""
        return map(self.take, lines)

    def record_lines(self) -> Raw:
        """The records at the end, as JSON."""
        kinds = {kind: {name: Raw(data) for name, data in sorted(of.items())} for kind, of in self.records.items()}
        return Raw(msgspec.json.encode(kinds))
