"""Sessions over a restart of the controller: kept in a file without cookies, and only as long as their token holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cockpit.served import TOKENS

from holdfast.adapters.clock import SystemClock
from holdfast.api import Role, TokenBook
from holdfast.api.auth import book_line
from holdfast.cockpit.sessions import TRIES_MAX, SessionBook
from holdfast.errors import RefusedError


def book(folder: Path, *roles: Role) -> TokenBook:
    file = folder / "tokens"
    file.write_text("".join(book_line(TOKENS[role], role, f"the-{role}") for role in roles))
    file.chmod(0o600)
    return TokenBook.load(file)


def opened(folder: Path, *roles: Role) -> SessionBook:
    return SessionBook(book(folder, *roles), SystemClock(), folder / "sessions.json")


def test_who_is_logged_in_stays_logged_in(tmp_path: Path) -> None:
    """A new process knows the cookie and the form's secret; the file is its owner's alone and holds neither token nor
    cookie."""
    before = opened(tmp_path, Role.OPERATOR, Role.VIEWER)
    secret = before.log_in(TOKENS[Role.OPERATOR], "127.0.0.1")
    after = opened(tmp_path, Role.OPERATOR, Role.VIEWER).find(secret)
    assert after is not None
    assert after.identity.name == "the-operator"
    assert after.csrf == before.find(secret).csrf
    file = tmp_path / "sessions.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret not in file.read_text()
    assert TOKENS[Role.OPERATOR] not in file.read_text()


def test_a_log_out_and_a_revoked_token_hold_over_a_restart(tmp_path: Path) -> None:
    """What was ended before the restart is not open after it; nor is a session whose token has gone meanwhile."""
    before = opened(tmp_path, Role.OPERATOR, Role.VIEWER)
    out = before.log_in(TOKENS[Role.OPERATOR], "127.0.0.1")
    gone = before.log_in(TOKENS[Role.VIEWER], "127.0.0.1")
    before.end(out)
    after = opened(tmp_path, Role.OPERATOR)
    assert after.find(out) is None
    assert after.find(gone) is None


@pytest.mark.parametrize("role", Role)
def test_people_sign_in_and_what_reports_does_not(tmp_path: Path, role: Role) -> None:
    """An agent's or launcher's token opens no session, and the refusal names whose token is needed."""
    sessions = opened(tmp_path, *Role)
    if role is not Role.AGENT:
        assert sessions.find(sessions.log_in(TOKENS[role], "127.0.0.1")).identity.role is role
        return
    for _ in range(TRIES_MAX + 1):  # it is a token, so it uses up no try
        with pytest.raises(RefusedError, match="sign in with a person's"):
            sessions.log_in(TOKENS[role], "127.0.0.1")
    assert sessions.log_in(TOKENS[Role.VIEWER], "127.0.0.1") is not None


def test_a_session_that_an_agents_token_had_opened_before_ends(tmp_path: Path) -> None:
    """Older versions wrote such sessions down."""
    sessions = opened(tmp_path, Role.AGENT)
    agent = sessions._book.holder(TOKENS[Role.AGENT])
    assert sessions.find(sessions.open(agent)) is None


def test_a_torn_file_logs_everyone_out_and_stops_nothing(tmp_path: Path) -> None:
    """Rubbish in the file: nobody is logged in, and a new log-in replaces it."""
    (tmp_path / "sessions.json").write_text('[{"name": 1')
    torn = opened(tmp_path, Role.VIEWER)
    secret = torn.log_in(TOKENS[Role.VIEWER], "127.0.0.1")
    assert opened(tmp_path, Role.VIEWER).find(secret) is not None
