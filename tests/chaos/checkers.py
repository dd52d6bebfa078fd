"""Judges of chaos tests: they read the journal's tables and the scheduler's own words, and none of the code they judge.

`read_journal` takes one consistent look at a controller's journal, read-only and while it may be written. `WorldLog`
follows the embedded scheduler over its socket and keeps every difference. Each judge returns complaints, one sentence
each; an empty list is the verdict that nothing is wrong. Times are Unix seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROBE = "agent:probe"
"""Source of findings that a test sends only to see them kept; they are left out where the recovery is looked at."""
SETTLED = {"done", "failed", "withdrawn", "observed", "expired", "rejected"}
FAR_REACHING = {"quarantine_node", "return_node", "replace_node", "requeue_held", "release_job", "set_excluded"}


# --- the journal ---


@dataclass(frozen=True)
class Row:
    """One event with the orders it led to, as stored."""

    seq: int
    id: str
    kind: str
    source: str
    at: float
    received_at: float
    body: dict[str, Any]
    orders: list[dict[str, Any]]


@dataclass(frozen=True)
class JournalFacts:
    """One look at a journal."""

    rows: list[Row]
    orders: dict[str, dict[str, Any]]
    """Order id -> the order's record."""
    incidents: list[dict[str, Any]]
    """Oldest first."""
    jobs: dict[str, dict[str, Any]]
    nodes: dict[str, dict[str, Any]]
    payloads: dict[str, dict[str, str]]
    """Table -> key -> the record's stored text, for comparing byte by byte."""
    snapshot: tuple[int, bytes] | None
    """Sequence number and bytes of the newest snapshot."""

    def of_kind(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row.kind == kind]

    @property
    def seq(self) -> int:
        return self.rows[-1].seq if self.rows else 0

    def given(self, kind: str) -> list[str]:
        """Ids of the orders of a kind, in the order in which they were given."""
        return [order["id"] for row in self.rows for order in row.orders if order["order"] == kind]

    def done(self, kind: str) -> list[str]:
        """Ids of those that were done."""
        return [one for one in self.given(kind) if self.orders[one]["status"] == "done"]

    def unsettled(self) -> list[str]:
        """Orders without an outcome, timers apart."""
        timers = {"start_timer", "cancel_timer"}
        return [
            f"{record['order']['order']} {name}"
            for name, record in self.orders.items()
            if record["status"] not in SETTLED and record["order"]["order"] not in timers
        ]


def connect(path: Path) -> sqlite3.Connection:
    """The journal, read-only."""
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, timeout=10.0)


def read_journal(path: Path) -> JournalFacts:
    """Everything, in one transaction."""
    tables = {"orders": "id", "incidents": "id", "jobs": "key", "nodes": "name", "brakes": "name"}
    connection = connect(path)
    try:
        connection.execute("BEGIN")
        query = "SELECT seq, id, kind, source, at, received_at, payload, orders FROM events ORDER BY seq"
        rows = [Row(*row[:6], json.loads(row[6]), json.loads(row[7])) for row in connection.execute(query)]
        payloads = {
            table: dict(connection.execute(f"SELECT {key}, payload FROM {table}").fetchall())
            for table, key in tables.items()
        }
        snapshot = connection.execute("SELECT seq, state FROM snapshots ORDER BY seq DESC LIMIT 1").fetchone()
    finally:
        connection.close()
    read = {table: {key: json.loads(text) for key, text in found.items()} for table, found in payloads.items()}
    incidents = sorted(read["incidents"].values(), key=lambda one: one["opened_at"])
    newest = (int(snapshot[0]), bytes(snapshot[1])) if snapshot else None
    return JournalFacts(rows, read["orders"], incidents, read["jobs"], read["nodes"], payloads, newest)


