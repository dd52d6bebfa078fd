"""Alembic's entry: runs the migrations inside the transaction that `migrate.upgrade` has opened."""

from __future__ import annotations

from alembic import context

from holdfast.adapters.journal.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
context.run_migrations()
