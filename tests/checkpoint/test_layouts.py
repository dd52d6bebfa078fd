"""Checkpoints of other frameworks: recognised, and every kind of damage named. Files are written by torch itself."""

from __future__ import annotations

import json
import os
import pickle
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.checkpoint.layouts import ForeignCheckpoint, recognise, set_aside, verify_foreign

STATE = {"weight": torch.arange(5000, dtype=torch.float32), "bias": torch.ones(7), "note": "x"}


def torch_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(STATE, path)
    return path


def safetensors_file(path: Path) -> Path:
    """One tensor of 400 bytes, by the published format."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(400))
    return path


def distributed(folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": {"w": torch.arange(4000.0), "b": torch.ones(3)}, "step": 5}, checkpoint_id=str(folder))
    return folder


def megatron(root: Path) -> Path:
    for step in (100, 200):
        for rank in ("mp_rank_00", "mp_rank_01"):
            torch_file(root / f"iter_{step:07d}" / rank / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text("200")
    return root


def megatron_distributed(root: Path) -> Path:
    for step in (100, 200):
        folder = distributed(root / f"iter_{step:07d}")
        torch_file(folder / "common.pt")
        (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    (root / "latest_checkpointed_iteration.txt").write_text("200\n")
    return root


def deepspeed(root: Path) -> Path:
    for step in (100, 200):
        folder = root / f"global_step{step}"
        torch_file(folder / "mp_rank_00_model_states.pt")
        for rank in range(3):
            torch_file(folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (root / "latest").write_text("global_step200")
    return root


def hugging_face(root: Path) -> Path:
    for step in (100, 200):
        folder = root / f"checkpoint-{step}"
        for part in (1, 2):
            safetensors_file(folder / f"model-0000{part}-of-00002.safetensors")
        names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
        torch_file(folder / "optimizer.pt")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return root


def lightning(root: Path) -> Path:
    for step in (100, 200):
        torch_file(root / f"epoch=0-step={step}.ckpt")
    return root


def torchtitan(root: Path) -> Path:
    for step in (100, 200):
        distributed(root / f"step-{step}")
    return root


def plain(root: Path) -> Path:
    for step in (100, 200):
        torch_file(root / f"ckpt_{step}.pt")
    return root


MAKERS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "megatron": (megatron, "megatron"),
    "megatron-dist": (megatron_distributed, "megatron"),
    "deepspeed": (deepspeed, "deepspeed"),
    "huggingface": (hugging_face, "huggingface"),
    "lightning": (lightning, "lightning"),
    "torchtitan": (torchtitan, "dcp"),
    "torch": (plain, "torch"),
}


@pytest.fixture(params=sorted(MAKERS))
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A folder with steps 100 and 200, and the layout it must be taken for."""
    maker, layout = MAKERS[request.param]
    return maker(tmp_path / "saved"), layout


def newest(root: Path) -> ForeignCheckpoint:
    return recognise(root)[0]


def largest(found: ForeignCheckpoint) -> Path:
    return max((path for path in found.files), key=lambda path: path.stat().st_size)


def test_each_layout_is_known_and_good(made: tuple[Path, str]) -> None:
    """Both checkpoints, newest first, with their steps and layout; the full check finds nothing."""
    root, layout = made
    found = recognise(root)
    assert [(c.step, c.layout, c.problem) for c in found] == [(200, layout, None), (100, layout, None)]
    assert all(verify_foreign(c).ok for c in found)


def test_a_cut_file_is_found_by_the_quick_check(made: tuple[Path, str]) -> None:
    """Half of the largest file is gone: the newest one is damaged and names the file, the other is good."""
    root, _ = made
    path = largest(newest(root))
    os.truncate(path, path.stat().st_size // 2)
    found = recognise(root)
    assert found[0].step == 200
    assert found[0].problem is not None
    assert (found[0].problem.kind, path.name in found[0].problem.path) == ("wrong_size", True)
    assert found[1].ok


def test_an_empty_file_is_damage(made: tuple[Path, str]) -> None:
    """What a full disk leaves: a file of no bytes."""
    root, _ = made
    os.truncate(largest(newest(root)), 0)
    assert not recognise(root)[0].ok


def flip(path: Path, marker: bytes) -> None:
    content = bytearray(path.read_bytes())
    place = content.index(marker) + len(marker) // 2
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["megatron", "megatron-dist", "deepspeed", "lightning", "torchtitan", "torch"])
def test_a_flipped_bit_is_found_by_the_full_check(kind: str, tmp_path: Path) -> None:
    """One bit of a tensor: sizes are right, so only the checksum of the record tells, and names file and record."""
    root = MAKERS[kind][0](tmp_path / "saved")
    path = largest(newest(root))
    flip(path, struct.pack("<4f", 1000, 1001, 1002, 1003))
    found = newest(root)
    assert found.ok
    verdict = verify_foreign(found)
    assert [(p.kind, p.path.endswith(path.name)) for p in verdict.problems] == [("wrong_hash", True)]
    assert verify_foreign(recognise(root)[1]).ok