class Tail:
    """Looks at what is new in a journal, cheaply and often: one connection, one short query a look."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)

    def newest(self) -> int:
        """Number of the newest event, probes apart."""
        query = "SELECT coalesce(max(seq), 0) FROM events WHERE source <> ?"
        return int(self._connection.execute(query, (PROBE,)).fetchone()[0])

    def kinds_after(self, seq: int) -> set[str]:
        """Kinds of the events stored after `seq` and of the orders they led to."""
        found: set[str] = set()
        query = "SELECT kind, orders FROM events WHERE seq > ? AND source <> ?"
        for kind, orders in self._connection.execute(query, (seq, PROBE)):
            found.add(kind)
            found.update(order["order"] for order in json.loads(orders))
        return found

    def incidents(self) -> tuple[int, int]:
        """(all, open)."""
        query = "SELECT count(*), coalesce(sum(closed_at = 0), 0) FROM incidents"
        total, still_open = self._connection.execute(query).fetchone()
        return int(total), int(still_open)

    def attempts_started(self) -> int:
        query = "SELECT count(*) FROM events WHERE kind = 'attempt_started'"
        return int(self._connection.execute(query).fetchone()[0])

    def job_state(self, job: str) -> str:
        row = self._connection.execute("SELECT state FROM jobs WHERE id = ?", (job,)).fetchone()
        return str(row[0]) if row else ""

    def pending(self) -> list[str]:
        """Kinds of the orders without an outcome, timers apart."""
        query = "SELECT kind FROM orders WHERE status = 'pending' AND kind NOT IN ('start_timer', 'cancel_timer')"
        return sorted(row[0] for row in self._connection.execute(query))

    def close(self) -> None:
        self._connection.close()


# --- the scheduler ---


@dataclass(frozen=True)
class NodeFact:
    alive: bool | None
    drained: bool
    instance_id: str
    boot_id: str
    jobs: tuple[str, ...]


@dataclass(frozen=True)
class JobFact:
    state: str
    restart_count: int
    nodes: tuple[str, ...]
    started_at: float


@dataclass
class WorldLog:
    """Every state of nodes and jobs that the scheduler has shown, without repetitions."""

    folder: Path
    nodes: dict[str, list[NodeFact]] = field(default_factory=dict)
    jobs: dict[str, list[JobFact]] = field(default_factory=dict)
    _follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take the first look, then follow."""
        version = await self._look()
        self._follower = asyncio.create_task(self._follow(version))

    async def stop(self) -> None:
        """Take a last look, and end."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
            self._follower = None
            await self._look()

    async def _follow(self, version: int) -> None:
        with contextlib.suppress(OSError):  # the cluster ends
            while True:
                await self._ask({"op": "wait_change", "after": version, "timeout_s": 30.0})
                version = await self._look()

    async def _look(self) -> int:
        seen = await self._ask({"op": "observe"})
        for node in seen["world"].get("nodes", ()):
            fact = NodeFact(
                node.get("alive"),
                node.get("drained", False),
                node.get("instance_id", ""),
                node.get("boot_id", ""),
                tuple(node.get("jobs", ())),
            )
            _extend(self.nodes.setdefault(node["name"], []), fact)
        for job in seen["world"].get("jobs", ()):
            fact = JobFact(
                job["state"], job.get("restart_count", 0), tuple(job.get("nodes", ())), job.get("started_at", 0.0)
            )
            _extend(self.jobs.setdefault(job["key"]["id"], []), fact)
        return int(seen["version"])

    async def _ask(self, request: dict[str, Any]) -> Any:
        # Socket addresses are short; a test's folder may be deep.
        folder = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        try:
            path = f"/proc/self/fd/{folder}/cluster.sock"
            reader, writer = await asyncio.open_unix_connection(path, limit=4 << 20)
        finally:
            os.close(folder)
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            answer = json.loads(await reader.readline())
        finally:
            writer.close()
        assert answer["ok"], answer
        return answer["result"]

    def drains(self, node: str) -> int:
        """How often it was drained."""
        return _edges([fact.drained for fact in self.nodes[node]], to=True)

    def returns(self, node: str) -> int:
        """How often a drain was lifted."""
        return _edges([fact.drained for fact in self.nodes[node]], to=False)

    def machines(self, node: str) -> int:
        """How many machines have had this name."""
        return len({fact.instance_id for fact in self.nodes[node]})

    def boots(self, node: str) -> int:
        """How often a machine of this name has booted."""
        return len({fact.boot_id for fact in self.nodes[node] if fact.boot_id})

    def starts(self, job: str) -> int:
        """How often the job got an allocation."""
        return len({fact.started_at for fact in self.jobs[job] if fact.nodes})


def _extend(facts: list[Any], fact: Any) -> None:
    if not facts or facts[-1] != fact:
        facts.append(fact)


def _edges(values: Sequence[bool], *, to: bool) -> int:
    return sum(1 for before, after in itertools.pairwise(values) if before is not after and after is to)


# --- judges ---


@dataclass(frozen=True)
class Injected:
    """A fault as its injector knows it."""

    kind: str
    """`rank` or `xid`."""
    node: str
    rule: str
    """Rule of the finding that must be made of it."""


def journal_is_sound(facts: JournalFacts) -> list[str]:
    """No number is missing, no event and no order stands there twice, no order has two outcomes."""
    said = []
    seqs = [row.seq for row in facts.rows]
    if seqs != list(range(1, len(seqs) + 1)):
        said.append(f"sequence numbers are not 1 to {len(seqs)}: {_gaps(seqs)}")
    said += [f"event {one} is stored {n} times" for one, n in Counter(row.id for row in facts.rows).items() if n > 1]
    given = Counter(order["id"] for row in facts.rows for order in row.orders)
    said += [f"order {one} was given {n} times" for one, n in given.items() if n > 1]
    done = Counter(row.body["order"] for row in facts.of_kind("order_done"))
    said += [f"order {one} was done {n} times" for one, n in done.items() if n > 1]
    said += [f"order {one} is done, and nobody gave it" for one in done if one not in given]
    failed = {row.body["order"] for row in facts.of_kind("order_failed")}
    said += [f"order {one} has failed and is done" for one in failed & set(done)]
    epochs = [row.body["epoch"] for row in facts.of_kind("controller_started")]
    if epochs != sorted(set(epochs)):
        said.append(f"controllers' epochs do not grow: {epochs}")
    return said


def nothing_lost(facts: JournalFacts, acknowledged: Iterable[str]) -> list[str]:
    """Every event whose source was told that it is stored, is."""
    stored = {row.id for row in facts.rows}
    return [f"event {one} was acknowledged and is not in the journal" for one in acknowledged if one not in stored]


def acknowledged_by_launcher(job_dir: Path) -> list[str]:
    """Ids of the launcher's own events that a controller has taken, by the launcher's own books."""
    forwarded = int((job_dir / "forwarded").read_text() or 0)
    connection = connect(job_dir / "journal.db")
    try:
        query = "SELECT id FROM events WHERE seq <= ? AND source LIKE 'launcher:%' ORDER BY seq"
        return [row[0] for row in connection.execute(query, (forwarded,))]
    finally:
        connection.close()


def recovered(facts: JournalFacts, faults: Sequence[Injected]) -> list[str]:
    """Each fault was seen once, became one incident of its own with the right cause, and that one is closed, recovered.

    Faults come one after the other, so the n-th incident is the n-th fault's.
    """
    said = []
    rules = Counter(fault.rule for fault in faults)
    for rule, wanted in rules.items():
        seen = sum(1 for row in facts.of_kind("finding_seen") if row.body["finding"]["rule"] == rule)
        if seen != wanted:
            said.append(f"{rule} was seen {seen} times, it happened {wanted} times")
    if len(facts.incidents) != len(faults):
        causes = [(one.get("diagnosis") or {}).get("cause") for one in facts.incidents]
        return [*said, f"{len(faults)} faults gave {len(facts.incidents)} incidents: {causes}"]
    for number, (fault, incident) in enumerate(zip(faults, facts.incidents, strict=True), 1):
        cause = (incident.get("diagnosis") or {}).get("cause")
        if cause != fault.rule:
            said.append(f"incident {number} has cause {cause}, the fault was {fault.rule}")
        if not incident.get("closed_at") or incident.get("outcome") != "recovered":
            said.append(f"incident {number} ({fault.rule}) is {incident.get('outcome') or 'open'}")
        if fault.node not in _nodes_of(incident):
            said.append(f"incident {number} ({fault.rule}) does not name {fault.node}")
    said += [f"an order has no outcome: {one}" for one in facts.unsettled()]
    return said


def done_once(facts: JournalFacts, world: WorldLog, job: str, job_dir: Path, faults: Sequence[Injected]) -> list[str]:
    """What the scheduler saw happen is what the faults called for, once each, and the journal's orders agree."""
    xids = [fault for fault in faults if fault.kind == "xid"]
    said = []

    def same(what: str, got: int, wanted: int) -> None:
        if got != wanted:
            said.append(f"{what}: {got}, should be {wanted}")

    same("the scheduler's restart count", world.jobs[job][-1].restart_count, len(xids))
    same("times that the job got an allocation", world.starts(job), len(xids) + 1)
    for kind in sorted(FAR_REACHING):
        if kind != "set_excluded":
            same(f"orders {kind}", len(facts.given(kind)), len(xids))
        same(f"orders {kind} without effect", len(facts.given(kind)) - len(facts.done(kind)), 0)
    for name in world.nodes:
        wanted = sum(fault.node == name for fault in xids)
        same(f"drains of {name}", world.drains(name), wanted)
        same(f"returns of {name}", world.returns(name), wanted)
        same(f"machines called {name}", world.machines(name), wanted + 1)
        same(f"boots of {name}", world.boots(name), wanted + 1)
        left = [path for path in (world.folder / "nodes").glob(f".{name}.*") if path.is_dir()]
        same(f"folders left by machines called {name}", len(left), wanted)
    said += attempts_once(facts, job, job_dir, len(faults) + 1)
    return said


