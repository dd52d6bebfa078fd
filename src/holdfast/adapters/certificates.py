"""A site's own certificate authority: ECDSA P-256 certificates for the controller and for its clients, as PEM.

Called by `holdfast token ca`. Needs the extra `tls` (the library `cryptography`). The time is handed in.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_DAYS = 3650
DAYS = 825
"""Longest that browsers of all makers accept a certificate of a site's own authority for."""
SKEW = dt.timedelta(hours=1)
"""A certificate counts from a little before it was made: clocks differ."""
NAME = r"(?=.{1,253}$)(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*"


class Pair(Struct, frozen=True):
    """A certificate and its key."""

    cert: bytes
    key: bytes


def make_authority(name: str, *, now: float) -> Pair:
    """A new authority, which may only sign certificates of machines. Raises UsageError without the extra."""
    x509 = _x509()
    key = _new_key()
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = _begun(subject, subject, key, now, CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return _signed(builder, key, key)


def issue(authority: Pair, name: str, names: Sequence[str] = (), *, now: float, days: int = DAYS) -> Pair:
    """A certificate of this authority.

    Args:
        authority: signs.
        name: its subject.
        names: host names and addresses of a server; none: it is a client's.
        now: Unix seconds.
        days: how long it is valid.

    Raises:
        UsageError: what is given is not an authority, a name is not one, or the extra is missing.
    """
    x509 = _x509()
    signer, signing = check_authority(authority)
    key = _new_key()
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
    builder = _begun(subject, signer.subject, key, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    usage = x509.ExtendedKeyUsageOID.SERVER_AUTH if names else x509.ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_alternative(one) for one in names]), critical=False
        )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    return _signed(builder.add_extension(issuer, critical=False), key, signing)


def check_authority(authority: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """An authority's certificate and key, as read.

    Raises:
        UsageError: they are damaged, of another kind, or do not belong together; or the extra is missing.
    """
    x509 = _x509()
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - as above

    try:
        signer = x509.load_pem_x509_certificate(authority.cert)
        signing = load_pem_private_key(authority.key, None)
    except (ValueError, TypeError) as error:
        why = str(error).partition(".")[0]
        raise UsageError(f"this is not a certificate authority with its key: {why}") from error
    if not isinstance(signing, ec.EllipticCurvePrivateKey):
        raise UsageError("the authority's key is not of the kind that `holdfast token ca` makes (ECDSA)")
    if signing.public_key() != signer.public_key():
        raise UsageError("the authority's certificate and its key do not belong together")
    return signer, signing


def _x509() -> Any:
    try:
        from cryptography import x509  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError("certificates need the extra: pip install 'holdfast[tls]'") from error
    return x509


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - an extra

    return ec.generate_private_key(ec.SECP256R1())


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: float, days: int) -> Any:
    x509 = _x509()
    at = dt.datetime.fromtimestamp(now, dt.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=at - SKEW,
        not_valid_after=at - SKEW + dt.timedelta(days=days),
    )
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return builder.add_extension(own, critical=False)


def _usage(*, signs: bool) -> Any:
    return _x509().KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> Any:
    x509 = _x509()
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not re.fullmatch(NAME, name):
            raise UsageError(f"{name!r} is neither a host name nor an address") from None
        return x509.DNSName(name)


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey) -> Pair:
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - an extra

    plain = serialization.NoEncryption()
    return Pair(
        builder.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain),
    )
