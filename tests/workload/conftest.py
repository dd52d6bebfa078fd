"""Start a workload's ranks as a launcher would: one process each, with a rank's environment."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from forked import run_module

WAIT_S = 60.0


class Ranks:
    """Running ranks; output goes to one file per rank so that it survives a kill."""

    def __init__(self, module, arguments, world, folder, environ):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        folder.mkdir(parents=True, exist_ok=True)
        base = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        base |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **environ}
        self.outputs = [folder / f"rank-{rank}.log" for rank in range(world)]
        self.processes = []
        for rank, output in enumerate(self.outputs):
            own = {**base, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            self.processes.append(self.spawn(module, arguments, own, output))

    @staticmethod
    def spawn(module, arguments, environ, output):
        with output.open("w") as file:
            return subprocess.Popen(
                [sys.executable, "-m", f"holdfast.workload.{module}", *arguments],
                env=environ,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def text(self, rank=0):
        return self.outputs[rank].read_text()

    def wait_for(self, wanted, rank=0):
        """Until a rank has printed something."""
        deadline = time.monotonic() + WAIT_S
        while wanted not in self.text(rank):
            if time.monotonic() > deadline or self.processes[rank].poll() is not None:
                assert wanted in self.text(rank), self.text(rank)
                return
            time.sleep(0.005)

    def wait(self):
        """Exit codes by rank."""
        deadline = time.monotonic() + WAIT_S
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]

    def send(self, rank, number):
        self.processes[rank].send_signal(number)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(10)


class Forked:
    """A rank forked from a process that has torch loaded: importing it costs more than the whole test."""

    def __init__(self, module, arguments, environ, output):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed.fsdp", "torch._dynamo", f"holdfast.workload.{module}"])
        output.touch()
        self.process = context.Process(target=run_module, args=(module, arguments, environ, output), daemon=True)
        self.process.start()

    def poll(self):
        return self.process.exitcode

    def wait(self, limit_s):
        self.process.join(limit_s)
        assert self.process.exitcode is not None, "still running"
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.process.pid, number)


class ForkedRanks(Ranks):
    spawn = Forked


@pytest.fixture
def start(tmp_path):
    """start(module, world, *arguments, name=..., **environ) -> Ranks; everything is ended with the test."""
    running = []

    def start(module, world, *arguments, **environ):
        kind = ForkedRanks if module.endswith("_torch") else Ranks
        ranks = kind(module, [*map(str, arguments)], world, tmp_path / "logs" / str(len(running)), environ)
        running.append(ranks)
        return ranks

    yield start
    for ranks in running:
        ranks.end()


@pytest.fixture
def losses():
    """Losses by step; a step that was done again must have had the same loss, in every bit."""

    def read(path):
        found = {}
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            assert found.setdefault(entry["step"], entry["loss"]) == entry["loss"], entry
        return found

    return read


@pytest.fixture
def attempt(tmp_path):
    """Open a new attempt of a job as its launcher does; the environment of its ranks."""
    job = tmp_path / "job"
    job.mkdir()

    def new(number):
        draft = job / ".epoch"
        draft.write_text(str(number + 1))
        draft.rename(job / "epoch")
        folder = job / "telemetry" / f"a{number}"
        folder.mkdir(parents=True)
        return {
            "HOLDFAST_JOB_DIR": str(job),
            "HOLDFAST_EPOCH": str(number + 1),
            "HOLDFAST_ATTEMPT": str(number),
            "HOLDFAST_TELEMETRY_DIR": str(folder),
        }

    return new
