"""What a training script tells Holdfast, in two lines.

    import holdfast.telemetry as telemetry
    with telemetry.step(i): ...

Called by user code in every rank. The launcher sets `HOLDFAST_TELEMETRY_DIR`, `RANK` and the rest of a rank's
environment; without them every call does nothing. The environment is read at the first call that finds
it complete, so that a warm standby may import this module before it has a rank.

Promises to the training: no call raises (an unusable folder costs one line on stderr), none starts a
thread or touches the network, a step costs a few microseconds, and a forked child never writes into its
parent's slot. Times are taken where the call is made, from the process's own clocks.
"""

import os
import sys

from holdfast.telemetry.layout import PHASES
from holdfast.telemetry.writer import ENV_DIR, ENV_OWNER, SlotWriter, make_folder, open_slot

TYPE_CHECKING = False  # typing is not imported: it costs more than this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = [
    "PHASES",
    "accuracy",
    "checkpoint",
    "completed_step",
    "enabled",
    "evacuate_requested",
    "loss",
    "phase",
    "set_phase",
    "set_step_hook",
    "step",
    "step_begin",
    "step_end",
    "touched",
]

_writer: SlotWriter | None = None
_is_off = False
_is_touched = False
_is_fork_watched = False
_warnings_left = 5
_step_hook: "Callable[[int], None] | None" = None


def step_begin(step: int) -> None:
    """Say that training step `step` begins now."""
    writer = _writer
    if writer is None:
        writer = _open()
    if writer is not None:
        try:
            writer.step_begin(step)
        except Exception as error:  # noqa: BLE001 - whatever the caller passed, training goes on
            _warn("step_begin", error)
    if _step_hook is not None:
        _step_hook(step)


def step_end(step: int, *, loss: float | None = None, samples: int = 0, tokens: int = 0) -> None:
    """Say that training step `step` has ended.

    Args:
        step: the number given to `step_begin`.
        loss: this step's loss; NaN is a value. A CUDA tensor is accepted and waits for the device: pass it rarely.
        samples: samples that this rank consumed in the step.
        tokens: tokens that this rank consumed in the step.
    """
    writer = _writer
    if writer is not None:
        try:
            writer.step_end(step, loss, samples, tokens)
        except Exception as error:  # noqa: BLE001 - whatever the caller passed, training goes on
            _warn("step_end", error)
            # The writer takes the caller's values before it changes anything else, so that the step can still be told.
            _step_end_bare(writer, step)


def _step_end_bare(writer: SlotWriter, step: int) -> None:
    try:
        writer.step_end(step, None, 0, 0)
    except Exception as error:  # noqa: BLE001 - the step itself may be no number
        _warn("step_end", error)


