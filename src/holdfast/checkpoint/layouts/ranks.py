"""Checkpoints of one file for each rank: nvidia-resiliency-ext's on the nodes' own disks, and files named by rank.

Called by `frameworks`. Neither form says how many ranks there were, so that a checkpoint is held against its
neighbours: a rank that is known and has no whole file is missing. Nothing is read but names; nothing waits; no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.manifest import Problem

_LOCAL = re.compile(r"iter_(\d{7,})_(\d+)_local(\.dirty)?\.pt")
_RANKED = re.compile(r"(?<![A-Za-z])rank[_-]?(\d+)(?!\d)")


class RankFiles(NamedTuple):
    """One checkpoint: `copies` has the whole files of each rank, its own first; `torn` what was never finished."""

    name: str
    step: int | None
    copies: dict[int, tuple[Path, ...]]
    torn: tuple[Path, ...]
    missing: Problem | None


def local_saves(root: Path) -> list[RankFiles]:
    """LocalCheckpointManager: `RANK/iter_0000120_RANK_local.pt`, another rank's in the same folder is a replica.

    A file is `.dirty` until it is whole. `root` is the folder of a session, or one with a single session in it.

    Raises:
        CheckpointError: there are several sessions in it, so that nobody knows which one the job loads.
        OSError: a folder cannot be read.
    """
    found = _session(root)
    if found:
        return found
    sessions = [(path, inside) for path in sorted(root.iterdir()) if (inside := _in_folder(path))]
    if len(sessions) > 1:
        names = ", ".join(str(path) for path, _ in sessions)
        raise CheckpointError(f"{root} holds local checkpoints of several sessions: name one of them ({names})")
    return sessions[0][1] if sessions else []


def _in_folder(path: Path) -> list[RankFiles]:
    """Those of a folder that may be somebody else's."""
    try:
        return _session(path) if path.is_dir() else []
    except PermissionError:
        return []


def _session(root: Path) -> list[RankFiles]:
    folders = {int(path.name): path for path in root.iterdir() if path.name.isdecimal() and path.is_dir()}
    whole: dict[int, dict[int, list[Path]]] = {}
    torn: dict[int, list[Path]] = {}
    held: dict[int, set[int]] = {}
    for owner, folder in sorted(folders.items()):
        for path in sorted(folder.iterdir()):
            match = _LOCAL.fullmatch(path.name)
            if match is None or not path.is_file():
                continue
            step, rank = int(match[1]), int(match[2])
            if match[3]:
                torn.setdefault(step, []).append(path)
                continue
            copies = whole.setdefault(step, {}).setdefault(rank, [])
            copies.insert(0 if rank == owner else len(copies), path)
            held.setdefault(owner, set()).add(step)
    # A node's own disk begins with any rank.
    ranks = {*folders, *(rank for copies in whole.values() for rank in copies)}
    ranks |= {gap} if (gap := _gap(ranks, min(ranks, default=0))) is not None else set()
    found = []
    for step in sorted({*whole, *torn}):
        have = whole.get(step, {})
        absent = sorted(ranks - set(have))
        problem = None
        if absent and not _had_fewer_ranks(step, absent, held):
            name = f"{absent[0]}/iter_{step:07d}_{absent[0]}_local.pt"
            problem = Problem("missing_file", name, "missing, so the save was never finished")
        whole_parts = {rank: tuple(paths) for rank, paths in have.items()}
        found.append(RankFiles(f"iter_{step:07d}", step, whole_parts, tuple(torn.get(step, ())), problem))
    return found


def _had_fewer_ranks(step: int, absent: Iterable[int], held: dict[int, set[int]]) -> bool:
    """Whether a job of fewer ranks finished this save, so that the absent ranks' folders are an older job's.

    The manager removes older saves only once it has seen the new one on all ranks: where those who have it have kept
    none before it, while an absent rank has, it was finished without that rank.
    """
    holders = [steps for steps in held.values() if step in steps]
    return (
        bool(holders)
        and all(min(steps) >= step for steps in holders)
        and all(min(held.get(rank, {step})) < step for rank in absent)
    )


def are_ranks(files: Iterable[Path]) -> bool:
    """Are numbers behind "rank" those of a job's ranks? `lora_rank16.pt` is none's: then nothing is of rank 0."""
    return any(int(match[1]) == 0 for path in files if (match := _RANKED.search(path.name)) is not None)


def ranked_files(files: Iterable[Path]) -> list[tuple[str, dict[int, tuple[Path, ...]], Problem | None]]:
    """Files named by their rank, as (name with * for the rank, rank -> its file, what is missing); others are left out.

    A checkpoint needs the ranks from 0 to its own highest, and those of the one before it by name.
    """
    groups: dict[str, dict[int, Path]] = {}
    for path in sorted(files):
        match = _RANKED.search(path.name)
        if match is not None:
            name = f"{path.name[: match.start(1)]}*{path.name[match.end(1) :]}"
            groups.setdefault(name, {})[int(match[1])] = path
    found = []
    before: set[int] = set()
    for name, have in sorted(groups.items(), key=lambda group: _digits(group[0])):
        gap = _gap(set(have), 0)
        absent = sorted({*before, *([] if gap is None else [gap])} - set(have))
        problem = None
        if absent:
            problem = Problem("missing_file", name.replace("*", str(absent[0])), "missing")
        parts: dict[int, tuple[Path, ...]] = {rank: (path,) for rank, path in sorted(have.items())}
        found.append((name, parts, problem))
        before = set(have)
    return found


def _digits(name: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", name)], name


def _gap(ranks: set[int], first: int) -> int | None:
    """The lowest rank from `first` on that is not there, though a higher one is. A name may hold any number."""
    gap = next(number for number in count(first) if number not in ranks)
    return gap if gap < max(ranks, default=-1) else None
