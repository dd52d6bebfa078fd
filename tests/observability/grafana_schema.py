"""Checks a dashboard against Grafana's published schema, as grafana-foundation-sdk carries it.

The SDK's models are generated from Grafana's own schemas (CUE): fields, types, enumerations, panel options, queries. Their
`from_json` is lenient: it leaves out what it does not know and takes any type. So the dashboard is read into the
models, every value is compared with its declared type, and what is written back is compared with what was read.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog import runtime, variants
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel


def problems(form: dict[str, Any]) -> list[str]:
    """What is wrong with a dashboard's JSON, each with its place; empty: it keeps to the schema."""
    register_default_plugins()
    try:
        board = Dashboard.from_json(form)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return [f"it cannot be read: {type(error).__name__}: {error}"]
    try:
        written = json.loads(JSONEncoder().encode(board))
    except (AttributeError, TypeError, ValueError) as error:
        return [f"it cannot be written again: {error}", *_mistyped(board, "dashboard")]
    return [*_mistyped(board, "dashboard"), *_lost(form, written, "dashboard")]


def _mistyped(one: object, place: str) -> Iterator[str]:
    if isinstance(one, Panel) and runtime.panelcfg_config(one.type_val) is None:
        yield f"{place}: there is no panel {one.type_val!r}"
    for name, hint in typing.get_type_hints(type(one)).items():
        yield from _compared(getattr(one, name), hint, f"{place}.{name.removesuffix('_val')}")


def _compared(value: Any, hint: Any, place: str) -> Iterator[str]:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        tried = [list(_compared(value, part, place)) for part in parts]
        yield from min(tried, key=lambda found: (len(found), "is no" in "".join(found)))
    elif origin is typing.Literal:
        if value not in parts:
            yield f"{place}: {value!r} is none of {', '.join(map(repr, parts))}"
    elif origin is list and isinstance(value, list):
        for number, part in enumerate(value):
            yield from _compared(part, parts[0], f"{place}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, part in value.items():
            yield from _compared(part, parts[1], f"{place}.{key}")
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in {one.value for one in hint} and value not in set(hint):
            yield f"{place}: {value!r} is none of {', '.join(repr(one.value) for one in hint)}"
    elif isinstance(value, runtime.UnknownDataquery):
        yield f"{place}: no data source is known for {value.data}"
    elif hint in {object, Any} or hint is variants.Dataquery or hasattr(hint, "from_json"):
        if hasattr(value, "to_json"):
            yield from _mistyped(value, place)
        elif hasattr(hint, "from_json"):
            yield f"{place}: {value!r} is no {hint.__name__}"
    elif not _is(value, origin or hint):
        yield f"{place}: {value!r} is no {getattr(hint, '__name__', hint)}"


def _is(value: Any, kind: Any) -> bool:
    if kind is type(None):
        return value is None
    if isinstance(value, bool) and kind is not bool:
        return False
    return isinstance(value, (int, float) if kind is float else kind)


def _lost(read: Any, written: Any, place: str) -> Iterator[str]:
    """Fields of what was read that the schema does not have."""
    if isinstance(read, dict) and isinstance(written, dict):
        for key, value in read.items():
            if key in written:
                yield from _lost(value, written[key], f"{place}.{key}")
            elif value is not None:
                yield f"{place}: the schema has no {key!r}"
    elif isinstance(read, list) and isinstance(written, list):
        for number, (one, other) in enumerate(zip(read, written, strict=False)):
            yield from _lost(one, other, f"{place}[{number}]")
