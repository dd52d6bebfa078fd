"""nvidia-resiliency-ext: `watch(saver)` tells which saves are staged, and which the package has finished on all ranks.

Called once by the script for what it saves with, on every rank. Neither the package nor torch is imported here. A save
is staged when the call that began it has returned. It is durable when the package's own finalization has run, which it
does once the writers of all ranks are done (with `no_dist=True`: this rank's; the launcher waits for every rank that
saves), and the files that the package leaves in the page cache are synced. Syncing waits in a thread of its own, so
that training goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from holdfast import telemetry
from holdfast.checkpoint.layouts.step_names import step_in
from holdfast.integrations.durable import report_saved

__all__ = ["watch"]

Saver = TypeVar("Saver")
Step = Callable[[], int]


def watch(saver: Saver, *, step: Step | None = None) -> Saver:
    """Tell Holdfast what is saved by this object of nvidia-resiliency-ext.

    Args:
        saver: an `AsyncCallsQueue`, a `TorchAsyncCheckpoint` or a `LocalCheckpointManager`.
        step: gives the completed steps that a save begun now holds. Without it: what a local checkpoint is saved as,
            else the number in its path (`iter_0000120`, `step=120`), else the newest step told to telemetry.

    Returns:
        The same object.

    Raises:
        TypeError: it is none of these.
    """
    queue = getattr(saver, "_async_calls_queue", saver)
    if hasattr(queue, "schedule_async_request"):
        _watch_queue(queue, step)
    elif hasattr(saver, "find_latest") and hasattr(saver, "save"):
        _watch_manager(saver, step)
    else:
        raise TypeError(
            f"watch() takes an AsyncCallsQueue, a TorchAsyncCheckpoint or a LocalCheckpointManager of"
            f" nvidia-resiliency-ext, not a {type(saver).__name__}"
        )
    return saver


def _watch_queue(queue: Any, step: Step | None) -> None:
    schedule: Callable[[Any], int] = queue.schedule_async_request

    def schedule_async_request(async_request: Any) -> int:
        is_followed = any(isinstance(one, _Finished) for one in async_request.finalize_fns)
        save = None if is_followed or not telemetry.enabled() else _save_of(async_request, step)
        if save is None:
            return schedule(async_request)
        async_request.add_finalize_fn(_Finished(save))
        with _held():
            number = schedule(async_request)
        telemetry.checkpoint(save.step, durable=False)
        return number

    queue.schedule_async_request = schedule_async_request


def _watch_manager(manager: Any, step: Step | None) -> None:
    begin: Callable[..., Any] = manager.save

    def save(state_dict: Any, iteration: int, is_async: bool = False) -> Any:
        told = _Save(iteration if step is None else step(), partial(_local_files, manager, iteration))
        with _held():
            request = begin(state_dict, iteration, is_async)
        if request is None:
            _Finished(told)()
        else:
            request.add_finalize_fn(_Finished(told))
            telemetry.checkpoint(told.step, durable=False)
        return request

    manager.save = save


class _Save(NamedTuple):
    """`step`: completed steps; `files`: gives what this rank must sync; `is_plain`: files that nobody has checked."""

    step: int
    files: Callable[[], list[Path]]
    is_plain: bool = False


class _Finished:
    """What runs after the package's own finalization of a save."""

    def __init__(self, save: _Save) -> None:
        self.save = save

    def __call__(self) -> None:
        if telemetry.enabled():
            _background().submit(_report, self.save)


@cache
def _background() -> ThreadPoolExecutor:
    """One thread, so that saves are told in order; the interpreter waits for it at its end."""
    return ThreadPoolExecutor(1, thread_name_prefix="holdfast-nvrx")


def _report(save: _Save) -> None:
    files = save.files()
    if save.is_plain:
        # The package takes the end of its writer for success, also when the writer was killed or its disk was full.
        from holdfast.checkpoint.layouts.contents import check_file  # noqa: PLC0415 - only for these

        for problem in (check_file(path, full=False)[0] for path in files):
            if problem is not None:
                sys.stderr.write(
                    f"holdfast.integrations: the checkpoint of step {save.step} was not saved: {problem}\n"
                )
                return
    if files:
        report_saved(files[0], save.step, *files[1:])
    else:
        telemetry.checkpoint(save.step, durable=True)


def _local_files(manager: Any, iteration: int) -> list[Path]:
    return sorted(Path(manager.local_ckpt_dir).glob(f"iter_{iteration:07d}_*_local.pt"))


def _save_of(request: Any, step: Step | None) -> _Save | None:
    """What a request saves; None when this rank writes nothing, or nobody says which step it is."""
    args = tuple(request.async_fn_args or ())
    manager = getattr(request.async_fn, "__self__", None)
    if hasattr(manager, "local_ckpt_dir"):
        ((iteration, *_),) = list(args[0])[:1]
        return _Save(iteration if step is None else step(), partial(_local_files, manager, iteration))
    path, is_plain = _place(request, args)
    number = step() if step is not None else step_in(*(path.parts if path is not None else ()))
    if number is None:
        number = telemetry.completed_step()
    if number is None:
        if request.async_fn is not None:
            _cannot_tell()
        return None
    # The writer of distributed checkpoints syncs its own files, and checks that all ranks have written.
    return _Save(number, lambda: [path] if path is not None and is_plain else [], is_plain)


def _place(request: Any, args: tuple[Any, ...]) -> tuple[Path | None, bool]:
    """(folder of a distributed checkpoint, False), or (file of `torch.save`, True)."""
    stage = request.preload_fn
    plan = stage.args[0] if isinstance(stage, partial) and stage.args else None
    if isinstance(plan, tuple | list) and plan:
        # (folder, plan) since version 0.6; before, (file, name, data) of each file.
        first = plan[0]
        return (Path(first), False) if isinstance(first, str | os.PathLike) else (Path(first[0]).parent, False)
    target = args[1] if len(args) > 1 else (request.async_fn_kwargs or {}).get("f")
    return (Path(target), True) if isinstance(target, str | os.PathLike) else (None, False)


def _held() -> AbstractContextManager[object]:
    """What a save holds the training for is its cost; of a process that tells no steps only its lines tell phases."""
    return nullcontext() if telemetry.completed_step() is None else telemetry.phase("checkpoint")


@cache
def _cannot_tell() -> None:
    sys.stderr.write(
        "holdfast.integrations: it is not known which step is saved: name it in the path (iter_0000120),"
        " tell steps to holdfast.telemetry, or give watch(..., step=...)\n"
    )
