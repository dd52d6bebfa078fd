"""How soon a faulty node is marked on Kubernetes, and how soon its job trains on other nodes: faults one after another.

    .venv/bin/python benchmarks/kubernetes_marks.py [--faults 20]

A real control plane, agents, controller, operator, and a job of two pods whose launchers log in by their pods' tokens.
Every other fault is an Xid 74 line in the kernel log of one of the job's nodes (marked `UnschedulablePendingReplacement`
and replaced), the others an Xid 73 (`...PendingReboot`). `marked_s` is from the line to label, taint and cordon together
on the API server; `training_s` from the line to the first new step on healthy nodes; `start_s` is what the job's own
start needs: from its submission to its first step. Prints one JSON object; the goals are the project's own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from pathlib import Path

import holdfast.drill
from holdfast.adapters.kubernetes.api import ApiError
from holdfast.drill.clusters import StageSettings
from holdfast.drill.stage import Stage
from holdfast.drill.training import TrainingJob
from holdfast.errors import LinkError
from holdfast.model.cluster import JobKey, RecoverySpec
from holdfast.model.records import JobRecord, JobState

HEALTH = "holdfast.dev/node-health-status"
WANTED = {74: "UnschedulablePendingReplacement", 73: "UnschedulablePendingReboot"}
LINE = "NVRM: Xid (PCI:0000:b9:00): {}, pid=1, NVLink: fatal error detected on link 6(0x10000)"
LIMIT_S = 300.0
POLICY = Path(holdfast.drill.__file__).with_name("policy.toml")
"""Without the brake, which would end this row of faults after the first."""


async def marked(stage: Stage, node: str, value: str) -> None:
    """Return when label, taint and cordon are all there."""
    path = f"/api/v1/nodes/{node}"
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await stage.cluster.api.get(path)
            taints = {taint["key"] for taint in found["spec"].get("taints") or []}
            label = found["metadata"]["labels"].get(HEALTH)
            if label == value and HEALTH in taints and found["spec"].get("unschedulable"):
                return
            await asyncio.sleep(0.005)


async def returned(stage: Stage, node: str) -> None:
    """Return when the node takes work again."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(LinkError, ApiError):
                found = await stage.cluster.api.get(f"/api/v1/nodes/{node}")
                label = found["metadata"]["labels"].get(HEALTH)
                if label == "Schedulable" and not found["spec"].get("unschedulable"):
                    return
            await asyncio.sleep(0.1)


def trains(restarts: int, now: JobRecord) -> bool:
    """It has a first step, and a durable checkpoint, of its newest start."""
    newest = now.attempts[-1] if now.attempts else None
    begun = newest is not None and newest.first_step_at > 0 and newest.durable_step is not None
    return begun and now.view.restart_count == restarts and now.state is JobState.WATCHING


async def fault(stage: Stage, key: JobKey, number: int) -> dict[str, float]:
    """One fault, seen through; the node is back at the end."""
    xid = 73 if number % 2 else 74
    record = await stage.until(key, lambda now: trains(number, now), limit_s=LIMIT_S)
    node = record.view.nodes[-1]
    begun, at = time.monotonic(), time.time()
    await stage.breaker.do("kmsg", node, text=LINE.format(xid))
    await marked(stage, node, WANTED[xid])
    took = time.monotonic() - begun
    after = await stage.until(key, lambda now: trains(number + 1, now), limit_s=LIMIT_S)
    await returned(stage, node)
    return {"xid": xid, "marked_s": took, "training_s": after.attempts[-1].first_step_at - at}


def p95(values: list[float]) -> float:
    """The 95th percentile, by the nearest rank."""
    return sorted(values)[max(0, -(-len(values) * 95 // 100) - 1)]


async def measure(folder: Path, faults: int) -> dict[str, object]:
    """All faults on one stage."""
    settings = StageSettings(
        folder=folder, on="kubernetes", nodes=2, spares=2, policy=POLICY, boot_s=0.2, up_limit_s=LIMIT_S
    )
    async with Stage(settings) as stage:
        submitted = time.time()
        recovery = RecoverySpec(max_requeues=faults + 1)
        key = await stage.submit(TrainingJob(nodes=2, step_s=0.05, recovery=recovery))
        first = await stage.until(key, lambda now: trains(0, now), limit_s=LIMIT_S)
        start_s = first.attempts[-1].first_step_at - submitted
        found = []
        for number in range(faults):
            found.append(await fault(stage, key, number))
            print(json.dumps(found[-1]), flush=True)
    marks, trained = [one["marked_s"] for one in found], [one["training_s"] for one in found]
    return {
        "faults": faults,
        "marked_s": {"median": round(sorted(marks)[len(marks) // 2], 3), "p95": round(p95(marks), 3), "goal_p95": 2.0},
        "training_s": {
            "median": round(sorted(trained)[len(trained) // 2], 2),
            "p95": round(p95(trained), 2),
            "goal": round(start_s + 3.0, 2),
        },
        "start_s": round(start_s, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hf-marks-") as name:
        print(json.dumps(asyncio.run(measure(Path(name), asked.faults)), indent=2))


if __name__ == "__main__":
    main()
