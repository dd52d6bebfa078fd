"""How many events per second the engine handles on one core, and that the cost does not grow with what it has seen.

    python benchmarks/engine.py [--json] [--events 20000]

Times are CPU seconds of one core, so that other load on the machine does not blur them. Each row has as many jobs as
nodes; the mix is what a busy cluster journals: views of jobs and nodes, checkpoints, coarse steps, context findings,
silences, and one event in twenty begins a crash with its fan-out, restart in place and proof.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, NodeView, RecoverySpec, SchedulerState
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Role
from holdfast.model.policy import Brake, Policy, PolicySet

SIZES = (10, 100, 1_000, 10_000)
WANTED = 20_000.0


class Stream:
    """Makes events that fit what the engine has ordered; made ahead of the measured time."""

    def __init__(self, size: int, seed: int = 1) -> None:
        self.size = size
        self.draw = random.Random(seed)
        policy = Policy(brake=Brake(max_nodes=1_000_000, max_percent=100.0))
        self.engine = Engine(PolicySet(site=policy))
        self.seq = 0
        self.now = 1_000_000.0
        self.attempts = [0] * size
        self.steps = [0] * size
        for i in range(size):
            self.engine.handle(self.stamp(e.NodeObserved, node=self.node(i)))
        for i in range(size):
            self.engine.handle(self.stamp(e.JobObserved, job=self.job(i)))
            self.engine.handle(
                self.stamp(e.LauncherAttached, job=self.key(i), restart_count=0, nodes=(f"n{i}",), ranks=8)
            )
            self.engine.handle(
                self.stamp(e.AttemptStarted, job=self.key(i), attempt=0, epoch=1, nodes=(f"n{i}",), ranks=8)
            )

    def stamp(self, kind: type, **fields: object) -> e.AnyEvent:
        self.seq += 1
        self.now += 0.001
        return kind(id=f"e{self.seq}", at=self.now, received_at=self.now, seq=self.seq, source="launcher:1", **fields)

    def key(self, i: int) -> JobKey:
        return JobKey("c", str(i))

    def job(self, i: int, **fields: object) -> JobView:
        base = {"partition": "gpu", "state": SchedulerState.RUNNING, "nodes": (f"n{i}",), "recovery": RecoverySpec()}
        return JobView(key=self.key(i), **{**base, **fields})

    def node(self, i: int, **fields: object) -> NodeView:
        base = {
            "group": "gpu",
            "alive": True,
            "instance_id": f"m{i}",
            "boot_id": "b",
            "topology": f"r{i // 64}/s{i // 8}",
        }
        return NodeView(name=f"n{i}", **{**base, **fields})

    def finding(self, rule: str, role: Role, domain: Domain, kind: EvidenceKind, **fields: object) -> e.FindingSeen:
        made = Finding(
            id=f"f{self.seq + 1}",
            rule=rule,
            at=self.now,
            role=role,
            domain=domain,
            fingerprint=rule,
            evidence=(Evidence(kind, "a line of log"),),
            **fields,
        )
        return self.stamp(e.FindingSeen, finding=made)

    def batch(self, count: int) -> list[e.AnyEvent]:
        """Whole little stories for random jobs and nodes, interleaved."""
        out: list[e.AnyEvent] = []
        while len(out) < count:
            out.extend(self.story(self.draw.randrange(self.size), self.draw.random()))
        return out

    def story(self, i: int, dice: float) -> list[e.AnyEvent]:
        key, node = self.key(i), f"n{i}"
        if dice < 0.30:
            self.steps[i] += 10
            return [self.stamp(e.StepReached, job=key, attempt=self.attempts[i], step=self.steps[i])]
        if dice < 0.50:
            self.steps[i] += 10
            return [self.stamp(e.CheckpointSaved, job=key, attempt=self.attempts[i], step=self.steps[i], durable=True)]
        if dice < 0.65:
            return [self.stamp(e.NodeObserved, node=self.node(i, gpus=self.draw.randrange(8)))]
        if dice < 0.75:
            return [self.stamp(e.JobObserved, job=self.job(i, reason=str(self.seq)))]
        if dice < 0.90:
            place = Place(node=node, rank=3)
            return [self.finding("nccl.warn", Role.CONTEXT, Domain.NETWORK, EvidenceKind.LOG, place=place, job=key)]
        if dice < 0.95:
            return [self.stamp(e.NodeSilent, node=node, for_s=30.0), self.stamp(e.NodeHeard, node=node)]
        return self.crash(i)

    def crash(self, i: int) -> list[e.AnyEvent]:
        """A rank dies, eight ranks complain, the launcher restarts in place, the next checkpoint proves it."""
        key, node, number = self.key(i), f"n{i}", self.attempts[i]
        out: list[e.AnyEvent] = [
            self.finding(
                "exit.signal.11", Role.ROOT, Domain.APPLICATION, EvidenceKind.EXIT,
                place=Place(node=node, rank=5), job=key, attempt=number, remedy=Remedy.RESTART_IN_PLACE,
            )
        ]  # fmt: skip
        out += [
            self.finding(
                "nccl.remote", Role.CASCADE, Domain.NETWORK, EvidenceKind.LOG,
                place=Place(node=node, rank=rank), job=key, attempt=number,
            )
            for rank in range(8)
        ]  # fmt: skip
        self.attempts[i] = number + 1
        step = self.steps[i] = self.steps[i] + 10
        out.append(self.stamp(e.AttemptEnded, job=key, attempt=number, signal=9, stopped=True, last_step=step))
        out.append(
            self.stamp(
                e.AttemptStarted, job=key, attempt=number + 1, epoch=number + 2, in_place=1, nodes=(node,), ranks=8
            )
        )
        out.append(self.stamp(e.FirstStepDone, job=key, attempt=number + 1, step=step, resumed_from=step - 10))
        self.steps[i] = step + 10
        out.append(self.stamp(e.CheckpointSaved, job=key, attempt=number + 1, step=step + 10, durable=True))
        return out


def measure(size: int, count: int) -> dict[str, float]:
    """Events per second, and orders given, for one size."""
    stream = Stream(size)
    events = stream.batch(count)
    handle, touched = stream.engine.handle, stream.engine.touched
    orders: list[o.AnyOrder] = []
    best = 0.0
    third = len(events) // 3
    for start in range(0, 3 * third, third):
        began = time.process_time()
        for event in events[start : start + third]:
            orders += handle(event)
            touched()
        best = max(best, third / (time.process_time() - began))
    return {"jobs_and_nodes": size, "events_per_s": round(best), "events": len(events), "orders": len(orders)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--events", type=int, default=20_000, help="events per size")
    options = parser.parse_args()
    rows = [measure(size, options.events) for size in SIZES]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'jobs+nodes':>12} {'events/s':>12} {'us/event':>10} {'orders':>8}")
    for row in rows:
        speed = row["events_per_s"]
        print(f"{row['jobs_and_nodes']:>12,} {speed:>12,} {1e6 / speed:>10.1f} {row['orders']:>8,}")
    slowest, fastest = min(r["events_per_s"] for r in rows), max(r["events_per_s"] for r in rows)
    print(
        f"wanted: {WANTED:,.0f} events/s at every size; slowest {slowest:,}, ratio to fastest {slowest / fastest:.2f}"
    )


if __name__ == "__main__":
    main()
