"""Is this version as fast as an older one? Runs one benchmark on both in turns, and compares each of its figures.

    python benchmarks/against.py engine OLDER [--pairs 10] [--json]

OLDER is the folder of another checkout that has its own `.venv`. The benchmark is this checkout's script for both, under
each one's own Python, so both do the same work. Pairs go A B, B A, A B, ...: what drifts on the machine hits both alike.

A figure's ratio is speed of this version / speed of the older one, so above 1 is faster, for seconds and rates alike.
With d = ln(ratio) of each of n pairs, mean m and standard deviation s (n - 1), the ratio is exp(m) and its interval of
95 % is exp(m +- t s / sqrt(n)), t being Student's 0.975 quantile with n - 1 degrees of freedom. A pair in which either
version gave no figure (a job that did not come back) is left out, and n says so. `slower`: the whole interval lies below
0.95, and the exit code is 1; `no slower`: the whole interval lies at 0.95 or above; else the pairs are too few to tell.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
LIMIT = 0.95
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Quantile 0.975 with 1 to 30 degrees of freedom; with more, the last one is a little too wide."""

Speeds = dict[str, float]


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark is run, and how its JSON becomes speeds: figures of which more is better."""

    arguments: tuple[str, ...]
    speeds: Callable[[list | dict], Speeds]


def engine(rows: list) -> Speeds:
    return {f"events/s, {row['jobs_and_nodes']:,} jobs and nodes": row["events_per_s"] for row in rows}


def matching(rates: dict) -> Speeds:
    return {f"GB/s, {name}": rate for name, rate in rates.items()}


def detection(table: dict) -> Speeds:
    return {
        f"1/s, {kind}: {time.removesuffix('_median_s')}": 1.0 / seconds
        for kind, row in table.items()
        for time, seconds in row.items()
        if time.endswith("_median_s") and seconds
    }


def startup(medians: dict) -> Speeds:
    return {f"1/s, {name}": 1.0 / seconds for name, seconds in medians.items()}


def recovery(found: dict) -> Speeds:
    return {f"1/s, {name}": 1.0 / seconds for name, seconds in found["medians"].items() if math.isfinite(seconds)}


BENCHMARKS = {
    "engine": Benchmark(("--json",), engine),
    "matching": Benchmark(("--json", "--quick"), matching),
    "detection": Benchmark(("--json", "--runs", "2"), detection),
    "startup": Benchmark(("--json",), startup),
    "recovery": Benchmark(("--json", "--runs", "1", "--only", "holdfast"), recovery),
}


@dataclass(frozen=True)
class Ratio:
    """This version's speed against the older one's."""

    figure: str
    n: int
    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        return "slower" if self.high < LIMIT else "no slower" if self.low >= LIMIT else "too few pairs to tell"


def compared(figure: str, pairs: Sequence[tuple[float, float]]) -> Ratio:
    """`pairs`: speed of (this version, the older one), two pairs or more."""
    logs = [math.log(new / old) for new, old in pairs]
    mean = statistics.fmean(logs)
    t = STUDENT[min(len(logs) - 1, len(STUDENT)) - 1]
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(figure, len(logs), math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def measured(name: str, checkout: Path) -> Speeds:
    """One run of a benchmark under a checkout's Python; ends this program when it fails."""
    chosen = BENCHMARKS[name]
    argv = [str(checkout / ".venv" / "bin" / "python"), str(HERE / f"{name}.py"), *chosen.arguments]
    done = subprocess.run(argv, cwd=checkout, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        sys.exit(f"against: {name} gave no figures in {checkout}:\n{done.stderr[-2000:]}")
    return chosen.speeds(json.loads(done.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("older", type=Path, help="folder of the older checkout, with its own .venv")
    parser.add_argument("--pairs", type=int, default=10, help="runs of each version")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    options = parser.parse_args()
    new, old = HERE.parent, options.older.resolve()
    if options.pairs < 2:
        parser.error("--pairs must be 2 or more: one pair tells nothing of how much runs differ")
    for checkout in (new, old):
        if not (checkout / ".venv" / "bin" / "python").exists():
            parser.error(f"{checkout} has no .venv: run `make install` there")
    pairs: dict[str, list[tuple[float, float]]] = {}
    for number in range(options.pairs):
        found = {checkout: measured(options.benchmark, checkout) for checkout in ((new, old), (old, new))[number % 2]}
        for figure in [one for one in found[new] if one in found[old]]:
            pairs.setdefault(figure, []).append((found[new][figure], found[old][figure]))
        print(f"  pair {number + 1}/{options.pairs}", file=sys.stderr, flush=True)
    ratios = [compared(figure, found) for figure, found in pairs.items() if len(found) > 1]
    if options.json:
        print(json.dumps([{**asdict(one), "verdict": one.verdict} for one in ratios]))
    else:
        print(f"{'figure':<60} {'n':>3} {'new/old':>8}   95 % interval")
        for one in ratios:
            print(f"{one.figure:<60} {one.n:>3} {one.ratio:>8.3f}   {one.low:.3f} to {one.high:.3f}   {one.verdict}")
    return 1 if not ratios or any(one.verdict == "slower" for one in ratios) else 0


if __name__ == "__main__":
    sys.exit(main())
