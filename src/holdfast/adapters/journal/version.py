"""The newest form of the journal's tables. Apart from `schema`, so that a glance need not load SQLAlchemy."""

from __future__ import annotations

HEAD = "0002"
"""Newest migration. A test proves that the migrations and the tables of `schema` agree."""
