"""Where the wall time of a simulated job goes: every second belongs to exactly one category.

`training.py` and `scheduler.py` say which phase begins; figures read the sums. The truth of the world, not of the
journal: what a report computes from records can be held against it. Times are the world's.
"""

from __future__ import annotations

from holdfast.sim.record import Ledger

CATEGORIES = {
    "startup": "before the job's first step of all",
    "queue": "in the queue, waiting for nodes or held",
    "start": "from the scheduler's start to all processes started",
    "load": "reading the checkpoint, up to the first step",
    "save": "kept from training by checkpoints",
    "slow": "what a straggler took",
    "stall": "nothing moved: a hang, or storage that stood still",
    "stop": "from the fault to the end of the broken attempt",
    "recompute": "training that was lost and done again",
}
TRAIN = "train"


class Account:
    """One job's ledger while it is written."""

    __slots__ = ("_has_trained", "_since", "_trained_s", "ledger", "phase", "speed")

    def __init__(self, job: str, nodes: int, now: float) -> None:
        self.ledger = Ledger(job=job, nodes=nodes, badput=dict.fromkeys(CATEGORIES, 0.0))
        self.phase = "queue"
        self.speed = 1.0
        self._since = now
        self._trained_s = 0.0
        self._has_trained = False

    def enter(self, phase: str, now: float, *, speed: float = 1.0) -> None:
        """From now on time belongs to this phase; in `train` only `speed` of it is training, the rest is `slow`."""
        took = now - self._since
        if self.phase == TRAIN:
            self._trained_s += took * self.speed
            self.ledger.badput["slow"] += took * (1.0 - self.speed)
        elif self.phase:
            self.ledger.badput[self.phase if self._has_trained else "startup"] += took
        if self.phase:
            self.ledger.wall_s += took
        self._has_trained = self._has_trained or phase == TRAIN
        self.phase, self.speed, self._since = phase, speed, now

    def close(self, now: float, kept_s: float) -> Ledger:
        """End of the run, or of the job: `kept_s` seconds of training were not lost."""
        self.enter("", now)
        self.ledger.productive_s = min(kept_s, self._trained_s)
        self.ledger.badput["recompute"] = self._trained_s - self.ledger.productive_s
        return self.ledger
