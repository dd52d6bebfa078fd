"""When a checkpoint is due: every so many steps, every so many seconds, or both.

Called by the checkpointer after each step on every rank. Clocks differ between ranks, so none may decide
alone: the leader turns seconds into a step number, tells it, and from then on all count steps. The
clock is handed in; nothing here reads it.
"""

from collections.abc import Callable

from holdfast.checkpoint.errors import CheckpointError

PROBE_STEPS = 10
"""After a start the pace is unknown; after this many steps (the first is slow) the leader has measured it."""


class Pace:
    """Decides for one run; `begin` after the restore, `due` after each step, `saved` at each save.

    Args:
        every_steps: due at multiples of this.
        every_s: due about this often, in seconds.
    """

    def __init__(self, every_steps: int | None, every_s: float | None) -> None:
        if every_steps is not None and every_steps < 1:
            raise CheckpointError(f"every_steps={every_steps} must be 1 or more")
        if every_s is not None and not every_s > 0:
            raise CheckpointError(f"every_s={every_s} must be more than 0")
        self._every_steps = every_steps
        self._every_s = every_s
        self._since: tuple[int, float] | None = None
        self._last_save: float = 0.0
        self._next: int | None = None

    def begin(self, step: int, now: float) -> None:
        """Training starts after `step`."""
        self._since = (step, now)
        self._last_save = now
        self._next = step + PROBE_STEPS if self._every_s is not None else None

    def due(self, step: int, now: Callable[[], float], tell: Callable[[int], int]) -> bool:
        """Whether to save after `step`.

        Args:
            step: completed steps.
            now: monotonic seconds.
            tell: gives every rank the leader's value; called on all ranks at the same steps.
        """
        if self._every_steps is not None and step % self._every_steps == 0:
            return True
        if self._every_s is None:
            return False
        if self._since is None or self._next is None:
            self.begin(step, now())
            return False
        if step < self._next:
            return False
        # The estimate was made some time ago: look at the clock again before deciding.
        self._next = tell(self._estimate(step, now()))
        return self._next <= step

    def saved(self, step: int, now: float, tell: Callable[[int], int]) -> None:
        """A save of `step` begins now; the next one is planned."""
        if self._every_s is None:
            return
        self._last_save = now
        self._next = tell(max(step + 1, self._estimate(step, now)))

    def _estimate(self, step: int, now: float) -> int:
        """The step at which `every_s` will have passed since the last save, at the pace seen so far."""
        remaining_s = (self._every_s or 0.0) - (now - self._last_save)
        if remaining_s <= 0 or self._since is None:
            return step
        first, started = self._since
        done = step - first
        if done < 1:
            return step + PROBE_STEPS
        pace_s = max((now - started) / done, 1e-6)
        return step + max(1, round(remaining_s / pace_s))
