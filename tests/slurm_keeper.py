"""A real `holdfast controller` that keeps a real Slurm, for tests; killed and started again at will.

with keeping(slurm_lab, tmp_path, policy=...) as kept:
    job = kept.lab.sbatch([...])
    kept.until(lambda: kept.state(job) == "completed", "...")
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from holdfast.lab.slurm_lab import SlurmLab

TINY = "[waits]\nsettle_s = 0.05\n[node]\nvalidate = false\n"
"""Quick, and without agents: nobody could check a node."""


class Kept:
    """A controller on a lab."""

    def __init__(self, lab: SlurmLab, folder: Path, policy: str = "", config: str = "") -> None:
        self.lab = lab
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.policy = folder / "policy.toml"
        self.policy.write_text(policy or TINY)
        self.config = folder / "site.toml"
        self.config.write_text(config)
        self.more: tuple[str, ...] = ()
        """Further options of `holdfast controller`."""
        self.listen = "127.0.0.1:0"
        """Nodes with networks of their own reach the lab's own address."""
        self.process: subprocess.Popen[bytes] | None = None
        self.client: httpx.Client | None = None

    def start(self, limit_s: float = 90.0) -> None:
        """Start it and wait until it serves."""
        facts = self.folder / "controller" / "controller.json"
        facts.unlink(missing_ok=True)
        self.launch()
        self.connect(limit_s)

    def launch(self) -> None:
        """Start it, without waiting: one that stands by serves nothing yet."""
        argv = [sys.executable, "-m", "holdfast.cli.main", "controller", "--dir", str(self.folder)]
        argv += ["--cluster", f"slurm:{self.lab.facts.conf}", "--listen", self.listen]
        argv += ["--policy", str(self.policy), "--config", str(self.config), *self.more]
        with (self.folder / "controller.log").open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.lab.env(), start_new_session=True
            )

    def connect(self, limit_s: float = 60.0) -> None:
        """Wait until it serves."""
        assert self.process is not None
        facts = self.folder / "controller" / "controller.json"
        deadline = time.monotonic() + limit_s
        while not facts.exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)
        token = (self.folder / "controller" / "token").read_text().strip()
        url = msgspec.json.decode(facts.read_bytes())["url"]
        self.client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=10)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    def end(self) -> None:
        """Orderly; killed when that takes long."""
        self.close()
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        return (self.folder / "controller.log").read_text()[-4000:]

    # --- what it says ---

    def get(self, route: str, **params: Any) -> Any:
        assert self.client is not None
        answer = self.client.get(f"/v1/{route}", params=params)
        answer.raise_for_status()
        return answer.json()

    def records(self, job_id: str) -> list[dict[str, Any]]:
        return [record for record in self.get("jobs") if record["key"]["id"] == job_id]

    def job(self, job_id: str) -> dict[str, Any]:
        """The record of the newest job under this id; empty before it was seen."""
        found = self.records(job_id)
        return max(found, key=lambda record: record["key"].get("generation", 1)) if found else {}

    def state(self, job_id: str) -> str:
        job = self.job(job_id)
        return job.get("state", "watching") if job else ""

    def attempts(self, job_id: str) -> list[int]:
        return [attempt["number"] for attempt in self.job(job_id).get("attempts", [])]

    def node(self, name: str) -> dict[str, Any]:
        """The node's record; empty before it was seen."""
        found = next((record for record in self.get("nodes") if record["name"] == name), {})
        return {"state": "healthy", **found} if found else {}

    def notices(self) -> str:
        """What people were told."""
        path = self.folder / "controller" / "notices.jsonl"
        return path.read_text() if path.exists() else ""

    def incidents(self) -> list[dict[str, Any]]:
        return list(self.get("incidents"))

    def events(self, **where: Any) -> list[dict[str, Any]]:
        return list(self.get("events", after=0, limit=1000, **where)["events"])

    def command(self, command: str, **target: Any) -> str:
        """Give it; returns the engine's refusal, empty: taken."""
        assert self.client is not None
        answer = self.client.post("/v1/commands", json={"command": command, "who": "mei", "why": "test", **target})
        answer.raise_for_status()
        return str(answer.json()["refused"])

    def until(self, holds: Callable[[], Any], what: str, limit_s: float = 90.0) -> Any:
        """Wait until it is so; fails the test with the controller's log."""
        deadline = time.monotonic() + limit_s
        while True:
            found = holds()
            if found:
                return found
            assert time.monotonic() < deadline, (
                f"not within {limit_s} s: {what}\n{self.log()}\n{self.lab.run(['squeue'])}\n{self.lab.run(['sinfo', '-N', '-o', '%N %T %E'])}\n"
                + "\n".join(
                    f"{node['name']} {node.get('state')}: {node.get('story', [])[-6:]}" for node in self.get("nodes")
                )
            )
            time.sleep(0.03)


@contextlib.contextmanager
def keeping(
    lab: SlurmLab, folder: Path, *, policy: str = "", config: str = "", listen: str = "127.0.0.1:0"
) -> Iterator[Kept]:
    """A running controller; ended at the end whatever happens."""
    kept = Kept(lab, folder, policy, config)
    kept.listen = listen
    try:
        kept.start()
        yield kept
    finally:
        kept.end()
