"""Writes a drill's journal as a recording that the tests read: its events with orders, its records, its series, the drills' results.

    holdfast drill run kill9.toml hang_allreduce.toml xid_74_replace.toml --workload gpt --seed 3 --keep --out DIR    (--on slurm)
    python -m tests.report.record DIR/cluster-1/controller/journal.db embedded-drills DIR

The drills are those that ship with `[job]` `step_s = 0.55` and `checkpoint_every = 5` behind them: a launcher looks at its ranks twice a second, so
nearly every step is in the series. Folders of this machine become `/srv/drill` and `/opt/holdfast`. No test calls it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from holdfast.adapters.journal import export, open_journal
from holdfast.model.wire import encode
from holdfast.ports import Journal

HERE = Path(__file__).parent / "recorded"
TREE = Path(__file__).parents[2]
SERIES = ("step", "loss", "samples", "tokens", "checkpoint", "save_s")


async def samples(journal: Journal) -> AsyncIterator[bytes]:
    """One line each, by series, in order of time."""
    for series in SERIES:
        for one in await journal.samples(series, "job:*"):
            fields = {"series": series, "subject": one.subject, "at": one.at, "value": one.value}
            yield json.dumps(fields, separators=(",", ":")).encode() + b"\n"


async def record(path: str, name: str, folder: str) -> None:
    """Write the three files of a recording."""
    journal = open_journal(f"sqlite:///{path}")
    records = {
        "jobs": await journal.jobs(), "nodes": await journal.nodes(), "incidents": await journal.incidents(),
    }  # fmt: skip
    for suffix, parts in {
        "jsonl": [line async for line in export(journal)],
        "samples.jsonl": [line async for line in samples(journal)],
        "records.json": [encode(records), b"\n"],
        "drills.json": [(Path(folder) / "drills.json").read_bytes()],
    }.items():
        text = b"".join(parts).decode().replace(folder.rstrip("/"), "/srv/drill").replace(str(TREE), "/opt/holdfast")
        (HERE / f"{name}.{suffix}").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(record(*sys.argv[1:4]))
