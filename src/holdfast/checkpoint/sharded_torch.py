"""State that is spread over the ranks (FSDP2, tensor parallel): written and read by all of them with torch DCP.

Called by the checkpointer instead of the single-file way when any tensor is a DTensor. Each rank writes
its own part; names are those of the whole model, so any number of ranks can read it back. The writing
runs in a thread of every rank and talks over a process group of its own, so that it never mixes with
the training's collectives; it waits only inside that group.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from holdfast.checkpoint.errors import CheckpointError, RestoreError
from holdfast.checkpoint.files import fsync_folder, hash_file
from holdfast.checkpoint.manifest import FileEntry
from holdfast.checkpoint.state_torch import is_shared, unwrapped
from holdfast.checkpoint.world_torch import World

STATE_FOLDER = "state"
METADATA_FILE = ".metadata"


def take_shards(state: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> state dict with this rank's parts, by the whole model's parameter names; nothing is copied.

    Raises:
        CheckpointError: an optimizer's module is not in the state, so its entries have no names.
    """
    parts: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, torch.nn.Module):
            parts[name] = get_model_state_dict(value)
        elif isinstance(value, torch.optim.Optimizer):
            parts[name] = get_optimizer_state_dict(_owner(name, value, state), value)
        elif is_shared(value):
            parts[name] = value
    return parts


def load_shards(state: Mapping[str, Any], checkpoint: Path, world: World) -> None:
    """Read every rank's parts of a sharded checkpoint into the live objects; called on all ranks.

    Works for any number of ranks, and for a module that is not sharded any more.

    Raises:
        RestoreError: it holds something else than the program asks for.
    """
    template = take_shards(state)
    reader = FileSystemReader(checkpoint / STATE_FOLDER)
    try:
        load(template, storage_reader=reader, process_group=world.group, no_dist=world.group is None)
        for name, value in state.items():
            if isinstance(value, torch.nn.Module):
                set_model_state_dict(value, template[name])
            elif isinstance(value, torch.optim.Optimizer):
                set_optimizer_state_dict(_owner(name, value, state), value, template[name])
    except (RuntimeError, ValueError, KeyError, CheckpointException) as error:
        raise RestoreError(f"the sharded state does not fit this program's: {_first_line(error)}") from error


def load_full(state: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Load the single-file form into sharded modules, each rank taking its part.

    Raises:
        RestoreError: it does not fit, or holds optimizers, whose entries carry no names in that form.
    """
    for name, value in state.items():
        if isinstance(value, torch.optim.Optimizer):
            raise RestoreError(f"optimizer {name!r} was saved unsharded and cannot be spread over ranks")
        if isinstance(value, torch.nn.Module):
            try:
                set_model_state_dict(value, parts[name], options=StateDictOptions(full_state_dict=True))
            except (RuntimeError, ValueError, KeyError) as error:
                raise RestoreError(f"part {name!r} does not fit this program's: {_first_line(error)}") from error


def write_shards(staged: dict[str, Any], folder: Path, world: World) -> list[FileEntry]:
    """Write this rank's shards below a checkpoint's draft folder, durably; called on all ranks.

    Returns:
        On the leader every rank's files, elsewhere nothing.

    Raises:
        OSError: a file system failed, here or on another rank.
    """
    target = folder / STATE_FOLDER
    writer = FileSystemWriter(target, single_file_per_rank=True, sync_files=True)
    try:
        save(staged, storage_writer=writer, process_group=world.group, no_dist=world.group is None)
        own = [path for path in target.iterdir() if path.name.startswith(f"__{world.rank}_")]
        if world.leads:
            own.append(target / METADATA_FILE)
        mine: list[FileEntry] | str = [_entry(path, folder) for path in own]
    except (CheckpointException, OSError) as error:
        mine = f"rank {world.rank}: {_first_line(error)}"
    everyones = world.everyones(mine)
    problems = [found for found in everyones if isinstance(found, str)]
    if problems:
        raise OSError(problems[0])
    return [entry for found in everyones if isinstance(found, list) for entry in found] if world.leads else []


def _entry(path: Path, folder: Path) -> FileEntry:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    fsync_folder(path.parent)
    size, found = hash_file(path)
    return FileEntry(path.relative_to(folder).as_posix(), size, found)


def _owner(name: str, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> torch.nn.Module:
    """The module in the state whose parameters the optimizer steps."""
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for value in state.values():
        if isinstance(value, torch.nn.Module) and wanted <= {id(parameter) for parameter in value.parameters()}:
            owner: torch.nn.Module = unwrapped(value)
            return owner
    raise CheckpointError(f"the module of optimizer {name!r} must be in the state too, for its entries to have names")


def _first_line(error: BaseException) -> str:
    """The first line that says something: torch wraps errors of ranks into multi-line texts."""
    inner = getattr(error, "failures", None)
    if inner:
        rank, (cause, _) = next(iter(inner.items()))
        return f"rank {rank}: {_first_line(cause)}"
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
