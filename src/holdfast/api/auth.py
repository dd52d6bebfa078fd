"""Who may do what: bearer tokens with a role, hashed at rest, compared in constant time.

A token book is a text file, one token a line: `role name sha256-of-token [only=SOURCE] [sees=SCOPE] [until=T] [at=T]
[by=WHO]`; `#` begins a comment. Tokens are 256 random bits, so a plain SHA-256 of one cannot be reversed by guessing
and costs each request microseconds, where a slow password hash would cost every beat of every node. A book that has
changed on disk is read anew within a second, so a token that is revoked is revoked at once. Called by the routes, by
the cockpit's sessions, by `holdfast controller` and `holdfast token`.
"""

from __future__ import annotations

import hashlib
import hmac
import pwd
import re
import secrets
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import structlog
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard
from msgspec import Struct

from holdfast.api.newest import check_newest
from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.policy import PolicySet
from holdfast.os.clock import EvenClock
from holdfast.os.files import locked, read_bounded, write_whole

_log = structlog.get_logger("holdfast.api")

LOOK_AGAIN_S = 1.0
"""A book's file is looked at again no more often than this."""
BOOK_SIZE_MAX = 16 << 20
"""Bytes of a token book, at most."""
NAME_MAX = 64
PREFIX = "hft_"
"""Begins every token, so that scanners for leaked secrets can know one."""
SCOPE = re.compile(r"(user|project):[A-Za-z0-9_.@+-]+")
"""One part of a token's scope. See `tenants.py`."""
SCOPED = {"keeps_to_scopes": True}
"""Option of a route that shows a token with a scope only what is in it; on all others such a token is refused."""


class Role(StrEnum):
    """Viewers read; owners also command their own jobs; agents (and launchers) report; operators do all."""

    VIEWER = "viewer"
    OWNER = "owner"
    AGENT = "agent"
    OPERATOR = "operator"

    @property
    def one(self) -> str:
        """With its article, for sentences."""
        return f"a {self}" if self is Role.VIEWER else f"an {self}"


_MAY = {
    Role.VIEWER: frozenset({Role.VIEWER}),
    Role.OWNER: frozenset({Role.VIEWER, Role.OWNER}),
    Role.AGENT: frozenset({Role.AGENT}),
    Role.OPERATOR: frozenset(Role),
}


class Identity(Struct, frozen=True):
    """Who asks."""

    name: str
    role: Role
    only: str = ""
    """When set: the one source (`agent:node07`) that this token may report as."""
    id: str = ""
    """First twelve digits of the token's hash: names the token without giving it away."""
    until: float = 0.0
    """Unix seconds after which the token is no longer accepted; 0.0: never."""
    sees: tuple[str, ...] = ()
    """When set: the jobs that this token reads and commands, as `user:ann`, `project:vision`. See `tenants.py`."""

    @property
    def person(self) -> str:
        """Name and id of the token, `mei 3f0c2a9b1d4e`; no id without tokens. An approval counts by it."""
        return f"{self.name} {self.id}".strip()

    def may(self, role: Role) -> bool:
        """Is what `role` may do allowed to this identity?"""
        return role in _MAY[self.role]


Local = Callable[[ASGIConnection[Any, Any, Any, Any]], Awaitable[Identity | None]]
"""Knows who asks by the controller's Unix socket; None: by another way. See `local_door.local_identity`."""
LOCAL = Identity("local", Role.OPERATOR)
"""Everyone, on a server without tokens, which listens on loopback only."""


class Reviewer(Protocol):
    """Knows tokens that no book holds: those of ServiceAccounts."""

    async def source_of(self, token: str) -> str:
        """Its holder's `agent:NODE` or `launcher:JOB`; empty: nobody's. Raises LinkError when it cannot be told now."""


class Issuer(Protocol):
    """Knows tokens that no book holds: those that were given in exchange for a proof."""

    def holder(self, token: str) -> Identity | None:
        """Whose token this is; None: none of these, or no longer valid."""