class step:  # noqa: N801 - reads as a word in `with telemetry.step(i):`
    """`with telemetry.step(i) as s:` around a training step; set `s.loss`, `s.samples`, `s.tokens` inside.

    A step that raises is not recorded as ended.
    """

    __slots__ = ("loss", "number", "samples", "tokens")

    def __init__(self, number: int) -> None:
        self.number = number
        self.loss: float | None = None
        self.samples = 0
        self.tokens = 0

    def __enter__(self) -> "Self":
        step_begin(self.number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        if kind is None:
            step_end(self.number, loss=self.loss, samples=self.samples, tokens=self.tokens)


class phase:  # noqa: N801 - reads as a word in `with telemetry.phase("eval"):`
    """`with telemetry.phase("eval"):` enters a phase and afterwards returns to the one before, also on an error."""

    __slots__ = ("_before", "_writer", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._before = 0
        self._writer: SlotWriter | None = None

    def __enter__(self) -> "Self":
        writer = _open()
        code = _phase_code(self.name)
        if writer is not None and code is not None:
            self._writer = writer
            self._before = writer.hold_phase(code)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        # A child forked inside the phase leaves this block too, but the slot is its parent's.
        if self._writer is not None and self._writer is _writer:
            self._writer.release_phase(self._before)
        self._writer = None


def set_phase(name: str) -> None:
    """Enter one of `PHASES`. A training step that begins later ends it, as does another `set_phase`."""
    writer = _open()
    code = _phase_code(name)
    if writer is not None and code is not None:
        writer.set_phase(code)


def checkpoint(step: int, *, durable: bool) -> None:
    """Say that a checkpoint of `step` is staged (in memory or on its way), or durable. Any thread may call."""
    _tell("checkpoint", step, durable=durable)


def completed_step() -> int | None:
    """The newest step that this process has told to have ended; None before the first, and without a slot."""
    return None if _writer is None else _writer.completed_step()


def loss(value: float) -> None:
    """Record a loss outside `step_end`."""
    _tell("loss", value)


def accuracy(value: float) -> None:
    """Record an accuracy, as an evaluation gives it, for reports of convergence before and after a recovery."""
    _tell("accuracy", value)


def _tell(call: str, *args: object, **more: object) -> None:
    writer = _open()
    if writer is not None:
        try:
            getattr(writer, call)(*args, **more)
        except Exception as error:  # noqa: BLE001 - whatever the caller passed, training goes on
            _warn(call, error)


def evacuate_requested() -> bool:
    """Whether the launcher asks this rank to save a durable checkpoint and end; costs one memory read."""
    writer = _writer
    if writer is None:
        writer = _open()
    return writer is not None and writer.evacuate_requested()


def enabled() -> bool:
    """Whether this process has a slot to write to, opening it if its environment is there."""
    return _open() is not None


def touched() -> bool:
    """Whether anything in this process has called telemetry, with or without a slot. Asked by the drill hook."""
    return _is_touched


def set_step_hook(hook: "Callable[[int], None] | None") -> None:
    """Have `hook(step)` called in the training thread after each `step_begin`; what it raises goes to the caller.

    For drills only: this is the one way in which telemetry can raise.
    """
    global _step_hook  # noqa: PLW0603 - one hook per process
    _step_hook = hook


def _open() -> SlotWriter | None:
    global _writer, _is_off, _is_touched, _is_fork_watched  # noqa: PLW0603 - one slot per process
    if _writer is not None:
        return _writer
    _is_touched = True
    if _is_off:
        return None
    folder = os.environ.get(ENV_DIR)
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID")
    if not folder or rank is None:
        return None
    is_per_node = "%N" in folder
    folder = folder.replace("%N", os.environ.get("SLURMD_NODENAME", ""))
    owner = f"{os.getpid()}:{folder}"
    if os.environ.get(ENV_OWNER, owner) != owner and os.environ[ENV_OWNER].endswith(f":{folder}"):
        # A process that a rank started inherits the rank's environment, but not its slot.
        _is_off = True
        return None
    try:
        if is_per_node:
            make_folder(folder)
        opened = open_slot(folder, int(rank))
    except Exception as error:  # noqa: BLE001 - no state of folder or environment may stop a training
        _is_off = True
        _say(f"holdfast.telemetry is off for rank {rank}: no slot in {folder} ({error}); training goes on")
        return None
    if not _is_fork_watched:
        _is_fork_watched = True
        os.register_at_fork(after_in_child=_leave_parents_slot)
    os.environ[ENV_OWNER] = owner
    _writer = opened
    return opened


def _leave_parents_slot() -> None:
    global _writer, _is_off  # noqa: PLW0603 - one slot per process
    _writer = None
    _is_off = True


def _phase_code(name: str) -> int | None:
    if name in PHASES:
        return PHASES.index(name)
    _warn("phase", ValueError(f"{name!r} is not one of {', '.join(PHASES)}"))
    return None


def _warn(call: str, error: Exception) -> None:
    global _warnings_left  # noqa: PLW0603 - bounded for the life of the process
    if _warnings_left > 0:
        _warnings_left -= 1
        _say(f"holdfast.telemetry: {call} ignored: {error}")


def _say(line: str) -> None:
    try:
        sys.stderr.write(line + "\n")
    except Exception:  # noqa: BLE001 - stderr may be closed, None, or the user's own object
        return