def attempts_once(facts: JournalFacts, job: str, job_dir: Path, wanted: int) -> list[str]:
    """Attempts are numbered 0, 1, 2 without a gap, each has begun once, each with a larger epoch, by all books."""
    said = []
    started = [row.body for row in facts.of_kind("attempt_started") if row.body["job"]["id"] == job]
    numbers = [body["attempt"] for body in started]
    if numbers != list(range(wanted)):
        said.append(f"attempts started: {numbers}, should be 0 to {wanted - 1}, once each")
    epochs = [body["epoch"] for body in started]
    if epochs != sorted(set(epochs)):
        said.append(f"epochs of the attempts do not grow: {epochs}")
    folders = sorted(int(path.name.removeprefix("attempt-")) for path in (job_dir / "logs").glob("attempt-*"))
    if folders != list(range(wanted)):
        said.append(f"folders of attempts' logs: {folders}")
    return said


def written_in_turn(job_dir: Path) -> list[str]:
    """The loss log: an attempt writes no line after its successor has begun, and none twice; no step is left out."""
    said = []
    lines = [json.loads(line) for line in (job_dir / "losses.jsonl").read_text(encoding="ascii").splitlines()]
    order = [int(line["attempt"]) for line in lines]
    for number in sorted(set(order)):
        first, last = order.index(number), len(order) - 1 - order[::-1].index(number)
        if set(order[first : last + 1]) != {number}:
            said.append(f"attempt {number} writes losses between those of {sorted(set(order[first : last + 1]))}")
        steps = [line["step"] for line in lines if int(line["attempt"]) == number]
        if steps != list(range(steps[0], steps[0] + len(steps))):
            said.append(f"attempt {number} wrote the steps {_gaps(steps)} not one after the other")
    done = {line["step"] for line in lines}
    missing = sorted(set(range(1, max(done, default=0) + 1)) - done)
    if missing:
        said.append(f"no attempt did the steps {missing[:10]}")
    return said


