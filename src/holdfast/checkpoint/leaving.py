"""Reasons to save now and leave: a signal before preemption, the end of the job's time limit, the launcher's wish.

Called by the checkpointer, which asks after every step and lets all ranks agree. The handlers only note
the signal; nothing is saved inside one. The wall clock is read here, because Slurm gives the end of a job
as a wall-clock time (`SLURM_JOB_END_TIME`).
"""

import signal
import threading
import time
from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import FrameType
from typing import Any


class Wish(IntEnum):
    """What is wanted at the next step boundary; the strongest of all ranks' wishes counts."""

    NOTHING = 0
    SAVE = 1
    SAVE_AND_LEAVE = 2


class Leaving:
    """Collects the wishes of this process.

    SIGTERM asks to save and leave, since the sender wants the process gone. Any other signal given, and
    the nearing time limit, ask to save and go on: the work until the end is saved once more or lost, but
    it is not given away beforehand.

    Args:
        signals: handled in place of the previous handler, until `release`; only in the main thread.
        environ: for `SLURM_JOB_END_TIME`.
        before_end_s: how long before the time limit to save, 0 for never.
    """

    def __init__(self, signals: Iterable[signal.Signals], environ: Mapping[str, str], before_end_s: float) -> None:
        self._wish = Wish.NOTHING
        self._former: dict[signal.Signals, Any] = {}
        end = environ.get("SLURM_JOB_END_TIME", "")
        self._save_at = float(end) - before_end_s if end.isdecimal() and before_end_s > 0 else None
        if threading.current_thread() is threading.main_thread():
            for number in signals:
                self._former[number] = signal.signal(number, self._note)

    def wish(self) -> Wish:
        """What this process wants now; the time limit's wish is told once."""
        wish, self._wish = self._wish, Wish.NOTHING
        if wish is Wish.SAVE_AND_LEAVE:
            # Leaving stays wanted until it happens: a save may fail and be tried again.
            self._wish = wish
        if self._save_at is not None and time.time() >= self._save_at:
            self._save_at = None
            wish = max(wish, Wish.SAVE)
        return wish

    def release(self) -> None:
        """Give the signals back."""
        for number, former in self._former.items():
            # None: a handler that was not set from Python and cannot be set back from it.
            signal.signal(number, signal.SIG_DFL if former is None else former)
        self._former = {}

    def _note(self, number: int, _frame: FrameType | None) -> None:
        wanted = Wish.SAVE_AND_LEAVE if number == signal.SIGTERM else Wish.SAVE
        self._wish = max(self._wish, wanted)
