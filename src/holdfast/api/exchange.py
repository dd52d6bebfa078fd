"""Short-lived tokens in exchange for a munge credential, so that no token lies on nodes and in homes.

The user of the credential decides. Root asks for the agent of a node and gets it where the credential was made on that
node, by the address that the scheduler has of it. Everybody may ask for the launcher of their own jobs, and all but
root for themselves: an owner who sees the own jobs alone. A token carries its identity and is signed with a key of the
controller's folder, so that none is kept in memory and a restart needs no new ones. `routes_token.py` calls `take`, the
guard of `auth.py` calls `holder`, `local_door.py` `identity_of`. Times are Unix seconds.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import pwd
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from holdfast.api.auth import Identity, Role
from holdfast.controller import Controller
from holdfast.errors import ConfigError, LinkError, RefusedError
from holdfast.model.answers import TokenAnswer, TokenPurpose
from holdfast.os.files import read_bounded, write_whole
from holdfast.os.munge import TTL_S, Credential

PREFIX = "hfx_"
TOKEN_S = 600.0
TOKEN_MAX = 2048
AGE_MAX_S = float(TTL_S)
"""A credential counts for so long, whatever time its maker has given it."""
AHEAD_S = 300.0
KEY_FILE = "exchange-key"
KEY_BYTES = 32
READERS = 2
"""Credentials that are read at once: each is a program, and takes one of the few threads that others need, too."""


@runtime_checkable
class Directory(Protocol):
    """The scheduler's names and addresses."""

    @property
    def cluster_name(self) -> str:
        """The cluster's name; empty while it is not known."""

    def node_address(self, node: str) -> str:
        """Name or IP address of a node; empty: there is none."""


class Exchange:
    """See the module.

    Args:
        decode: reads a credential once, see `os.munge.decode`.
        directory: of the scheduler.
        key: signs tokens.
        now: Unix seconds.
    """

    def __init__(
        self,
        decode: Callable[[str], Awaitable[Credential]],
        directory: Directory,
        key: bytes,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._decode = decode
        self._directory = directory
        self._key = key
        self._now = now
        self._readers = asyncio.Semaphore(READERS)

    async def take(self, controller: Controller, credential: str) -> TokenAnswer:
        """The token for whoever made this credential.

        Raises:
            RefusedError: the credential is not good, or not for what it asks.
            LinkError: munged or the scheduler does not answer now.
        """
        async with self._readers:
            proof = await self._decode(credential)
        age_s = self._now() - proof.at
        if not is_fresh(age_s):
            raise RefusedError(f"the munge credential was made {age_s:.0f} s ago: make a new one")
        asked = _purpose(proof.payload)
        cluster = self._directory.cluster_name
        if not cluster:
            raise LinkError("the cluster has not been seen yet: come back later")
        if not is_here(asked.cluster, cluster):
            raise RefusedError(
                f"the munge credential is for cluster {asked.cluster!r}, and this is {cluster!r}: "
                f"set HOLDFAST_CLUSTER={cluster} where it is made"
            )
        identity = await self._identity(controller, proof, asked.source)
        return TokenAnswer(self.sign(identity), TOKEN_S, identity.name, identity.role.value, identity.only)

    async def _identity(self, controller: Controller, proof: Credential, source: str) -> Identity:
        kind, _, name = source.partition(":")
        if kind == "agent":
            await self._check_node(proof, name)
            return Identity(f"agent of {name}", Role.AGENT, only=source, id=source)
        user = await asyncio.to_thread(user_of, proof.uid)
        if not source and proof.uid == 0:
            raise RefusedError("root gets no token as a person by munge: name one by HOLDFAST_TOKEN_FILE")
        return await identity_of(controller, user, source)

    async def _check_node(self, proof: Credential, node: str) -> None:
        """Return when the credential is root's on this node.

        Raises:
            RefusedError: it is not.
        """
        if not is_root(proof.uid):
            raise RefusedError(f"the agent of {node} reports as root, and the munge credential is of uid {proof.uid}")
        known = self._directory.node_address(node)
        if not known:
            raise RefusedError(f"the scheduler has no node {node!r}")
        addresses = await _resolved(known)
        if not is_at(proof.address, addresses):
            raise RefusedError(
                f"the munge credential was made at {proof.address}, and node {node} is at "
                f"{', '.join(sorted(addresses)) or known}: start its munged with --origin where it takes another"
            )

    def sign(self, identity: Identity) -> str:
        """A token for this identity, valid for `TOKEN_S`."""
        held = msgspec.structs.replace(identity, until=self._now() + TOKEN_S)
        body = base64.urlsafe_b64encode(msgspec.json.encode(held)).decode().rstrip("=")
        return f"{PREFIX}{body}.{self._seal(body)}"

    def holder(self, token: str) -> Identity | None:
        """Whose token this is; None: none of ours, or no longer valid."""
        body, _, seal = token.strip().removeprefix(PREFIX).partition(".")
        if not token.startswith(PREFIX) or len(token) > TOKEN_MAX or not is_sealed(seal, self._seal(body)):
            return None
        try:
            found = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Identity)
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            return None
        return found if is_current(found.until, self._now()) else None

    def _seal(self, body: str) -> str:
        return hmac.new(self._key, body.encode("ascii", "replace"), hashlib.sha256).hexdigest()


