"""The faults themselves, as far as they need no torch.

Called by the hook, in the training thread where it can be reached and in the hook's thread otherwise. Each fault
first makes sure that it can be done, then calls `mark()` (the fired mark is on disk when it returns),
then takes effect. Waiting is done in short slices so that an abort and a signal handler get through.
"""

import ctypes
import sys
from collections.abc import Callable
from time import monotonic

from holdfast.failpoint import gil
from holdfast.failpoint.drill import BEYOND_MEMORY_BYTES, Drill, Mark

_SLICE_S = 0.05
_MIB = 1 << 20


def crash_segfault(drill: Drill, mark: Mark) -> None:  # noqa: ARG001 - all faults are called alike
    """Read address 0: the process ends of a real SIGSEGV and says nothing before."""
    mark()
    ctypes.string_at(0)


def exception(drill: Drill, mark: Mark) -> None:
    """Raise RuntimeError in the training thread."""
    mark()
    raise RuntimeError(drill.param("message"))


def hang_allreduce(drill: Drill, mark: Mark) -> None:
    """Take no part in the next collective: the other ranks wait in theirs, this one is elsewhere."""
    mark()
    while not drill.aborted.wait(_SLICE_S):
        pass


def hang_user_buffer(drill: Drill, mark: Mark) -> None:
    """Stall in the user's own code with no collective pending on this rank, so that no watchdog of its own fires."""
    mark()
    if drill.param("busy"):
        count = 0
        while not drill.aborted.is_set():
            count += 1
    while not drill.aborted.wait(_SLICE_S):
        pass


def hang_p2p(drill: Drill, mark: Mark) -> None:
    """Receive from a peer that never sends; without a process group, just block."""
    if "torch.distributed" in sys.modules:
        from holdfast.failpoint.faults_torch import receive_for_ever  # noqa: PLC0415 - torch is there already

        if receive_for_ever(drill, mark):
            return
    hang_allreduce(drill, mark)


def gil_lock(drill: Drill, mark: Mark) -> None:
    """Hold the interpreter lock, so that no thread of this process runs Python."""
    mark()
    gil.hold(drill.param("seconds"), str(drill.folder), str(drill.abort_path))


def nan_loss(drill: Drill, mark: Mark) -> None:
    """Fill a parameter of the live model with NaN: the loss becomes NaN by itself, on all ranks."""
    from holdfast.failpoint.faults_torch import poison_parameter  # noqa: PLC0415 - torch is there or this is refused

    poison_parameter(drill, mark)


def out_of_memory(drill: Drill, mark: Mark) -> None:
    """Fail a real allocation as torch does (MemoryError without torch), or take and keep `hold_mib` MiB."""
    if drill.param("hold_mib"):
        hold_memory(drill, mark)
        return
    if "torch" in sys.modules:
        from holdfast.failpoint.faults_torch import allocate_too_much  # noqa: PLC0415 - torch is there already

        allocate_too_much(mark)
    mark()
    bytearray(BEYOND_MEMORY_BYTES)


def hold_memory(drill: Drill, mark: Mark) -> None:
    """Fill memory page by page, and keep it until the abort."""
    held: list[bytes] = []
    drill.undo = held.clear
    mark()
    for _ in range(drill.param("hold_mib")):
        if drill.aborted.is_set():
            break
        held.append(b"\x01" * _MIB)
    if drill.aborted.is_set():
        held.clear()


def log_line(drill: Drill, mark: Mark) -> None:
    """Print a line that looks like a fault, and is none."""
    mark()
    stream = sys.stderr if drill.param("stream") == "stderr" else sys.stdout
    for _ in range(drill.param("count")):
        stream.write(drill.param("line") + "\n")
    stream.flush()


def slow_one_step(drill: Drill, mark: Mark) -> None:
    """Make this step longer; after `steps` of them the drill ends, or turns into a hang."""
    if drill.slowed_steps == 0:
        mark()
    drill.slowed_steps += 1
    end = monotonic() + drill.param("extra_s")
    while not drill.aborted.is_set() and (left := end - monotonic()) > 0:
        if not drill.param("busy"):
            drill.aborted.wait(left)
    steps = drill.param("steps")
    if steps is not None and drill.slowed_steps >= steps:
        drill.is_slowing = False
        if drill.command.kind == "straggler_then_hang":
            while not drill.aborted.wait(_SLICE_S):
                pass


FAULTS: dict[str, Callable[[Drill, Mark], None]] = {
    "crash_segfault": crash_segfault,
    "exception": exception,
    "hang_allreduce": hang_allreduce,
    "hang_p2p": hang_p2p,
    "hang_user_buffer": hang_user_buffer,
    "straggler": slow_one_step,
    "straggler_then_hang": slow_one_step,
    "gil_lock": gil_lock,
    "nan_loss": nan_loss,
    "out_of_memory": out_of_memory,
    "log_line": log_line,
}

# Faults that mean a step, not a moment.
SLOWING = frozenset({"straggler", "straggler_then_hang"})
# Faults whose effect is the same from any thread; the others raise or block, which only the training thread can.
ANY_THREAD = frozenset({"crash_segfault", "gil_lock", "nan_loss", "log_line"})
