"""Real controllers for histories: one over SQLite, or a leader and a standby over PostgreSQL, behind proxies.

    async with site(folder, "postgres") as servers:
        await servers.begin()

A keeper starts a controller that has ended again, as its service would. The store stands on a small file system of its
own where root may mount one, so that its disk can be full; elsewhere a limit on the size of files stands for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx

from cluster_fixture import embedded_cluster
from postgres_fixture import Postgres, need_postgres

from .proxy import Proxy

SKEWED = Path(__file__).parents[1] / "chaos" / "skewed_controller.py"
ROLES = {"agent": "agent", "ann": "operator", "ben": "operator", "eve": "viewer"}
NODES = 4
LEASE_S = 1.5
LIMIT_S = 60.0
DISK = "160m"


class Disk:
    """A folder whose file system can be filled. `room`: how its processes are limited where it is nobody's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=755", "tmpfs", str(folder)], capture_output=True
        )
        self.is_own = mounted.returncode == 0

    def fill(self) -> None:
        """Leave not a byte. Without a file system of its own nothing happens here."""
        if self.is_own:
            with (self.folder / "ballast").open("wb") as file, contextlib.suppress(OSError):
                while True:
                    free = os.statvfs(self.folder)
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), max(4096, free.f_bavail * 4096))
                    file.seek(0, os.SEEK_END)

    def free(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    def end(self) -> None:
        if self.is_own:
            subprocess.run(["umount", "-l", str(self.folder)], capture_output=True)


class Server:
    """A controller's process, in one folder, at one port, with a clock of its own."""

    def __init__(self, name: str, folder: Path, words: list[str]) -> None:
        self.name, self.folder = name, folder
        self.home = folder / "controller"
        self.home.mkdir(parents=True)
        self._clock = folder / "clock"
        self._clock.write_bytes(struct.pack("d", 0.0))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.proxy = Proxy(port)
        self.url = ""
        self._argv = [sys.executable, str(SKEWED), str(self._clock), "--dir", str(folder)]
        self._argv += ["--listen", f"127.0.0.1:{port}", *words]
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.is_stopped = False

    def start(self) -> None:
        self.starts += 1
        self.is_stopped = False
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def ahead(self, seconds: float) -> None:
        """Let the clock jump: from now on it is ahead of the true one by this."""
        with self._clock.open("r+b") as file:
            file.write(struct.pack("d", seconds))

    def limit_files(self, *, on: bool) -> None:
        """No file grows beyond what the journal has; or each may again."""
        if self.process is not None:
            size = (self.home / "journal.db").stat().st_size if on else resource.RLIM_INFINITY
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    @property
    def leads(self) -> bool:
        """Did this process say that it leads?"""
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads((self.home / "controller.json").read_bytes())
            return self.process is not None and facts["pid"] == self.process.pid and self.process.poll() is None
        return False

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Servers:
    """Everything that a history is played on."""

    def __init__(
        self, store: str, servers: list[Server], disk: Disk, postgres: Postgres | None, journal: Path | str
    ) -> None:
        self.store, self.servers, self.disk, self.postgres, self.journal = store, servers, disk, postgres, journal
        self.tokens: dict[str, str] = {}
        self.job: dict[str, Any] = {}
        """Key of a job that waits for good."""
        self.nodes: list[str] = []

    def supervise(self) -> None:
        for server in self.servers:
            if server.process is not None and server.process.poll() is not None:
                server.start()

    async def keep(self) -> None:
        """Start what has ended, for ever."""
        while True:
            self.supervise()
            await asyncio.sleep(0.05)

    def leader(self) -> Server:
        return next((server for server in self.servers if server.leads), self.servers[0])

    def heal(self) -> None:
        """End all faults."""
        for server in self.servers:
            server.proxy.heal()
            if server.is_stopped:
                server.is_stopped = False
                server.signal(signal.SIGCONT)
            server.ahead(0.0)
            if not self.disk.is_own and self.store == "sqlite":
                server.limit_files(on=False)
        self.disk.free()

    async def begin(self) -> None:
        """Wait until a controller leads and knows the job."""
        url = await self.ready()
        headers = {"Authorization": f"Bearer {self.tokens['eve']}"}
        deadline = time.monotonic() + LIMIT_S
        async with httpx.AsyncClient(timeout=2.0, headers=headers, trust_env=False) as client:
            while (await client.get(f"{url}/v1/jobs/{self.job['id']}")).status_code != 200:
                assert time.monotonic() < deadline, "the controller does not see the job"
                await asyncio.sleep(0.03)

    async def ready(self) -> str:
        """Wait until a controller is well and takes events; returns the address of its proxy."""
        deadline = time.monotonic() + LIMIT_S
        said = ""
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
            while True:
                for server in self.servers:
                    with contextlib.suppress(httpx.HTTPError):
                        response = await client.get(f"{server.url}/healthz")
                        said = response.text
                        if response.status_code == 200:
                            return server.url
                if time.monotonic() > deadline:
                    logs = "\n".join(server.log.read_text()[-2000:] for server in self.servers)
                    raise AssertionError(f"no controller became ready in {LIMIT_S:.0f} s: {said}\n{logs}")
                await asyncio.sleep(0.03)


@contextlib.contextmanager
def _postgres() -> Iterator[tuple[Postgres, Disk]]:
    programs = need_postgres()
    folder = Path(tempfile.mkdtemp(prefix="hf-pg-"))
    folder.chmod(0o755)
    disk = Disk(folder)
    try:
        server = Postgres(folder, programs)
        try:
            yield server, disk
        finally:
            server.end()
    finally:
        disk.end()
        shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def site(folder: Path, store: str) -> AsyncIterator[Servers]:
    """A cluster of four nodes without agents, and the controllers of this store (`sqlite` or `postgres`)."""
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(embedded_cluster(folder, nodes=NODES, agents=False))
        tokens = {name: hashlib.sha256(f"{folder}{name}{os.getpid()}".encode()).hexdigest() for name in ROLES}
        book = folder / "tokens"
        book.write_text(
            "".join(
                f"{role} {name} {hashlib.sha256(tokens[name].encode()).hexdigest()}\n" for name, role in ROLES.items()
            )
        )
        book.chmod(0o600)
        words = ["--cluster", f"local:{cluster.folder / 'cluster.sock'}", "--token-file", str(book)]
        words += ["--lease-s", str(LEASE_S)]
        postgres: Postgres | None = None
        journal: Path | str
        if store == "postgres":
            postgres, disk = stack.enter_context(_postgres())
            journal = postgres.schema_url()
            words += ["--journal", journal, "--standby"]
            servers = [Server(name, folder / name, words) for name in ("a", "b")]
        else:
            servers = [Server("a", folder / "a", words)]
            disk = Disk(servers[0].home)
            stack.callback(disk.end)
            journal = servers[0].home / "journal.db"
        found = Servers(store, servers, disk, postgres, journal)
        found.tokens, found.nodes = tokens, [f"node{number:02}" for number in range(1, NODES + 1)]
        for server in servers:
            await server.proxy.start()
            stack.push_async_callback(server.proxy.end)
            server.url = f"http://127.0.0.1:{server.proxy.port}"
            server.start()
            stack.callback(server.end)
        view = await cluster.orchestrator.submit(["true"], hold=True)
        found.job = {"cluster": view.key.cluster, "id": view.key.id, "generation": view.key.generation}
        keeping = asyncio.create_task(found.keep())
        try:
            yield found
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
