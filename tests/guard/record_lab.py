"""Records journals of real clusters for the guard: `python -m tests.guard.record_lab --on embedded|slurm|kubernetes`.

Runs shipped drills on real processes, each on a fresh cluster, and keeps the controller's journal and those of the job's
launchers in `journals/ON/NAME.xz`, in the canonical form of `holdfast.adapters.journal.export`. What stands there already is not
recorded again. Whether a drill passes is not asked: its events are what is wanted. Folders of this machine are replaced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from holdfast.adapters.journal import export, open_journal

from .journal import Head, Line, Recorded, write

HERE = Path(__file__).parent / "journals"
TREE = Path(__file__).parents[2]
ON = {"embedded": "local", "slurm": "slurm", "kubernetes": "kubernetes"}
FURTHER = (("kill9", 2), ("xid_74_replace", 2), ("node_loss", 2), ("hang_allreduce", 2))
"""Drills with another seed, so that another rank or node is hit."""
LIMIT_S = 290


async def exported(path: Path, name: str, hidden: dict[str, str]) -> Recorded | None:
    """One journal's events and orders; None for a journal without events."""
    journal = open_journal(f"sqlite:///{path}")
    text = b"".join([line async for line in export(journal)]).decode()
    await journal.close()
    for old, new in hidden.items():
        text = text.replace(old, new)
    lines = [msgspec.json.decode(line, type=Line) for line in text.splitlines()]
    if not lines:
        return None
    starts = (json.loads(bytes(line.event)) for line in lines)
    scope = next((one.get("scope", "cluster") for one in starts if one["event"] == "controller_started"), "cluster")
    return Recorded(head=Head(name=name, scope=scope), lines=lines)


def record(on: str, drill: str, seed: int) -> str:
    """Run one drill and keep its journals; says what came of it."""
    name = f"{drill}-{seed}"
    with tempfile.TemporaryDirectory(prefix="guard-lab-") as temporary:
        folder = Path(temporary) / "drill"
        words = ["drill", "run", drill, "--on", ON[on], "--seed", str(seed), "--keep", "--out", str(folder)]
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        hidden = {str(folder): "/srv/drill", str(TREE): "/opt/holdfast", sys.prefix: "/opt/holdfast/.venv"}
        found = []
        for path in sorted(folder.rglob("journal.db")):
            where = path.parent.relative_to(folder).as_posix().split("/", 1)[-1].replace("/", "-")
            made = asyncio.run(exported(path, f"lab/{on}/{name}/{where}", hidden))
            found += [made] if made is not None else []
        if not found:
            return f"no journal: {done.stderr.strip().splitlines()[-1:]}"
        write(HERE / on / f"{name}.xz", found, preset=9)
    events = sum(len(one.lines) for one in found)
    verdict = "passed" if done.returncode == 0 else f"ended with {done.returncode}"
    return f"{len(found)} journals, {events} events, {verdict}, {time.monotonic() - begun:.0f} s"


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=sorted(ON), required=True)
    parser.add_argument("--drill", action="append", help="only this one (repeatable)")
    parser.add_argument("--limit", type=int, default=1000, help="record so many more, then stop")
    given = parser.parse_args()
    listed = subprocess.run(
        [sys.executable, "-m", "holdfast", "drill", "list", "--json"], capture_output=True, check=True
    )
    names = [one["name"] for one in json.loads(listed.stdout)["drills"]]
    wanted = [(name, 1) for name in names if not name.startswith("slurm") or given.on == "slurm"] + list(FURTHER)
    missing = [(name, seed) for name, seed in wanted if not (HERE / given.on / f"{name}-{seed}.xz").exists()]
    for name, seed in [one for one in missing if not given.drill or one[0] in given.drill][: given.limit]:
        print(f"{given.on} {name} {seed}: {record(given.on, name, seed)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
