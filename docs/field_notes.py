"""The sentence beside each field of a struct, for the pages that list settings. Used by make_checks and make_policy."""

from __future__ import annotations

import ast
from pathlib import Path


def sentences(module: object) -> dict[str, dict[str, str]]:
    """Class -> field, or member of an enum -> the docstring that follows it."""
    tree = ast.parse(Path(str(getattr(module, "__file__", ""))).read_text(encoding="utf-8"))
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = found.setdefault(node.name, {})
        last = ""
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                last = item.target.id
            elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                last = item.targets[0].id
            elif isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and last:
                fields[last] = " ".join(str(item.value.value).split())
                last = ""
    return found
