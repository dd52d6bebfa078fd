"""Munge credentials: proofs of user and machine among machines that share a key, as Slurm's own daemons use them.

Made and read by munge's own programs. Clients encode one for each token that they ask for; `api/exchange.py` decodes.
munged gives a credential's content once: a second reading is an error there, also for another process of that machine.
Time passes while the program runs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.errors import LinkError, RefusedError
from holdfast.os.files import read_bounded
from holdfast.os.programs import Command, Ran, run_blocking

TTL_S = 60
"""A credential is read within this time of its making; clocks of one Slurm cluster differ by less."""
SIZE_MAX = 4096
"""Characters of a credential with a payload of ours."""
LIMIT_S = 5.0
_FORM = re.compile(r"MUNGE:[A-Za-z0-9+/=]+:")
_DAEMON_ERRORS = frozenset({None, *range(1, 8)})
"""EMUNGE_SNAFU to EMUNGE_TIMEOUT of munge.h: munged's or the machine's. Those above are the credential's."""
_WHY = {15: "it is too old", 16: "its clock is ahead of ours", 17: "it was shown before"}
_CONFS = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))
_CONF_MAX = 1 << 22


class Credential(Struct, frozen=True):
    """What munged vouches for."""

    uid: int
    address: str
    """Of the machine where it was made, as the munged there knows itself."""
    at: float
    """When it was made, Unix seconds."""
    payload: bytes


async def encode(payload: bytes, socket: str) -> str:
    """A credential of this process's user that carries the payload. Raises LinkError: munged does not answer."""
    ran = await _run(("munge", f"--ttl={TTL_S}", *_at(socket)), payload)
    if ran.code != 0 or not _FORM.fullmatch(ran.out.strip()):
        raise LinkError(f"no munge credential: {ran.said}")
    return ran.out.strip()


async def decode(credential: str, socket: str) -> Credential:
    """What a credential says, once.

    Raises:
        RefusedError: it is none, was changed, is of another key, too old, or was read before.
        LinkError: munged does not answer.
    """
    if len(credential) > SIZE_MAX or not _FORM.fullmatch(credential):
        raise RefusedError("this is not a munge credential")
    ran = await _run(("unmunge", "--numeric", *_at(socket)), credential.encode())
    if ran.code in _DAEMON_ERRORS:
        raise LinkError(f"munge credentials cannot be read: {ran.said}")
    if not is_good(ran.code):
        raise RefusedError(f"the munge credential is refused: {_WHY.get(ran.code or 0, 'it is not of our key')}")
    head, _, payload = ran.stdout.partition(b"\n\n")
    told = dict(re.findall(r"^(\w+):\s*(\S+)$", head.decode("ascii", "replace"), re.MULTILINE))
    try:
        return Credential(int(told["UID"]), told["ENCODE_HOST"], float(told["ENCODE_TIME"]), payload)
    except (KeyError, ValueError) as error:
        raise LinkError(f"unmunge says something else than expected: {error}") from error


def is_good(code: int | None) -> bool:
    """Does unmunge end so for a credential that is whole, of our key, of now, and shown for the first time?"""
    return code == 0


async def _run(argv: tuple[str, ...], given: bytes) -> Ran:
    return await asyncio.to_thread(run_blocking, Command(argv=argv, given=given), LIMIT_S)


def _at(socket: str) -> tuple[str, ...]:
    return (f"--socket={socket}",) if socket else ()


def slurm_cluster(environ: Mapping[str, str]) -> str:
    """The name of the Slurm cluster that this process is of; empty where nothing tells."""
    for name in ("HOLDFAST_CLUSTER", "SLURM_CLUSTER_NAME"):
        if environ.get(name):
            return environ[name]
    for conf in (Path(environ["SLURM_CONF"]),) if environ.get("SLURM_CONF") else _CONFS:
        try:
            text = read_bounded(conf, _CONF_MAX).decode("utf-8", "replace")
        except OSError:
            continue
        hit = re.search(r"^\s*ClusterName\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
        if hit is not None:
            return hit[1]
    return ""
