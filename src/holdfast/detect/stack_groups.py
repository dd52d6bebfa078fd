"""Who stands apart? Groups ranks that stand at the same place in their code, and names the odd ones out.

Called by the launcher when a hang was found and the stacks of all ranks have been dumped. Pure; no time passes.

In a hang most ranks wait inside a collective (an all-reduce, a barrier, a receive) for a rank that is somewhere else.
A rank that gave no stack at all while the others wait (stopped, or holding the interpreter lock) is odd as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.model.events import StackGroup

if TYPE_CHECKING:
    from holdfast.telemetry.stacks import Frame, ThreadStack

FRAMES_MAX = 16
"""Frames kept per group: evidence is bounded."""

_COLLECTIVE = re.compile(
    r"(?:^|_)(?:all_?reduce|reduce_?scatter|all_?gather|gather|scatter|all_?to_?all|broadcast|barrier|monitored_barrier"
    r"|i?recv|recv_into|recvfrom|recv_exact|receive|i?send|sendall|batch_isend_irecv|rendezvous)(?:_|$)"
)
_WAITS_IN_TORCH = re.compile(r"^(?:wait|synchronize|_engine_run_backward|_wait_all|finalize_backward)$")
"""Backward waits for DDP's own reductions without a Python frame of their own."""
_LIBRARY = re.compile(r"(?:^|/)torch/|(?:^|/)(?:socket|selectors|ssl|contextlib|_contextlib)\.py$")
_SOCKET = re.compile(r"(?:^|/)(?:socket|selectors|ssl)\.py$")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|(?<=[<>_.-])\d+")
_PREFIX = re.compile(r"^.*/(?:site-packages|dist-packages|lib/python3(?:\.\d+)?)/")


def training_stack(threads: Sequence[ThreadStack]) -> tuple[Frame, ...]:
    """The stack of the thread that trains: the main thread, as far as the dump tells.

    faulthandler names no threads; the kernel gives a signal to the main thread if it can, which the dump then calls
    current, and otherwise the main thread is the last one because Python lists the newest first.
    """
    with_calls = [thread for thread in threads if thread.frames]
    if not with_calls:
        return ()
    for thread in with_calls:
        if thread.name == "MainThread":
            return thread.frames
    for thread in with_calls:
        if thread.current and thread.name is None:
            return thread.frames
    return with_calls[-1].frames


def waits_in_collective(frames: Sequence[Frame]) -> bool:
    """Whether this stack (innermost first) waits for other ranks.

    Only calls of PyTorch and of the socket library may lie between the innermost call and the collective: a function
    of the user's that sleeps on its way into an all-reduce is not waiting for anyone.
    """
    for frame in frames:
        path = frame.file.replace("\\", "/")
        if _COLLECTIVE.search(frame.function) or _SOCKET.search(path):
            return True
        is_library = _LIBRARY.search(path) is not None
        if is_library and _WAITS_IN_TORCH.match(frame.function):
            return True
        if not is_library:
            return False
    return False


def group_stacks(
    stacks: Mapping[int, Sequence[Frame]], silent: Collection[int] = ()
) -> tuple[tuple[StackGroup, ...], tuple[int, ...]]:
    """Group equal stacks and name the odd ranks.

    Args:
        stacks: per rank the training thread's calls, innermost first. A rank with no calls counts as silent.
        silent: ranks that were asked and gave nothing.

    Returns:
        The groups, largest first, and the odd ranks in order; no odd ranks when nobody stands apart.
    """
    given = {rank: tuple(frames) for rank, frames in stacks.items() if frames}
    mute = sorted({*silent, *(rank for rank, frames in stacks.items() if not frames)} - set(given))
    members: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for rank in sorted(given):
        members.setdefault(_place(given[rank]), []).append(rank)
    ordered = sorted(members.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    groups = tuple(StackGroup(ranks=tuple(ranks), frames=_text(given[ranks[0]])) for ranks in ordered)
    return groups, _odd(given, ordered, mute)


def _odd(given: Mapping[int, Sequence[Frame]], groups: Sequence[Sequence[int]], mute: list[int]) -> tuple[int, ...]:
    waiting = {rank for rank, frames in given.items() if waits_in_collective(frames)}
    elsewhere = sorted(set(given) - waiting)
    total = len(given) + len(mute)
    if waiting and len(elsewhere) + len(mute) <= max(1, total // 2):
        if elsewhere or mute:
            return tuple(sorted([*elsewhere, *mute]))
        return _outside_majority(groups, total)
    if mute and len(mute) <= total // 2 and given:
        return tuple(mute)
    return _outside_majority(groups, total)


def _outside_majority(groups: Sequence[Sequence[int]], total: int) -> tuple[int, ...]:
    if not groups or len(groups[0]) * 2 <= total:
        return ()
    return tuple(sorted(rank for ranks in groups[1:] for rank in ranks))


def _place(frames: Sequence[Frame]) -> tuple[tuple[str, str], ...]:
    """What makes two stacks equal: files and functions without lines, addresses and installation folders."""
    return tuple(
        (_NUMBERS.sub("#", _PREFIX.sub("", frame.file.replace("\\", "/"))), _NUMBERS.sub("#", frame.function))
        for frame in frames
    )


def _text(frames: Sequence[Frame]) -> tuple[str, ...]:
    shown = tuple(f"{frame.function} ({frame.file}:{frame.line})" for frame in frames[:FRAMES_MAX])
    left = len(frames) - FRAMES_MAX
    return (*shown, f"... {left} more") if left > 0 else shown
