"""Which framework saved this folder, what checkpoints are in it, and may they be loaded?

Called by the `checkpoints` commands, and by the launcher before it starts ranks. One recogniser for each framework, in
one table; the first that knows the folder has it. A framework that keeps a tracker (Megatron-LM, DeepSpeed) writes it
last: what it does not name yet was never finished. Nothing waits; no clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.files import BAD, open_file
from holdfast.checkpoint.layouts.contents import TORCH_SUFFIXES, check_file, is_torch_file, read_text
from holdfast.checkpoint.layouts.distributed import METADATA_NAME, check_distributed, is_distributed
from holdfast.checkpoint.layouts.ranks import RankFiles, are_ranks, local_saves, ranked_files
from holdfast.checkpoint.layouts.step_names import step_in
from holdfast.checkpoint.manifest import Problem, Verdict

MEGATRON_TRACKER = "latest_checkpointed_iteration.txt"
DEEPSPEED_TRACKER = "latest"


@dataclass(frozen=True)
class ForeignCheckpoint:
    """One checkpoint that some framework saved.

    Args:
        path: its folder, or its file.
        layout: a key of `LAYOUTS`.
        step: completed steps by its name or its own record, None when it does not say.
        files: its files.
        size: bytes of all of them.
        saved_at: when its newest file was written, Unix seconds by the file system's clock.
        unfinished: what the layout says is missing or not published; None when the save was finished.
        label: its name, where it is neither a folder nor a file of its own but files in `path`.
        copies: for each rank the copies of its part, where a checkpoint is files of ranks.
    """

    path: Path
    layout: str
    step: int | None
    files: tuple[Path, ...]
    size: int
    saved_at: float
    unfinished: Problem | None
    label: str = ""
    copies: tuple[tuple[Path, ...], ...] = ()

    @cached_property
    def problem(self) -> Problem | None:
        """What the quick check finds, None when it passes: looked at when first asked for: it reads each frame."""
        if self.unfinished is not None:
            return self.unfinished
        problems = _contents(self, full=False).problems
        return problems[0] if problems else None

    @property
    def name(self) -> str:
        """Name of the folder or file."""
        return self.label or self.path.name

    @property
    def ok(self) -> bool:
        """True when the quick check passes."""
        return self.problem is None


Finder = Callable[[Path], "list[ForeignCheckpoint] | None"]


def recognise(folder: Path | str) -> list[ForeignCheckpoint]:
    """Checkpoints of the framework that saved this folder, newest first; empty when none is known.

    Files are named and measured, not read; `problem` reads each one's frame, `verify_foreign` its content.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    root = Path(folder)
    try:
        for finder in LAYOUTS.values():
            found = finder(root)
            if found:
                return sorted(found, key=lambda c: (-1 if c.step is None else c.step, c.saved_at, c.name), reverse=True)
    except OSError as error:
        raise CheckpointError(f"the checkpoint folder {root} cannot be read: {error}") from error
    return []


def verify_foreign(found: ForeignCheckpoint, *, full: bool = True) -> Verdict:
    """Check one checkpoint as far as its own checksums go.

    Args:
        found: what `recognise` gave.
        full: also read everything and compare it with the checksums that the containers carry.
    """
    seen = _contents(found, full=full)
    problems = seen.problems if found.unfinished is None else [found.unfinished, *seen.problems]
    unique = {str(problem): problem for problem in problems}
    spoilt = () if unique else tuple(seen.spoilt)
    return Verdict(found.name, "full" if full else "quick", None, tuple(unique.values()), seen.read, spoilt)


class _Seen(NamedTuple):
    """What is wrong with the files, damaged copies that are not needed, and how many bytes were read to know it."""

    problems: list[Problem]
    spoilt: list[Path]
    read: int


def _contents(found: ForeignCheckpoint, *, full: bool) -> _Seen:
    problems: list[Problem] = []
    bad: dict[Path, Problem] = {}
    read = 0
    for folder in sorted(
        {path.parent for path in found.files if path.name == METADATA_NAME or path.suffix == ".distcp"}
    ):
        seen, count = check_distributed(folder, full=full)
        problems += seen
        read += count
    for path in found.files:
        problem, count = check_file(path, full=full)
        read += count
        if problem is not None:
            bad[path] = Problem(problem.kind, _relative(path, found.path), problem.detail)
    spoilt = [path for copies in found.copies for path in copies if path in bad and not all(c in bad for c in copies)]
    problems += [problem for path, problem in bad.items() if path not in spoilt]
    return _Seen(problems, spoilt, read)


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if root in path.parents else path.name


