"""Checkpoints of other frameworks: recognised, and every kind of damage named. Files are written by torch itself."""

from __future__ import annotations

import json
import os
import pickle
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.checkpoint import CheckpointError
from holdfast.checkpoint.layouts import ForeignCheckpoint, recognise, set_aside, verify_foreign
from holdfast.checkpoint.layouts.step_names import step_in

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


def nvrx_local(root: Path, *, replicas: bool = False) -> Path:
    """Two ranks below a session; what nvidia-resiliency-ext's local manager leaves, in this form since 0.4.1."""
    for step in (100, 200):
        for folder in (0, 1):
            for rank in (0, 1) if replicas else (folder,):
                torch_file(root / "session" / str(folder) / f"iter_{step:07d}_{rank}_local.pt")
    return root


def files_of_ranks(root: Path) -> Path:
    for step in (100, 200):
        for rank in (0, 1, 2):
            torch_file(root / f"iter_{step:07d}_rank{rank}.pt")
    return root


def folders_of_steps(root: Path) -> Path:
    for step in (100, 200):
        for rank in (0, 1):
            torch_file(root / f"step_{step}" / f"rank_{rank}.pt")
    return root


def distributed_named_like_megatron(root: Path) -> Path:
    for step in (100, 200):
        distributed(root / f"iter_{step:07d}")
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
    "nvrx-local": (nvrx_local, "nvrx-local"),
    "dcp-iter": (distributed_named_like_megatron, "dcp"),
    "torch-ranks": (files_of_ranks, "torch"),
    "torch-steps": (folders_of_steps, "torch"),
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


def test_a_record_with_a_damaged_beginning_is_found(tmp_path: Path) -> None:
    """The first byte of one tensor's record flips: no archive any more, where the others of the file are."""
    root = torchtitan(tmp_path / "saved")
    path = largest(newest(root))
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x03\x04", content.index(b"PK\x05\x06"))] ^= 1
    path.write_bytes(content)
    assert [p.kind for p in verify_foreign(newest(root)).problems] == ["wrong_content"]


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
        ("dcp-iter", "iter_0000200/.metadata", ".metadata"),
        ("nvrx-local", "session/1/iter_0000200_1_local.pt", "1/iter_0000200_1_local.pt"),
        ("torch-ranks", "iter_0000200_rank1.pt", "iter_0000200_rank1.pt"),
        ("torch-ranks", "iter_0000200_rank2.pt", "iter_0000200_rank2.pt"),
        ("torch-steps", "step_200/rank_0.pt", "rank_0.pt"),
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


@pytest.mark.parametrize("siblings", [True, False])
def test_a_folder_in_which_nothing_was_written_yet_is_unfinished(tmp_path: Path, *, siblings: bool) -> None:
    """Killed between planning and writing: the newest folder by its name is empty, and not one to resume from."""
    root = distributed_named_like_megatron(tmp_path) if siblings else tmp_path
    (root / "iter_0000300").mkdir()
    assert (newest(root).step, str(newest(root).problem)) == (300, "iter_0000300: an empty folder")


def test_a_dirty_part_is_none(tmp_path: Path) -> None:
    """A local save that was cut off: its dirty file stands for nothing, and is set aside with the parts of other ranks."""
    root = nvrx_local(tmp_path / "saved") / "session"
    (root / "1" / "iter_0000200_1_local.pt").rename(root / "1" / "iter_0000200_1_local.dirty.pt")
    found = recognise(root)
    assert [(c.name, c.step, c.ok) for c in found] == [("iter_0000200", 200, False), ("iter_0000100", 100, True)]
    set_aside(found, [found[0]])
    assert sorted(path.name for path in root.rglob("*0000200*")) == [
        "bad-iter_0000200_0_local.pt",
        "bad-iter_0000200_1_local.dirty.pt",
    ]
    assert [c.step for c in recognise(root)] == [100]


def test_the_first_local_save_of_all_is_not_finished_without_a_rank(tmp_path: Path) -> None:
    """Rank 1 has its folder and nothing in it: nothing older tells, and the save is not complete."""
    root = tmp_path / "saved"
    torch_file(root / "0" / "iter_0000010_0_local.pt")
    (root / "1").mkdir()
    assert str(newest(root).problem) == "1/iter_0000010_1_local.pt: missing, so the save was never finished"


