"""A job folder with a fence, a store on it, and small checkpoints to damage."""

import importlib
import json
import multiprocessing
import socket
import sys
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

from holdfast.checkpoint.fence import Fence
from holdfast.checkpoint.store import CheckpointStore

PRELOAD = [
    "torch.distributed.fsdp",
    "torch._dynamo",
    "holdfast.checkpoint.sharded_torch",
    "holdfast.checkpoint.checkpointer_torch",
    "holdfast.telemetry",
]


class Job:
    """A job whose launcher opens attempts; `store()` is what that attempt's rank 0 holds."""

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        self.job_dir = root
        self.folder = folder or root / "checkpoints"
        self.epoch = 0
        root.mkdir(parents=True, exist_ok=True)

    def new_attempt(self, *mirrors: Path, fence_class: type[Fence] = Fence) -> CheckpointStore:
        self.epoch += 1
        draft = self.job_dir / ".epoch"
        draft.write_text(f"{self.epoch}\n")
        draft.rename(self.job_dir / "epoch")
        return CheckpointStore(self.folder, mirrors=mirrors, fence=fence_class(self.job_dir, self.epoch))


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / "job")


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "ckpt", fence=Fence(None, 0))


def write(store, step, content=b"", publish=True):
    pending = store.begin(step)
    pending.write_bytes("state.bin", content or f"state of step {step} ".encode() * 1000)
    pending.write_bytes("part/rank.bin", f"{step}".encode() * 300)
    if not publish:
        return pending
    return pending.publish(world_size=2, attempt="7(0)", layout="test")


@pytest.fixture
def save():
    return write


@pytest.fixture(scope="module")
def fork_server():
    """Ends with its module: launcher tests end every child of this process that they did not start."""
    yield
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()


@pytest.fixture
def ranks(tmp_path, fork_server):
    """Run a function of `ranks_torch.py` on some ranks; their results, or their errors as text.

    The processes are forked from a server that has imported torch once, so that a test costs no import.
    """
    sys.path.insert(0, str(Path(__file__).parent))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    ranks_torch = importlib.import_module("ranks_torch")
    started = []

    def run(world, function, folder=None, environ=None, limit_s=60.0, during=None, **options):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        folder = str(folder or tmp_path / "ckpt")
        for old in Path(folder).parent.glob("result-*"):
            old.unlink()
        clean = {"HOLDFAST_" + key: value for key, value in (environ or {}).items()}
        processes = [
            context.Process(
                target=ranks_torch.enter, args=(rank, world, port, clean, function, folder, options), daemon=True
            )
            for rank in range(world)
        ]
        started.extend(processes)
        for process in processes:
            process.start()
        if during is not None:
            during(processes)
        deadline = time.monotonic() + limit_s
        for process in processes:
            process.join(max(0.1, deadline - time.monotonic()))
        outcome = Outcome([process.exitcode for process in processes])
        for rank in range(world):
            result = Path(folder).with_name(f"result-{rank}.json")
            outcome.results.append(json.loads(result.read_text()) if result.exists() else None)
            outcome.errors.append(Path(folder).with_name(f"result-{rank}.err").read_text())
        return outcome

    yield run
    for process in started:
        if process.is_alive():
            process.kill()
        process.join(10)
    sys.path.remove(str(Path(__file__).parent))


class Outcome:
    """Exit codes, results and stderr of a run, each by rank."""

    def __init__(self, codes):
        self.codes = codes
        self.results = []
        self.errors = []

    def check(self):
        assert self.codes == [0] * len(self.codes), "\n".join(self.errors)

    @property
    def good(self):
        self.check()
        return self.results
