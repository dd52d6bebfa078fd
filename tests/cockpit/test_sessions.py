"""Sessions over a restart of the controller: kept in a file without cookies, and only as long as their token holds."""

from __future__ import annotations

from pathlib import Path

from tests.cockpit.served import TOKENS

from holdfast.adapters.clock import SystemClock
from holdfast.api import Role, TokenBook
from holdfast.api.auth import book_line
from holdfast.cockpit.sessions import SessionBook


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


def test_a_torn_file_logs_everyone_out_and_stops_nothing(tmp_path: Path) -> None:
    """Rubbish in the file: nobody is logged in, and a new log-in replaces it."""
    (tmp_path / "sessions.json").write_text('[{"name": 1')
    torn = opened(tmp_path, Role.VIEWER)
    secret = torn.log_in(TOKENS[Role.VIEWER], "127.0.0.1")
    assert opened(tmp_path, Role.VIEWER).find(secret) is not None
