"""The entry: quick to start, completes, and every command of the table can be imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from holdfast.cli.main import COMMANDS, load

HEAVY = (
    "sqlalchemy", "alembic", "litestar", "granian", "httpx", "hyperscan", "torch", "plotly", "jinja2", "ClusterShell",
    "psutil", "prometheus_client", "numpy",
)  # fmt: skip

PROBE = """
import sys
sys.argv = ["holdfast", *{argv!r}]
from holdfast.cli.main import main
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
print("LOADED", *sorted({{name.split(".")[0] for name in sys.modules}} & {heavy!r}))
print("OURS", *sorted(name for name in sys.modules if name.startswith("holdfast.") and "cli" not in name))
"""


@pytest.mark.parametrize("argv", [[], ["--help"], ["--version"], ["jobs", "--help"], ["node", "drain", "--help"]])
def test_start_is_free_of_heavy_imports(argv: list[str]) -> None:
    """Help and version load neither a database, nor a web server, nor a matcher, nor an HTTP client."""
    code = PROBE.format(argv=argv, heavy=set(HEAVY))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "LOADED" in lines, lines[-2]
    if argv in ([], ["--help"], ["--version"]):
        assert "OURS holdfast.errors" in lines


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_made(shell: str) -> None:
    """`--show-completion` prints a script for the shell that it runs in, and the script completes commands."""
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "holdfast.cli.main"]
    done = subprocess.run(
        [*command, "--show-completion", shell], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "complete" in done.stdout


def test_completion_completes_commands_and_their_subcommands() -> None:
    """The same protocol that the script speaks: names of commands, then of a group's own commands."""

    def completed(words: str) -> set[str]:
        environment = {
            **os.environ, "_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")),
        }  # fmt: skip
        code = "from holdfast.cli.main import app; app(prog_name='holdfast')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
        return set(done.stdout.split())

    assert completed("holdfast incid") == {"incident", "incidents"}
    assert {"drain", "return", "reboot", "replace", "confirm-healthy", "show"} <= completed("holdfast node ")


def _cut_short(command: TyperCommand | TyperGroup, path: str) -> list[str]:
    """The commands below it whose help line does not fit beside their name in 80 columns."""
    if not isinstance(command, TyperGroup):
        return []
    context = typer.Context(command, info_name=path)
    below = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    room = 80 - 6 - max(len(name) for name, _ in below)
    found = []
    for name, child in below:
        assert isinstance(child, TyperCommand | TyperGroup)
        if not child.hidden and child.get_short_help_str(limit=room) != child.get_short_help_str(limit=10_000):
            found.append(f"{path} {name}")
        found += _cut_short(child, f"{path} {name}")
    return found


def test_no_help_line_is_cut_short() -> None:
    """A list of commands says what each does, on a terminal of 80 columns, without dots at its end."""
    cut = [one for name in COMMANDS for one in _cut_short(load(name), f"holdfast {name}")]
    room = 80 - 6 - max(map(len, COMMANDS))
    assert [*cut, *(name for name, (_, _, line) in COMMANDS.items() if len(line) > room)] == []
