"""TLS as both sides of the API have it: the certificate that is served, and whom a client believes.

`client/http.py` asks `Trust` for every connection; `api/listener.py` has `checked` judge a certificate at the start,
`api/following.py` when a file has changed. A pair counts as good when a TLS handshake with it succeeds in memory: that
finds a key of another certificate, and one that is over, without a parser of our own. Settings are read by every
command, so this imports little. No time passes here.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from holdfast.errors import ConfigError, RefusedError
from holdfast.os.files import read_bounded
from holdfast.os.listeners import listener_uids
from holdfast.os.tokens import check_token
from holdfast.os.unix_sockets import USERS_FROM, address_beside, check_place, socket_of

CA_FILE, CERT_FILE, PLAIN_HTTP = "HOLDFAST_CA_FILE", "HOLDFAST_CERT_FILE", "HOLDFAST_PLAIN_HTTP"
MUNGE = "HOLDFAST_MUNGE"
Stamp = tuple[tuple[int, int, int], ...]
"""Of each file the time of its last change (ns), its inode and its size (bytes); zeros where there is none."""
PEM_SIZE_MAX = 1 << 22
_YES = frozenset({"1", "true", "t", "yes", "y", "on"})
"""What counts as yes in the environment, for every command alike."""
_NO = frozenset({"", "0", "false", "f", "no", "n", "off"})
_HTTP_PORT = 80
DAY_S = 86_400.0
TELL_DAYS = (7, 30)
"""So many days before its end a certificate is told of."""
CA_NAME = "ca.pem"
"""The certificate authority of `holdfast token ca` in a controller's folder: what is read there is trusted by it."""
_SAYS_AUTHORITY = re.compile(r"issuer certificate|self.signed|signature failure|CA cert")
_SAYS_CLIENT = re.compile(r"(?i)alert[ _](certificate|unknown[ _]ca|bad[ _]certificate)")
"""Alerts by which a server that asks for certificates refuses a client."""
_OVER, _NOT_YET = 10, 9
"""X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID of OpenSSL."""


