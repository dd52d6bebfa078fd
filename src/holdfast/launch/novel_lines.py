"""What this job prints when it is well, learned live and kept in its folder; asked when a rank dies without a reason.

The node runner feeds every line of its ranks. Lines are believed to be those of a healthy job once steps went on
rising after them (or, where nothing tells of steps, once the job has lived on for five minutes), so what is printed
just before a failure is never learned. Each node keeps one bounded file, `novelty-NODE.json`, and reads those of the
others when it starts. Times come in.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.detect.novelty import Novelty
from holdfast.os.files import read_bounded, write_whole

PENDING_LINES = 400
"""Lines of each rank that are held until the job has proved to be well after them."""
LINE_MAX = 500
NEAR_LINES = 60
"""So many last lines of a rank that failed are looked at."""
KEYS_MAX = 16_384
LEARN_PER_S = 300
"""New templates are looked for in at most so many lines a second on each node; the rest of a flood is passed over."""
LIVED_ON_S = 300.0
SAVE_EVERY_S = 60.0
FILES_MAX = 32
NAMES = "novelty-*.json"
FILE_MAX = 8 << 20
_NO_DIGITS = bytes.maketrans(b"0123456789", b"0000000000")


def novelty_file(job_dir: Path, node: str) -> Path:
    """Where a node keeps what the job prints when it is well."""
    return job_dir / f"novelty-{node}.json"


def job_folder(log: Path) -> Path | None:
    """The job's folder that this log lies in: the nearest one that holds such files."""
    return next((folder for folder in log.absolute().parents[:4] if any(folder.glob(NAMES))), None)


def read_known(job_dir: Path | None) -> Novelty:
    """What all nodes have learned of this job; a torn or foreign file counts for nothing."""
    known = Novelty()
    for path in sorted(job_dir.glob(NAMES))[:FILES_MAX] if job_dir is not None else ():
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            known.restore(msgspec.json.decode(read_bounded(path, FILE_MAX), type=list[list[str]]))
    return known


class NovelLines:
    """One node's lines.

    Args:
        job_dir: the job's folder.
        node: this one.
    """

    def __init__(self, job_dir: Path, node: str) -> None:
        self._file = novelty_file(job_dir, node)
        self._job_dir = job_dir
        self._known: Novelty | None = None
        self._keys: set[bytes] = set()
        self._pending: dict[int | None, deque[tuple[float, bytes]]] = {}
        self._progress_at = 0.0
        self._window = (0.0, 0)
        self._saved_at = 0.0
        self._saved_count = 0

    @property
    def known(self) -> Novelty:
        """Read on first use, so that it does not delay the start of the ranks."""
        if self._known is None:
            self._known = read_known(self._job_dir)
            self._saved_count = self._known.learned
        return self._known

    def lines(self, rank: int | None, lines: Sequence[bytes], at: float) -> None:
        """New lines of one rank."""
        pending = self._pending.setdefault(rank, deque(maxlen=PENDING_LINES))
        pending.extend((at, line[:LINE_MAX]) for line in lines[-PENDING_LINES:])
        if not self._progress_at and pending and pending[0][0] < at - LIVED_ON_S:
            self._learn(pending, at - LIVED_ON_S, at)

    def progress(self, at: float) -> None:
        """Steps have risen: what was printed before the step that is now complete was printed by a healthy job."""
        before, self._progress_at = self._progress_at, at
        for pending in self._pending.values():
            self._learn(pending, before or at, at)

    def proven(self, rank: int | None, line: str, at: float) -> None:
        """This line of a rank told of a step that another came after: all before it was printed by a healthy job.

        Times cannot tell that where many lines are read at once.
        """
        pending = self._pending.get(rank, ())
        told = line.encode()[: LINE_MAX // 2]
        last = max((number for number, (_, text) in enumerate(pending) if told in text), default=0)
        for _ in range(last):
            self._learn_one(self._pending[rank].popleft()[1], at)

    def begin(self) -> None:
        """A new attempt: what is left of the one before stays unlearned."""
        self._pending.clear()
        self._progress_at = 0.0

    def ended_well(self, at: float) -> None:
        """Every rank ended with 0: all that it printed is healthy."""
        for pending in self._pending.values():
            self._learn(pending, at + 1.0, at)

    def _learn(self, pending: deque[tuple[float, bytes]], before: float, at: float) -> None:
        while pending and pending[0][0] < before:
            self._learn_one(pending.popleft()[1], at)

    def _learn_one(self, line: bytes, at: float) -> None:
        key = line.translate(_NO_DIGITS)
        if key in self._keys or not self._may_learn(at):
            return
        if len(self._keys) >= KEYS_MAX:
            self._keys.clear()
        self._keys.add(key)
        self.known.learn([line.decode(errors="replace")])

    def _may_learn(self, at: float) -> bool:
        began, count = self._window
        if not 0 <= at - began < 1.0:
            began, count = at, 0
        self._window = (began, count + 1)
        return count < LEARN_PER_S

    def strangest(self, rank: int | None, count: int = 3) -> tuple[str, ...]:
        """Lines that this rank printed near its end and no healthy attempt ever did; none while nothing is known."""
        pending = self._pending.get(rank)
        if not pending or not len(self.known):
            return ()
        last = [line.decode(errors="replace") for _, line in list(pending)[-NEAR_LINES:]]
        return tuple(last[index] for index in sorted(self.known.strangest(last, count)))

    def save(self, at: float, *, now: bool = False) -> None:
        """Keep what is new; once a minute at most, unless `now`."""
        if self._known is None or self._known.learned == self._saved_count:
            return
        if not now and at - self._saved_at < SAVE_EVERY_S:
            return
        self._saved_at, self._saved_count = at, self._known.learned
        with contextlib.suppress(OSError):
            write_whole(self._file, msgspec.json.encode(self._known.templates()))
