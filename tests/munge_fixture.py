"""A real munged for tests, with a key and an address of its own: `with munged(folder) as one: one.make(b"...")`.

Without munge's programs these tests are left out, aloud.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.lab.waiting import wait_until
from holdfast.model.answers import TokenPurpose
from holdfast.os.programs import Background, Command, run_blocking

NODE, OTHER_NODE = "127.0.0.7", "127.0.0.8"


class Munged:
    """One daemon."""

    def __init__(self, socket: Path) -> None:
        self.socket = str(socket)

    def make(self, payload: bytes = b"", *, uid: int | None = None, ttl_s: int = 60, **purpose: str) -> str:
        """A credential of this payload, or of this purpose, made as this user."""
        owner: Mapping[str, Any] | None = None if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        said = payload or msgspec.json.encode(TokenPurpose(**{"cluster": "test", **purpose}))
        argv = ("munge", f"--ttl={ttl_s}", f"--socket={self.socket}")
        ran = run_blocking(Command(argv=argv, given=said, owner=owner), 10.0)
        assert ran.code == 0, ran.said
        return ran.out.strip()


@contextlib.contextmanager
def munged(key: bytes, address: str = NODE) -> Iterator[Munged]:
    """Run a munged with this key, which says that it is at this address."""
    if shutil.which("munged") is None:
        pytest.skip("no munge here: apt-get install munge")
    folder = Path(tempfile.mkdtemp(prefix="hf-munge-"))
    folder.chmod(0o755)
    descriptor = os.open(folder / "key", os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    argv = ["munged", "--force", "--foreground", f"--origin={address}"]
    argv += [
        f"--{name}={folder}/{end}" for name, end in (("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"))
    ]
    argv += [f"--log-file={folder}/log", f"--seed-file={folder}/seed"]
    daemon = Background(Command(argv=tuple(argv)))
    one = Munged(folder / "socket")
    ask = Command(argv=("munge", "-n", f"--socket={one.socket}"))
    try:
        wait_until(lambda: run_blocking(ask, 10.0).code == 0, "munged does not answer", limit_s=60.0)
        yield one
    finally:
        daemon.kill()
        daemon.finish(10.0)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def node_munged() -> Iterator[Munged]:
    """The munged of node n1, which is the controller's, too."""
    with munged(b"k" * 128) as one:
        yield one