class Trust(Struct, frozen=True):
    """What holds for one controller."""

    ca_file: Path | None = None
    """Certificate authority that the controller's certificate is checked against; None: those of the system."""
    cert_file: Path | None = None
    """This client's certificate and its key in one PEM file, for a controller that asks for one."""
    plain_http: bool = False
    """The site allows tokens to cross its network unencrypted."""
    munge: str | None = None
    """Log in by munge where no token is named: munged's socket, or "" for munge's own; None: do not."""

    def check(self, url: str, token: str) -> None:
        """Raise RefusedError where others than the controller could have the token, and the site does not allow it.

        Over plain HTTP these are whoever reads the network, and on this machine another user who listens on the port.
        """
        check_token(token)
        if (path := socket_of(url)) is not None:
            check_place(path)
            return
        where = urlsplit(url)
        if not (token or self.munge is not None) or where.scheme == "https" or self.plain_http:
            return
        host = where.hostname or ""
        if not is_loopback(host):
            raise RefusedError(
                f"no token is sent to {url} over plain HTTP, where others can read it: have the controller serve "
                f"https ([tls] of its holdfast.toml), allow it by {PLAIN_HTTP}=1 or `plain_http = true`, or name the "
                "controller's socket (unix:PATH) where this is its machine"
            )
        listeners = listener_uids(host, where.port or _HTTP_PORT) - {os.geteuid()}
        strangers = {uid for uid in listeners if uid >= USERS_FROM}
        if strangers:
            raise RefusedError(
                f"no token is sent to {url}: another user (uid {min(strangers)}) listens there. If the controller runs "
                f"as that user, name its socket (unix:PATH), have it serve https ([tls] of its holdfast.toml), or "
                f"allow it by {PLAIN_HTTP}=1 or `plain_http = true`"
            )

    def socket_beside(self, file: Path, token_file: Path | None) -> str:
        """The address of the socket beside a `controller.json`; empty where none answers, or a token or munge is named.

        Raises:
            RefusedError: who listens is not the controller.
        """
        return address_beside(file) if token_file is None and self.munge is None else ""

    def context(self) -> ssl.SSLContext | bool:
        """What httpx takes as `verify`; host names are checked in any case.

        Raises:
            ConfigError: a file cannot be read, or does not hold what it should.
        """
        if self.ca_file is None and self.cert_file is None:
            return True
        ca_file = str(self.ca_file) if self.ca_file is not None else None
        try:
            if self.ca_file is not None:
                read_bounded(self.ca_file, PEM_SIZE_MAX)  # OpenSSL would wait for the writer of a pipe
            context = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise ConfigError(f"the certificate authority cannot be read: {error}", file=str(ca_file)) from error
        if self.cert_file is not None:
            try:
                read_bounded(self.cert_file, PEM_SIZE_MAX)
                context.load_cert_chain(self.cert_file, password=_none)
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"is not a PEM file with a certificate and its key without a password: {error}",
                    file=str(self.cert_file),
                ) from error
        return context

    def tls_hint(self, why: str, *, is_closed: bool = False) -> str:
        """Which file is at fault; empty where that cannot be told.

        Args:
            why: OpenSSL's error.
            is_closed: the other side has closed the connection. A server that asks for certificates does so after the
                handshake, and its alert is mostly lost.
        """
        if "CERTIFICATE_VERIFY_FAILED" in why:
            if _SAYS_AUTHORITY.search(why) is None:
                return ""
            if self.ca_file is None:
                return f"its certificate is of no authority of the system's: name its own by {CA_FILE}"
            return f"its certificate is not of the authority in {self.ca_file} ({CA_FILE}, ca_file)"
        is_said = _SAYS_CLIENT.search(why) is not None
        if not is_said and not is_closed:
            return ""
        begin = "it" if is_said else "it closed the connection; if it asks for certificates of its clients, it"
        if self.cert_file is None:
            return f"{begin} lacks one of this client: name one by {CERT_FILE}"
        return f"{begin} does not accept the one in {self.cert_file} ({CERT_FILE}, cert_file)"

    def stamp(self) -> Stamp:
        """Another value once a file was replaced or written, links followed."""
        return tuple(_stamp(path) for path in (self.ca_file, self.cert_file) if path is not None)


DEFAULT_TRUST = Trust()
"""The system's authorities; no token over plain HTTP beyond this machine."""


def trust_of(environ: Mapping[str, str], otherwise: Trust = DEFAULT_TRUST) -> Trust:
    """What the environment names, each in place of what holds otherwise."""
    ca_file, cert_file = environ.get(CA_FILE, ""), environ.get(CERT_FILE, "")
    return Trust(
        Path(ca_file) if ca_file else otherwise.ca_file,
        Path(cert_file) if cert_file else otherwise.cert_file,
        otherwise.plain_http or environ.get(PLAIN_HTTP, "").strip().lower() in _YES,
        named_socket(environ[MUNGE]) if MUNGE in environ else otherwise.munge,
    )


def named_socket(said: str) -> str | None:
    """What `HOLDFAST_MUNGE` says: None for no, the socket of munged, or "" for munge's own default.

    Raises:
        ConfigError: neither a word for yes or no, nor an absolute path.
    """
    word = said.strip()
    if word.startswith("/"):
        return word
    if word.lower() in _YES | _NO:
        return "" if word.lower() in _YES else None
    raise ConfigError(f"{MUNGE}={word}: write 1, or the absolute path of munged's socket")


