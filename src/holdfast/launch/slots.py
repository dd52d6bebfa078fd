"""Reading this node's telemetry slots, and saying what has changed. Used by the node runner ten times a second.

Times in a slot are the rank's CLOCK_MONOTONIC, which all processes of a node share; the leader may be another node,
so that ages are sent instead of times.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from holdfast.launch.frames import SlotBrief
from holdfast.launch.process import NOT_RUNNING, state_of
from holdfast.telemetry.layout import slot_name
from holdfast.telemetry.slot import SlotError, SlotView, read_slot


class SlotReader:
    """The slots of one attempt on this node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.views: dict[int, SlotView] = {}
        self._told: dict[int, tuple[int, int, bool]] = {}
        self._running: dict[int, int] = {}
        """Processes that were seen to run, by rank: a number of another container's would name nobody here."""

    def read(self, ranks: Iterable[int]) -> None:
        """Look at the slots of these ranks; one that is missing or unreadable keeps its last view."""
        for rank in ranks:
            try:
                self.views[rank] = read_slot(self.folder / slot_name(rank))
            except SlotError:
                continue

    def discover(self) -> list[int]:
        """Ranks that have a slot here, when it is not known which to expect."""
        names = [path.stem.removeprefix("rank-") for path in self.folder.glob("rank-*.slot")]
        return sorted(int(name) for name in names if name.isdecimal())

    def changed(self, now_mono: float) -> tuple[SlotBrief, ...]:
        """What is different from the last call."""
        briefs = []
        for rank, view in self.views.items():
            mark = (view.pid, view.writes, self._is_gone(rank, view.pid))
            if self._told.get(rank) != mark:
                self._told[rank] = mark
                briefs.append(brief(view, now_mono, is_gone=mark[2]))
        return tuple(briefs)

    def _is_gone(self, rank: int, pid: int) -> bool:
        if state_of(pid) not in NOT_RUNNING:
            self._running[rank] = pid
            return False
        return self._running.get(rank) == pid


def brief(view: SlotView, now_mono: float, *, is_gone: bool = False) -> SlotBrief:
    """What the leader needs of a slot."""
    # A step that has begun but not ended is not counted; `steps` counts both ends.
    first = view.step_ended - view.steps + 1 if view.step_ended is not None and view.steps else None
    staged_at, durable_at = view.checkpoint_staged_mono, view.checkpoint_durable_mono
    is_same = view.checkpoint_staged == view.checkpoint_durable and staged_at is not None and durable_at is not None
    return SlotBrief(
        rank=view.rank,
        phase=view.phase,
        phase_age_s=max(0.0, now_mono - view.phase_mono),
        begun=view.step_begun,
        ended=view.step_ended,
        step_s=view.step_s_last,
        first=first,
        loss=view.loss,
        accuracy=view.accuracy,
        staged=view.checkpoint_staged,
        durable=view.checkpoint_durable,
        durable_took_s=max(0.0, (durable_at or 0.0) - (staged_at or 0.0)) if is_same else None,
        samples=view.samples,
        tokens=view.tokens,
        saves=view.saves,
        saves_s=view.saves_s,
        writes=view.writes,
        is_gone=is_gone,
    )
