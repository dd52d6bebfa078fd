"""Files that pages load: the package's style and scripts, colours of phases, Plotly's script. By name from a list.

An address holds a part of the file's digest, so that a browser may keep it for good. Called by `routes.py` and by
templates. No time passes.
"""

from __future__ import annotations

import gzip as gzip_format
import hashlib
from functools import cache
from importlib.resources import files as package_files

from holdfast.errors import NotFoundError
from holdfast.report import phase_colours

TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
PLOTLY = "plotly.min.js"
PHASES = "phases.css"
NAMES = (
    "cockpit.css", "plotly.css", "theme.js", "cockpit.js", "live.js", "times.js", "keys.js", "charts.js", "icon.svg",
    PHASES, PLOTLY,
)  # fmt: skip
GZIP_LEAST = 1_000


@cache
def _read(name: str) -> bytes:
    if name == PLOTLY:
        return (package_files("plotly") / "package_data" / PLOTLY).read_bytes()
    if name == PHASES:
        return phase_colours.css().encode()
    return (package_files("holdfast.cockpit") / "static" / name).read_bytes()


@cache
def _packed(name: str) -> bytes:
    return gzip_format.compress(_read(name), 6, mtime=0)


@cache
def address(name: str) -> str:
    """Where a page finds the file."""
    return f"/static/{name}?v={hashlib.sha256(_read(name)).hexdigest()[:12]}"


def get(name: str, *, gzip: bool) -> tuple[bytes, str, str]:
    """(bytes, media type, content encoding).

    Raises:
        NotFoundError: it is not on the list.
    """
    if name not in NAMES:
        raise NotFoundError("there is no such file")
    media_type = TYPES[name.rpartition(".")[2]]
    if gzip and len(_read(name)) >= GZIP_LEAST:
        return _packed(name), media_type, "gzip"
    return _read(name), media_type, ""
