"""Writes a year of a simulated cluster, as the real engine judged it, as a recording that the tests read.

    python -m tests.report.record_year          (some minutes; the same bytes every time, as long as the engine is the same)

`recorded/simulated-year.jsonl.xz`: the canonical journal, an event with its orders a line; `...records.json.xz`: what the engine had remembered
at the end. Three jobs of eight nodes on a cluster of 28: two under `holdfast run`, one of which only the scheduler tells. No test calls it.
"""

from __future__ import annotations

import lzma
from pathlib import Path

from holdfast.model.wire import encode
from holdfast.sim.options import DAY_S, JobPlan, SimOptions
from holdfast.sim.run import simulate

HERE = Path(__file__).parent / "recorded"
JOBS = tuple(
    JobPlan(
        id=str(number), nodes=8, work_s=500 * DAY_S, checkpoint_s=6 * 3600.0, save_s=10.0, resubmit_s=600.0,
        launcher=number < 3, spares=1 if number == 2 else 0,
    )
    for number in (1, 2, 3)
)  # fmt: skip
YEAR = SimOptions(
    seed=6, nodes=28, spares=4, jobs=JOBS, fault_s=365 * DAY_S, failures=30.0, crashes=0.5, hangs=0.1, link_faults=0.1,
    lemons=0.05, stragglers=0.05, operators=0.05,
)  # fmt: skip


def main() -> None:
    """Simulate and write."""
    result = simulate(YEAR)
    records = {
        "jobs": result.jobs, "nodes": result.nodes, "incidents": result.incidents, "ended_at": result.ended_at,
        "started_at": result.started_at,
    }  # fmt: skip
    for suffix, text in (("jsonl.xz", result.journal()), ("records.json.xz", encode(records) + b"\n")):
        # No time stands in the file's head: equal histories give equal files.
        (HERE / f"simulated-year.{suffix}").write_bytes(lzma.compress(text, preset=9))
    print(f"{result.events} events, {len(result.incidents)} incidents, {result.bytes_written} bytes")


if __name__ == "__main__":
    main()
