"""The plain case of `holdfast run`'s command line, read in a millisecond; anything else is left to `cli.run`.

Called by `cli.entry` for every launcher of a restarting job: the command-line library takes as long to load as all else
that starting ranks takes. Plain are known options with good values, then the script, or `--` and a command. Help,
mistakes and everything unusual give None, and the library reads the same line again and says what there is to say. A
test holds both against each other. No time passes here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.launch.options import RunOptions

Value = str | int | float | tuple[str, ...]


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _seconds(text: str) -> float | None:
    whole, _, part = text.partition(".")
    return float(text) if _count(whole) is not None and (not part or _count(part) is not None) else None


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _path(text: str) -> str | None:
    return str(Path(text)) if text else None


def _paths(text: str) -> tuple[str, ...] | None:
    return (str(Path(text)),) if text else None


OPTIONS: dict[str, tuple[str, Callable[[str], Value | None]]] = {
    "--nnodes": ("nnodes", _count),
    "--nproc-per-node": ("nproc_per_node", str),
    "--standbys": ("standbys", str),
    "--preload": ("preload", _names),
    "--max-restarts": ("max_restarts", _count),
    "--policy": ("policy", _path),
    "--log-rules": ("log_rules", _path),
    "--rules": ("rules", _paths),
    "--checkpoints": ("checkpoints", _path),
    "--job-dir": ("job_dir", _path),
    "--tee": ("tee", str),
    "--stop-grace-s": ("stop_grace_s", _seconds),
    "--lease-s": ("lease_s", _seconds),
}
"""Option -> the field of `RunOptions`, and what reads its value; None: not a plain one."""
LEASE_S_MIN = 0.5


def read_plain(args: Sequence[str]) -> RunOptions | None:
    """The options of `holdfast run ARGS`, None when the line is not a plain one."""
    fields: dict[str, Value] = {}
    rest = list(args)
    is_command = False
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            is_command = True
            break
        if word in {"-m", "--module"}:
            fields["is_module"] = True
            continue
        name, has_value, text = word.partition("=")
        if name not in OPTIONS or (not has_value and not rest):
            return None
        field, read = OPTIONS[name]
        value = read(text if has_value else rest.pop(0))
        if value is None:
            return None
        before = fields.get(field)
        fields[field] = (*before, *value) if name == "--rules" and isinstance(before, tuple) else value  # type: ignore[misc]
    lease_s = fields.get("lease_s", LEASE_S_MIN)
    if not rest or not isinstance(lease_s, float) or lease_s < LEASE_S_MIN:
        return None
    return RunOptions(argv=tuple(rest), is_command=is_command, **fields)  # type: ignore[arg-type]
