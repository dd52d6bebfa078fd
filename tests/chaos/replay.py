"""Is the journal all there is? A fresh engine is given its events and must come to the orders and records that it holds.

Called by chaos tests, which keep one `Replay` per journal and feed it what is new. No time passes: it comes in events.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from chaos.checkers import JournalFacts, connect
from holdfast.adapters.journal.schema import job_text
from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.decide.engine import Engine
from holdfast.model.wire import decode_event, encode


class Replay:
    """An engine that follows a journal."""

    def __init__(self, journal: Path, policy: Path | None) -> None:
        self._journal = journal
        presets = packaged_presets()
        policies, _ = read_policy(policy, presets)
        self.engine = Engine(policies, scope="cluster", presets=presets)
        self._records: dict[str, dict[str, str]] = {t: {} for t in ("orders", "incidents", "jobs", "nodes", "brakes")}

    def follow(self, facts: JournalFacts) -> list[str]:
        """Take what is new up to where `facts` ends; complaints where journal and engine differ."""
        said = []
        connection = connect(self._journal)
        try:
            query = "SELECT seq, payload, orders FROM events WHERE seq > ? AND seq <= ? ORDER BY seq"
            rows = connection.execute(query, (self.engine.seq, facts.seq)).fetchall()
        finally:
            connection.close()
        for seq, payload, orders in rows:
            given = encode(self.engine.handle(decode_event(payload))).decode()
            if given != orders:
                said.append(f"event {seq} is stored with the orders {orders}, its replay gives {given}")
            self._take()
        for table, found in self._records.items():
            stored = facts.payloads[table]
            said += [f"{table} {key}: stored only" for key in stored.keys() - found.keys()]
            said += [f"{table} {key}: replayed only" for key in found.keys() - stored.keys()]
            said += [
                f"{table} {k}: {stored[k]} stored, {found[k]} replayed" for k in found if stored.get(k) != found[k]
            ]
        return said

    def same_snapshot(self, facts: JournalFacts) -> list[str]:
        """After an orderly end: the engine's snapshot in the journal has the bytes of the replayed engine's."""
        if facts.snapshot is None or facts.snapshot[0] != facts.seq:
            return [f"there is no snapshot of event {facts.seq}, the newest"]
        stored = msgspec.msgpack.decode(facts.snapshot[1])["engine"]
        return [] if stored == self.engine.snapshot() else ["the snapshot's bytes are not those of a replay"]

    def _take(self) -> None:
        touched = self.engine.touched()
        for order in touched.orders:
            self._records["orders"][order.order.id] = encode(order).decode()
        for incident in touched.incidents:
            self._records["incidents"][incident.id] = encode(incident).decode()
        for job in touched.jobs:
            self._records["jobs"][job_text(job.key)] = encode(job).decode()
        for node in touched.nodes:
            self._records["nodes"][node.name] = encode(node).decode()
        for brake in touched.brakes:
            self._records["brakes"][brake.group] = encode(brake).decode()
