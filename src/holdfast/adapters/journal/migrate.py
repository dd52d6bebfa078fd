"""Upgrade of an older journal to this version's tables, by Alembic. Called on open, only when it is needed."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, text

from holdfast.errors import JournalDamagedError

SCRIPTS = Path(__file__).parent / "migrations"


def upgrade(writer: Engine, name: str, *, to: str = "head") -> None:
    """Run the migrations that the journal has not seen, in one transaction. Raises as `upgrade_in` says."""
    with writer.begin() as connection:
        upgrade_in(connection, name, to=to)


def upgrade_in(connection: Connection, name: str, *, to: str = "head") -> None:
    """Run the migrations that the journal has not seen, in the caller's transaction.

    Raises:
        JournalDamagedError: it was written by a newer version, whose migrations are not known here.
    """
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    if version is not None and version not in known:
        raise JournalDamagedError(
            f"journal {name}: written by a newer version (tables {version!r}): update holdfast here"
        )
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, to)
    except CommandError as error:
        raise JournalDamagedError(f"journal {name}: cannot be upgraded: {error}") from error
