"""Is there space on the node's scratch file system? A look that finds it full, and later finds it well again.

Run by the node loop, with a look every `LOOK_S` seconds. A full disk breaks saves long before anything dies of it, so
that it is told at once; what to do about it is a person's matter, and the job goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.told import cleared, seen
from holdfast.detect.catalogue import Catalogue
from holdfast.detect.findings import synthetic_finding
from holdfast.model.events import AnyEvent
from holdfast.model.evidence import EvidenceKind, Place
from holdfast.ports import Clock

RULE = "check.disk_full"
LOOK_S = 1.0
FULL_SHARE = 0.005
FULL_BYTES = 1 << 20
"""Full: less than this share or this many bytes are left to ordinary users."""
WELL_FACTOR = 4
"""Well again: this many times as much, so that a disk at the edge is not told over and over."""


class DiskSpace:
    """See the module.

    Args:
        folder: on the file system that is looked at; a missing one is never full.
        node: the node's name.
        source: who says so.
        catalogue: gives the rule its domain, role and hint.
        clock: the time.
        report: takes a finding when it has become full, a clearing when it is well again.
    """

    def __init__(
        self,
        folder: Path,
        *,
        node: str,
        source: str,
        catalogue: Catalogue,
        clock: Clock,
        report: Callable[[AnyEvent], None],
    ) -> None:
        self._folder = folder
        self._node = node
        self._source = source
        self._catalogue = catalogue
        self._clock = clock
        self._report = report
        self._is_full = False

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await self._clock.sleep(LOOK_S)

    def look(self) -> None:
        """Look once, and tell what is new."""
        left = self._left()
        if left is None:
            return
        free, least = left
        now = self._clock.now()
        if free < least and not self._is_full:
            self._is_full = True
            finding = synthetic_finding(
                self._catalogue,
                RULE,
                id=f"{self._source}:{RULE}:{now:.3f}",
                at=now,
                place=Place(node=self._node, path=str(self._folder)),
                summary=f"the file system of {self._folder} is full: {free} bytes are left",
                kind=EvidenceKind.CHECK,
            )
            self._report(seen(finding, self._source))
        elif free >= WELL_FACTOR * least and self._is_full:
            self._is_full = False
            self._report(cleared(RULE, self._node, self._source, now))

    def _left(self) -> tuple[int, int] | None:
        """Bytes that are free, and the least that there should be; None when it cannot be told."""
        # Where the embedded cluster cannot mount a file system of its own, a file says that it is full.
        if (self._folder.parent / "disk_full").exists():
            return 0, FULL_BYTES
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return None
        total = found.f_blocks * found.f_frsize
        return found.f_bavail * found.f_frsize, int(min(FULL_BYTES, FULL_SHARE * total)) or 1