def is_sealed(seal: str, expected: str) -> bool:
    """Is this the seal of our key?"""
    return hmac.compare_digest(seal.encode("utf-8", "replace"), expected.encode())


def is_current(until: float, now: float) -> bool:
    """Is a token still valid?"""
    return until > now


def is_fresh(age_s: float) -> bool:
    """Was it made lately?"""
    return -AHEAD_S <= age_s <= AGE_MAX_S


def is_here(asked: str, cluster: str) -> bool:
    """Is it for this cluster? Several may share munge's key."""
    return asked == cluster


def is_ours(purpose: str) -> bool:
    """Was it made to get a token of Holdfast, and not shown to another service that reads munge credentials?"""
    return purpose == TokenPurpose().purpose


def is_root(uid: int) -> bool:
    """Only root is a node."""
    return uid == 0


def is_at(address: str, addresses: set[str]) -> bool:
    """Was it made at one of the node's addresses?"""
    return address in addresses


async def identity_of(controller: Controller, user: str, source: str) -> Identity:
    """What a user who has proved to be this one is: the launcher of a job of theirs, or an owner of their jobs.

    Raises:
        RefusedError: the source is another kind of reporter, or of another user's job.
        LinkError: see `check_job`.
    """
    kind, _, name = source.partition(":")
    if kind == "launcher":
        await check_job(controller, user, name.partition("#")[0])
        return Identity(f"launcher of {name}", Role.AGENT, only=source, id=source)
    if source:
        raise RefusedError(f"user {user!r} is not let in as {source[:64]!r}: name a token by HOLDFAST_TOKEN_FILE")
    return Identity(user, Role.OWNER, id=f"user:{user}", sees=(f"user:{user}",))


async def check_job(controller: Controller, user: str, job_id: str) -> None:
    """Return when the scheduler has given this job to this user.

    Nobody learns here which ids exist: another's job and one that is not there get one answer, after the same look.

    Raises:
        RefusedError: no such job is this user's.
        LinkError: the scheduler has answered in part.
    """

    def is_theirs() -> bool:
        return owns(user, {view.user for view in controller.shell().jobs.values() if view.key.id == job_id})

    if is_theirs():
        return
    if not await controller.watch.look_again():
        raise LinkError("the scheduler has answered in part only: come back later")
    if not is_theirs():
        raise RefusedError(f"the scheduler shows no job {job_id!r} of {user}")


def owns(user: str, owners: set[str]) -> bool:
    """Is the job this user's, and nobody else's under the same number?"""
    return owners == {user}


def user_of(uid: int) -> str:
    """The user's name on the controller's machine. Raises RefusedError: nobody has this number there."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise RefusedError(f"the controller's machine knows no user with uid {uid}") from None


def _purpose(payload: bytes) -> TokenPurpose:
    try:
        asked = msgspec.json.decode(payload, type=TokenPurpose)
    except msgspec.MsgspecError:
        raise RefusedError("the munge credential was made for something else") from None
    if not is_ours(asked.purpose):
        raise RefusedError("the munge credential was made for something else")
    return asked


async def _resolved(address: str) -> set[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(where[4][0]) for where in found}


def ensure_key(folder: Path) -> bytes:
    """The key of the controller's folder, made at the first use, mode 0600.

    Raises:
        ConfigError: it cannot be read or written, or holds something else.
    """
    file = folder / KEY_FILE
    try:
        if not file.exists():
            write_whole(file, secrets.token_bytes(KEY_BYTES), mode=0o600, durable=True)
        key = read_bounded(file, KEY_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot be read or written: {error.strerror}", file=str(file)) from error
    if len(key) != KEY_BYTES:
        raise ConfigError("is no key: remove it, and a new one is made", file=str(file))
    return key