def is_loopback(host: str) -> bool:
    """Is this an address that only this machine can reach?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _none() -> str:
    """A password that nobody is asked for: a service starts unattended."""
    raise ValueError("the key is protected by a password")


class TlsFiles(Struct, frozen=True):
    """Where the certificate stands, all PEM."""

    cert: Path
    """The controller's certificate, then those between it and its authority."""
    key: Path
    client_ca: Path | None = None
    """Only clients with a certificate of this authority are let in."""

    def stamp(self) -> Stamp:
        """Another value once a file was replaced or written, links followed."""
        return tuple(_stamp(path) for path in (self.cert, self.key, self.client_ca) if path is not None)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """A context that serves with these files.

    Raises:
        ConfigError: one is missing, cannot be read or holds something else; the key is another certificate's, or
            protected by a password; the certificate is over, or not valid yet. Says which file.
    """
    _pem(files.cert, "CERTIFICATE")
    key = _pem(files.key, "PRIVATE KEY")
    if "ENCRYPTED" in key:
        raise ConfigError(
            "the key is protected by a password, and a controller starts unattended: take it off with "
            f"`openssl pkey -in {files.key} -out NEW_KEY`",
            file=str(files.key),
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(files.cert, files.key)
    except OSError as error:  # an SSLError is one, and so is what tells that a file was taken away meanwhile
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"is not the key of the certificate {files.cert}", file=str(files.key)) from error
        raise ConfigError(f"certificate and key cannot be used: {_why(error)}", file=str(files.cert)) from error
    if files.client_ca is not None:
        _pem(files.client_ca, "CERTIFICATE")
        try:
            context.load_verify_locations(files.client_ca)
        except OSError as error:
            raise ConfigError(f"is not a certificate authority: {_why(error)}", file=str(files.client_ca)) from error
    return context


def renew(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Have a context serve with what the files hold now, from the next handshake on. Raises ConfigError."""
    try:
        context.load_cert_chain(files.cert, files.key)
    except OSError as error:
        raise ConfigError(f"certificate and key cannot be used: {_why(error)}", file=str(files.cert)) from error


def checked(files: TlsFiles) -> str:
    """Check that the files can be served with; until when the certificate is valid, as OpenSSL writes it.

    Raises:
        ConfigError: see `server_context`.
    """
    server = server_context(files)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(files.cert)
        return _end_of(_shaken(client, server)[0])
    except ssl.SSLCertVerificationError as error:
        raise _unfit(files.cert, error) from error
    except OSError as error:
        raise ConfigError(f"the certificate cannot be used: {_why(error)}", file=str(files.cert)) from error


def authority_end(path: Path) -> float:
    """When the last of a file's authorities ends, Unix seconds. Raises ConfigError: there is none in it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _pem(path, "CERTIFICATE")
    try:
        context.load_verify_locations(path)
        return float(max(ssl.cert_time_to_seconds(str(one["notAfter"])) for one in context.get_ca_certs()))
    except (OSError, ValueError) as error:
        raise ConfigError("is not a certificate authority", file=str(path)) from error


def checked_client(path: Path) -> str:
    """Check that a client's file can be shown; until when it is valid, as OpenSSL writes it. Raises ConfigError."""
    server = server_context(TlsFiles(path, path))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE  # the other side is this file, too
    server.verify_mode = ssl.CERT_REQUIRED
    server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_cert_chain(path)
        server.load_verify_locations(path)
        return _end_of(_shaken(client, server)[1])
    except ssl.SSLCertVerificationError as error:
        raise _unfit(path, error) from error
    except OSError as error:
        raise ConfigError(f"the certificate cannot be used: {_why(error)}", file=str(path)) from error


def _unfit(path: Path, error: ssl.SSLCertVerificationError) -> ConfigError:
    why = {_OVER: "has expired", _NOT_YET: "is not valid yet"}.get(
        error.verify_code, f"cannot be used: {error.verify_message}"
    )
    return ConfigError(f"the certificate {why}", file=str(path))


def _end_of(side: ssl.SSLObject) -> str:
    """The end of the certificate that this side was shown."""
    return str((side.getpeercert() or {}).get("notAfter", ""))


def _shaken(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both sides after a handshake in memory. Raises SSLError where it does not come about."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours, theirs


def _pem(path: Path, what: str) -> str:
    try:
        text = read_bounded(path, PEM_SIZE_MAX).decode("ascii", errors="replace")
    except FileNotFoundError:
        raise ConfigError("there is no such file", file=str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from error
    if f"{what}-----" not in text:
        raise ConfigError(f"holds no {what.lower()} in PEM form", file=str(path))
    return text


def _why(error: OSError) -> str:
    return str(error) if isinstance(error, ssl.SSLError) else str(error.strerror)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_ino, found.st_size
