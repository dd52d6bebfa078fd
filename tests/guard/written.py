"""Journals, a job's folder and checkpoints: written by the base, opened by the code under test.

`python -m tests.guard.written write CACHE N` with the base's code on the path, then `... open CACHE FILE` with either version's,
which works on a copy at a fixed place and writes what the commands said as JSON. Real files, real commands, one real job of
one process, which fails once; the job's folder is then used for one more run.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast.adapters.journal import open_journal
from holdfast.controller.state import ShellState, pack, unpack
from holdfast.decide.engine import Engine
from holdfast.model.wire import decode_event
from holdfast.ports import Entry

from .journal import Recorded, read, seeds
from .replay import policies, presets
from .surface import said

STEPS = 40
TRAIN = """
import pathlib, sys, torch
from holdfast import telemetry
from holdfast.checkpoint import Checkpointer
from holdfast.workload.counter import main
mark = pathlib.Path("failed-once")
if not mark.exists():
    mark.touch()
    sys.exit(3)
if not pathlib.Path("torch").exists():
    with Checkpointer("torch", every_steps=1) as checkpointer:
        checkpointer.save(1, {"weights": torch.arange(1000.0), "best": 9.0})
main()
"""


def train(folder: Path, steps: int) -> int:
    """Run the job in its folder to this step; returns the exit code of `holdfast run`."""
    counter = ["--steps", f"{steps}", "--checkpoint-every", "10", "--checkpoint-dir", f"{folder / 'checkpoints'}"]
    run = ["run", "--standbys", "0", "--job-dir", f"{folder / 'job'}", "--", sys.executable, f"{folder / 'train.py'}"]
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *run, *counter], cwd=folder, stdout=subprocess.DEVNULL, timeout=300
    ).returncode


async def write_journal(recorded: Recorded, path: Path) -> None:
    """A journal on disk as the controller writes it, up to where much is under way: events, orders, records, a snapshot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = open_journal(f"sqlite:///{path}")
    await journal.acquire("guard", lease_s=60.0, now=0.0)
    engine, shell = Engine(policies(recorded.head.policy), scope=recorded.head.scope, presets=presets()), ShellState()
    for number, line in enumerate(recorded.lines[: len(recorded.lines) * 2 // 3]):
        event = decode_event(bytes(line.event))
        orders = engine.handle(event)
        shell.fold(event, orders)
        await journal.append([Entry(event, orders, engine.touched())])
        if number == len(recorded.lines) // 2:
            await journal.snapshot(pack(engine, shell), event.seq)
    await journal.release()
    await journal.close()


def write(cache: Path, journals: int) -> None:
    """See the module."""
    folder = cache / "written"
    shutil.rmtree(folder, ignore_errors=True)
    for seed in seeds(journals):
        asyncio.run(write_journal(read(cache / "simulated" / f"{seed}.xz")[0], folder / "journals" / f"{seed}.db"))
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    code = train(folder, STEPS)
    if code != 0:
        raise SystemExit(f"the base's own job ended with {code}")
    (folder / "done").touch()


async def take_over(path: Path) -> dict[str, Any]:
    """What a controller finds that starts on this journal: timers, views, orders without an outcome."""
    journal = open_journal(f"sqlite:///{path}")
    state, _, events = await journal.load()
    if state is None:
        return {"snapshot": None}
    found = unpack(state)
    engine, shell = Engine.restore(found.engine, policies(""), presets=presets()), found.shell
    for event in events:
        shell.fold(event, engine.handle(event))
    await journal.close()
    return {
        "timers": {name: timer.order for name, timer in shell.timers.items()},
        "jobs": sorted(shell.jobs),
        "nodes": sorted(shell.nodes),
        "launchers": sorted(shell.launchers),
        "pending": [record.order.id for record in engine.pending_orders()],
    }


def opened(cache: Path) -> dict[str, Any]:
    """What the commands of this version say of all that was written."""
    folder = cache / "written.opened"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(cache / "written", folder)
    found: dict[str, Any] = {}
    journals = [*sorted((folder / "journals").glob("*.db")), folder / "job" / "journal.db"]
    for path in journals:
        about = f"{path.parent.name}/{path.stem}"
        for view in ("report", "incidents", "jobs", "nodes", "orders --all"):
            found[f"{about} {view}"] = _answer(*view.split(), "--json", "--journal", str(path))
        found[f"{about} a controller takes over"] = asyncio.run(take_over(path))
    for name in ("checkpoints", "torch"):
        for verb in ("list", "verify"):
            found[f"{name} {verb}"] = _answer("checkpoints", verb, "--json", str(folder / name))
    found["job goes on"] = train(folder, 2 * STEPS)
    (job,) = json.loads(said("jobs", "--json", "--journal", str(folder / "job"))[1])["jobs"]
    found["job after it went on"] = {name: job[name] for name in ("state", "attempts", "in_place", "step", "best_step")}
    shutil.rmtree(folder)
    return found


def _answer(*words: str) -> dict[str, Any]:
    code, text = said(*words)
    return {"exit": code, "said": json.loads(text) if text else None}


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        Path(sys.argv[3]).write_text(json.dumps(opened(Path(sys.argv[2]))), encoding="utf-8")
