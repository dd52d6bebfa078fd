"""Who may do what: bearer tokens with a role, hashed at rest, compared in constant time.

A token book is a text file, one token a line: `role name sha256-of-token [only=SOURCE]`; `#` begins a comment. Tokens
are 256 random bits, so a plain SHA-256 of one cannot be reversed by guessing and costs each request microseconds, where
a slow password hash would cost every beat of every node. Called by the routes and by `holdfast controller`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard
from msgspec import Struct

from holdfast.errors import ConfigError

PREFIX = "hft_"
"""Begins every token, so that scanners for leaked secrets can know one."""


class Role(StrEnum):
    """Viewers read; agents (and launchers) report; operators do both and command."""

    VIEWER = "viewer"
    AGENT = "agent"
    OPERATOR = "operator"


_MAY = {
    Role.VIEWER: frozenset({Role.VIEWER}),
    Role.AGENT: frozenset({Role.AGENT}),
    Role.OPERATOR: frozenset(Role),
}


class Identity(Struct, frozen=True):
    """Who asks."""

    name: str
    role: Role
    only: str = ""
    """When set: the one source (`agent:node07`) that this token may report as."""

    def may(self, role: Role) -> bool:
        """Is what `role` may do allowed to this identity?"""
        return role in _MAY[self.role]


LOCAL = Identity("local", Role.OPERATOR)
"""Everyone, on a server without tokens, which listens on loopback only."""


class TokenBook:
    """Tokens that are accepted. An empty book accepts everyone as `LOCAL`; `server.py` says where that is allowed."""

    def __init__(self, entries: Sequence[tuple[str, Identity]] = ()) -> None:
        self._entries = [(bytes.fromhex(digest), identity) for digest, identity in entries]

    def __len__(self) -> int:
        return len(self._entries)

    @classmethod
    def load(cls, path: Path) -> TokenBook:
        """Read a token book.

        Raises:
            ConfigError: it cannot be read, others may write it, or a line is not understood; names file and line.
        """
        try:
            text = path.read_text(encoding="utf-8")
            mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token book cannot be read: {error}", file=str(path)) from error
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError("others may write this token book: chmod 600 it", file=str(path))
        entries = [
            _entry(line.split(), str(path), number)
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.lstrip().startswith("#")
        ]
        if not entries:
            raise ConfigError("the token book holds no token", file=str(path))
        return cls(entries)

    def identify(self, authorization: str) -> Identity | None:
        """Whose token this `Authorization` header carries; None when it is not accepted."""
        if not self._entries:
            return LOCAL
        scheme, _, token = authorization.partition(" ")
        digest = hashlib.sha256(token.strip().encode("utf-8", "replace")).digest()
        found = None
        for known, identity in self._entries:
            # Every entry is compared, so that the time tells nothing about which one was near.
            if hmac.compare_digest(known, digest):
                found = identity
        return found if scheme.lower() == "bearer" else None


def _entry(words: list[str], file: str, line: int) -> tuple[str, Identity]:
    if len(words) not in {3, 4} or (len(words) == 4 and not words[3].startswith("only=")):
        raise ConfigError("write: role name sha256 [only=SOURCE]", file=file, line=line)
    role, name, digest = words[:3]
    if role not in set(Role):
        raise ConfigError(f"role {role!r} is not known: use viewer, agent or operator", file=file, line=line)
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ConfigError("the third word must be the token's SHA-256 in 64 hexadecimal digits", file=file, line=line)
    return digest, Identity(name, Role(role), words[3].removeprefix("only=") if len(words) == 4 else "")


def new_token() -> str:
    """A fresh token of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def book_line(token: str, role: Role, name: str, *, only: str = "") -> str:
    """The line by which a book accepts this token."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f"{role} {name} {digest}" + (f" only={only}" if only else "") + "\n"


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


def _write_private(path: Path, text: str) -> None:
    staged = path.with_name(f".{path.name}.new")
    staged.unlink(missing_ok=True)
    with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)


def needs(role: Role) -> Guard:
    """A guard that lets only those pass who may do what `role` does; leaves the identity in the request's state."""

    # A plain function would be run in a thread for each request.
    async def guard(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
        book: TokenBook = connection.app.state.tokens
        identity = book.identify(connection.headers.get("authorization", ""))
        if identity is None:
            raise NotAuthorizedException("a valid bearer token is needed", headers={"WWW-Authenticate": "Bearer"})
        if not identity.may(role):
            raise PermissionDeniedException(f"the token of {identity.name!r} is a {identity.role}'s; this needs {role}")
        connection.state.identity = identity

    return guard