def checkpoints_in_turn(job_dir: Path, started: Mapping[int, float]) -> list[str]:
    """No published checkpoint of an epoch is dated after a later epoch's attempt had started.

    Args:
        job_dir: the job's folder.
        started: epoch -> Unix seconds at which its attempt's processes were started.
    """
    said = []
    for manifest in sorted((job_dir / "checkpoints").glob("step-*/manifest.json")):
        body = json.loads(manifest.read_bytes())
        named = re.fullmatch(r"step-(\d+)\.e(\d+)", manifest.parent.name)
        if named is None or int(named[2]) != body["epoch"]:
            said.append(f"{manifest.parent.name} says that its epoch is {body['epoch']}")
        said += [
            f"{manifest.parent.name} was saved {body['saved_at'] - at:.3f} s after epoch {epoch} had started"
            for epoch, at in started.items()
            if epoch > body["epoch"] and body["saved_at"] > at
        ]
    return said


def epochs_started(facts: JournalFacts) -> dict[int, float]:
    """Epoch -> when its attempt's processes were started, by the launcher's clock."""
    return {row.body["epoch"]: row.at for row in facts.of_kind("attempt_started")}


def _nodes_of(incident: dict[str, Any]) -> set[str]:
    places = {(one.get("place") or {}).get("node", "") for one in incident.get("findings", ())}
    return places | set(incident.get("nodes", ()))


def _gaps(numbers: Sequence[int]) -> str:
    if len(numbers) <= 20:
        return str(list(numbers))
    odd = [(a, b) for a, b in itertools.pairwise(numbers) if b != a + 1]
    return f"{numbers[0]} to {numbers[-1]}, with {odd[:5]}"
