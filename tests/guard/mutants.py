"""Does the guard catch bugs? `python -m tests.guard.mutants --seed S --count K [--room launch]` plants K of them and sees.

A mutant is one small change of the source, drawn over every place of a room where its kind fits, the kinds in turn. It is
planted in a copy of `src`, and the recorded journals are replayed there: first a few, to count how many notice, then, if
none does, all. What the replay does not notice is given to the room's unit tests. A mutant whose line no journal reaches
is told apart. `--planted` takes the bugs of planted.py instead, which need no recording: each is given to the tests of
its room, and what those do not notice to seeds of the fuzz.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field, structs

from holdfast.sim.options import EDITION_5

from . import compare, journal
from .__main__ import CACHE, HERE, ROOT
from .planted import PLANTED

SRC = ROOT / "src"
FEW = 60
"""Seeds by which the journals that notice are counted; the lab's journals come on top."""
JOURNAL_S = 20
"""A journal whose replay takes longer has met an endless loop, which is noticed, too."""
TESTS = {
    "decide": ["tests/decide", "tests/sim/test_fuzz.py"],
    "model": ["tests/model", "tests/decide"],
    "launch": ["tests/launch"],
    "controller": ["tests/controller"],
    "adapters/slurm": ["tests/adapters/slurm"],
    "adapters/kubernetes": ["tests/adapters/kubernetes"],
    "adapters/notify": ["tests/adapters/test_notices.py", "tests/adapters/test_notify_file.py"],
}
"""Room -> its tests."""
TESTS_S = 900.0
PYTEST_UNUSABLE = 4
"""`pytest`: its arguments or a conftest cannot be used, which says nothing of the bug planted."""
PLANTED_SEEDS = 300
SEEDS_EACH = 20
"""Seeds of the fuzz that are run before it is seen whether one of them fails."""
SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Mutant(Struct, frozen=True):
    """One change: the text between two offsets of a file, and what stands there instead."""

    file: str
    """Below `src/holdfast`."""
    line: int
    kind: str
    begin: int
    end: int
    old: str
    new: str
    inside: bool = True
    """In a function, not run at import."""

    def __str__(self) -> str:
        """One line: where, what, and the two texts."""
        texts = (" ".join(text.split())[:90] for text in (self.old, self.new))
        return f"{self.file}:{self.line} {self.kind}: {' -> '.join(texts)}"


def planted(name: str, src: Path = SRC) -> Mutant:
    """One of `PLANTED`. Raises ValueError when the code has changed so that the bug must be written anew."""
    file, old, new = PLANTED[name]
    text = (src / "holdfast" / file).read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise ValueError(f"{name!r} cannot be planted: {file} has its text {text.count(old)} times")
    begin = text.index(old)
    return Mutant(file, text.count("\n", 0, begin) + 1, name, begin, begin + len(old), old, new)


# --- drawing ----------------------------------------------------------------------------------------------------------


def sites(file: str, text: str) -> Iterator[Mutant]:
    """Every mutant of a file."""
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line.encode()))
    data = text.encode()

    def made(node: Any, kind: str, new: str) -> Mutant:
        begin, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
        before = len(data[:begin].decode())
        old = data[begin:end].decode()
        return Mutant(file, node.lineno, kind, before, before + len(old), old, new)

    for node, parents in _nodes(ast.parse(text), ()):
        inside = any(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in parents)
        for kind, new in _changes(node, parents):
            yield structs.replace(made(node, kind, new), inside=inside)


def _nodes(node: ast.AST, parents: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """All nodes that run, with those around them, the nearest last: no annotations, docstrings or imports."""
    yield node, parents
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "bases"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.Import | ast.ImportFrom | ast.JoinedStr):
                yield from _nodes(child, (*parents, node))


