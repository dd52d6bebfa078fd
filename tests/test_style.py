"""Style is a test: rules that a reviewer would otherwise have to remember, each with the replacement named."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import grimp
import pytest

from holdfast.model import records

SRC = Path(__file__).resolve().parent.parent / "src" / "holdfast"
MODULES = sorted(path for path in SRC.rglob("*.py") if "migrations/versions" not in path.as_posix())
PURE = ("model", "decide", "detect")
IN_PROCESS = ("telemetry", "checkpoint", "failpoint", "workload")
VAGUE = {"utils", "util", "common", "helpers", "helper", "manager", "misc", "l0", "l1"}

RUNS_PROGRAMS = {
    "os/programs.py": "the one way to run a program within a limit",
    "os/daemons.py": "starts daemons of this project",
    "launch/process.py": "supervises ranks, whose trees it proves gone",
    "adapters/repair/once.py": "a repair outlives the controller that began it",
    "adapters/repair/runner.py": "stands alone, so that it outlives the controller",
    "adapters/local/daemon.py": "holds the embedded cluster's daemon",
    "drill/stage.py": "holds a drill's controller, which it kills as a crash would",
    "lab/slurm_lab.py": "holds the lab's keeper",
    "lab/kube_lab.py": "holds the lab's keeper",
    "lab/waiting.py": "hands on the process of a keeper",
}
"""Modules that may use `subprocess`; all others run programs by `holdfast.os.programs`."""

LOADS_LATE = {
    "cli/controller.py controller": "help does not load all that a controller is made of",
    "cli/drill.py run": "`list` needs no controller",
    "cli/drill_schedule.py run": "`list` needs no controller and no notices",
    "cli/entry.py main": "a plain run needs no command-line library",
    "cli/entry.py _run_plainly": "other commands need no launcher",
    "cli/incident_lines.py _as_markdown": "one form of several, by Jinja",
    "cli/machine.py hyperscan": "a native library that may not fit this processor",
    "cli/operate.py operate": "help needs no HTTP client",
    "cli/records.py _open": "a controller is read without a journal, a journal without an HTTP client",
    "cli/records.py open_journal_file": "the database's library, and an extra",
    "cli/report.py _collect": "an HTTP client, where Prometheus is asked",
    "cli/report.py _text": "one form of several, by Jinja",
    "cli/run_start.py site_settings": "few nodes have a holdfast.toml",
    "cli/screen.py fold": "ClusterShell, for several nodes",
    "cli/stragglers.py page": "one form of two, by Jinja",
    "wiring/controller.py serve": "what only one kind of cluster needs",
    "wiring/orchestrators.py make_orchestrator": "what only one kind of cluster needs",
    "wiring/judgement.py quiet_logs": "ranks start before it is needed",
    "wiring/judgement.py _policies": "ranks start before it is needed",
    "wiring/judgement.py policy_for": "ranks start before it is needed",
    "wiring/judgement.py controller": "ranks start before it is needed",
    "wiring/traces.py readable": "an extra",
    "wiring/traces.py make_exporter": "an extra",
    "wiring/traces.py __init__": "an extra",
}
"""Functions of the rooms around the command line that import; the list may only shrink.

`cli.main.load` is the seam: it imports a command's module when the command is called.
"""

FIELDS = frozenset(
    name
    for kind in ("JobRecord", "AttemptRecord", "NodeRecord", "IncidentRecord", "OrderRecord", "BrakeRecord")
    for name in getattr(records, kind).__struct_fields__
)
CHANGES_IN_PLACE = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update"}
)
NO_RECORDS = frozenset({"self", "turn.state"})
"""What holds fields of the same names and is no record."""

FORBIDDEN = {
    "time.time": "take the time from the event (`at`) or from ports.Clock",
    "time.monotonic": "take it from ports.Clock",
    "time.sleep": "wait on an event, or order a StartTimer",
    "datetime.now": "take the time from the event (`at`) or from ports.Clock",
    "random.random": "draw from a seeded generator handed in",
    "os.environ": "read the environment in cli/ and hand the value in",
    "open": "let an adapter read it and hand over the bytes",
}


def relative(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def floor(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


@pytest.mark.parametrize("room", ["histories", "slurm_schedules"])
@pytest.mark.parametrize("name", ["checker", "record"])
def test_a_checker_imports_nothing_of_holdfast(room: str, name: str) -> None:
    """What judges the product from outside shares no code with it."""
    nodes = list(ast.walk(tree(Path(__file__).with_name(room) / f"{name}.py")))
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if name.startswith("holdfast")]


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_module_is_short_and_says_what_it_is_for(path: Path) -> None:
    """Every module opens with a docstring and stays under 800 lines (a concept is not cut to please a number)."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 800, "split it by what its parts are for"
    if text.strip():
        assert ast.get_docstring(tree(path)), "open with what the module is for and who calls it"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_functions_are_short(path: Path) -> None:
    """No function is longer than 70 lines."""
    long = [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > 70
    ]
    assert long == []


