"""Alembic migrations of the journal's tables, oldest first in `versions/`."""
