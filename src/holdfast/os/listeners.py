"""Addresses to listen on, and which user of this machine has the port that a token would be sent to.

`tls.Trust` asks for that before each connection to a loopback address over plain HTTP that would carry a token: there
any local user may listen on a port that a controller has left. Linux alone tells (/proc/net/tcp). No time passes here.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN = "0A"
_ANY4, _ANY6 = ipaddress.IPv4Address(0), ipaddress.IPv6Address(0)
_LOCALHOST: tuple[Address, ...] = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))


def host_and_port(text: str) -> tuple[str, int] | None:
    """`HOST:PORT` or `[HOST]:PORT`, as an address is written on a command line or in a file; None: it is neither."""
    host, mark, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and int(port) <= 65535
    return (host, int(port)) if mark and host and is_port else None


def listener_uids(host: str, port: int) -> set[int]:
    """Users whose sockets answer at this address of this machine. Empty: none is found, or the kernel does not tell.

    As in the kernel, a socket of this very address comes before one of all addresses: who listens on the same port of
    another address does not count.
    """
    bound: dict[Address, set[int]] = {}
    for address, uid in _listening(port):
        bound.setdefault(address, set()).add(uid)
    found: set[int] = set()
    for wanted in _LOCALHOST if host == "localhost" else (_plain(ipaddress.ip_address(host)),):
        candidates = (wanted, _ANY4, _ANY6) if wanted.version == 4 else (wanted, _ANY6)
        found |= next((bound[one] for one in candidates if one in bound), set())
    return found


def _listening(port: int) -> Iterator[tuple[Address, int]]:
    """Address and user of each socket that listens on the port."""
    for table in TABLES:
        try:
            lines = table.read_text(encoding="ascii", errors="replace").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split(maxsplit=8)
            if len(fields) > 7 and fields[3] == _LISTEN:
                address, _, number = fields[1].partition(":")
                if int(number, 16) == port:
                    yield _address(address), int(fields[7])


def _address(text: str) -> Address:
    """The address that the kernel writes as words of 32 bits, each in the machine's order."""
    words = (int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8))
    return _plain(ipaddress.ip_address(b"".join(words)))


def _plain(address: Address) -> Address:
    """An IPv4 address where IPv6 only wraps one."""
    return getattr(address, "ipv4_mapped", None) or address
