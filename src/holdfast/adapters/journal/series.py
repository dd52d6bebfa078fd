"""The series store: samples for plots, thinned as they age and bounded in number. Outside replay.

Called by `sql.py` inside a write transaction. "Now" is the newest sample's own time, so no clock is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, cast, delete, func, insert, select, update

from holdfast.adapters.journal.schema import samples as table
from holdfast.ports import Sample

TIERS = ((3600.0, 10), (86400.0, 60), (14 * 86400.0, 600))
"""After this age (s), of each series and subject one sample (the last) per so many seconds is kept."""
ROWS_MAX = 2_000_000
"""About 200 MB in SQLite."""
THIN_EVERY = 5000
"""Samples added between two rounds of thinning."""


def add(
    connection: Connection, new: Sequence[Sample], *, rows_max: int = ROWS_MAX, thin_every: int = THIN_EVERY
) -> None:
    """Add samples. Each time the row ids pass a multiple of `thin_every`, thin what has aged and drop the oldest."""
    before = connection.scalar(select(func.max(table.c.id))) or 0
    rows = [
        {
            "series": one.series,
            "subject": one.subject,
            "at": one.at,
            # Neither NaN nor infinity has a portable form in a column; a plot shows a gap for both.
            "value": one.value if math.isfinite(one.value) else None,
            "tier": 0,
        }
        for one in new
    ]
    connection.execute(insert(table), rows)
    if before // thin_every != (before + len(rows)) // thin_every:
        thin(connection, max(one.at for one in new), rows_max=rows_max)


def thin(connection: Connection, now: float, *, rows_max: int = ROWS_MAX) -> None:
    """Bring aged samples to the next tier, then drop the oldest rows beyond `rows_max`."""
    for tier, (age_s, bucket_s) in enumerate(TIERS):
        cutoff = now - age_s
        # Whole buckets only, so that a bucket is never thinned in two halves.
        cutoff -= cutoff % bucket_s
        aged = (table.c.tier == tier) & (table.c.at < cutoff)
        bucket = _whole(connection, table.c.at / bucket_s)
        kept = select(func.max(table.c.id)).where(aged).group_by(table.c.series, table.c.subject, bucket)
        connection.execute(delete(table).where(aged, table.c.id.not_in(kept)))
        connection.execute(update(table).where(aged).values(tier=tier + 1))
    count = connection.scalar(select(func.count()).select_from(table)) or 0
    if count > rows_max:
        newest_dropped = connection.scalar(
            select(table.c.id).order_by(table.c.id).offset(count - rows_max - 1).limit(1)
        )
        connection.execute(delete(table).where(table.c.id <= newest_dropped))


def _whole(connection: Connection, value: ColumnElement[Any]) -> ColumnElement[int]:
    """The value's whole part. A cast cuts the rest off in SQLite, which may lack `floor`, and rounds in PostgreSQL."""
    return cast(value if connection.dialect.name == "sqlite" else func.floor(value), BigInteger)
