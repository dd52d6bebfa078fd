"""`python -m tests.slurm_schedules --seed N --count K [--prefix DIR] [--labs L]`: play schedules and judge them.

Exit code 1: a promise was broken; the complaints are printed, and the lab's folder is named.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from .play import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm_schedules", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--count", type=int, default=20, help="schedules with an effect")
    parser.add_argument("--first", type=int, default=0, help="number of the first schedule")
    parser.add_argument("--prefix", default="", help="where the Slurm to run is installed")
    parser.add_argument("--labs", type=int, default=1, help="how many run beside each other")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    done = play(
        seed=asked.seed,
        count=asked.count,
        first=asked.first,
        prefix=asked.prefix,
        labs=asked.labs,
        say=lambda line: print(line, flush=True),
    )
    print(done, *done.complaints, sep="\n")
    return 1 if done.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
