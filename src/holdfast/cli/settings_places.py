"""Where `holdfast.toml` is looked for. A launcher looks here before it loads what reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FILE_NAME = "holdfast.toml"
SITE_FOLDER = Path("/etc/holdfast")


def places(option: Path | None = None, *, environ: Mapping[str, str] | None = None) -> list[Path]:
    """Where `holdfast.toml` is looked for, in order. A place named by option or environment is the only one."""
    known = os.environ if environ is None else environ
    named = option or (Path(known["HOLDFAST_CONFIG"]) if known.get("HOLDFAST_CONFIG") else None)
    if named is not None:
        return [named.expanduser()]
    own = Path(known["XDG_CONFIG_HOME"]) if known.get("XDG_CONFIG_HOME") else Path("~/.config").expanduser()
    return [Path(FILE_NAME), own / "holdfast" / FILE_NAME, SITE_FOLDER / FILE_NAME]
