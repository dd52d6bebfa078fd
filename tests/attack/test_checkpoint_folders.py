"""A user whose checkpoints an operator looks through: pipes and devices under the names that frameworks give files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attack_fixture import Attempt
from holdfast.checkpoint import files
from holdfast.checkpoint.files import open_file
from holdfast.checkpoint.layouts.frameworks import recognise, verify_foreign

LOOK_S = 5.0
NAMES = ["checkpoint-100/trainer_state.json", "checkpoint-100/model.safetensors.index.json", "latest",
         "latest_checkpointed_iteration.txt", "checkpoint-100/model.safetensors", "last.ckpt"]  # fmt: skip


def a_save(folder: Path) -> None:
    (folder / "checkpoint-100").mkdir(parents=True)
    (folder / "checkpoint-100" / "trainer_state.json").write_text('{"global_step": 100}')
    (folder / "checkpoint-100" / "model.bin").write_bytes(b"\x80\x02x")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", NAMES)
def test_a_look_through_ends(tmp_path: Path, name: str, kind: str) -> None:
    """`holdfast checkpoints verify` neither waits for a writer nor reads on for ever: here in a process with an alarm."""
    a_save(tmp_path)
    place = tmp_path / name
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    looker = os.fork()
    if not looker:
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, LOOK_S)
        try:
            for found in recognise(tmp_path):
                verify_foreign(found, full=True)
        finally:
            os._exit(0)
    assert os.waitpid(looker, 0)[1] == 0


@pytest.mark.attempt(
    actor="A user whose logs and checkpoints an operator looks through",
    asset="the operator's machine",
    removed="checkpoint.files.is_ordinary",
)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_ordinary_files_are_opened(attempt: Attempt, tmp_path: Path, kind: str) -> None:
    """The one way in which files of a checkpoint are opened."""
    attempt.without(files, "is_ordinary", lambda _opened: True)
    place = tmp_path / "x" if kind != "device" else Path("/dev/zero")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    try:
        open_file(place).close()
    except IsADirectoryError:
        attempt.judge(succeeded=attempt.is_open)  # it was opened, and Python wraps no folder
    except OSError:
        attempt.judge(succeeded=False)
    else:
        attempt.judge(succeeded=True)
