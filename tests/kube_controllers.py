"""`holdfast controller` as a process on a Kubernetes lab, for tests: with a wrong clock where that is wanted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import holdfast.drill
from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError
from holdfast.lab.kube_lab import KubeLab
from kube_world import program

SKEWED = Path(__file__).with_name("chaos") / "skewed_controller.py"
POLICY = Path(holdfast.drill.__file__).with_name("policy.toml")
CLUSTER = "lab"
LIMIT_S = 300.0


class Replica:
    """One controller process whose clock is wrong."""

    def __init__(self, folder: Path, ahead_s: float, lab: KubeLab, url: str = "", *, settings: str = "") -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        programs = {verb: json.dumps(list(program(lab, verb))) for verb in ("reboot", "replace")}
        lines = ["[kubernetes]", f"kubeconfig = {json.dumps(str(lab.kubeconfig))}", f'cluster = "{CLUSTER}"']
        lines += [settings] if settings else []
        lines.append("pod_log_s = 300.0")  # a machine under load may take its time
        lines += [f"{verb}_program = {words}" for verb, words in programs.items()]
        (folder / "holdfast.toml").write_text("\n".join(lines) + "\n")
        argv = [sys.executable, str(SKEWED), str(ahead_s), "--dir", str(folder), "--listen", "127.0.0.1:0"]
        argv += ["--cluster", "kubernetes:", "--config", str(folder / "holdfast.toml"), "--policy", str(POLICY)]
        argv += ["--lease-s", "3", *(["--journal", url, "--standby"] if url else [])]
        self.log = folder / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    async def epoch(self) -> int:
        """Its epoch while it leads and answers, else 0."""
        with contextlib.suppress(HoldfastError, OSError, ValueError, TimeoutError):
            async with self.client() as client:
                health = (await asyncio.wait_for(client.state(), 5)).health
            return int(health["epoch"]) if health["ready"] else 0
        return 0

    def client(self) -> AsyncClient:
        facts = json.loads((self.folder / "controller" / "controller.json").read_bytes())
        return AsyncClient(facts["url"], (self.folder / "controller" / "token").read_text().strip())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


async def until(holds: Callable[[], Awaitable[Any]], what: str, replicas: list[Replica]) -> Any:
    """What `holds` gives, once it gives something; fails the test after `LIMIT_S`."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := await holds()):
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s: {what}\n" + "\n".join(
            one.log.read_text()[-3000:] for one in replicas
        )
        await asyncio.sleep(0.05)
    return found


async def leader(replicas: list[Replica], above: int = 0) -> tuple[Replica, int]:
    """The one that leads with a newer epoch than this, and its epoch."""

    async def look() -> tuple[Replica, int] | None:
        for one in replicas:
            epoch = await one.epoch()
            if epoch > above:
                return one, epoch
        return None

    found: tuple[Replica, int] = await until(look, f"a leader of an epoch above {above}", replicas)
    return found
