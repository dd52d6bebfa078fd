"""A fleet report over a year with 100,000 incidents: seconds and memory, from the journal's file to the table.

    python benchmarks/report.py [--incidents 100000] [--form json] [--trace FIGURE|all]

The journal is written first (not timed), by the same store that the controller uses. The report runs as a user's command.
With `--trace` the journal holds the events of every incident, too (half a million), and the figure is followed to them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
from tests.report.histories import BEGIN, a_year, events_of

from holdfast.adapters.journal import open_journal
from holdfast.model.events import PolicyLoaded
from holdfast.model.records import Touched
from holdfast.ports import Entry
from holdfast.report.trace import FIGURES

TOML = "[slo]\ndetect_s = 5\nrecover_s = 120\navailability = 99\n"


async def write(path: Path, incidents: int, *, events: bool) -> None:
    jobs, nodes, found = a_year(1, incidents=incidents, nodes=2048, jobs=1000)
    journal = open_journal(f"sqlite:///{path}")
    await journal.acquire("bench", lease_s=3600, now=time.time())
    seqs = count(1)

    def policy(touched: Touched) -> Entry:
        seq = next(seqs)
        event = PolicyLoaded(id=f"e{seq}", at=BEGIN, seq=seq, received_at=BEGIN, toml=TOML)
        return Entry(event, [], touched)

    await journal.append([policy(Touched(jobs=jobs, nodes=nodes))])
    for begin in range(0, len(found), 500):
        some = found[begin : begin + 500]
        if events:
            entries = [
                Entry(msgspec.structs.replace(event, seq=next(seqs)), [], Touched(incidents=[incident]))
                for incident in some
                for event in events_of(incident)
            ]
            await journal.append(entries)
        else:
            await journal.append([policy(Touched(incidents=some))])
    await journal.close()


def run(path: Path, options: argparse.Namespace, figure: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "holdfast.cli.main", "report", "--journal", str(path), "--kind", "fleet"]
    command += ["--last", "200w", *(["--trace", figure.replace(" ", "-")] if figure else [])]
    began = time.monotonic()
    process = subprocess.Popen(command + (["--json"] if options.form == "json" else []), stdout=subprocess.PIPE)
    size = 0
    while process.stdout is not None and (chunk := process.stdout.read(1 << 20)):
        size += len(chunk)
    _, status, usage = os.wait4(process.pid, 0)
    took = time.monotonic() - began
    if status:
        sys.exit("the report failed")
    return {
        **({"figure": figure} if figure else {}),
        "incidents": options.incidents,
        "form": options.form,
        "bytes": size,
        "wall_s": round(took, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": round(usage.ru_maxrss / 1024, 1),
        "journal_mb": round(path.stat().st_size / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--incidents", type=int, default=100_000)
    parser.add_argument("--form", choices=["terminal", "json"], default="terminal")
    parser.add_argument("--trace", default="", metavar="FIGURE", help="follow this figure, or `all`, one after another")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder for the journal, which stays there and is used again")
    options = parser.parse_args()
    figures = list(FIGURES) if options.trace == "all" else [options.trace]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.keep or folder, "journal.db")
        if not path.exists():
            asyncio.run(write(path, options.incidents, events=bool(options.trace)))
        for figure in figures:
            result = run(path, options, figure)
            if options.json:
                print(json.dumps(result))
            elif len(figures) > 1:
                print(f"{figure:18} {result['wall_s']:7.2f} s wall {result['cpu_s']:7.2f} s cpu", end=" ")
                print(f"{result['peak_mb']:7.1f} MB {result['bytes']:>12,} bytes", flush=True)
            else:
                print("\n".join(f"{name:12} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
