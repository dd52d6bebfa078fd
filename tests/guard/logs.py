"""The log texts of the tests' corpus, and what `holdfast explain --json` says of them.

As a plugin of pytest (`-p tests.guard.logs`, with the base's code and tests) it keeps each file or folder that a test has
explained, below `GUARD_LOGS`. As a program (`python -m tests.guard.logs LOGS FILE`) it explains them all with the code on
the path and writes the answers as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any


def pytest_configure() -> None:
    """Stand between the tests and `explain_logs`, which they import later."""
    from holdfast.cli import explain

    real, folder = explain.explain_logs, Path(os.environ["GUARD_LOGS"])
    known: set[bytes] = set()

    def explain_logs(paths: Any, **named: Any) -> Any:
        given = [Path(path) for path in paths if str(path) != "-"]
        content = b"".join(_bytes(path) for path in given)
        if given and content not in known and len(content) < 1 << 20:
            known.add(content)
            into = folder / f"{len(known):04d}"
            into.mkdir(parents=True, exist_ok=True)
            for path in given:
                if path.is_dir():
                    shutil.copytree(path, into / path.name, dirs_exist_ok=True)
                elif path.exists():
                    shutil.copy(path, into)
        return real(paths, **named)

    explain.explain_logs = explain_logs
    import whole_logs

    whole_logs.TWO_MIB = 1  # a log behind many steps is the same log: the long way is not needed here


def _bytes(path: Path) -> bytes:
    parts = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    return b"".join(f"{one.name}\n".encode() + one.read_bytes() for one in parts if one.is_file())


def explain_all(folder: Path) -> dict[str, Any]:
    """Number of the log -> exit code and the JSON form."""
    from holdfast.adapters import catalogue_files

    from .surface import said

    catalogue_files.read_catalogue = functools.cache(catalogue_files.read_catalogue)  # 300 ms for each log otherwise
    found: dict[str, Any] = {}
    begun = time.monotonic()
    for one in sorted(folder.iterdir()):
        code, text = said("explain", "--json", *map(str, sorted(one.iterdir())))
        found[one.name] = {"exit": code, "said": json.loads(text) if text else None}
        if len(found) % 100 == 0:
            print(f"explained {len(found)} logs in {time.monotonic() - begun:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(explain_all(Path(sys.argv[1]))), encoding="utf-8")
