"""`holdfast checkpoints list` and `verify` on real checkpoints, whole and damaged."""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
from pathlib import Path

import pytest

from conftest import Holdfast
from holdfast.checkpoint import CheckpointStore, Fence
from holdfast.cli import screen


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holdfast: Holdfast) -> Path:
    """Two checkpoints, of steps 100 and 200."""
    where = tmp_path / "checkpoints"
    store = CheckpointStore(where, fence=Fence.from_environment({}))
    for step in (100, 200):
        pending = store.begin(step)
        pending.write_bytes("state.bin", bytes([step % 256]) * 5000)
        pending.publish(world_size=2, attempt="1778(0)", layout="replicated")
    monkeypatch.setattr(screen, "now", time.time)
    return where


def test_list_shows_the_newest_first(holdfast: Holdfast, folder: Path) -> None:
    """Step, attempt, size and the quick check's verdict."""
    ran = holdfast("checkpoints", "list", folder)
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines()[2:]]
    assert [(row[0], row[2], row[-1]) for row in rows] == [("200", "1778(0)", "good"), ("100", "1778(0)", "good")]
    assert "4.9 KiB" in ran.out
    form = json.loads(holdfast("checkpoints", "list", folder, "--json").out)
    assert [(entry["step"], entry["ok"], entry["bytes"]) for entry in form["checkpoints"]] == [
        (200, True, 5000), (100, True, 5000),
    ]  # fmt: skip


def test_verify_finds_a_flipped_bit(holdfast: Holdfast, folder: Path) -> None:
    """The quick check does not see it, the full one does: exit code 1, the file is named, the older one is good."""
    assert holdfast("checkpoints", "verify", folder).code == 0
    file = next(folder.glob("step-000000200*/state.bin"))
    content = bytearray(file.read_bytes())
    content[17] ^= 1
    file.write_bytes(content)
    assert holdfast("checkpoints", "verify", folder, "--quick").code == 0
    ran = holdfast("checkpoints", "verify", folder)
    assert ran.code == 1
    assert "damaged step-000000200" in ran.out
    assert "state.bin" in ran.out
    assert "Newest good one: step-000000100" in ran.out
    form = json.loads(holdfast("checkpoints", "verify", folder, "--json").out)
    assert [entry["ok"] for entry in form["checkpoints"]] == [False, True]
    assert form["checkpoints"][0]["problems"][0]["kind"] == "wrong_hash"
    one = holdfast("checkpoints", "verify", file.parent)
    assert one.code == 1
    assert "step-000000100" not in one.out


def test_list_names_a_torn_checkpoint(holdfast: Holdfast, folder: Path) -> None:
    """A file of the wrong size is damage; so is a manifest that cannot be read. The list itself is no failure."""
    next(folder.glob("step-000000200*/state.bin")).write_bytes(b"x")
    next(folder.glob("step-000000100*/manifest.json")).write_bytes(b"{")
    ran = holdfast("checkpoints", "list", folder)
    assert ran.code == 0
    assert ran.out.count("damaged") == 2


def test_what_is_not_there(holdfast: Holdfast, tmp_path: Path) -> None:
    """No folder: exit code 1. An empty folder lists nothing, and verifies nothing, which is no good news."""
    assert holdfast("checkpoints", "list", "no").sentence == "there is no folder no"
    assert holdfast("checkpoints", "list", ".").out == "No checkpoints in ..\n"
    ran = holdfast("checkpoints", "verify", ".")
    assert (ran.code, ran.sentence) == (1, "there are no checkpoints in .")


def deepspeed(root: Path) -> Path:
    """Two checkpoints as DeepSpeed leaves them, the newer one with a file cut short, as a full disk does."""
    for step in (100, 200):
        folder = root / f"global_step{step}"
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / "mp_rank_00_model_states.pt", "w") as archive:
            archive.writestr("archive/data.pkl", b"x" * 1000)
    (root / "latest").write_text("global_step200")
    os.truncate(root / "global_step200" / "mp_rank_00_model_states.pt", 500)
    return root


def test_checkpoints_of_other_frameworks_are_listed_and_verified(holdfast: Holdfast, tmp_path: Path) -> None:
    """Layout, step, what is wrong; exit code 1 from `verify`, and the newest good one is named."""
    root = deepspeed(tmp_path / "saved")
    listed = holdfast("checkpoints", "list", root)
    assert listed.code == 0
    assert "deepspeed" in listed.out
    form = json.loads(holdfast("checkpoints", "list", root, "--json").out)
    assert [(one["step"], one["layout"], one["ok"]) for one in form["checkpoints"]] == [
        (200, "deepspeed", False), (100, "deepspeed", True),
    ]  # fmt: skip
    ran = holdfast("checkpoints", "verify", root)
    assert ran.code == 1
    assert "mp_rank_00_model_states.pt: cut short" in ran.out
    assert "Newest good one: global_step100" in ran.out
    assert holdfast("checkpoints", "verify", root / "global_step100").code == 0


def test_repair_makes_the_framework_resume_from_the_newest_good_one(holdfast: Holdfast, tmp_path: Path) -> None:
    """The bad one is set aside, the tracker names the good one, and a second repair finds nothing to do."""
    root = deepspeed(tmp_path / "saved")
    form = json.loads(holdfast("checkpoints", "repair", root, "--json").out)
    assert form["resumes_from"] == "global_step100"
    assert [one["checkpoint"] for one in form["repaired"]] == ["global_step200"]
    assert (root / "latest").read_text() == "global_step100"
    assert (root / "bad-global_step200").is_dir()
    assert holdfast("checkpoints", "repair", root).out.splitlines()[0] == "Nothing had to be repaired."


def test_repair_fetches_from_a_mirror(holdfast: Holdfast, folder: Path, tmp_path: Path) -> None:
    """A damaged checkpoint is kept as bad-..., and its good copy comes back from the mirror."""
    shutil.copytree(folder, tmp_path / "mirror")
    next(folder.glob("step-000000200*/state.bin")).write_bytes(b"x")
    ran = holdfast("checkpoints", "repair", folder, "--mirror", tmp_path / "mirror")
    assert ran.code == 0
    assert "fetched again from" in ran.out
    assert "The job resumes from step-000000200" in ran.out
    assert holdfast("checkpoints", "verify", folder).code == 0


def test_repair_says_when_nothing_can_be_trusted(holdfast: Holdfast, tmp_path: Path) -> None:
    """All are damaged: they are set aside, and the exit code is 1."""
    root = deepspeed(tmp_path / "saved")
    os.truncate(root / "global_step100" / "mp_rank_00_model_states.pt", 0)
    ran = holdfast("checkpoints", "repair", root)
    assert (ran.code, ran.out.splitlines()[-1]) == (1, "None can be trusted.")
