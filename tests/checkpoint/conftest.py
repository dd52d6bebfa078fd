"""A job folder with a fence, a store on it, and small checkpoints to damage."""

from pathlib import Path

import pytest

from holdfast.checkpoint.fence import Fence
from holdfast.checkpoint.store import CheckpointStore


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