def _changes(node: Any, parents: tuple[Any, ...]) -> Iterator[tuple[str, str]]:
    """What may be done to this node: kind and new text."""
    function = next((one for one in reversed(parents) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)), None)
    parent = parents[-1] if parents else None
    if isinstance(parent, ast.If | ast.IfExp | ast.While) and node is parent.test and not _is(node, "TYPE_CHECKING"):
        yield "negate", f"(not ({_text(node)}))"
        yield "other branch", "True"
        yield "other branch", "False"
    if isinstance(parent, ast.comprehension) and node in parent.ifs:
        yield "negate", f"(not ({_text(node)}))"
        yield "other branch", "True"
    if isinstance(node, ast.Compare):
        for number, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[number] = SWAPPED[type(operator)]()
            yield "swap comparison", f"({_text(changed)})"
    if isinstance(node, ast.BoolOp):
        changed = copy.deepcopy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "swap and/or", f"({_text(changed)})"
    if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
        yield "other limit", f"{node.value + 1 if isinstance(node.value, int) else 2 * node.value or 1.0}"
    if (
        isinstance(node, ast.Tuple | ast.List | ast.Set)
        and len(node.elts) > 1
        and not isinstance(parent, ast.Subscript)
    ):
        if isinstance(getattr(node, "ctx", None), ast.Store) or (isinstance(parent, ast.Assign) and _unpacks(parent)):
            return
        for number in range(len(node.elts)):
            changed = copy.deepcopy(node)
            del changed.elts[number]
            yield "drop element", _text(changed)
    if function is not None and isinstance(node, ast.stmt) and not _is_docstring(node):
        if isinstance(node, ast.Expr | ast.AugAssign | ast.Delete) or (
            isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
        ):
            yield "drop statement", "pass"
        if _is(function.returns, "None") and node in function.body and not isinstance(node, ast.Return):
            yield "early return", "return"


def _is(node: Any, text: str) -> bool:
    return node is not None and _text(node) == text


def _text(node: Any) -> str:
    return ast.unparse(node)


def _unpacks(assign: ast.Assign) -> bool:
    return isinstance(assign.targets[0], ast.Tuple)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def draw(room: str, seed: int, count: int) -> list[Mutant]:
    """So many mutants of a room, the kinds in turn; the same seed and code give the same."""
    folder = SRC / "holdfast"
    found: dict[str, list[Mutant]] = {}
    for path in sorted((folder / room).glob("**/*.py")):
        file = path.relative_to(folder).as_posix()
        for one in sites(file, path.read_text(encoding="utf-8")):
            found.setdefault(one.kind, []).append(one)
    dice = random.Random(f"mutants/{room}/{seed}")
    for of in found.values():
        dice.shuffle(of)
    kinds = sorted(found)
    dice.shuffle(kinds)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(found.values()):
        for kind in kinds:
            if found[kind] and len(drawn) < count:
                drawn.append(found[kind].pop())
    return drawn


# --- a copy with a bug ------------------------------------------------------------------------------------------------


