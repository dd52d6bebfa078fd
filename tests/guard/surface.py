"""What users of one version can name: `python -m tests.guard.surface TREE FILE`, with TREE's code on the path, writes it as JSON.

OpenAPI, the command line's options, metrics and alerts, policy keys with their defaults, presets, exit codes. It is read by way
of the version's own `docs/make_*.py` and command line, so that a module may move without the guard being told.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import io
import json
import sys
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest import mock

from holdfast import errors
from holdfast.cli.entry import main as holdfast

NOW = 2_000_000_000.0
"""What the clock says to every command: what is told as of now must be the same in two runs."""


def said(*words: str) -> tuple[int, str]:
    """What `holdfast WORDS` prints, and its exit code, in this process."""
    out = io.StringIO()
    argv, clock = mock.patch.object(sys, "argv", ["holdfast", *words]), mock.patch("time.time", return_value=NOW)
    with argv, clock, contextlib.redirect_stdout(out):
        try:
            holdfast()
            code: Any = 0
        except SystemExit as left:
            code = left.code
    return int(code or 0), out.getvalue()


def options(make_cli: Any) -> dict[str, Any]:
    """Command -> parameter -> its words, type, bounds and default."""
    found: dict[str, Any] = {}

    def walk(command: Any, path: str) -> None:
        found[path] = {
            " ".join([*one.opts, *one.secondary_opts]): {
                "type": _type(one.type_descriptor.annotation),
                "bounds": [one.min, one.max],
                "default": str(one.default),
                "required": one.required,
                "several": one.multiple or one.nargs != 1,
            }
            for one in command.params
        }
        for name, child in sorted(getattr(command, "commands", {}).items()):
            walk(child, f"{path} {name}")

    for name in make_cli.COMMANDS:
        walk(make_cli.load(name), name)
    return found


def _type(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "|".join(str(one.value) for one in annotation)
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    return getattr(annotation, "__name__", str(annotation))


def _without_prose(value: Any) -> Any:
    if isinstance(value, dict):
        prose = {key for key in ("description", "summary") if isinstance(value.get(key), str)}
        return {key: _without_prose(one) for key, one in value.items() if key not in prose}
    return list(map(_without_prose, value)) if isinstance(value, list) else value


def rows(page: str, columns: int) -> dict[str, list[str]]:
    """First cell of every row of the page's tables, under its heading -> its further columns, so many in all."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| `"):
            first, *rest = (cell.strip() for cell in line.strip("|").split(" | ")[:columns])
            found[f"{heading}: {first}"] = rest
    return found


def surface(tree: Path) -> dict[str, Any]:
    """See the module."""
    sys.path.insert(0, str(tree / "docs"))
    pages = {name: importlib.import_module(f"make_{name}") for name in ("api", "cli", "observability", "policy")}
    presets = sorted(path.stem for path in (tree / "src/holdfast/presets").glob("*.toml"))
    return {
        "openapi": _without_prose(pages["api"].document()),
        "options": options(pages["cli"]),
        "metrics": rows(pages["observability"].page().partition("\n## ")[2], 2),
        "policy": rows(pages["policy"].page(), 2),
        "presets": {name: tomllib.loads(said("policy", "show", "--preset", name)[1]) for name in presets},
        "exit codes": {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")},
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(surface(Path(sys.argv[1])), default=str), encoding="utf-8")
