"""`postgresql://` is all that a user changes: every command that reads a journal reads this one, and makes nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from journal_with_history import fill_in

from conftest import Holdfast
from postgres_fixture import Postgres


@pytest.fixture
def url(postgres: Postgres) -> str:
    url = postgres.schema_url()
    asyncio.run(fill_in(url))
    return url


def test_every_view_is_the_same_as_of_a_file(holdfast: Holdfast, journal: Path, url: str):
    """jobs, job, nodes, incidents, incident and the report, as text and as JSON: letter by letter but for the name."""
    for words in (
        ("jobs",),
        ("jobs", "--json"),
        ("job", "1778"),
        ("nodes", "--json"),
        ("incidents",),
        ("incident", "i-1"),
        ("report", "--json"),
        ("report",),
    ):
        of_file, of_server = (holdfast(*words, "--journal", where) for where in (journal, url))
        assert of_server.code == of_file.code == 0, of_server.err
        assert of_server.out.replace(url, str(journal)) == of_file.out


def test_a_recorded_history_is_judged_by_another_policy(holdfast: Holdfast, url: str):
    """`simulate --replay` reads it, too."""
    Path("new.toml").write_text("")
    ran = holdfast("simulate", "--replay", url, "--policy", "new.toml", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["events"] == 1


def test_what_is_wrong_is_said_in_one_sentence(holdfast: Holdfast, postgres: Postgres):
    """An empty database, and a server that is not there; a password is never shown."""
    empty = holdfast("jobs", "--journal", postgres.schema_url())
    assert empty.code == 1
    assert "there is no journal in postgresql://" in empty.sentence
    gone = holdfast("report", "--journal", "postgresql://me:secret@127.0.0.1:1/holdfast")
    assert gone.code == 70
    assert "cannot be opened" in gone.sentence
    assert "secret" not in gone.sentence