class Sessions(Protocol):
    """People who have logged in with a browser: the cockpit's. Asked when a request carries no bearer token."""

    def identity(self, connection: ASGIConnection[Any, Any, Any, Any]) -> Identity | None:
        """Whose session this request belongs to; None: none that holds."""

    def allows_write(self, connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
        """Does the request prove that it comes from our own page, and not from another site's?"""


class BookLine(Struct, frozen=True):
    """One token of a book, as `holdfast token list` shows it."""

    digest: str
    identity: Identity
    at: float = 0.0
    """When it was made, 0.0: not known."""
    by: str = ""


class TokenBook:
    """Tokens that are accepted. An empty book accepts everyone as `LOCAL`; `server.py` says where that is allowed."""

    def __init__(
        self,
        lines: Sequence[BookLine] = (),
        *,
        file: Path | None = None,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._now = now
        self._monotonic = monotonic
        self._even = EvenClock(now, monotonic)
        self._looked_at = monotonic()
        self._stamp = _stamp(file)
        self._take(lines)
        self._empty = not lines
        """Fixed for good: a book that loses its last line refuses everyone."""

    def _take(self, lines: Sequence[BookLine]) -> None:
        self.lines = tuple(lines)
        self._entries = [(bytes.fromhex(line.digest), line.identity) for line in lines]

    def __len__(self) -> int:
        return len(self._entries)

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> TokenBook:
        """Read a token book, which goes on to follow its file.

        Raises:
            ConfigError: it cannot be read, others may write it, or a line is not understood; names file and line.
        """
        lines = read_book(path)
        if not lines:
            raise ConfigError("the token book holds no token", file=str(path))
        return cls(lines, file=path, now=now, monotonic=monotonic)

    def identify(self, authorization: str) -> Identity | None:
        """Whose token this `Authorization` header carries; None when it is not accepted."""
        if self._empty:
            return LOCAL
        scheme, _, token = authorization.partition(" ")
        found = self.holder(token)
        return found if scheme.lower() == "bearer" else None

    def holder(self, token: str) -> Identity | None:
        """Whose token this is; None when it is not accepted, or no longer."""
        self._follow()
        digest = hashlib.sha256(token.strip().encode("utf-8", "replace")).digest()
        found = None
        for known, identity in self._entries:
            # Every entry is compared, so that the time tells nothing about which one was near.
            if hmac.compare_digest(known, digest):
                found = identity
        return self._valid(found)

    def known(self, identity_id: str) -> Identity | None:
        """The identity of this id while its token is accepted: what a session asks at each of its requests."""
        if self._empty:
            return LOCAL if identity_id == LOCAL.id else None
        self._follow()
        return self._valid(next((one for _, one in self._entries if one.id == identity_id), None))

    def _valid(self, identity: Identity | None) -> Identity | None:
        if identity is None or not identity.until:
            return identity
        now = max(self._now(), self._even.now())  # a clock that is set back revives no token
        return None if identity.until <= now else identity

    def _follow(self) -> None:
        """Read the file again if it has changed. While it cannot be read, what was read last goes on to hold."""
        now = self._monotonic()
        if self._file is None or now - self._looked_at < LOOK_AGAIN_S:
            return
        self._looked_at = now
        stamp = _stamp(self._file)
        if stamp == self._stamp:
            return
        try:
            lines = read_book(self._file)
        except HoldfastError as error:
            _log.error("the token book cannot be read; what was read before holds", why=str(error))
            return
        self._stamp = stamp
        self._take(lines)
        _log.info("the token book was read anew", file=str(self._file), tokens=len(lines))


def _stamp(file: Path | None) -> tuple[int, int, int]:
    if file is None:
        return (0, 0, 0)
    try:
        found = file.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def read_book(path: Path) -> list[BookLine]:
    """The lines of a token book.

    Raises:
        ConfigError: it cannot be read, others may write it, or a line is not understood; names file and line.
    """
    try:
        text = _text_of(path)
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token book cannot be read: {error}", file=str(path)) from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError("others may write this token book: chmod 600 it", file=str(path))
    return [
        _entry(line.split(), str(path), number)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]


def too_few_people(policies: PolicySet, book: Path, now: float, uid: int) -> str:
    """Why what is proposed for nodes can never be given; empty: there are as many operators as `[trust]` asks for.

    Operators are those of the book, and at the controller's socket root and its own user. Owners do not count: each
    approves what is proposed for their own jobs alone.

    Args:
        policies: `[trust]` of the site and of the groups.
        book: of tokens.
        now: Unix seconds.
        uid: of the controller.

    Raises:
        ConfigError: see `read_book`.
    """
    needed = max(policy.trust.approvals for policy in (policies.site, *policies.groups.values()))
    if needed <= 1:
        return ""
    held = [line.identity for line in read_book(book) if line.identity.role is Role.OPERATOR]
    with_tokens = {one.name for one in held if not one.sees and (not one.until or one.until > now)}
    people = {name.casefold(): name for name in (*with_tokens, *map(local_name, (0, uid)))}
    if len(people) >= needed:
        return ""
    return (
        f"[trust] approvals = {needed} asks for {needed} people, and {book} and the controller's socket know "
        f"{len(people)} who may approve what is proposed for a node ({', '.join(sorted(people.values()))}): none of it "
        "can be given; make tokens by `holdfast token create NAME --role operator`"
    )


def local_name(uid: int) -> str:
    """What a user of this machine is called; `uid:4711` where nobody has named them, as in a container."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid:{uid}"


def _text_of(book: Path) -> str:
    return read_bounded(book, BOOK_SIZE_MAX).decode("utf-8")


def _entry(words: list[str], file: str, line: int) -> BookLine:
    options = dict(word.partition("=")[::2] for word in words[3:])
    if len(words) < 3 or len(options) != len(words) - 3 or not set(options) <= _OPTIONS:
        raise ConfigError(
            "write: role name sha256 [only=SOURCE] [sees=user:NAME,...] [until=UNIX_SECONDS]", file=file, line=line
        )
    role, name, digest = words[:3]
    if role not in set(Role):
        raise ConfigError(f"role {role!r} is not known: use viewer, owner, agent or operator", file=file, line=line)
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ConfigError("the third word must be the token's SHA-256 in 64 hexadecimal digits", file=file, line=line)
    try:
        until, at = float(options.get("until", 0)), float(options.get("at", 0))
    except ValueError:
        raise ConfigError("until= and at= are Unix seconds", file=file, line=line) from None
    sees = tuple(options["sees"].split(",")) if "sees" in options else ()
    if (role == Role.AGENT and sees) or not all(SCOPE.fullmatch(one) for one in sees):
        raise ConfigError(
            "sees= is user:NAME or project:NAME, several with commas, and not for agents", file=file, line=line
        )
    identity = Identity(name, Role(role), options.get("only", ""), digest[:12], until, sees)
    return BookLine(digest, identity, at, options.get("by", ""))


_OPTIONS = frozenset({"only", "sees", "until", "at", "by"})


def new_token() -> str:
    """A fresh token of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def book_line(
    token: str,
    role: Role,
    name: str,
    *,
    only: str = "",
    sees: Sequence[str] = (),
    until: float = 0.0,
    at: float = 0.0,
    by: str = "",
) -> str:
    """The line by which a book accepts this token."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    options = {
        "only": only,
        "sees": ",".join(sees),
        "until": f"{until:.0f}" if until else "",
        "at": f"{at:.0f}" if at else "",
        "by": by,
    }
    return " ".join([role, name, digest, *(f"{key}={value}" for key, value in options.items() if value)]) + "\n"


def ensure_tokens(folder: Path) -> Path:
    """Make the controller's own book in its folder unless it exists, with an operator's and an agent's token.

    `tokens` is the book; `token` (operator, also used by the embedded cluster's agents) and `agent-token` hold the
    tokens themselves, readable by the owner only.
    """
    book = folder / "tokens"
    if not book.exists():
        lines = ""
        for file, role in (("token", Role.OPERATOR), ("agent-token", Role.AGENT)):
            token = new_token()
            _write_private(folder / file, token + "\n")
            lines += book_line(token, role, "local")
        # The book comes last: it is what says that all of this is done.
        _write_private(book, lines)
    return book


def change_book(book: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Replace the book's lines, comments included, by what `change` makes of them; whole or not at all.

    Two changes at once cannot lose each other's lines: each holds the lock of `BOOK.lock` meanwhile.

    Raises:
        ConfigError: it cannot be read or written.
    """
    try:
        with locked(book.with_name(f"{book.name}.lock"), wait_s=None):
            lines = _text_of(book).splitlines() if book.exists() else []
            _write_private(book, "".join(f"{line}\n" for line in change(lines)))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token book cannot be changed: {error}", file=str(book)) from error


def _write_private(path: Path, text: str) -> None:
    write_whole(path, text.encode(), mode=0o600, durable=True)


def needs(role: Role) -> Guard:
    """A guard that lets only those pass who may do what `role` does; leaves the identity in the request's state."""

    # A plain function would be run in a thread for each request.
    async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        local: Local = connection.app.state.local
        identity = await local(connection) or who(connection) or await _reviewed(connection)
        if identity is None:
            connection.app.state.limits.count_refusal(connection)
            shown = "authorization" in connection.headers
            why = "this token is unknown here, has ended or was revoked" if shown else "a valid bearer token is needed"
            raise NotAuthorizedException(why, headers={"WWW-Authenticate": "Bearer"})
        connection.app.state.limits.check(connection, identity)
        if not identity.may(role):
            raise PermissionDeniedException(
                f"{identity.name!r} has {identity.role.one}'s rights; this needs {role.one}'s"
            )
        check_scope(identity, handler)
        if role is Role.VIEWER:
            await check_newest(connection.app.state.controller)
        connection.state.identity = identity

    return guard


def check_scope(identity: Identity, handler: BaseRouteHandler) -> None:
    """Return when the identity sees the whole cluster, or the route keeps to scopes.

    Raises:
        PermissionDeniedException: the route shows more than the identity's scope.
    """
    if identity.sees and not SCOPED.items() <= handler.opt.items():
        raise PermissionDeniedException(
            f"{identity.name!r} sees {', '.join(identity.sees)} alone; this is about the whole cluster"
        )


async def _reviewed(connection: ASGIConnection[Any, Any, Any, Any]) -> Identity | None:
    """The agent or launcher whose ServiceAccount token this is; it may report only as its own node, or its own job."""
    reviewer: Reviewer | None = connection.app.state.reviewer
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if reviewer is None or scheme.lower() != "bearer":
        return None
    source = await reviewer.source_of(token.strip())
    kind, _, name = source.partition(":")
    return Identity(f"{kind} of {name}", Role.AGENT, only=source, id=source) if source else None


def is_guess(authorization: str) -> bool:
    """Could a header that is not accepted be a guess at a token? One that names another scheme or issuer is none."""
    scheme, _, token = authorization.partition(" ")
    return scheme.lower() == "bearer" and token.strip().startswith(PREFIX)


def _issued(connection: ASGIConnection[Any, Any, Any, Any], authorization: str) -> Identity | None:
    issuer: Issuer | None = connection.app.state.exchange
    scheme, _, token = authorization.partition(" ")
    return issuer.holder(token) if issuer is not None and scheme.lower() == "bearer" else None


def who(connection: ASGIConnection[Any, Any, Any, Any]) -> Identity | None:
    """Who asks: by bearer token, else by the cockpit's session; None: nobody that is known.

    Raises:
        PermissionDeniedException: a session's request that would change something, without proof of our own page.
    """
    book: TokenBook = connection.app.state.tokens
    sessions: Sessions | None = connection.app.state.sessions
    header = connection.headers.get("authorization", "")
    if header or sessions is None:
        return book.identify(header) or _issued(connection, header)
    identity = sessions.identity(connection)
    if identity is None:
        return book.identify("")
    if connection.scope.get("method") not in {"GET", "HEAD"} and not sessions.allows_write(connection):
        raise PermissionDeniedException("this request does not come from a page of this controller")
    return identity
