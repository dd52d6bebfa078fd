"""From lines of the kernel log to findings: tailed, matched, placed on a GPU, folded when they repeat.

The agent starts one `KernelLog` per node. A line reaches `on_finding` a few milliseconds after it was written. Where it
stopped reading is kept on disk per boot, and ids are made of boot id and place in the log: an agent that starts again
reports nothing twice and misses nothing. Findings carry this machine's time of seeing them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.adapters.tail import Position, Tailer
from holdfast.agent.node_facts import GpuTable, NodeIdentity
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.findings import RuleRates, counted, to_finding
from holdfast.detect.matcher import LineStream, Match, Matcher, StreamSource
from holdfast.model.evidence import Finding, Place, Role
from holdfast.ports import Clock

IGNORED = frozenset({Role.BENIGN, Role.PROGRESS, Role.CHECKPOINT})
RESET_MARK = b"holdfast: emulated reset of GPU"
"""Line that the embedded cluster writes when it resets GPUs: what was seen of them before is settled."""


class _Bookmark(Struct):
    """How far the log of a boot was read."""

    boot_id: str
    position: Position
    consumed: int
    """Bytes of the stream up to there; offsets in finding ids count from the boot's first byte."""


class KernelLog:
    """Follows one kernel log. Not for use from two threads.

    Args:
        path: the log, a file that grows.
        identity: the node.
        gpus: which GPU sits at which PCI address.
        matcher: the compiled catalogue.
        clock: for the time of findings.
        on_finding: called with each finding, in order.
        bookmark: file to remember the position in; None: begin at the log's start each time.
    """

    def __init__(
        self,
        path: Path,
        *,
        identity: NodeIdentity,
        gpus: GpuTable,
        matcher: Matcher,
        clock: Clock,
        on_finding: Callable[[Finding], None],
        bookmark: Path | None = None,
    ) -> None:
        self.path = path
        self._identity = identity
        self._gpus = gpus
        self._matcher = matcher
        self._clock = clock
        self._on_finding = on_finding
        self._bookmark = bookmark
        self._rates = RuleRates()
        self._base = 0
        self._stream = self._new_stream()
        self._tailer = Tailer(self._on_data, self._on_reset)
        self.findings = 0
        self.reset_at = 0.0
        """When a GPU reset was last seen in the log."""

    def _new_stream(self) -> LineStream:
        source = StreamSource(kind=StreamKind.KERNEL, name=str(self.path), node=self._identity.name)
        return self._matcher.stream(source)

    def start(self) -> None:
        """Go on where the last agent of this boot stopped, else at the log's first line."""
        mark = self._read_bookmark()
        self._base = mark.consumed if mark is not None else 0
        self._tailer.add(self.path, position=mark.position if mark is not None else None)
        self._tailer.start()

    def close(self) -> None:
        """Stop following and remember the place."""
        self.remember()
        self._tailer.close()

    def _on_data(self, path: str, data: bytes) -> None:  # noqa: ARG002 - the tailer's form
        now = self._clock.now()
        if RESET_MARK in data:
            self.reset_at = now
        for match in self._stream.feed(data, now):
            if match.rule.role in IGNORED:
                continue
            count = self._rates.admit(match.rule, match.rank, now)
            if count:
                self.findings += 1
                self._on_finding(counted(self._finding(match, now), count))
        self.remember()

    def _finding(self, match: Match, now: float) -> Finding:
        finding = to_finding(
            msgspec.structs.replace(match, offset=match.offset + self._base),
            source_place=Place(node=self._identity.name),
            job=None,
            attempt=None,
            at=now,
            id_prefix=f"{self._identity.name}:{self._identity.boot_id}:kernel",
            file=self.path.name,
        )
        # A kernel speaks of its own machine only, whatever name stands in the line.
        place = self._gpus.located(msgspec.structs.replace(finding.place, node=self._identity.name))
        return msgspec.structs.replace(finding, place=place)

    def _on_reset(self, path: str, why: str) -> None:  # noqa: ARG002 - the tailer's form
        """The log begins anew: offsets go on counting, so that ids stay unique."""
        self._base += self._stream.offset
        self._stream = self._new_stream()

    def remember(self) -> None:
        """Write down how far the log was read, up to the last whole line."""
        if self._bookmark is None:
            return
        position = self._tailer.position(self.path, self._stream.pending)
        if position is None:
            return
        consumed = self._base + self._stream.offset - self._stream.pending
        mark = _Bookmark(self._identity.boot_id, position, consumed)
        # A bookmark that cannot be written costs a second delivery, which ids make harmless.
        with contextlib.suppress(OSError):
            fresh = self._bookmark.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(mark))
            fresh.replace(self._bookmark)

    def _read_bookmark(self) -> _Bookmark | None:
        if self._bookmark is None:
            return None
        try:
            mark = msgspec.json.decode(self._bookmark.read_bytes(), type=_Bookmark)
        except (OSError, msgspec.MsgspecError):
            return None
        return mark if mark.boot_id == self._identity.boot_id else None
