"""However a stage or the demo ends, nothing of it runs on, listens on, or lies about outside its own folder.

What is written elsewhere is attributed: home, working and temporary folder are fresh ones of the test; in the folders
that all programs share, files of the process are known by a group of their own where root may give one, else by a
listing before and after.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from chaos.kills import is_alive
from holdfast.adapters.local import node_init, processes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SHARED = (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"), Path("/run"))
GROUP = 61_184 if os.geteuid() == 0 else None
"""A group that nothing else on the machine has."""
END_LIMIT_S = 15.0
MAY_STAY = (".cache/holdfast",)
"""Below the home folder: the catalogue's compiled database, which is kept on purpose (documented)."""


@dataclass
class Rig:
    """A process under test in folders of its own, and all that was ever seen of it."""

    root: Path
    process: subprocess.Popen[bytes]
    cluster: Path
    before: dict[Path, set[str]]
    seen: set[int] = field(default_factory=set)
    ports: set[int] = field(default_factory=set)

    def look(self) -> None:
        """Remember what runs now: by the cluster's mark, and by descent."""
        table = node_init.process_table()
        self.seen |= {*processes.marked(self.cluster), *node_init.descendants(self.process.pid, table)}
        for pid in self.seen | {self.process.pid}:
            with contextlib.suppress(psutil.Error):
                for known in psutil.Process(pid).net_connections("tcp"):
                    if known.status == psutil.CONN_LISTEN:
                        self.ports.add(known.laddr.port)

    def end(self, sig: int | None) -> int:
        """End it by a signal, or by closing its input; returns its exit code."""
        if sig is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
        else:
            self.process.send_signal(sig)
        return self.process.wait(END_LIMIT_S)

    def left(self) -> list[str]:
        """What is still there, after having been given the time to go."""
        deadline = time.monotonic() + END_LIMIT_S
        while (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        found = [f"process {pid}: {' '.join(processes.command_of(pid))[:200]}" for pid in alive]
        found += [f"port {port} is listened on" for port in sorted(self.ports) if _answers(port)]
        found += [f"{path} was written" for path in self._written()]
        return found

    def _alive(self) -> set[int]:
        mark = str(self.root)
        everything = {pid for pid in node_init.process_table() if mark in " ".join(processes.command_of(pid))}
        candidates = self.seen | set(processes.marked(self.cluster)) | everything
        return {pid for pid in candidates if is_alive(pid) and self._is_ours(pid)}

    def _is_ours(self, pid: int) -> bool:
        """Its number may have been given to another process since."""
        told = " ".join([*processes.command_of(pid), *processes.environment_of(pid).values()])
        return str(self.root) in told

    def _written(self) -> Iterator[Path]:
        for name in ("home", "cwd", "tmp"):
            for path in (self.root / name).rglob("*"):
                inside = path.relative_to(self.root / name).as_posix()
                if not any(
                    allowed == inside or allowed.startswith(f"{inside}/") or inside.startswith(f"{allowed}/")
                    for allowed in MAY_STAY
                ):
                    yield path
        for folder, names in self.before.items():
            for path in folder.iterdir():
                if path.name not in names and self._wrote(path):
                    yield path

    def _wrote(self, path: Path) -> bool:
        if path in self.root.parents or path == self.root:
            return False
        try:
            return GROUP is None or path.lstat().st_gid == GROUP
        except FileNotFoundError:
            return False


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def started(root: Path, argv: list[str], cluster: Path) -> Iterator[Rig]:
    """Run a program in fresh folders; whatever it leaves is ended with the test."""
    for name in ("home", "cwd", "tmp"):
        (root / name).mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))}
    env = {**kept, "HOME": str(root / "home"), "TMPDIR": str(root / "tmp")}
    before = {folder: {path.name for path in folder.iterdir()} for folder in SHARED if folder.is_dir()}
    with (root / "out.log").open("wb") as out:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            cwd=root / "cwd",
            env=env,
            start_new_session=True,
            group=GROUP,
        )
    rig = Rig(root, process, cluster, before)
    try:
        yield rig
    finally:
        rig.look()
        process.kill()
        process.wait()
        processes.end_all(lambda: processes.marked(cluster))


def until_said(rig: Rig, word: str, limit_s: float = 90.0) -> None:
    """Wait until its output holds the word."""
    deadline = time.monotonic() + limit_s
    while word not in (said := (rig.root / "out.log").read_text(errors="replace")):
        assert rig.process.poll() is None, said
        assert time.monotonic() < deadline, said
        rig.look()
        time.sleep(0.1)
    rig.look()


@pytest.mark.parametrize(
    ("sig", "code"),
    [(None, 0), (signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["by itself", "SIGINT", "SIGTERM", "SIGKILL"],
)
def test_a_stage_leaves_nothing(tmp_path, sig, code):
    """Nodes, agents, controller, launchers and ranks end with the process that runs the stage, in whatever way it
    ends; no port is listened on any more; nothing was written outside the stage's folder."""
    cluster = tmp_path / "stage" / "cluster"
    script = Path(__file__).with_name("stage_process.py")
    with started(tmp_path, [sys.executable, str(script), str(cluster)], cluster) as rig:
        until_said(rig, "running")
        assert len(rig.seen) >= 10, "daemon, controller, three nodes with agents, launchers, ranks"
        assert rig.ports, "the controller's, at least"
        assert rig.end(sig) == code
        assert rig.left() == []
        assert (cluster / "controller" / "journal.db").exists()


def test_an_interrupted_demo_leaves_nothing(tmp_path):
    """Ctrl-C in the middle of `holdfast demo`, with PyTorch ranks running: one line, exit code 130, nothing left."""
    folder = tmp_path / "demo"
    argv = [sys.executable, "-m", "holdfast.cli.main", "demo", "--dir", str(folder), "--launcher", "holdfast"]
    with started(tmp_path, argv, folder / "cluster") as rig:
        until_said(rig, "ranks on")
        losses = folder / "cluster" / "jobs" / "1" / "losses.jsonl"
        deadline = time.monotonic() + 60
        while not losses.exists() or losses.read_bytes().count(b"\n") < 3:
            assert time.monotonic() < deadline, "the demo's ranks train"
            time.sleep(0.1)
        rig.look()
        assert rig.end(signal.SIGINT) == 130
        assert rig.left() == []
        assert "Traceback" not in (tmp_path / "out.log").read_text()
