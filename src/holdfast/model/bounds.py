"""Bounds of what reporters send: every field of every event and beat has one, and a value outside is named and refused.

Asked by the API about what it has decoded. Events that are stored already are not asked about, so that a bound that is
drawn closer never keeps a journal from opening. Pure; the bounds that depend on the time are with `api.authority`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from holdfast.errors import WireError

STEP_MAX = 10**12
TIME_MAX = 1e11
"""Unix seconds: a later time is not one."""
INT_MAX = 2**53 - 1
"""Whole numbers up to here are the same in JSON, SQLite, PostgreSQL and a browser."""
FLOAT_MAX = 1e15
TEXT_MAX = 64 * 1024
NAME_MAX = 2048
ITEMS_MAX = 100_000

INTEGERS: Mapping[str, tuple[int, int]] = {
    "attempt": (0, 10**6),
    "restart_count": (0, 10**6),
    "in_place": (0, 10**6),
    "generation": (1, 10**6),
    "step": (0, STEP_MAX),
    "last_step": (0, STEP_MAX),
    "resumed_from": (0, STEP_MAX),
    "epoch": (0, 10**9),
    "rank": (0, 10**7),
    "ranks": (0, 10**7),
    "odd_ranks": (0, 10**7),
    "silent_ranks": (0, 10**7),
    "stopped_ranks": (0, 10**7),
    "gpu": (0, 10**4),
    "count": (0, 10**9),
    "line": (0, INT_MAX),
    "exit_code": (-(2**31), 2**32 - 1),
    "signal": (0, 255),
}
"""By name of the field; others: from 0 to `INT_MAX`."""
FLOATS: Mapping[str, tuple[float, float]] = {
    "at": (0.0, TIME_MAX),
    "received_at": (0.0, TIME_MAX),
    "lease_s": (0.0, 3600.0),
    "confidence": (0.0, 1.0),
    "value": (-math.inf, math.inf),
}
"""By name of the field; others: from -`FLOAT_MAX` to `FLOAT_MAX`. A sample's value is only plotted."""
NAMES = frozenset({
    "id", "source", "node", "nodes", "exclude_nodes", "cluster", "job", "rule", "order", "drill", "kind", "boot_id",
    "instance_id", "gpu_id", "gpus", "link", "series", "subject", "cause", "finding", "fingerprint", "log_dir", "file",
})  # fmt: skip
"""Texts that name something and are at most `NAME_MAX` long; others: `TEXT_MAX`."""


def check_bounds(value: Struct) -> None:
    """Return when every field, at any depth, is within its bound.

    Raises:
        WireError: names the field, its value and the bound.
    """
    for name in value.__struct_fields__:
        check_field(getattr(value, name), name)


def check_field(value: Any, name: str) -> None:
    """Return when this is within the bound of a field of this name. Raises as `check_bounds`."""
    _check(value, name, name)


def _check(value: Any, name: str, where: str) -> None:
    match value:
        case None | bool() | Enum():
            return
        case int() | float():
            _check_number(value, name, where)
        case str():
            longest = NAME_MAX if name in NAMES else TEXT_MAX
            if len(value) > longest:
                raise WireError(f"{where} has {len(value)} characters: at most {longest} are taken")
        case dict() | tuple() | list():
            if len(value) > ITEMS_MAX:
                raise WireError(f"{where} holds {len(value)} items: at most {ITEMS_MAX} are taken")
            for inner in (*value, *value.values()) if isinstance(value, dict) else value:
                _check(inner, name, where)
        case Struct():
            for inner in value.__struct_fields__:
                _check(getattr(value, inner), inner, f"{where}.{inner}")
        case _:
            raise WireError(f"{where} is a {type(value).__name__}, which no event holds")


def _check_number(value: float, name: str, where: str) -> None:
    low: float
    high: float
    if isinstance(value, int):
        low, high = INTEGERS.get(name, (0, INT_MAX))
        shown = str(value) if abs(value) < 10**20 else f"a number of {value.bit_length()} bits"
    else:
        low, high = FLOATS.get(name, (-FLOAT_MAX, FLOAT_MAX))
        shown = f"{value:g}"
    if not low <= value <= high:
        raise WireError(f"{where} is {shown}: it must be from {low} to {high}")