class Copy:
    """A copy of `src` in which one mutant at a time is planted."""

    def __init__(self, folder: Path) -> None:
        self.src = folder / "src"
        shutil.copytree(SRC, self.src, ignore=shutil.ignore_patterns("__pycache__"))

    @contextlib.contextmanager
    def planted(self, one: Mutant) -> Iterator[None]:
        """The copy has this bug."""
        path = self.src / "holdfast" / one.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text[: one.begin] + one.new + text[one.end :], encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")

    def run(self, *words: str, limit_s: float) -> tuple[int, str]:
        """A Python program with the copy's Holdfast: exit code (124: the limit) and its output."""
        environment = {**os.environ, "PYTHONPATH": f"{self.src}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return 124, ""
        return done.returncode, done.stdout + done.stderr


class Seen(Struct):
    """What the replay says of a mutant."""

    journals: int = 0
    noticed: dict[str, int] = field(default_factory=dict)
    """Where the journals come from (`simulated`, `lab`, `plays`) -> how many of them differ."""
    reached: int = 0
    """Journals that came past the mutant's line, as far as that was asked."""
    first: str = ""


def replay(files: list[Path], line: str, *, until_first: bool) -> Seen:
    """Replay these files with this process's Holdfast; `line` is `FILE:NUMBER` and empty when nobody asks who reaches it."""
    seen = Seen()
    hits = [False]
    if line:
        _trace(line, hits)
    signal.signal(signal.SIGALRM, _too_long)
    for path in files:
        for recorded in journal.read(path):
            tally = compare.Tally([])
            hits[0] = False
            signal.alarm(JOURNAL_S)
            try:
                compare.journal(recorded, tally, restore=False)
            except TimeoutError:
                tally.differs(compare.Difference("orders", recorded.head.name, "", "an endless loop"))
            signal.alarm(0)
            seen.journals += 1
            seen.reached += hits[0]
            if not tally.ok:
                kind = recorded.head.name.partition("/")[0]
                seen.noticed[kind] = seen.noticed.get(kind, 0) + 1
                seen.first = seen.first or next(iter(tally.first.values())).where
                if until_first:
                    return seen
    return seen


def _too_long(*_given: object) -> None:
    raise TimeoutError


def _trace(line: str, hits: list[bool]) -> None:
    """Set `hits[0]` whenever the line begins to run."""
    file, number = line.rsplit(":", 1)
    wanted, end = int(number), f"/holdfast/{file}"

    def inside(frame: Any, event: str, _given: Any) -> Any:
        if event == "line" and frame.f_lineno == wanted:
            hits[0] = True
        return inside

    def outside(frame: Any, _event: str, _given: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.endswith(end):
            return None
        last = max((one for _, _, one in code.co_lines() if one), default=0)
        return inside if code.co_firstlineno <= wanted <= last else None

    sys.settrace(outside)


# --- the run ----------------------------------------------------------------------------------------------------------


def by_guard(copied: Copy, one: Mutant, cache: Path, seeds: int) -> str:
    """Plant a mutant of `decide` and say whether the guard notices: `caught by ...`, `unreached` or `not noticed`."""
    with copied.planted(one):
        seen = _replayed(copied, cache, FEW, "few")
        if seen.noticed:
            of = ", ".join(f"{number} {kind}" for kind, number in seen.noticed.items())
            return f"caught by replay ({of} of {seen.journals} journals; {seen.first})"
        seen = _replayed(copied, cache, seeds, "first")
        if seen.noticed:
            return f"caught by replay (the first in {seen.journals} journals: {seen.first})"
        if where := _explained(copied, cache):
            return f"caught by explain ({where})"
        if not one.inside:
            return f"not noticed (in {seen.journals} journals; it runs when the module is imported)"
        traced = _replayed(copied, cache, FEW, f"{one.file}:{one.line}")
        word = "not noticed" if traced.reached else "unreached"
        return f"{word} (in {seen.journals} journals; its line runs in {traced.reached} of {traced.journals})"


def _explained(copied: Copy, cache: Path) -> str:
    """The first place at which `holdfast explain` says something else of the tests' logs; empty: nowhere."""
    made = copied.src.parent / "explain.json"
    made.unlink(missing_ok=True)
    code, out = copied.run("-m", "tests.guard.logs", str(cache / "logs"), str(made), limit_s=900.0)
    if code:
        return f"it ends with {code}: {out.strip().splitlines()[-1:]}"
    tally = compare.Tally([])
    tally.values("explain", "log", json.loads((cache / "explain.json").read_text()), json.loads(made.read_text()))
    return next((one.where for one in tally.first.values()), "")


def by_tests(copied: Copy, one: Mutant, room: str) -> str:
    """Plant a mutant and say whether the room's unit tests notice: `caught by tests` or `MISSED`."""
    tests = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not soak and not cluster", *TESTS[room]]
    with copied.planted(one):
        code, out = copied.run(*tests, limit_s=TESTS_S)
    if code == 0:
        return "MISSED"
    if code == PYTEST_UNUSABLE:
        raise SystemExit(f"the tests of {room} do not start with {one}:\n{out}")
    name = next((row for row in out.splitlines() if row.startswith(("FAILED", "ERROR"))), f"exit {code}")
    return f"caught by tests ({name[:140]})"


def by_seeds(copied: Copy, one: Mutant) -> str:
    """Plant a mutant and say whether the fuzz notices within `PLANTED_SEEDS`: `caught by seed N` or `MISSED`."""
    with copied.planted(one):
        for begin in range(EDITION_5, EDITION_5 + PLANTED_SEEDS, SEEDS_EACH):
            words = ["--from", str(begin), "--seeds", str(SEEDS_EACH), "--jobs", "1", "--no-shrink"]
            code, out = copied.run("-m", "holdfast", "simulate", "fuzz", *words, limit_s=TESTS_S)
            if code:
                rows = [row.strip() for row in out.splitlines() if row.startswith(("seed ", "  "))]
                return f"caught by {': '.join(rows[:2])[:140]}" if rows else f"caught by fuzz (exit {code})"
    return "MISSED"


def _plant_all(only: list[str]) -> int:
    """Plant the bugs chosen by hand, one after another. Returns how many nobody catches."""
    missed = 0
    names = list(PLANTED)
    with tempfile.TemporaryDirectory() as folder:
        copied = Copy(Path(folder))
        for number, name in enumerate(names, 1):
            if only and str(number) not in only:
                continue
            one = planted(name, copied.src)  # SRC may be edited meanwhile
            room = next(room for room in TESTS if one.file.startswith(f"{room}/"))
            said = by_tests(copied, one, room)
            said = by_seeds(copied, one) if said == "MISSED" else said
            missed += said == "MISSED"
            print(f"{number:3} {name} ({one.file}:{one.line}): {said}", flush=True)
    print(f"{missed} of {len(only or names)} are caught by nobody")
    return missed


def _replayed(copied: Copy, cache: Path, seeds: int, how: str) -> Seen:
    code, out = copied.run("-m", "tests.guard.mutants", "--replay", str(cache), how, str(seeds), limit_s=3600.0)
    if code:
        return Seen(1, {"all": 1}, 1, f"it does not start: {out.strip().splitlines()[-1:]}")
    return Seen(**json.loads(out.splitlines()[-1]))


def _replay_here(cache: Path, how: str, seeds: int) -> None:
    files = [path for seed in journal.seeds(seeds) if (path := cache / "simulated" / f"{seed}.xz").exists()]
    files = [*(path for part in ("lab", "plays") for path in journal.paths(cache / part)), *files]
    found = replay(files, how if ":" in how else "", until_first=how == "first")
    print(json.dumps({name: getattr(found, name) for name in found.__struct_fields__}))


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument(
        "--seeds", type=int, default=2000, help="recorded seeds that what few do not notice is replayed on"
    )
    parser.add_argument("--room", choices=sorted(TESTS), default="decide")
    parser.add_argument("--base", default=(HERE / "base.txt").read_text(encoding="utf-8").strip())
    parser.add_argument("--planted", action="store_true", help="the bugs chosen by hand")
    parser.add_argument("--list", action="store_true", help="only say which are drawn")
    parser.add_argument("--only", default="", help="of those that are drawn, by their numbers: 3,14")
    parser.add_argument("--replay", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.replay:
        _replay_here(Path(given.replay[0]), given.replay[1], int(given.replay[2]))
        return 0
    if given.planted:
        return min(1, _plant_all(given.only.split(",") if given.only else []))
    drawn = draw(given.room, given.seed, given.count)
    if given.only:
        drawn = [drawn[int(number) - 1] for number in given.only.split(",")]
    ends: dict[Mutant, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        copied = Copy(Path(folder))
        for number, one in enumerate(drawn, 1):
            print(f"{number:3} {one}", flush=True)
            if given.room == "decide" and not given.list:
                ends[one] = by_guard(copied, one, CACHE / given.base[:12], given.seeds)
                print(f"    {ends[one]}", flush=True)
        rest = [one for one in drawn if not given.list and not ends.get(one, "").startswith("caught")]
        print(f"the guard leaves {len(rest)} of {len(drawn)}: the tests of {given.room} on each", flush=True)
        for one in rest:
            said = by_tests(copied, one, given.room)
            print(f"    {said}: {one}", flush=True)
            ends[one] = f"{ends.get(one, 'the guard runs none of it').partition(' (')[0]}, {said.partition(' (')[0]}"
    for end, number in Counter(end.partition(" (")[0] for end in ends.values()).most_common():
        print(f"{number:4} {end}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