def test_a_file_without_checksums_is_not_called_damaged(tmp_path: Path) -> None:
    """With torch's checksums switched off there is nothing to compare: the full check passes what is whole."""
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        torch_file(tmp_path / "a_1.pt")
    finally:
        torch.serialization.set_crc32_options(compute_crc32=True)
    assert verify_foreign(newest(tmp_path)).ok


@pytest.mark.parametrize(
    ("kind", "gone", "named"),
    [
        ("megatron", "iter_0000200/mp_rank_00/model_optim_rng.pt", "mp_rank_00/model_optim_rng.pt"),
        ("megatron-dist", "iter_0000200/.metadata", ".metadata"),
        ("megatron-dist", "iter_0000200/__0_0.distcp", "__0_0.distcp"),
        ("megatron-dist", "iter_0000200/metadata.json", "metadata.json"),
        ("deepspeed", "global_step200/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "zero_pp_rank_1"),
        ("huggingface", "checkpoint-200/trainer_state.json", "trainer_state.json"),
        ("huggingface", "checkpoint-200/model-00002-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        ("torchtitan", "step-200/.metadata", ".metadata"),
    ],
)
def test_a_missing_file_is_named(kind: str, gone: str, named: str, tmp_path: Path) -> None:
    """Whatever each layout needs: the quick check says what is missing."""
    root = MAKERS[kind][0](tmp_path / "saved")
    (root / gone).unlink()
    problem = newest(root).problem
    assert problem is not None
    assert problem.kind in {"missing_file", "missing_manifest"}
    assert named in problem.path


@pytest.mark.parametrize(
    ("kind", "tracker", "content"),
    [("megatron", "latest_checkpointed_iteration.txt", "100"), ("deepspeed", "latest", "global_step100")],
)
def test_what_the_tracker_does_not_name_yet_was_never_finished(
    kind: str, tracker: str, content: str, tmp_path: Path
) -> None:
    """The tracker is written last: a newer folder beside it is not published, and not damage to be set aside."""
    root = MAKERS[kind][0](tmp_path / "saved")
    (root / tracker).write_text(content)
    found = recognise(root)
    assert [c.problem.kind if c.problem else "" for c in found] == ["not_published", ""]


def test_a_tracker_without_its_folder_is_named(tmp_path: Path) -> None:
    """Megatron's tracker names iteration 300, which is not there."""
    root = megatron(tmp_path / "saved")
    (root / "latest_checkpointed_iteration.txt").write_text("300")
    assert (newest(root).step, str(newest(root).problem)) == (
        300,
        "iter_0000300: missing, though latest_checkpointed_iteration.txt names it",
    )


def test_setting_aside_lets_the_framework_resume_from_the_one_before(tmp_path: Path) -> None:
    """The bad one is kept under another name, and Megatron's tracker names the good one."""
    root = megatron(tmp_path / "saved")
    os.truncate(largest(newest(root)), 10)
    found = recognise(root)
    done = set_aside(found, [found[0]])
    assert [name for name, _ in done.renamed] == ["iter_0000200"]
    assert (root / "bad-iter_0000200").is_dir()
    assert (root / "latest_checkpointed_iteration.txt").read_text() == "100"
    assert [(c.step, c.ok) for c in recognise(root)] == [(100, True)]


class Evil:
    """Runs a command when it is unpickled by somebody careless."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return (os.mkdir, (str(self.path),))


def test_a_hostile_metadata_file_is_never_run(tmp_path: Path) -> None:
    """Reading `.metadata` builds shells only: the command in it does not run, and the file is called damaged."""
    root = distributed(tmp_path / "step-1")
    (root / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "owned")))
    problem = newest(root).problem
    assert problem is not None
    assert problem.kind == "bad_manifest"
    assert not (tmp_path / "owned").exists()


def test_metadata_may_not_name_files_outside(tmp_path: Path) -> None:
    """A relative path that leaves the folder is refused."""
    root = distributed(tmp_path / "step-1")
    content = (root / ".metadata").read_bytes()
    (root / ".metadata").write_bytes(content.replace(b"__0_0.distcp", b"../../etc/pw"))
    problem = newest(root).problem
    assert problem is not None
    assert "leaves the checkpoint's folder" in problem.detail


def test_an_unknown_folder_holds_none(tmp_path: Path) -> None:
    """Text files and folders without checkpoints are not taken for any."""
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "weights.bin").write_text("not what torch writes")
    (tmp_path / "sub").mkdir()
    assert recognise(tmp_path) == []
