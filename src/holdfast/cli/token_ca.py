"""`holdfast token ca`: a site's own certificate authority, and certificates for the controller and its agents.

Files go beside the token book (`DIR/controller`), or where `--out` says: `ca.pem` and `ca.key`, which are made once,
`server.crt` and `server.key`, `agents/NODE.pem`. Keys are 0600. `token.py` adds the command. The time is the machine's.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.adapters.certificates import DAYS, NAME, Pair, check_authority, issue, make_authority
from holdfast.cli.answer import Answer
from holdfast.cli.json_forms import form
from holdfast.cli.options import ConfigOption, DirOption, OptionSet
from holdfast.errors import ConfigError, UsageError
from holdfast.os.files import read_bounded, write_whole
from holdfast.os.tls import CA_NAME, PEM_SIZE_MAX
from holdfast.wiring.settings import cluster_folder

HERE = ("localhost", "127.0.0.1", "::1")
"""What commands on the controller's own machine call it."""


class CaOptions(OptionSet, frozen=True):
    """What to make, and where."""

    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="NODE", help="A node's certificate; may be given several times."),
    ] = None
    days: Annotated[int, typer.Option(min=1, max=DAYS, help="How long certificates are valid.")] = DAYS
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where, in place of DIR/controller.")] = None
    cluster_dir: DirOption = None
    config: ConfigOption = None


def made(names: list[str], given: CaOptions) -> Answer:
    """Make what is asked for.

    Raises:
        UsageError: nothing is asked for, a name is not one, or the extra is missing.
        ConfigError: a file cannot be read or written.
    """
    nodes = given.agent or []
    if not names and not nodes:
        raise UsageError("for whom? Give the names that clients call the controller by, or --agent NODE")
    for node in nodes:
        if not re.fullmatch(NAME, node):
            raise UsageError(f"--agent {node!r} is not a node's name")
    folder, now = _folder(given), time.time()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = _authority(folder, now)
        files: list[Path] = []
        if names:
            server = issue(authority, names[0], [*dict.fromkeys([*names, *HERE])], now=now, days=given.days)
            files += _written({folder / "server.key": server.key, folder / "server.crt": server.cert})
        if nodes:
            (folder / "agents").mkdir(exist_ok=True, mode=0o700)
        for node in nodes:
            pair = issue(authority, f"agent:{node}", now=now, days=given.days)
            files += _written({folder / "agents" / f"{node}.pem": pair.cert + pair.key})
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(error.filename or folder)) from error
    ca = folder / CA_NAME
    hint = f"clients: HOLDFAST_CA_FILE={ca}"
    if names:
        hint = f'holdfast.toml: [tls] cert = "{folder / "server.crt"}", key = "{folder / "server.key"}"; {hint}'
    return Answer(
        lambda: form(ca=str(ca), files=[str(file) for file in files], days=given.days),
        lambda: [str(file) for file in (ca, *files)],
        hint=hint,
    )


def _folder(given: CaOptions) -> Path:
    if given.out is not None:
        return given.out
    otherwise = "where? Give --dir CLUSTER_DIR, or --out FOLDER"
    return cluster_folder(given.cluster_dir, given.config, otherwise=otherwise).absolute() / "controller"


def _authority(folder: Path, now: float) -> Pair:
    """The authority of this folder; it is made where there is none.

    Raises:
        ConfigError: one of its two files is there without the other, cannot be read, or is damaged.
    """
    cert, key = folder / CA_NAME, folder / "ca.key"
    if cert.exists() and key.exists():
        return _read(cert, key)
    if cert.exists() or key.exists():
        there, missing = (cert, key) if cert.exists() else (key, cert)
        raise ConfigError(f"is there without {missing.name}: bring that back, or move this one away", file=str(there))
    authority = make_authority(f"Holdfast CA {time.strftime('%Y-%m-%d', time.gmtime(now))}", now=now)
    _written({key: authority.key, cert: authority.cert})
    return authority


def _read(cert: Path, key: Path) -> Pair:
    read: list[bytes] = []
    for path in (cert, key):
        try:
            read.append(read_bounded(path, PEM_SIZE_MAX))
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from error
    authority = Pair(*read)
    try:
        check_authority(authority)
    except UsageError as error:
        raise ConfigError(
            f"{error}; {cert.name} stands beside it: bring both back from a copy", file=str(key)
        ) from error
    return authority


def _written(files: dict[Path, bytes]) -> list[Path]:
    for path, data in files.items():
        write_whole(path, data, mode=0o600 if b"PRIVATE KEY" in data else 0o644, durable=True)
    return list(files)
