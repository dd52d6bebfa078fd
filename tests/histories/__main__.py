"""`python -m tests.histories --seed N --count K --store sqlite|postgres`: play histories and judge them.

Exit code 1: a promise was broken; the complaints are printed, and the history's file is named.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from .play import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="number of the first history")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hf-histories-"))
    print(f"seed {asked.seed}, in {folder}", flush=True)
    done = asyncio.run(play(folder, seed=asked.seed, count=asked.count, store=asked.store, first=asked.first))
    print(done, *done.verdict.complaints, sep="\n")
    return 1 if done.verdict.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
