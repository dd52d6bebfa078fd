"""`make guard BASE=COMMIT COUNT=N`: does the code of this checkout judge as the code of BASE did?

What the base does is recorded once, with its own code, below ~/.cache/holdfast/guard/BASE; an interrupted recording goes on.
Then this checkout's code gets the same events and is asked the same questions. Exit code 0: nothing differs that is not
listed in differences.toml. `PARTS` (default: all) names what is compared: replay, lab, plays, surface, explain, written.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import compare, journal

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CACHE = Path("~/.cache/holdfast/guard").expanduser()
PARTS = ("surface", "written", "explain", "lab", "plays", "replay")
SAY_S = 30.0
WRITTEN = 24
"""Simulated journals that are written into files as well."""


def run(tree: Path, *words: object, **environment: str) -> None:
    """One of this folder's programs with the tree's Holdfast."""
    path = os.pathsep.join((str(tree / "src"), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)], cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **environment}
    )
    if done.returncode:
        raise SystemExit(f"{words[0]} with the code of {tree} ended with {done.returncode}")


def check_out(base: str) -> Path:
    """The base's files; returns its folder in the cache, which also takes what is recorded."""
    found = subprocess.run(["git", "rev-parse", f"{base}^{{commit}}"], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"there is no commit {base!r} here: give BASE=COMMIT, or fetch it")
    cache = CACHE / found.stdout.strip()[:12]
    if not (cache / "tree").exists():
        print(f"guard: checking {base} out into {cache}", flush=True)
        packed = subprocess.run(["git", "archive", base], cwd=ROOT, capture_output=True, check=True).stdout
        (cache / "unpacked").mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-x", "-C", str(cache / "unpacked")], input=packed, check=True)
        (cache / "unpacked").rename(cache / "tree")
    return cache


def record(cache: Path, count: int, parts: list[str]) -> None:
    """Everything of the base that these parts need and the cache lacks."""
    tree = cache / "tree"
    if "plays" in parts:
        _collect("tests.guard.plays", "GUARD_PLAYS", cache / "plays.events", cache, "tests/decide/test_*.py")
    if {"replay", "written", "lab", "plays"} & set(parts):
        needed = count if "replay" in parts else WRITTEN if "written" in parts else 0
        run(tree, "tests.guard.record", cache, "--count", needed)
    if "surface" in parts and not (cache / "surface.json").exists():
        run(tree, "tests.guard.surface", tree, cache / "surface.json")
    if "written" in parts and not (cache / "written.json").exists():
        run(tree, "tests.guard.written", "write", cache, WRITTEN)
        run(tree, "tests.guard.written", "open", cache, cache / "written.json")
    if "explain" in parts and not (cache / "explain.json").exists():
        _collect("tests.guard.logs", "GUARD_LOGS", cache / "logs", cache, "tests/detect/test_whole_logs*.py")
        run(tree, "tests.guard.logs", cache / "logs", cache / "explain.json")


def _collect(plugin: str, variable: str, folder: Path, cache: Path, tests: str) -> None:
    """Run some of the base's tests for the sake of what they use; whether they pass is not asked here."""
    if folder.exists():
        return
    part = folder.with_suffix(".part")
    ours = cache / "ours" / "tests"  # this checkout's plugins beside the base's tests and what these import
    ours.mkdir(parents=True, exist_ok=True)
    (ours / "guard").unlink(missing_ok=True)
    (ours / "guard").symlink_to(HERE)
    path = os.pathsep.join((str(cache / "tree/src"), str(ours.parent), str(cache / "tree")))
    words = ["-q", "-p", plugin, "-p", "no:cacheprovider", "-m", "not soak and not cluster"]
    words += sorted(path.relative_to(cache / "tree").as_posix() for path in (cache / "tree").glob(tests))
    print(f"guard: running the base's {tests} ...", flush=True)
    subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *words],
        cwd=cache / "tree",
        env={**os.environ, "PYTHONPATH": path, variable: str(part)},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    part.rename(folder)


def documents(cache: Path, parts: list[str], tally: compare.Tally) -> None:
    """Ask this checkout what the base was asked, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.json"
        for part, words in {
            "surface": ("tests.guard.surface", ROOT, made),
            "written": ("tests.guard.written", "open", cache, made),
            "explain": ("tests.guard.logs", cache / "logs", made),
        }.items():
            if part not in parts:
                continue
            run(ROOT, *words)
            old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (cache / f"{part}.json", made))
            for name in old:
                tally.values(name if part == "surface" else part, name, old[name], new.get(name, compare.MISSING))


def replay(files: list[Path], tally: compare.Tally) -> None:
    """Every journal of these files, with this process's code."""
    begun = said = time.monotonic()
    for number, path in enumerate(files):
        for recorded in journal.read(path):
            compare.journal(recorded, tally)
        if time.monotonic() - said > SAY_S:
            said = time.monotonic()
            print(f"guard: {number + 1} of {len(files)} files replayed in {said - begun:.0f} s", flush=True)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="make guard", description=__doc__)
    parser.add_argument("--base", default=(HERE / "base.txt").read_text(encoding="utf-8").strip())
    parser.add_argument("--count", type=int, default=2000, help="simulated seeds")
    parser.add_argument("--parts", default=",".join(PARTS))
    given = parser.parse_args()
    parts = given.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {min(unknown)!r}: {', '.join(PARTS)}")
    tally = compare.Tally(compare.read_meant())
    cache = check_out(given.base)
    begun = time.monotonic()
    record(cache, given.count, parts)
    recorded = time.monotonic()
    documents(cache, parts, tally)
    for part in {"lab", "plays"} & set(parts):
        replay(journal.paths(cache / part), tally)
    if "replay" in parts:
        replay([cache / "simulated" / f"{seed}.xz" for seed in journal.seeds(given.count)], tally)
    print(tally.report())
    spent = f"recording {recorded - begun:.0f} s, comparing {time.monotonic() - recorded:.0f} s"
    print(f"\nguard: {'equal' if tally.ok else 'DIFFERENT'} to {given.base[:12]} ({spent})")
    return 0 if tally.ok else 1


if __name__ == "__main__":
    sys.exit(main())
