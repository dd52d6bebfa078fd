"""Records journals of real clusters for the guard, in `journals/ON/NAME.xz`; what stands there is not recorded again.

    python -m tests.guard.record_lab --on embedded|slurm|kubernetes         # runs the shipped drills, a fresh cluster for each
    python -m tests.guard.record_lab --of FOLDER                            # takes the journals that tests or drills left there

Kept are the controller's journal and those of the jobs' launchers, in the canonical form of `adapters.journal.export`. Whether
a drill passed is not asked: its events are what is wanted. Names of this machine's folders and of the machine are replaced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from holdfast.adapters.journal import export, open_journal
from holdfast.errors import HoldfastError

from .journal import Head, Line, Recorded, read, write

HERE = Path(__file__).parent / "journals"
TREE = Path(__file__).parents[2]
ON = {"embedded": "local", "slurm": "slurm", "kubernetes": "kubernetes"}
FURTHER = (("kill9", 2), ("xid_74_replace", 2), ("node_loss", 2), ("hang_allreduce", 2))
"""Drills with another seed, so that another rank or node is hit."""
LIMIT_S = 220
EVENTS_MIN = 20
"""A shorter journal tells of nothing."""


async def _exported(path: Path) -> bytes:
    """The canonical form of a copy of the journal: its writer may be alive."""
    with tempfile.TemporaryDirectory() as folder:
        for file in path.parent.glob(f"{path.name}*"):
            shutil.copy(file, folder)
        journal = open_journal(f"sqlite:///{folder}/{path.name}")
        try:
            return b"".join([line async for line in export(journal)])
        finally:
            await journal.close()


def _placeless(text: str) -> str:
    """Without the names of this machine and its folders."""
    text = re.sub(r"/(?:tmp|work|root|home|var/tmp)/[^\s\"'\\,;:)]*", _rooted, text)
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "host", text)


def _rooted(found: re.Match[str]) -> str:
    parts = found[0].split("/")
    for kept in ("src", "site-packages", "examples", "tests", "bin"):
        if kept in parts:
            return "/".join(["/opt/holdfast", *parts[parts.index(kept) :]])
    return f"/srv/{parts[-1]}"


def journal_of(path: Path, name: str) -> Recorded | None:
    """One journal's events and orders; None for one that is short or cannot be read."""
    try:
        text = _placeless(asyncio.run(_exported(path)).decode())
    except (HoldfastError, OSError) as error:
        print(f"left out {path}: {error}", file=sys.stderr)
        return None
    lines = [msgspec.json.decode(line, type=Line) for line in text.splitlines()]
    if len(lines) < EVENTS_MIN:
        return None
    starts = [one for line in lines if (one := json.loads(bytes(line.event)))["event"] == "controller_started"]
    return Recorded(head=Head(name=name, scope=starts[0].get("scope", "cluster") if starts else "cluster"), lines=lines)


def sort_of(one: Recorded) -> str:
    """`embedded`, `slurm`, `kubernetes`, `jobs` for a launcher's, by who has looked at the scheduler; empty: nobody has."""
    if one.head.scope == "allocation":
        return "jobs"
    sources = {json.loads(bytes(line.event)).get("source", "").partition(":")[0] for line in one.lines}
    return next((sort for sort, on in ON.items() if on in sources), "")


def harvest(folder: Path) -> None:
    """Take every journal below a folder; one that has grown since replaces what was taken."""
    for path in sorted(folder.rglob("journal.db")):
        parts = [part for part in path.parent.parts[1:] if part not in {"controller", "jobs"}]
        tests = [number for number, part in enumerate(parts) if part.startswith("test_")]
        name = re.sub(r"[^\w.-]+", "-", "-".join(parts[tests[-1] :] if tests else parts[-2:])).removeprefix("test_")
        made = journal_of(path, name)
        sort = sort_of(made) if made is not None else ""
        if made is None or not sort:
            continue
        kept = HERE / sort / f"{name}.xz"
        if kept.exists() and len(read(kept)[0].lines) >= len(made.lines):
            continue
        head = msgspec.structs.replace(made.head, name=f"lab/{sort}/{name}")
        write(kept, [msgspec.structs.replace(made, head=head)], preset=9)
        print(f"{sort} {name}: {len(made.lines)} events", flush=True)


def record(on: str, drill: str, seed: int) -> str:
    """Run one drill and keep its journals in one file; says what came of it."""
    with tempfile.TemporaryDirectory(prefix="guard-lab-") as temporary:
        Path(temporary).chmod(0o755)  # the daemons of a lab may run as another user
        folder = Path(temporary) / "drill"
        words = ["drill", "run", drill, "--on", ON[on], "--seed", str(seed), "--keep", "--out", str(folder)]
        begun = time.monotonic()
        said = Path(temporary) / "said"
        with said.open("wb") as file:
            drill_run = subprocess.Popen([sys.executable, "-m", "holdfast", *words], stdout=file, stderr=file)
        try:
            code = drill_run.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            drill_run.send_signal(signal.SIGINT)  # it ends its cluster itself
            code = drill_run.wait(60)
        found = []
        for path in sorted(folder.rglob("journal.db")):
            where = "-".join(path.parent.relative_to(folder).parts[1:])
            found.append(journal_of(path, f"lab/{on}/{drill}-{seed}/{where}"))
        last = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-4:]
    kept = [one for one in found if one is not None]
    if not kept:
        return f"no journal; the drill ended with {code}: {last}"
    write(HERE / on / f"{drill}-{seed}.xz", kept, preset=9)
    verdict = "passed" if code == 0 else f"ended with {code}"
    return f"{len(kept)} journals, {sum(len(one.lines) for one in kept)} events, {verdict}, {time.monotonic() - begun:.0f} s"


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=sorted(ON))
    parser.add_argument("--drill", action="append", help="only this one (repeatable)")
    parser.add_argument("--limit", type=int, default=1000, help="record so many more, then stop")
    parser.add_argument("--of", type=Path, action="append", default=[], help="a folder with journals (repeatable)")
    given = parser.parse_args()
    for folder in given.of:
        harvest(folder)
    if not given.on:
        return 0
    words = [sys.executable, "-m", "holdfast", "drill", "list", "--json"]
    names = [one["name"] for one in json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["drills"]]
    wanted = [(name, 1) for name in names if not name.startswith("slurm") or given.on == "slurm"] + list(FURTHER)
    missing = [(name, seed) for name, seed in wanted if not (HERE / given.on / f"{name}-{seed}.xz").exists()]
    for name, seed in [one for one in missing if not given.drill or one[0] in given.drill][: given.limit]:
        print(f"{given.on} {name} {seed}: {record(given.on, name, seed)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