@pytest.mark.parametrize(
    "path", [p for p in MODULES if floor(p) in PURE or relative(p).startswith("launch/core/")], ids=relative
)
def test_judgement_reads_no_clock_file_or_environment(path: Path) -> None:
    """The pure floors call nothing that depends on when or where they run."""
    found = [
        f"line {node.lineno}: {name}: {FORBIDDEN[name]}"
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Attribute) and (name := dotted(node)) in FORBIDDEN)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and (name := node.func.id) == "open")
    ]
    assert found == []


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_shell_no_assert_no_torch_outside_its_modules(path: Path) -> None:
    """No `shell=True`; checks raise instead of assert (`-O` would mute them); torch only in *_torch.py."""
    bad: list[str] = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.keyword) and node.arg == "shell" and getattr(node.value, "value", None) is True:
            bad.append(f"line {node.value.lineno}: shell=True: pass an argv list")
        if isinstance(node, ast.Assert):
            bad.append(f"line {node.lineno}: assert: raise an error of errors.py")
        names = (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if any(n.split(".")[0] == "torch" for n in names) and not path.stem.endswith("_torch"):
            bad.append("torch: import it in a module named *_torch.py")
    assert bad == []


@pytest.mark.parametrize("path", [p for p in MODULES if relative(p) not in RUNS_PROGRAMS], ids=relative)
def test_programs_are_run_in_one_way(path: Path) -> None:
    """No `subprocess` and no group killed outside the modules named: `holdfast.os.programs` runs within a limit."""
    bad: list[str] = []
    for node in ast.walk(tree(path)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if "subprocess" in names or (isinstance(node, ast.ImportFrom) and node.module == "subprocess"):
            bad.append(f"line {node.lineno}: subprocess")
        if isinstance(node, ast.Attribute) and node.attr.startswith(("create_subprocess_", "killpg")):
            bad.append(f"line {node.lineno}: {node.attr}")
    assert bad == []


def test_the_modules_that_run_programs_are_those_named() -> None:
    """The list holds no module that is gone or that has stopped."""
    users = {relative(path) for path in MODULES if "import subprocess" in path.read_text(encoding="utf-8")}
    assert users == set(RUNS_PROGRAMS)


def test_files_are_locked_in_one_place() -> None:
    """`holdfast.os.files.locked`, and the checkpoint folder's in the user's process, which imports nothing of `os`.

    (`validate.shared` tries what a shared file system does with byte ranges.)
    """
    users = {relative(path) for path in MODULES if "fcntl.flock(" in path.read_text(encoding="utf-8")}
    assert users == {"os/files.py", "checkpoint/claim.py"}


def test_a_command_is_loaded_in_one_place() -> None:
    """Imports stand at the head of a module; those inside functions of these rooms are the ones that are listed."""
    late = {
        f"{relative(path)} {function.name}"
        for path in MODULES
        if floor(path) in {"cli", "wiring", "client", "api"}
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(function))
    }
    assert late == set(LOADS_LATE)


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_names_are_nouns_of_the_field(path: Path) -> None:
    """No drawer for odds and ends."""
    assert not VAGUE & {part.removesuffix(".py") for part in path.relative_to(SRC).parts}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_broad_excepts_say_why(path: Path) -> None:
    """`except Exception` stands only beside a comment that gives the reason."""
    lines = path.read_text(encoding="utf-8").splitlines()
    bare = [
        number
        for number, line in enumerate(lines, 1)
        if line.strip().startswith(("except Exception", "except BaseException", "except:"))
        and "#" not in line
        and not (number < len(lines) and lines[number].strip().startswith("#"))
    ]
    assert bare == []


def test_no_import_loops() -> None:
    """No module needs another that needs it, not for its types alone either: move what both need into a third."""
    graph = grimp.build_graph("holdfast", cache_dir=None)
    assert len(graph.modules) >= len(MODULES)
    try:
        graphlib.TopologicalSorter(
            {one: graph.find_modules_directly_imported_by(one) for one in graph.modules}
        ).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"import loop: {' <- '.join(error.args[1])}")


def writes_of_records(module: ast.Module) -> list[str]:
    """Where fields of records are assigned, deleted or changed in place, also by another name for the field."""

    def is_field(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr in FIELDS and ast.unparse(node.value) not in NO_RECORDS

    found: set[tuple[int, str]] = set()
    for scope in [module, *(node for node in ast.walk(module) if isinstance(node, ast.FunctionDef))]:
        nodes = list(ast.walk(scope))
        others = {
            target.id
            for node in nodes
            if isinstance(node, ast.Assign) and is_field(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            changed = node.value if isinstance(node, ast.Subscript) else node
            writes = not isinstance(getattr(node, "ctx", ast.Load()), ast.Load) and is_field(changed)
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in CHANGES_IN_PLACE
            ):
                changed = node.func.value
                writes = is_field(changed) or (
                    scope is not module and isinstance(changed, ast.Name) and changed.id in others
                )
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
                writes = True
            if writes:
                found.add((node.lineno, ast.unparse(node)))
    return [f"line {line}: {text}: give the deed a name in decide/records/" for line, text in sorted(found)]


@pytest.mark.parametrize(
    "path", [p for p in MODULES if floor(p) == "decide" and not relative(p).startswith("decide/records/")], ids=relative
)
def test_only_records_writes_a_record(path: Path) -> None:
    """`decide/records/` alone changes records, and marks them as changed; the flows name the deed."""
    assert writes_of_records(tree(path)) == []


@pytest.mark.parametrize(
    "planted",
    [
        "job.incident = incident.id",
        "job.view, node.gone = view, True",
        "job.epoch += 1",
        "job.attempt.ended_at: float = 1.0",
        "del incident.findings[0]",
        "incident.marks[mark] = now",
        "turn.state.jobs[name].rung = 1",
        "for job.epoch in (1, 2): pass",
        "incident.remedies.append(rung)",
        "job.spent.pop(name, None)",
        "setattr(node, kind, value)",
        "def deed():\n    kept = node.findings\n    kept.clear()",
    ],
)
def test_a_planted_write_is_found(planted: str) -> None:
    """Each way to change a record is seen; a flow that reads is not complained of."""
    assert len(writes_of_records(ast.parse(planted))) >= 1
    assert writes_of_records(ast.parse("reached = job.best_step\nturn.state.jobs.pop(name)\nself.nodes = 1")) == []