def _make(
    path: Path, layout: str, step: int | None, unfinished: Problem | None = None, ranks: RankFiles | None = None
) -> ForeignCheckpoint:
    """A checkpoint with its files; of `ranks` what is torn belongs to it only while a part is missing."""
    copies = tuple(ranks.copies.values()) if ranks is not None else ()
    if ranks is not None:
        files = [file for paths in copies for file in paths] + list(ranks.torn if unfinished else ())
    else:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    stats = [p.stat() for p in files]
    if unfinished is None and not files:
        unfinished = Problem("missing_file", path.name, "an empty folder")
    return ForeignCheckpoint(
        path,
        layout,
        step,
        tuple(files),
        sum(s.st_size for s in stats),
        max((s.st_mtime for s in stats), default=path.stat().st_mtime),
        unfinished,
        ranks.name if ranks is not None else "",
        copies,
    )


def _folders(root: Path, pattern: str) -> list[tuple[int, Path]]:
    """(number, folder) of every folder whose whole name matches; group 1 is the number."""
    name = re.compile(pattern)
    found = [(match, path) for path in root.iterdir() if (match := name.fullmatch(path.name)) and path.is_dir()]
    return [(int(match[1]), path) for match, path in found]


# --- one finder for each framework ---


def _megatron(root: Path) -> list[ForeignCheckpoint] | None:
    """Megatron-LM and NeMo's Megatron core: `iter_0000120/`, published by `latest_checkpointed_iteration.txt`.

    Before the first one is published, its own files tell it from another program's folders of that name.
    """
    folders = _folders(root, r"iter_(\d{7,})")
    tracker = read_text(root / MEGATRON_TRACKER)
    own = ("mp_rank_*", "common.pt", "metadata.json")
    if tracker is None and not any(next(path.glob(name), None) for _, path in folders for name in own):
        return None
    latest = int(tracker) if tracker and tracker.isdecimal() else None
    found = []
    for step, path in folders:
        problem = None
        if tracker != "release" and (latest is None or step > latest):
            problem = Problem("not_published", MEGATRON_TRACKER, f"names iteration {latest or 'none'}, not {step}")
        found.append(_make(path, "megatron", step, problem or _megatron_ranks(path)))
    if latest is not None and latest not in {step for step, _ in folders}:
        path = root / f"iter_{latest:07d}"
        missing = Problem("missing_file", path.name, f"missing, though {MEGATRON_TRACKER} names it")
        found.append(ForeignCheckpoint(path, "megatron", latest, (), 0, 0.0, missing))
    return found


def _megatron_ranks(path: Path) -> Problem | None:
    """The old layout has a folder for each model-parallel rank: none may be missing from their row."""
    if is_distributed(path):
        if not (path / "metadata.json").is_file():
            return Problem("missing_file", "metadata.json", "missing, so the save was never finished")
        return None
    ranks = [p for p in path.iterdir() if p.name.startswith("mp_rank_")]
    tensor = sorted({int(m[1]) for p in ranks if (m := re.match(r"mp_rank_(\d+)", p.name))})
    absent = next((n for n in range(max(tensor, default=-1) + 1) if n not in tensor), None)
    if absent is not None or not ranks:
        return Problem("missing_file", f"mp_rank_{absent or 0:02d}", "missing")
    lame = next((p for p in sorted(ranks) if not any(p.glob("model_*.pt"))), None)
    return None if lame is None else Problem("missing_file", f"{lame.name}/model_optim_rng.pt", "missing")


def _deepspeed(root: Path) -> list[ForeignCheckpoint] | None:
    """DeepSpeed: `global_step120/` (or another tag), published by the file `latest`."""
    tags: dict[Path, int | None] = {path: step for step, path in _folders(root, r"global_step(\d+)")}
    tracker = read_text(root / DEEPSPEED_TRACKER)
    named = root / tracker if tracker and "/" not in tracker and "\n" not in tracker else None
    if named is not None and named.is_dir():
        tags.setdefault(named, _number(named.name))
    tags = {path: step for path, step in tags.items() if any(path.glob("*_states.pt"))}
    if not tags:
        return None
    latest = tags.get(named) if named is not None else None
    found = []
    for path, step in tags.items():
        problem = None
        if named is None or (latest is not None and step is not None and step > latest):
            problem = Problem("not_published", DEEPSPEED_TRACKER, f"names {tracker or 'nothing'}, not {path.name}")
        found.append(_make(path, "deepspeed", step, problem or _zero_ranks(path)))
    return found


