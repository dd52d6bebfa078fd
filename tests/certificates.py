"""An authority and its certificates, made in a test's folder: what `holdfast token ca` makes, and some that are wrong."""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast.adapters.certificates import Pair, issue, make_authority
from holdfast.client import Trust
from holdfast.os.tls import TlsFiles

HERE = ("localhost", "127.0.0.1")
DAY = 86400.0


class Authority:
    """`ca` is its certificate; what it makes is written below its folder."""

    def __init__(self, folder: Path, name: str = "ours") -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.pair = make_authority(f"{name} CA", now=time.time())
        self.ca = self.folder / "ca.pem"
        self.ca.write_bytes(self.pair.cert)
        self.trust = Trust(self.ca)

    def server(self, names: tuple[str, ...] = HERE, *, at: float = 0.0, days: int = 30) -> Pair:
        return issue(self.pair, names[0], names, now=at or time.time(), days=days)

    def files(self, pair: Pair | None = None, *, client_ca: Path | None = None) -> TlsFiles:
        """The files that a controller serves with; written anew, each at once, as certbot does it."""
        pair = pair or self.server()
        for name, data in (("tls.crt", pair.cert), ("tls.key", pair.key)):
            fresh = self.folder / f".{name}"
            fresh.write_bytes(data)
            fresh.chmod(0o600)
            os.replace(fresh, self.folder / name)
        return TlsFiles(self.folder / "tls.crt", self.folder / "tls.key", client_ca)

    def client(self, name: str, *, at: float = 0.0) -> Trust:
        """What a client shows that has a certificate of this authority."""
        pair = issue(self.pair, name, now=at or time.time())
        file = self.folder / f"{name.replace(':', '-')}.pem"
        file.write_bytes(pair.cert + pair.key)
        return Trust(self.ca, file)
