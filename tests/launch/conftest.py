"""Launchers under test: started as real processes, waited for by deadline, and surely ended with all they started."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from holdfast.model.events import AnyEvent

MARK = "HOLDFAST_TEST_MARK"


def wait_for(what: str, condition: Callable[[], object], limit_s: float = 60.0) -> object:
    """Poll until the condition gives something true; fails naming what was waited for."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {limit_s:g} s: {what}")


def marked(mark: str) -> list[int]:
    """Processes that carry this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{entry.name}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def environ_of(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        raw = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        return dict(part.split("=", 1) for part in raw.split("\0") if "=" in part)
    return {}


class Launched:
    """One launcher process and the job's folder."""

    def __init__(self, popen: subprocess.Popen[bytes], job_dir: Path, out: Path, mark: str) -> None:
        self.popen = popen
        self.job_dir = job_dir
        self.out = out
        self.mark = mark

    def wait(self, limit_s: float = 90.0) -> int:
        try:
            return self.popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher still runs after {limit_s:g} s:\n{self.text()[-3000:]}") from None

    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def events(self, kind: str = "") -> list[AnyEvent]:
        """What is in the job's journal, oldest first; nothing while a running launcher has not made it yet."""
        path = self.job_dir / "journal.db"
        has_ended = self.popen.poll() is not None
        if not path.exists():
            assert not has_ended, f"no journal in {sorted(one.name for one in self.job_dir.iterdir())}"
            return []
        engine = sa.create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
        try:
            with engine.connect() as connection:
                rows = connection.execute(sa.text("SELECT * FROM events ORDER BY seq")).mappings().all()
        except sa.exc.OperationalError:
            if has_ended:
                raise
            return []
        finally:
            engine.dispose()
        decoder = msgspec.json.Decoder(AnyEvent)
        found = [decoder.decode(row["payload"]) for row in rows]
        return [event for event in found if not kind or event.__struct_config__.tag == kind]

    def wait_event(
        self, kind: str, fits: Callable[[AnyEvent], bool] = lambda _: True, limit_s: float = 60.0
    ) -> AnyEvent:
        def look() -> AnyEvent | None:
            if self.popen.poll() is not None and not any(fits(event) for event in self.events(kind)):
                raise AssertionError(f"the launcher ended with {self.popen.returncode}:\n{self.text()[-3000:]}")
            return next((event for event in self.events(kind) if fits(event)), None)

        return wait_for(f"event {kind}", look, limit_s)

    def rank_pid(self, rank: int, attempt: int | None = None, limit_s: float = 60.0) -> int:
        """The process that holds this rank, by its slot."""
        from holdfast.telemetry.slot import SlotError, read_slot

        def look() -> int | None:
            for path in self.job_dir.parent.rglob(f"rank-{rank:05d}.slot"):
                with contextlib.suppress(SlotError):
                    view = read_slot(path)
                    if view.steps and (attempt is None or view.attempt == attempt) and alive(view.pid):
                        return view.pid
            return None

        return wait_for(f"rank {rank} of attempt {attempt}", look, limit_s)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    return False


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """`launched("--nproc-per-node", "2", "--", "cmd")` starts `holdfast run`; ended with everything below it."""
    mark = secrets.token_hex(8)
    started: list[Launched] = []

    def start(*args: str, node: str = "", env: dict[str, str] | None = None, job_dir: Path | None = None) -> Launched:
        folder = job_dir if job_dir is not None else tmp_path / "job"
        node_dir = tmp_path / "nodes" / (node or "solo")
        node_dir.mkdir(parents=True, exist_ok=True)
        environ = {**os.environ, MARK: mark, "HOLDFAST_NODE_DIR": str(node_dir), "PYTHONUNBUFFERED": "1"}
        for name in [name for name in environ if name.startswith(("SLURM_", "PET_"))]:
            del environ[name]
        if node:
            environ["HOLDFAST_NODE"] = node
        environ.update(env or {})
        out = tmp_path / f"out-{node or 'solo'}-{len(started)}.txt"
        with out.open("wb") as file:
            popen = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "run", "--job-dir", str(folder), *args],
                env=environ,
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        launcher = Launched(popen, folder, out, mark)
        started.append(launcher)
        return launcher

    yield start
    for launcher in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(launcher.popen.pid, signal.SIGKILL)
        launcher.popen.wait()
    deadline = time.monotonic() + 5
    while (left := marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    assert not marked(mark)


COUNTER = ("--module", "--preload", "json", "holdfast.workload.counter")


def counter(tmp_path: Path, *args: str, steps: int = 200, step_s: float = 0.02) -> list[str]:
    """Arguments that run the torch-free workload."""
    return [*COUNTER, "--steps", str(steps), "--step-time", str(step_s), "--checkpoint-every", "10",
            "--checkpoint-dir", str(tmp_path / "ckpt"), *args]  # fmt: skip
