"""Records as rows of plain values, for tables: `pandas.DataFrame(rows(client.jobs()))`.

Called by notebooks and scripts. Pure; no time passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct, structs

from holdfast.model.cluster import JobKey


def rows(records: Iterable[Struct]) -> list[dict[str, Any]]:
    """One row for each record: jobs, attempts, nodes, incidents, orders, samples.

    A column is a field, and a field of a record inside it is `view.user`, `diagnosis.cause`, `marks.detected`. A job's
    key and enumerations are text; times stay Unix seconds; lists stay lists, of rows where they hold records.
    """
    return [_row(record) for record in records]


def _row(record: Struct, before: str = "") -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in structs.asdict(record).items():
        if isinstance(value, Struct) and not isinstance(value, JobKey):
            row |= _row(value, f"{before}{name}.")
        elif isinstance(value, Mapping) and all(isinstance(key, Enum) for key in value):
            row |= {f"{before}{name}.{_plain(key)}": _plain(one) for key, one in value.items()}
        else:
            row[before + name] = _plain(value)
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, JobKey):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Struct):
        return _row(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    return value
