"""Connections to addresses that a setting names: only public addresses are reached, and those that the setting allows.

`adapters/notify/services.py` sends inside `only_to`. What is checked is the address that the kernel is asked to connect
to: a name that resolves differently the second time, a redirect and an odd form of a number lead nowhere else. Only the
thread that entered `only_to` is checked. No time passes here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any

from msgspec import Struct

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_CONNECTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_HOLD_IPV4 = tuple(ipaddress.IPv6Network(one) for one in ("64:ff9b::/96", "::/96"))
"""NAT64 (RFC 6052) and IPv4-compatible addresses (RFC 4291): the last 32 bits are an IPv4 address."""


class Allowed(Struct, frozen=True):
    """What may be reached beside public addresses."""

    networks: tuple[Network, ...] = ()
    hosts: tuple[str, ...] = ()
    """Names: whatever they resolve to."""


class _Guard:
    """The rule of one thread, and what it refused."""

    def __init__(self, networks: tuple[Network, ...]) -> None:
        self.networks = networks
        self.refused = ""

    def check(self, address: Any) -> None:
        """Raise PermissionError where this socket address may not be reached. A path of this machine may."""
        if not isinstance(address, tuple):
            return
        why = refusal(str(address[0]), self.networks)
        if why:
            self.refused = why
            raise PermissionError(why)


_guard: ContextVar[_Guard | None] = ContextVar("outbound", default=None)


def parse_allowed(entries: Iterable[str]) -> Allowed:
    """Networks, addresses and names of hosts. Raises ValueError with the entry that is none of them."""
    networks: list[Network] = []
    hosts: list[str] = []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry, strict=False))
        except ValueError:
            if not _NAME.fullmatch(entry):
                raise ValueError(entry) from None
            hosts.append(entry.lower())
    return Allowed(tuple(networks), tuple(hosts))


def address_of(host: str) -> Address | None:
    """The address that a host is written as, also as one number, in octal or hexadecimal; None: it is a name."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]"))
    with contextlib.suppress(OSError):
        return ipaddress.IPv4Address(socket.inet_aton(host))
    return ipaddress.IPv4Address("127.0.0.1") if f".{host.lower().rstrip('.')}".endswith(".localhost") else None


def refusal(host: str, networks: Iterable[Network] = ()) -> str:
    """Why this address may not be reached, as a sentence's end; empty: it may."""
    address = address_of(host)
    if address is None:
        return f"{host} is not an address"
    inner = _inner(address)
    if any(one in network for network in networks for one in (address, inner)):
        return ""
    kinds = (
        (inner.is_loopback or inner.is_unspecified, "is this machine's own address"),
        (inner.is_link_local, "is a link-local address"),
        (inner.is_private, "is a private address"),
        (not inner.is_global or inner.is_multicast, "is not a public address"),
    )
    return next((f"{address} {said}" for holds, said in kinds if holds), "")


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, else itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    found = address.ipv4_mapped or address.sixtofour
    if found is None and any(address in network for network in _HOLD_IPV4) and int(address) > 1:
        found = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return found or address


@contextlib.contextmanager
def only_to(allowed: Allowed) -> Iterator[_Guard]:
    """Inside the block this thread connects only to public and allowed addresses; others are a PermissionError."""
    _watch()
    networks = list(allowed.networks)
    for host in allowed.hosts:
        networks += [ipaddress.ip_network(address) for address in resolved(host)]
    guard = _Guard(tuple(networks))
    token = _guard.set(guard)
    try:
        yield guard
    finally:
        _guard.reset(token)


def resolved(host: str) -> list[str]:
    """The addresses that a name has now; none where it cannot be resolved."""
    try:
        return [str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


@cache
def _watch() -> None:
    """Look at each connection of this process, once. Python's own hook names the address that the kernel is given."""

    def look(event: str, words: tuple[Any, ...]) -> None:
        if event in _CONNECTS and (guard := _guard.get()) is not None:
            guard.check(words[1])

    sys.addaudithook(look)
