"""`holdfast token`: made once and shown once, listed without the secret, revoked for a running controller at once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.api.auth import LOOK_AGAIN_S, Role, TokenBook, ensure_tokens
from holdfast.cli.main import app
from holdfast.errors import ConfigError, NotFoundError, UsageError


def call(*words: str) -> str:
    result = CliRunner().invoke(app, ["token", *words], catch_exceptions=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "controller").mkdir()
    ensure_tokens(tmp_path / "controller")
    return tmp_path


def test_a_new_token_is_accepted_as_its_role_and_stands_nowhere(folder: Path):
    """What `create` prints opens the door as the role that was asked for; the book holds only its hash, mode 0600."""
    token = call("create", "mei", "--role", "owner", "--dir", str(folder)).splitlines()[0].strip()
    book = folder / "controller" / "tokens"
    found = TokenBook.load(book).holder(token)
    assert (found.name, found.role) == ("mei", Role.OWNER)
    assert token not in book.read_text()
    assert oct(book.stat().st_mode)[-3:] == "600"
    listed = json.loads(call("list", "--json", "--dir", str(folder)))["tokens"]
    assert [(one["name"], one["role"]) for one in listed] == [
        ("local", "operator"), ("local", "agent"), ("mei", "owner")
    ]  # fmt: skip
    assert token not in call("list", "--dir", str(folder))
    assert listed[-1]["made_at"] > 1e9
    assert listed[-1]["id"] == found.id


def test_what_is_said_of_a_new_token_ends_that_one_alone(folder: Path):
    """The ID ends one, the name every token of that name: both are named as what they do."""
    where = ("--dir", str(folder))
    call("create", "mei", *where)
    told = CliRunner().invoke(app, ["token", "create", "mei", *where]).output
    ids = [one["id"] for one in json.loads(call("list", "--json", *where))["tokens"] if one["name"] == "mei"]
    assert f"`holdfast token revoke {ids[1]}` ends it, `holdfast token revoke mei` every token of that name" in told
    call("revoke", ids[1], *where)
    assert [one["id"] for one in json.loads(call("list", "--json", *where))["tokens"]][2:] == ids[:1]


def test_an_id_is_never_broken_over_lines(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """`revoke` takes the ID as it stands in the table, also on a terminal of 80 columns with every column in use."""
    monkeypatch.setenv("COLUMNS", "80")
    where = ("--dir", str(folder))
    call("create", "scoped-reader", "--role", "viewer", "--sees", "project:language-models", *where)
    call("create", "node07", "--role", "agent", "--only", "agent:node07", "--expires", "30d", *where)
    shown = call("list", *where)
    assert [one["id"] for one in json.loads(call("list", "--json", *where))["tokens"] if one["id"] not in shown] == []


def test_roles_are_named_with_their_article():
    """As sentences of refusal name whose a token is."""
    assert [role.one for role in Role] == ["a viewer", "an owner", "an agent", "an operator"]


def test_a_name_that_differs_in_case_alone_is_refused(folder: Path):
    """`Mei` beside `mei` would be one person as two in the audit; the same name again is another token of theirs."""
    call("create", "mei", "--dir", str(folder))
    with pytest.raises(UsageError, match="differs in case alone"):
        call("create", "Mei", "--dir", str(folder))
    call("create", "mei", "--dir", str(folder))


def test_a_revoked_token_is_refused_by_a_book_that_is_open(folder: Path):
    """A controller that runs goes by the changed book within a second, both for bearers and for sessions."""
    token = json.loads(call("create", "ci", "--dir", str(folder), "--json"))["token"]
    clock = [1000.0]
    book = TokenBook.load(folder / "controller" / "tokens", monotonic=lambda: clock[0])
    identity = book.holder(token)
    assert book.known(identity.id) == identity
    call("revoke", "ci", "--dir", str(folder))
    clock[0] += LOOK_AGAIN_S
    assert book.holder(token) is None
    assert book.known(identity.id) is None
    made = json.loads(call("create", "ci2", "--dir", str(folder), "--json"))
    clock[0] += LOOK_AGAIN_S
    assert book.holder(made["token"]).id == made["id"]


def test_a_book_that_was_broken_by_hand_goes_on_as_it_was(folder: Path):
    """A typo in the file locks nobody out and lets nobody in: what was read last holds until it is mended."""
    path = folder / "controller" / "tokens"
    token = (folder / "controller" / "token").read_text().strip()
    clock = [1000.0]
    book = TokenBook.load(path, monotonic=lambda: clock[0])
    path.write_text("root me x\n")
    clock[0] += LOOK_AGAIN_S
    assert book.holder(token).role is Role.OPERATOR
    path.write_text("# nobody any more\n")
    clock[0] += LOOK_AGAIN_S
    assert book.holder(token) is None
    assert book.identify("") is None


def test_an_expired_token_is_refused(folder: Path):
    """`--expires` holds to the second; the list says that it is over."""
    made = json.loads(call("create", "guest", "--expires", "1h", "--dir", str(folder), "--json"))
    path = folder / "controller" / "tokens"
    assert TokenBook.load(path, now=lambda: made["expires_at"] - 2).holder(made["token"]) is not None
    assert TokenBook.load(path, now=lambda: made["expires_at"] + 2).holder(made["token"]) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["create", "a b"], "letters, digits"),
        (["create", "a", "--role", "root"], "one of viewer"),
        (["create", "a", "--only", "agent:n1"], "--role agent"),
        (["create", "a", "--expires", "soon"], "30d"),
        (["create", "a", "--expires", "0d"], "30d"),
    ],
)
def test_wrong_words_are_named(folder: Path, words: list[str], said: str):
    """Each mistake is one sentence, and no token is made."""
    before = (folder / "controller" / "tokens").read_text()
    with pytest.raises(UsageError, match=said):
        call(*words, "--dir", str(folder))
    assert (folder / "controller" / "tokens").read_text() == before


def test_the_last_token_and_an_unknown_one_cannot_be_revoked(folder: Path):
    """Nobody locks the door from outside by mistake."""
    with pytest.raises(NotFoundError, match="no token of 'ghost'"):
        call("revoke", "ghost", "--dir", str(folder))
    with pytest.raises(UsageError, match="last token"):
        call("revoke", "local", "--dir", str(folder))
    with pytest.raises(UsageError, match="which book"):
        call("list", "--config", _empty(folder))


def _empty(folder: Path) -> str:
    path = folder / "holdfast.toml"
    path.write_text("")
    return str(path)


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_a_journal_that_is_named_and_not_there_makes_no_token(
    form: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No token without the audit that was asked for, and no new journal; a token ends all the same, which is said."""
    book = folder / "controller" / "tokens"
    call("create", "ci", "--dir", str(folder))
    before = book.read_text()
    monkeypatch.setenv("HOLDFAST_JOURNAL", form.format(tmp_path / "no.db"))
    with pytest.raises(NotFoundError, match=r"there is no journal .*no\.db"):
        call("create", "mei", "--dir", str(folder))
    assert book.read_text() == before
    call("revoke", "ci", "--dir", str(folder))
    assert book.read_text() != before
    assert not (tmp_path / "no.db").exists()


def test_a_pipe_in_the_place_of_the_book_hangs_nothing(folder: Path):
    """Listing, making and revoking name the file and say that it is no ordinary one."""
    book = folder / "controller" / "tokens"
    book.unlink()
    os.mkfifo(book, 0o600)
    for words in (["list"], ["create", "x"], ["revoke", "x"]):
        with pytest.raises(ConfigError, match="no ordinary file"):
            call(*words, "--dir", str(folder))
