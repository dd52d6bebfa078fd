"""Docs cannot rot: generated pages are current, and tables say what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from typer.core import TyperGroup

from holdfast import errors
from holdfast.cli.main import COMMANDS
from holdfast.cli.main import load as load_command

DOCS = Path(__file__).resolve().parent.parent / "docs"
SCRIPTS = sorted(DOCS.glob("make_*.py"))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_generated_page_is_current(script: Path) -> None:
    """`make docs` would change nothing."""
    module = load(script)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run `make docs` and commit the page"


def test_exit_codes_page_lists_every_code() -> None:
    """Names and numbers of errors.py stand in docs/exit-codes.md, and no others."""
    text = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    listed = {name: int(code) for code, name in re.findall(r"\| (\d+) \| `(EXIT_\w+)`", text)}
    assert listed == {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}


def test_commands_that_pages_name_exist() -> None:
    """Every `holdfast WORD WORD` in backticks and every prompt's line on a page is a command, and so is a group's next word."""
    named = re.compile(r"(?:`|^\$ )holdfast ([a-z][a-z-]+)(?: ([a-z][a-z-]+)\b(?![./=]))?", re.MULTILINE)
    wrong = []
    for page in [DOCS.parent / "README.md", *DOCS.glob("*.md"), *DOCS.glob("walks/*.md")]:
        for first, second in named.findall(page.read_text(encoding="utf-8")):
            known = load_command(first) if first in COMMANDS else None
            if known is None or (second and isinstance(known, TyperGroup) and second not in known.commands):
                wrong.append(f"{page.name}: holdfast {first} {second}".rstrip())
    assert wrong == []


def test_links_between_pages_lead_somewhere() -> None:
    """Every relative link in README and docs points to a file that exists."""
    broken = []
    for page in [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []
