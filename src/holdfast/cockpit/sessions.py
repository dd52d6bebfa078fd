"""Who looks at a page: sessions of people who have logged in with their token, and the proof that a form is ours.

A session's cookie holds 256 random bits; the server keeps only their SHA-256, who it is, and a secret for forms. A new
session is made at log-in (so one that was planted before is worth nothing), and it holds no longer than the token that
it was opened with: the token book is asked at every request. Sessions outlive a restart of the controller in a file of
its folder, which holds no cookie, only digests; a standby with a folder of its own asks for a log-in. On a server
without tokens (loopback only) everyone is `local`, and a session is opened at the first page. Called by `routes.py`;
`Sessions` of `api/auth.py` is fulfilled here, so that scripts of our pages may use `/v1` too.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog
from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie
from msgspec import Struct

from holdfast.api.auth import Identity, Role, TokenBook
from holdfast.errors import RefusedError
from holdfast.os.clock import EvenClock
from holdfast.os.files import write_whole
from holdfast.ports import Clock

COOKIE = "holdfast_session"
CSRF_HEADER = "x-holdfast-csrf"
IDLE_S = 12 * 3600.0
SESSIONS_MAX = 5_000
TRIES_MAX = 10
TRIES_S = 60.0
"""So many wrong tokens from one address in this time; then it waits."""
_log = structlog.get_logger("holdfast.cockpit")


class Session(Struct):
    """One browser."""

    identity: Identity
    csrf: str
    seen_at: float
    """Monotonic seconds, which no setting of the clock moves."""
    flash: str = ""
    """What the next page shows once."""
    flash_is_bad: bool = False
    draft: str = ""
    """The reason of a command that was not done, for the form to have again."""


class Kept(Struct, frozen=True):
    """A session as the file has it."""

    name: str
    """SHA-256 of what the cookie holds."""
    identity: str
    csrf: str
    seen_at: float
    """Unix seconds."""


class SessionBook:
    """Open sessions.

    Args:
        book: who holds which token, asked at every request.
        clock: tells when a session has been idle for too long.
        file: keeps them over a restart, mode 0600; None: they end with the process.
    """

    def __init__(self, book: TokenBook, clock: Clock, file: Path | None = None) -> None:
        self._book = book
        self._clock = clock
        self._file = file
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()
        if file is not None and not self.is_open_to_all:
            self._read(file)

    def _read(self, file: Path) -> None:
        try:
            kept = msgspec.json.decode(file.read_bytes(), type=list[Kept])
        except (OSError, msgspec.DecodeError) as error:
            if not isinstance(error, FileNotFoundError):
                _log.warning("nobody stays logged in: the file of sessions cannot be read", file=str(file))
            return
        now, mono = self._clock.now(), self._clock.monotonic()
        for one in kept[-SESSIONS_MAX:]:
            identity = self._book.known(one.identity)
            if identity is not None:
                self._sessions[one.name] = Session(identity, one.csrf, mono - max(0.0, now - one.seen_at))

    def save(self) -> None:
        """Write who is logged in; at each log-in and log-out, and at the controller's end."""
        if self._file is None or self.is_open_to_all:
            return
        even = EvenClock(self._clock.now, self._clock.monotonic)
        kept = [Kept(name, one.identity.id, one.csrf, even.at(one.seen_at)) for name, one in self._sessions.items()]
        try:
            write_whole(self._file, msgspec.json.encode(kept), mode=0o600)
        except OSError as error:
            _log.warning("who is logged in was not written down: they log in again after a restart", why=str(error))

    @property
    def is_open_to_all(self) -> bool:
        """There are no tokens: everyone is `local`."""
        return len(self._book) == 0

    def open(self, identity: Identity) -> str:
        """A new session; returns what its cookie holds."""
        secret = secrets.token_urlsafe(32)
        self._sessions[_digest(secret)] = Session(identity, secrets.token_urlsafe(32), self._clock.monotonic())
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        self.save()
        return secret

    def log_in(self, token: str, address: str) -> str | None:
        """A session for the holder of this token; None when the token is not accepted, or too many were wrong.

        Raises:
            RefusedError: an agent or a launcher reports with it; people have tokens of their own.
        """
        now = self._clock.monotonic()
        wrong = [at for at in self._wrong.get(address, ()) if now - at < TRIES_S]
        if len(wrong) >= TRIES_MAX:
            return None
        identity = self._book.holder(token)
        if identity is None:
            self._wrong[address] = [*wrong, now]
            self._wrong.move_to_end(address)
            if len(self._wrong) > SESSIONS_MAX:
                self._wrong.popitem(last=False)
            return None
        if not identity.may(Role.VIEWER):
            raise RefusedError(
                f"the token of {identity.name!r} is for agents and launchers, which report: sign in with a person's, "
                "made by `holdfast token create NAME --role viewer`"
            )
        return self.open(identity)

    def find(self, secret: str | None) -> Session | None:
        """The session of a cookie, with what the book says of its holder now; None: there is none that holds."""
        if not secret:
            return None
        name = _digest(secret)
        session = self._sessions.get(name)
        if session is None:
            return None
        now = self._clock.monotonic()
        identity = self._book.known(session.identity.id)
        if identity is None or not identity.may(Role.VIEWER) or now - session.seen_at > IDLE_S:
            del self._sessions[name]
            return None
        session.identity, session.seen_at = identity, now
        self._sessions.move_to_end(name)
        return session

    def end(self, secret: str | None) -> None:
        """Log out."""
        if secret and self._sessions.pop(_digest(secret), None) is not None:
            self.save()

    def of(self, connection: ASGIConnection[Any, Any, Any, Any]) -> Session | None:
        """The session of a request."""
        return self.find(connection.cookies.get(COOKIE))

    # --- api.auth.Sessions ---

    def identity(self, connection: ASGIConnection[Any, Any, Any, Any]) -> Identity | None:
        """See `api.auth.Sessions.identity`."""
        session = self.of(connection)
        return session.identity if session is not None else None

    def allows_write(self, connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
        """See `api.auth.Sessions.allows_write`: the session's secret in a header that other sites cannot set."""
        session = self.of(connection)
        given = connection.headers.get(CSRF_HEADER, "")
        return session is not None and is_same(session.csrf, given) and is_from_here(connection)


def cookie(secret: str, *, secure: bool) -> Cookie:
    """Not for scripts, not with another site's forms; a link from a chat opens the page logged in."""
    return Cookie(key=COOKIE, value=secret, path="/", httponly=True, samesite="lax", secure=secure)


def is_same(known: str, given: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(known.encode(), given.encode("utf-8", "replace"))


def is_from_here(connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
    """Does the browser say that the request comes from our own page? One that says nothing is no browser."""
    site = connection.headers.get("sec-fetch-site", "")
    if site and site not in {"same-origin", "none"}:
        return False
    origin = connection.headers.get("origin", "")
    return not origin or urlsplit(origin).netloc == connection.headers.get("host", "")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
