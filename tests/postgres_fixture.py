"""A real PostgreSQL for tests: one server for the whole run, on a Unix socket in a folder of its own, ended with it.

    def test_something(postgres: Postgres) -> None:
        url = postgres.schema_url()          # an empty journal's place, of this test alone
        postgres.kill_backends(url)          # every connection of it is lost

The server refuses to run as root, so that it then runs as Debian's user `postgres`. It dies with the process that
started it. Without PostgreSQL these tests are left out, and pytest's summary says so and how to get it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

START_S = 60.0
PACKAGE = "postgresql"


def bin_folder() -> Path | None:
    """Where initdb and postgres are: Debian keeps them off PATH, in a folder per version."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    return versions[-1].parent if versions else None


def need_postgres() -> Path:
    """Leave the calling test out, aloud, where PostgreSQL is not installed."""
    folder = bin_folder()
    if folder is None:
        pytest.skip(f"no real PostgreSQL here (initdb missing); as root on Debian or Ubuntu: apt-get install {PACKAGE}")
    return folder


class Postgres:
    """A running server; `restart` and `stop` as an operator would."""

    __test__ = False

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self._programs = folder, programs
        self.sockets = folder / "run"
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._log = (folder / "log").open("ab")
        self.sockets.mkdir()
        if os.geteuid() == 0:
            for path in (folder, self.sockets):
                shutil.chown(path, "postgres", "postgres")
        self._run("initdb", "-D", str(folder / "data"), "-A", "trust", "-E", "UTF8", "--no-sync", "-U", "holdfast")
        self.start()

    def _as_user(self) -> list[str]:
        if os.geteuid() != 0:
            return ["setpriv", "--pdeathsig=INT"]
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig=INT"]

    def _run(self, program: str, *args: str) -> None:
        done = subprocess.run(
            [*self._as_user(), str(self._programs / program), *args], capture_output=True, text=True, cwd="/"
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "max_connections": "60",
            "shared_buffers": "32MB",
            # The tests are about what is promised to us, not about this machine's disk.
            "fsync": "off",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        argv = [*self._as_user(), str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, cwd="/", start_new_session=True
        )
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                self.connect().close()
                return
            said = (self.folder / "log").read_text()[-2000:]
            assert self._process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT: at once, as a crash; SIGINT: in order."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def end(self) -> None:
        self.stop()
        self._log.close()

    @property
    def url(self) -> str:
        return f"postgresql://holdfast@/postgres?host={quote(str(self.sockets), safe='')}"

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=True)

    def schema_url(self) -> str:
        """A place for a journal that nobody else has."""
        name = f"s{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self.url}&options=-csearch_path%3D{name}&application_name={name}"

    def kill_backends(self, url: str, *, only: str = "") -> int:
        """End the sessions of this place, as a crash of their backends or of the network would; how many there were.

        Args:
            url: what `schema_url` gave.
            only: a state, such as `idle in transaction`.
        """
        name = url.rpartition("application_name=")[2]
        query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s"
        with self.connect() as connection:
            row = connection.execute(
                query + (" AND state = %s" if only else ""), (name, only) if only else (name,)
            ).fetchone()
        return row[0]


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server of the caller's own, which may be stopped."""
    programs = need_postgres()
    folder = Path(tempfile.mkdtemp(prefix="hf-pg-"))  # pytest's tmp_path is too long for a socket's name
    folder.chmod(0o755)
    try:
        server = Postgres(folder, programs)
        try:
            yield server
        finally:
            server.end()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The server of the whole run: tests do not stop it."""
    with running_postgres() as server:
        yield server