def _zero_ranks(path: Path) -> Problem | None:
    """ZeRO keeps one file for each data-parallel rank: none may be missing from 0 to the highest."""
    ranks: dict[str, set[int]] = {}
    for file in path.glob("*zero_pp_rank_*_states.pt"):
        match = re.fullmatch(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_(mp_rank_\d+_.*)_states\.pt", file.name)
        if match:
            ranks.setdefault(match[2], set()).add(int(match[1]))
    high = max((max(seen) for seen in ranks.values()), default=-1)
    for kind, seen in sorted(ranks.items()):
        absent = next((n for n in range(high + 1) if n not in seen), None)
        if absent is not None:
            return Problem("missing_file", f"zero_pp_rank_{absent}_{kind}_states.pt", "missing")
    return None


def _hugging_face(root: Path) -> list[ForeignCheckpoint] | None:
    """HF Trainer: `checkpoint-500/`, whose `trainer_state.json` is among the last that it writes."""
    folders = _folders(root, r"checkpoint-(\d+)")
    return [_make(path, "huggingface", step, _trainer(path, step)) for step, path in folders] or None


def _trainer(path: Path, step: int) -> Problem | None:
    state = read_text(path / "trainer_state.json", 64 << 20)
    if state is None:
        return Problem("missing_file", "trainer_state.json", "missing, so the save was never finished")
    try:
        told = json.loads(state).get("global_step")
    except (ValueError, AttributeError, RecursionError):
        return Problem("wrong_content", "trainer_state.json", "damaged")
    if told != step:
        return Problem("wrong_name", "trainer_state.json", f"belongs to step {told}, not {step}")
    for index in path.glob("*.index.json"):
        missing = _shards(index)
        if missing is not None:
            return missing
    return None


def _shards(index: Path) -> Problem | None:
    """Every shard that a weight index names."""
    try:
        with open_file(index) as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return Problem("wrong_content", index.name, "damaged")
    absent = next((name for name in names if not (index.parent / Path(str(name)).name).is_file()), None)
    return None if absent is None else Problem("missing_file", str(absent), f"missing, though {index.name} names it")


def _lightning(root: Path) -> list[ForeignCheckpoint] | None:
    """Lightning: `epoch=3-step=400.ckpt` and `last.ckpt`, files, or folders under a sharded strategy."""
    return [_make(path, "lightning", _named_step(path.stem)) for path in root.glob("*.ckpt")] or None


def _distributed(root: Path) -> list[ForeignCheckpoint] | None:
    """torch.distributed.checkpoint, torchtitan: the folder itself, or one folder for each step in it."""
    if is_distributed(root):
        return [_make(root, "dcp", _number(root.name))]
    inside = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith((".", BAD))]
    found = [path for path in inside if is_distributed(path)]
    # Killed before the first byte: a loop that takes the newest folder would take the empty one.
    begun = [path for path in inside if found and _is_begun(path)]
    return [_make(path, "dcp", _number(path.name)) for path in (*found, *begun)] or None


def _is_begun(path: Path) -> bool:
    """A folder that is named for a step, and empty."""
    return step_in(path.name) is not None and not any(path.iterdir())


def _local(root: Path) -> list[ForeignCheckpoint] | None:
    """nvidia-resiliency-ext's local checkpoints: `RANK/iter_0000120_RANK_local.pt`, with replicas or without."""
    return [_make(root, "nvrx-local", saved.step, saved.missing, saved) for saved in local_saves(root)] or None


def _files(root: Path) -> list[ForeignCheckpoint] | None:
    """Plain `torch.save` and safetensors files, also one for each rank (`iter_120_rank0.pt`) or folders of steps."""
    files = _torch_files(root)
    if not files:
        inside = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith((".", BAD))]
        steps = [(step, path) for path in inside if (step := step_in(path.name)) is not None]
        parts = {path: _torch_files(path) for _, path in steps}
        by_rank = are_ranks(part for inside in parts.values() for part in inside)
        kept = [(step, path) for step, path in steps if parts[path] or _is_begun(path)]
        return [_step_folder(path, step, parts[path] if by_rank else ()) for step, path in kept] or None
    ranked_by_name = ranked_files(files) if are_ranks(files) else ()
    groups = [RankFiles(name, _named_step(name), copies, (), gone) for name, copies, gone in ranked_by_name]
    ranked = {path for group in groups for (path,) in group.copies.values()}
    found = [_make(path, "torch", _named_step(path.stem)) for path in files if path not in ranked]
    return [*found, *(_make(root, "torch", group.step, group.missing, group) for group in groups)]


def _step_folder(path: Path, step: int, by_rank: Sequence[Path]) -> ForeignCheckpoint:
    """A folder of torch's files; of those that are named by rank none may be missing from 0 to the highest."""
    gone = next((problem for *_, problem in ranked_files(by_rank) if problem is not None), None)
    return _make(path, "torch", step, gone)


def _torch_files(root: Path) -> list[Path]:
    known = {*TORCH_SUFFIXES, ".safetensors"}
    files = [p for p in root.iterdir() if p.is_file() and p.suffix in known and not p.name.startswith((".", BAD))]
    return [p for p in files if p.suffix == ".safetensors" or not p.stat().st_size or is_torch_file(p)]


def _named_step(stem: str) -> int | None:
    """The step that a file's name tells: `step=400`, `iter_120`, `ckpt-7`, `model_000500`."""
    told = step_in(stem)
    return _number(stem) if told is None else told


def _number(name: str) -> int | None:
    match = re.search(r"(\d+)(?!.*\d)", name)
    return int(match[1]) if match else None


LAYOUTS: dict[str, Finder] = {
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "huggingface": _hugging_face,
    "lightning": _lightning,
    "dcp": _distributed,
    "nvrx-local": _local,
    "torch": _files,
}
"""Every framework that is known, in the order in which they are asked: the plainer a layout, the later."""
