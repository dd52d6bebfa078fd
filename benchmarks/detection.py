"""From fault to finding, and from finding to the new attempt's processes, on the embedded cluster.

Each kind of fault is injected `--runs` times into a running job by the shipped drills; times come from the journal of
the controller: the true time of the fault from the injector, everything else as the controller stamped it. The load
average stands beside the figures: a restart is processes starting, and on a busy machine they queue for a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from holdfast.adapters.clock import SystemClock
from holdfast.drill.campaign import CampaignSettings, run_campaign
from holdfast.drill.results import DrillResult
from holdfast.drill.scenario import shipped
from holdfast.model.policy import Waits
from holdfast.model.records import Mark
from holdfast.report.figures import spread

KINDS = {
    "crash_segfault": "rank dies of a signal",
    "exception": "rank exits by an exception",
    "xid_74_replace": "Xid line in a node's kernel log",
    "hang_allreduce": "one rank takes no part in the all-reduce",
}
PHASES = {
    "old attempt provably over": (Mark.DETECTED, Mark.STOPPED),
    "released": (Mark.STOPPED, Mark.RELEASED),
    "new processes": (Mark.RELEASED, Mark.STARTED),
}
"""Of a restart through the queue. The settling time of the policy runs beside the stop of the old attempt."""
TIMED = ("detect", "restart")
"""Fault to finding; finding to the processes of the new attempt."""
GOALS = {"crash_segfault": 0.5, "exception": 0.5, "xid_74_replace": 0.5, "hang_allreduce": 2.3}
"""Seconds from fault to finding; a hang: three steps of 0.1 s and 2 s."""


def seconds(result: DrillResult, begin: Mark, end: Mark) -> float | None:
    if result.incident is None:
        return None
    marks = result.incident.marks
    return marks[end] - marks[begin] if begin in marks and end in marks else None


async def measure(kinds: list[str], runs: int, workload: str, folder: Path) -> dict[str, list[DrillResult]]:
    scenarios = shipped()
    done: dict[str, list[DrillResult]] = {}
    for name in kinds:
        (folder / name).mkdir()
        settings = CampaignSettings(folder=folder / name, workload=workload, repeat=runs)  # type: ignore[arg-type]
        run = await run_campaign(
            [scenarios[name]],
            settings,
            clock=SystemClock(),
            on_result=lambda result: print(
                f"  {result.name:18s} detect {result.detect_s or 0:.3f} s {'ok' if result.passed else 'FAILED'}",
                file=sys.stderr,
                flush=True,
            ),
        )
        done[name] = run.drills
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--workload", choices=["counter", "gpt"], default="counter")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        done = asyncio.run(measure(options.kinds, options.runs, options.workload, Path(folder)))
    grace = Waits().settle_s + Waits().stop_grace_s
    table = {}
    for name, results in done.items():
        found = spread(result.detect_s for result in results)
        again = spread(seconds(result, Mark.DETECTED, Mark.STARTED) for result in results)
        table[name] = {
            "detect": found,
            "restart": again,
            "passed": sum(r.passed for r in results),
            "runs": len(results),
        }
    if options.json:
        print(
            json.dumps(
                {
                    name: {f"{of}_{which}_s": getattr(row[of], which) for of in TIMED for which in ("median", "p95")}
                    for name, row in table.items()
                }
            )
        )
        return
    print(f"Embedded cluster, workload {options.workload}, {options.runs} runs of each; p95 (median).")
    print(f"Load average of the machine ({os.cpu_count()} cores): {before:.1f} before, {os.getloadavg()[0]:.1f} after.")
    print(f"Finding to new processes includes {grace:.2f} s of grace that the default policy grants.")
    for name, row in table.items():
        found, again = row["detect"], row["restart"]
        print(
            f"  {KINDS[name]:42s} fault to finding {found.p95 or 0:.3f} ({found.median or 0:.3f}) s, goal {GOALS[name]} s;"
            f" finding to new processes {again.p95 or 0:.3f} ({again.median or 0:.3f}) s, goal 1 s;"
            f" {row['passed']} of {row['runs']} drills passed"
        )
        for phase, (begin, end) in PHASES.items():
            took = spread(seconds(result, begin, end) for result in done[name])
            if took.p95 is not None:
                print(f"    {phase:40s} {took.p95:.3f} ({took.median or 0:.3f}) s")


if __name__ == "__main__":
    main()
