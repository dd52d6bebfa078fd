"""How fast a cluster is simulated, how much a controller writes, and whether what comes out is what the field computes.

    python benchmarks/simulation.py [--json] [--only scale|formula|llama3] [--seeds 20]

Each run is a process of its own. Times are CPU seconds of one core, so that other load on the machine does not blur them;
memory is the process's peak. `scale` is the real controller and engine, with a launcher for each job, over a whole cluster.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean

from holdfast.sim.causes import LLAMA3_RATE, META_RSC1, META_RSC2, META_U0_S
from holdfast.sim.what_if import Case, Question, ask, interval_of, options_for, run_one, summary

UNLIMITED = "[limits]\nmax_requeues = 1000\n"
MB = 1 << 20

SCALES = {
    "16,384 GPUs, 54 days, one job": (Question(gpus=16384, days=54, failures=LLAMA3_RATE), 60.0),
    "16,384 GPUs, 54 days, 32 jobs": (Question(gpus=16384, days=54, jobs=32, failures=LLAMA3_RATE), 60.0),
    "100,000 GPUs, 30 days, one job": (Question(gpus=100_000, days=30, failures=META_RSC2, save_s=10.0), 600.0),
    "100,000 GPUs, 30 days, 50 jobs": (Question(gpus=100_000, days=30, jobs=50, failures=META_RSC2), 600.0),
}
"""Name -> what is simulated, and the CPU seconds that it may take."""


def measured(question: Question, seed: int = 0) -> dict[str, float]:
    """One run, in this process."""
    from holdfast.sim.run import simulate

    began = time.process_time()
    result = simulate(options_for(question, Case(policy=UNLIMITED, spares=max(8, question.nodes // 100)), seed))
    cpu_s = time.process_time() - began
    run = summary(seed, result)
    days = question.days
    return {
        "cpu_s": cpu_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB,
        "faults": run.faults,
        "incidents": run.incidents,
        "events": run.events,
        "orders": run.orders,
        "events_per_day": run.events / days,
        "journal_mb": run.journal_bytes / MB,
        "journal_mb_per_day": run.journal_bytes / MB / days,
        "state_mb": len(result.state) / MB,
        "speed": days * 86400.0 / cpu_s,
        "ettr": run.ettr,
        "refused": run.refused,
        "looks": result.counts.get("looks", 0),
    }


def alone(function, *arguments):
    """In a process of its own, so that peaks of memory do not mix."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def scale(say) -> list[dict[str, object]]:
    rows = []
    for name, (question, limit_s) in SCALES.items():
        made = alone(measured, question)
        rows.append({"name": name, "limit_s": limit_s, **made})
        say(
            f"{name}: {made['cpu_s']:.0f} s CPU (limit {limit_s:.0f}), peak {made['peak_mb']:.0f} MB, {made['faults']} faults, "
            f"{made['incidents']} incidents, {made['events']} events ({made['events_per_day']:.0f} a day), journal "
            f"{made['journal_mb']:.0f} MB ({made['journal_mb_per_day']:.2f} a day), engine's state {made['state_mb']:.1f} MB, "
            f"{made['speed']:,.0f} times as fast as life"
        )
    return rows


def formula(say, seeds: int) -> list[dict[str, object]]:
    rows = []
    for gpus, days in ((256, 54.0), (2048, 54.0), (16384, 5.0)):
        question = Question(
            gpus=gpus, days=days, failures=META_RSC1, causes="gpu", save_s=60.0, start_s=60.0, load_s=META_U0_S - 60.0
        )
        [answer] = ask(question, [Case(policy=UNLIMITED, spares=16)], range(seeds))
        deviation, least, greatest = answer.spread
        off = answer.ettr / answer.formula - 1.0
        rows.append({"gpus": gpus, "ettr": answer.ettr, "formula": answer.formula, "off": off, "deviation": deviation})
        say(
            f"{gpus} GPUs, {days:g} days, dt {answer.checkpoint_s:.0f} s: ETTR {answer.ettr:.4f} +/- {deviation:.4f} "
            f"({least:.4f} to {greatest:.4f}), formula {answer.formula:.4f}, off by {off:+.2%}"
        )
    return rows


def llama3(say, seeds: int) -> list[dict[str, object]]:
    """Llama 3's causes and rate, with Holdfast's recovery; how long the job itself takes to start and save is assumed."""
    rows = []
    for start_s, load_s, save_s in ((60.0, 60.0, 10.0), (60.0, 120.0, 60.0), (300.0, 300.0, 60.0)):
        question = Question(
            gpus=16384,
            days=54,
            failures=LLAMA3_RATE,
            start_s=start_s,
            load_s=load_s,
            save_s=save_s,
            in_place_s=start_s / 4,
        )
        runs = [run_one(question, Case(spares=20), seed) for seed in range(seeds)]
        row = {
            "start_s": start_s,
            "load_s": load_s,
            "save_s": save_s,
            "dt_s": interval_of(question, Case()),
            "ettr": fmean(run.ettr for run in runs),
            "faults": fmean(run.faults for run in runs),
            "given_up": sum(run.resubmitted for run in runs),
        }
        rows.append(row)
        say(
            f"Llama 3's causes, start {start_s:g} s, load {load_s:g} s, save {save_s:g} s every {row['dt_s']:.0f} s: "
            f"{row['ettr']:.2%} effective, {row['faults']:.0f} faults (published: over 90 %, 419)"
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=("scale", "formula", "llama3"))
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    say = (lambda _: None) if options.json else lambda line: print(line, flush=True)
    made = {}
    if options.only in {None, "scale"}:
        made["scale"] = scale(say)
    if options.only in {None, "formula"}:
        made["formula"] = formula(say, options.seeds)
    if options.only in {None, "llama3"}:
        made["llama3"] = llama3(say, max(1, options.seeds // 10))
    if options.json:
        print(json.dumps(made, indent=1))
    slow = [row["name"] for row in made.get("scale", []) if row["cpu_s"] > row["limit_s"] or row["refused"]]
    far = [row["gpus"] for row in made.get("formula", []) if abs(row["off"]) > 0.015]
    if slow or far:
        print(f"missed: {slow} {far}", file=sys.stderr)
    return 1 if slow or far else 0


if __name__ == "__main__":
    sys.exit(main())
