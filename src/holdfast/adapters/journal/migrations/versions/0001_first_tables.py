"""The first tables. Written out, not taken from `schema.py`, so that it stays what it was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _name() -> sa.types.TypeEngine[str]:
    return sa.String().with_variant(sa.String(collation="C"), "postgresql")


def _auto() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make all tables of the first version."""
    op.create_table(
        "events",
        sa.Column("seq", _auto(), primary_key=True, autoincrement=False),
        sa.Column("id", _name(), nullable=False, unique=True),
        sa.Column("kind", _name(), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("received_at", sa.Double, nullable=False),
        sa.Column("source", _name(), nullable=False),
        sa.Column("job", _name(), nullable=False),
        sa.Column("node", _name(), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("orders", sa.Text, nullable=False),
    )
    op.create_index("events_kind", "events", ["kind", "seq"])
    op.create_index("events_job", "events", ["job", "seq"])
    op.create_index("events_node", "events", ["node", "seq"])
    op.create_index("events_received_at", "events", ["received_at"])
    op.create_table(
        "event_incidents",
        sa.Column("incident", _name(), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True),
    )
    op.create_index("event_incidents_seq", "event_incidents", ["seq"])
    op.create_table(
        "orders",
        sa.Column("id", _name(), primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("kind", _name(), nullable=False),
        sa.Column("status", _name(), nullable=False),
        sa.Column("incident", _name(), nullable=False),
        sa.Column("job", _name(), nullable=False),
        sa.Column("node", _name(), nullable=False),
        sa.Column("issued_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
    op.create_index("orders_incident", "orders", ["incident"])
    op.create_index("orders_status", "orders", ["status"])
    op.create_index("orders_issued_at", "orders", ["issued_at"])
    _read_models()
    op.create_table(
        "snapshots",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "lease",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("holder", _name(), nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
    )
    op.create_table(
        "samples",
        sa.Column("id", _auto(), primary_key=True, autoincrement=True),
        sa.Column("series", _name(), nullable=False),
        sa.Column("subject", _name(), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("value", sa.Double, nullable=True),
        sa.Column("tier", sa.Integer, nullable=False),
    )
    op.create_index("samples_series", "samples", ["series", "subject", "at"])
    op.create_index("samples_tier", "samples", ["tier", "at"])
    op.create_table(
        "meta",
        sa.Column("key", _name(), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )


def _read_models() -> None:
    op.create_table(
        "jobs",
        sa.Column("key", _name(), primary_key=True),
        sa.Column("id", _name(), nullable=False),
        sa.Column("state", _name(), nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
    op.create_index("jobs_id", "jobs", ["id"])
    op.create_table(
        "nodes",
        sa.Column("name", _name(), primary_key=True),
        sa.Column("state", _name(), nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
    op.create_table(
        "incidents",
        sa.Column("id", _name(), primary_key=True),
        sa.Column("opened_at", sa.Double, nullable=False),
        sa.Column("closed_at", sa.Double, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
    op.create_index("incidents_opened_at", "incidents", ["opened_at"])
    op.create_index("incidents_closed_at", "incidents", ["closed_at"])
    op.create_table(
        "brakes",
        sa.Column("name", _name(), primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
    )