def test_a_damaged_copy_is_no_harm_while_another_is_whole(tmp_path: Path) -> None:
    """Replicas: the copy is named as spoilt and renamed alone; with both copies damaged the save is damaged."""
    root = nvrx_local(tmp_path / "saved", replicas=True) / "session"
    own = root / "0" / "iter_0000200_0_local.pt"
    os.truncate(own, 100)
    found = recognise(root)
    verdict = verify_foreign(found[0])
    assert (verdict.ok, verdict.spoilt) == (True, (own,))
    set_aside(found, [], verdict.spoilt)
    assert recognise(root)[0].ok
    assert not own.exists()
    os.truncate(root / "1" / "iter_0000200_0_local.pt", 100)
    assert [p.path for p in verify_foreign(recognise(root)[0]).problems] == ["1/iter_0000200_0_local.pt"]


def test_a_job_of_fewer_ranks_is_not_measured_by_an_older_one(tmp_path: Path) -> None:
    """Two ranks have removed what they had before step 200, two more left step 100 behind: the save was finished."""
    root = tmp_path / "saved"
    for rank in range(4):
        torch_file(root / str(rank) / f"iter_{200 if rank < 2 else 100:07d}_{rank}_local.pt")
    assert [(c.step, c.ok) for c in recognise(root)] == [(200, True), (100, False)]


def test_a_folder_that_cannot_be_read_is_nobodys_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lost+found` on the disk of the local checkpoints: passed over."""
    nvrx_local(tmp_path)
    (tmp_path / "lost+found").mkdir()
    names = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path.name == "lost+found":
            raise PermissionError(path)
        return names(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert [c.step for c in recognise(tmp_path)] == [200, 100]


def test_several_sessions_are_not_mixed(tmp_path: Path) -> None:
    """Nobody knows which of them the job loads: the sentence asks for one."""
    for session in ("a", "b"):
        torch_file(tmp_path / session / "0" / "iter_0000010_0_local.pt")
    with pytest.raises(CheckpointError, match=r"several sessions: name one of them \(.*/a, .*/b\)"):
        recognise(tmp_path)


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
    assert [name for name, _ in done] == ["iter_0000200"]
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


@pytest.mark.parametrize("name", ["step_1_rank99999999999.pt", "0/iter_0000100_99999999999_local.pt"])
def test_a_hostile_rank_number_costs_no_memory(tmp_path: Path, name: str) -> None:
    """A file that calls itself rank 99999999999 is one incomplete checkpoint, not a list of as many ranks."""
    torch_file(tmp_path / name)
    torch_file(tmp_path / name.replace("99999999999", "0"))
    (found,) = recognise(tmp_path)
    assert found.problem is not None
    assert "1" in found.problem.path


def test_the_rank_of_an_adapter_is_no_rank_of_the_job(tmp_path: Path) -> None:
    """LoRA files are named by their matrices' rank: where no file is of rank 0, each is a whole checkpoint."""
    for name in ("lora_rank16_step100.pt", "lora_rank16_step200.pt", "lora_rank8_step200.pt"):
        torch_file(tmp_path / name)
    found = recognise(tmp_path)
    assert [(one.step, one.path.name) for one in found] == [
        (200, "lora_rank8_step200.pt"),
        (200, "lora_rank16_step200.pt"),
        (100, "lora_rank16_step100.pt"),
    ]
    assert all(one.ok for one in found)
    folders = tmp_path / "steps"
    for step in (100, 200):
        torch_file(folders / f"step_{step}" / "adapter_rank32.pt")
    assert [(one.step, one.ok) for one in recognise(folders)] == [(200, True), (100, True)]


@pytest.mark.parametrize(
    ("names", "step"),
    [
        (("iter_0000120",), 120), (("epoch=3-step=400",), 400), (("global_step7",), 7), (("runs", "iter_5", "step-9"), 9),
        (("unit_3",), None), (("limit2", "model_500"), None),
    ],
)  # fmt: skip
def test_the_step_that_a_name_tells(names: tuple[str, ...], step: int | None) -> None:
    """The last one named; a word that only ends like the name of a step tells none, so that its folder is no step."""
    assert step_in(*names) == step
