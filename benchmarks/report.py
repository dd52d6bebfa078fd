"""A fleet report over a year with 100,000 incidents: seconds and memory, from the journal's file to the table.

    python benchmarks/report.py [--incidents 100000]

The journal is written first (not timed), by the same store that the controller uses. The report runs as a user's command.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.report.histories import BEGIN, a_year

from holdfast.adapters.journal import open_journal
from holdfast.model.events import PolicyLoaded
from holdfast.model.records import Touched
from holdfast.ports import Entry


async def write(path: Path, incidents: int) -> None:
    jobs, nodes, found = a_year(1, incidents=incidents, nodes=2048, jobs=1000)
    journal = open_journal(f"sqlite:///{path}")
    await journal.acquire("bench", lease_s=3600, now=time.time())
    rows = [Touched(jobs=jobs, nodes=nodes)] + [
        Touched(incidents=found[n : n + 500]) for n in range(0, len(found), 500)
    ]
    for seq, touched in enumerate(rows, 1):
        event = PolicyLoaded(
            id=f"e{seq}",
            at=BEGIN,
            seq=seq,
            received_at=BEGIN,
            toml="[slo]\ndetect_s = 5\nrecover_s = 120\navailability = 99\n",
        )
        await journal.append([Entry(event, [], touched)])
    await journal.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--incidents", type=int, default=100_000)
    parser.add_argument("--form", choices=["terminal", "json"], default="terminal")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.db")
        asyncio.run(write(path, options.incidents))
        began = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "holdfast.cli.main",
            "report",
            "--journal",
            str(path),
            "--kind",
            "fleet",
            "--last",
            "200w",
            *(["--json"] if options.form == "json" else []),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        out = process.stdout.read() if process.stdout else b""
        _, status, usage = os.wait4(process.pid, 0)
        took = time.monotonic() - began
        if status:
            sys.exit("the report failed")
        result = {
            "incidents": options.incidents,
            "form": options.form,
            "bytes": len(out),
            "wall_s": round(took, 2),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
            "peak_mb": round(usage.ru_maxrss / 1024, 1),
            "journal_mb": round(path.stat().st_size / 1e6, 1),
        }
    print(json.dumps(result) if options.json else "\n".join(f"{name:12} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
