"""How long a command line takes to answer: `holdfast --version`, beside a bare Python that prints a word."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

COMMANDS = {"holdfast --version": ("-m", "holdfast", "--version"), "python": ("-c", "print('x')")}


def seconds(arguments: tuple[str, ...]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs of each, in turns; the median counts")
    parser.add_argument("--json", action="store_true", help="print JSON: command to median seconds")
    options = parser.parse_args()
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.runs):
        for name, arguments in COMMANDS.items():
            took[name].append(seconds(arguments))
    medians = {name: statistics.median(found) for name, found in took.items()}
    if options.json:
        print(json.dumps(medians))
        return
    for name, median in medians.items():
        print(f"  {name:20s} {median:.3f} s ({median / medians['python']:.1f} times a bare Python)")


if __name__ == "__main__":
    main()
