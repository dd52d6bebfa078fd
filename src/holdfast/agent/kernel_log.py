"""From lines of the kernel log to findings: read as they come, matched, placed on a GPU, folded when they repeat.

The agent starts one `KernelLog` per node, over a file that grows (embedded nodes, syslog) or over `/dev/kmsg`. A line
reaches `on_finding` a few milliseconds after it was written. Where it stopped reading is kept on disk per boot, and ids
are made of boot id and place in the log: an agent that starts again reports nothing twice and misses nothing. Of a file
that syslog writes only what the kernel said lately counts. Findings carry this machine's time: of seeing the line in a
file, of the record in the device. Only what the kernel itself wrote moves a node.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.adapters.kernel_device import KernelDevice
from holdfast.adapters.kernel_journal import JOURNAL, KernelJournal
from holdfast.adapters.kernel_record import Record
from holdfast.adapters.tail import Position, Tailer
from holdfast.agent.node_facts import GpuTable, NodeIdentity
from holdfast.agent.parser import Outcome, ParsedStream, ParserProcess
from holdfast.agent.parsing import Origin
from holdfast.agent.syslog_lines import Reading
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.findings import RuleRates, counted, to_finding
from holdfast.detect.matcher import Match, StreamSource
from holdfast.model.evidence import Finding, Place, Role
from holdfast.os.files import write_whole
from holdfast.ports import Clock

IGNORED = frozenset({Role.BENIGN, Role.PROGRESS, Role.CHECKPOINT})
RESET_MARK = b"holdfast: emulated reset of GPU"
"""Line that the embedded cluster writes when it resets GPUs: what was seen of them before is settled."""
FIRST_LOOK_S = 600.0
"""An agent that was never here before ignores records of the device that are older: they are history, not news."""

REMEMBER_S = 0.2
"""At most so often the place is written down; what is read again after a crash has the ids that it had before."""


def is_kernels(record: Record, identity: NodeIdentity) -> bool:
    """Did the kernel write it? On a node that is open to drills, root's `echo ... > /dev/kmsg` counts, too."""
    return record.facility == 0 or identity.drill_ok


def tells_of_resets(source: Tailer | KernelDevice | KernelJournal | None, *, is_syslog: bool) -> bool:
    """Is it a lab's log, a file of its own in which the lab says that it has reset a GPU?"""
    return isinstance(source, Tailer) and not is_syslog


def as_context(finding: Finding) -> Finding:
    """What others may have written, and so moves no node."""
    return msgspec.structs.replace(finding, role=Role.CONTEXT)


class _Bookmark(Struct, omit_defaults=True):
    """How far the log of a boot was read."""

    boot_id: str
    position: Position | None = None
    consumed: int = 0
    """Bytes of the file's stream up to there; offsets in finding ids count from the boot's first byte."""
    sequence: int = -1
    """Newest record of the device."""
    at: float = 0.0
    """When this was written down, Unix seconds."""


class KernelLog:
    """Follows one kernel log. Not for use from two threads.

    Args:
        path: a file that grows, the device, or `kernel_journal.JOURNAL`.
        identity: the node.
        gpus: which GPU sits at which PCI address.
        parser: judges the lines.
        clock: for the time of findings.
        on_finding: called with each finding, in order.
        bookmark: file to remember the position in; None: begin at the log's start each time.
        on_reset: called when the log tells of an emulated GPU reset.
        is_syslog: syslog writes the file: it outlives a boot and holds what every program said.
    """

    def __init__(
        self,
        path: Path,
        *,
        identity: NodeIdentity,
        gpus: GpuTable,
        parser: ParserProcess,
        clock: Clock,
        on_finding: Callable[[Finding], None],
        bookmark: Path | None = None,
        on_reset: Callable[[], None] | None = None,
        is_syslog: bool = False,
    ) -> None:
        self.path = path
        self._is_syslog = is_syslog
        self._name = path.name if is_syslog else "kernel"
        self._syslog: Reading | None = None
        self._identity = identity
        self._gpus = gpus
        self._parser = parser
        self._clock = clock
        self._on_finding = on_finding
        self._bookmark = bookmark
        self._on_gpu_reset = on_reset or (lambda: None)
        self._rates = RuleRates()
        self._mark = _Bookmark(identity.boot_id)
        self._stream = self._new_stream()
        self._source: Tailer | KernelDevice | KernelJournal | None = None
        self._not_before = 0.0
        self._later: Callable[[], None] | None = None
        self._written_at = 0.0
        self.findings = 0
        self.reset_at = 0.0
        """When a GPU reset was last seen in the log."""

    def _new_stream(self) -> ParsedStream:
        origin = Origin(StreamSource(kind=StreamKind.KERNEL, node=self._identity.name), syslog=self._syslog)
        judged = functools.partial(self._judged, self._mark.consumed)
        return self._parser.stream(origin, self.path.name, judged)

    def start(self) -> None:
        """Go on where the last agent of this boot stopped (of any boot in syslog's files), else at the first line.

        Raises:
            LinkError: the device cannot be opened.
        """
        found = self._read_bookmark()
        self._mark = found or self._mark
        if self._is_syslog:
            away_since = found.at if found else None
            booted_at = self._identity.booted_at
            self._syslog = Reading(started=self._clock.now(), away_since=away_since, booted_at=booted_at)
        self._stream.close()
        self._stream = self._new_stream()
        if self.path == JOURNAL:
            self._source = KernelJournal(self._on_data)
        elif self.path.is_char_device():
            self._not_before = 0.0 if found is not None else self._clock.now() - FIRST_LOOK_S
            self._source = KernelDevice(self.on_record, self._clock, self.path, after=self._mark.sequence)
        else:
            self._source = Tailer(self._on_data, self._on_reset, is_full=lambda _path: self._stream.is_full)
            self._source.add(self.path, position=self._mark.position)
        self._source.start()

    def close(self) -> None:
        """Stop following and remember the place."""
        self._write_bookmark()
        if self._source is not None:
            self._source.close()

    # --- what is read ---

    def on_record(self, record: Record, at: float) -> None:
        """One record of the device, written at this Unix time. What programs have written there is passed over."""
        if at >= self._not_before and is_kernels(record, self._identity):
            self._feed(record.text + b"\n", at, place=record.sequence)
        elif not self._stream.pending:
            self._mark.sequence = record.sequence
            self._remember()

    def _on_data(self, path: str, data: bytes) -> None:  # noqa: ARG002 - the tailer's form
        self._feed(data, self._clock.now())

    def _on_reset(self, path: str, why: str) -> None:  # noqa: ARG002 - the tailer's form
        """The file begins anew: offsets go on counting, so that ids stay unique."""
        self._mark.consumed += self._stream.offset
        self._stream.close()
        self._stream = self._new_stream()

    def _feed(self, data: bytes, at: float, *, place: int | None = None) -> None:
        if RESET_MARK in data and tells_of_resets(self._source, is_syslog=self._is_syslog):
            self.reset_at = at
            self._on_gpu_reset()
        self._stream.feed(data, at, place)

    def _judged(self, consumed: int, came: Outcome) -> None:
        for match in came.matches:
            if match.rule.role not in IGNORED and (count := self._rates.admit(match.rule, match.rank, came.at)):
                self.findings += 1
                where = came.place if came.place is not None else match.offset + consumed
                self._on_finding(counted(self._finding(match, where, came.at), count))
        self._mark.sequence = self._mark.sequence if came.place is None else came.place
        self._remember()

    def _finding(self, match: Match, where: int, at: float) -> Finding:
        finding = to_finding(
            msgspec.structs.replace(match, offset=where),
            source_place=Place(node=self._identity.name),
            job=None,
            attempt=None,
            at=at,
            id_prefix=f"{self._identity.name}:{self._identity.boot_id}:{self._name}",
            file=self.path.name,
        )
        # A kernel speaks of its own machine only, whatever name stands in the line.
        place = self._gpus.located(msgspec.structs.replace(finding.place, node=self._identity.name))
        return msgspec.structs.replace(finding, place=place)

    # --- the place ---

    def _remember(self) -> None:
        """Write the place down now, or soon when that was done just before: a busy log must not wear the disk."""
        if self._later is None and self._bookmark is not None:
            wait_s = max(0.0, self._written_at + REMEMBER_S - self._clock.monotonic())
            if wait_s:
                self._later = self._clock.call_later(wait_s, self._write_bookmark)
            else:
                self._write_bookmark()

    def _write_bookmark(self) -> None:
        """Write down how far the log was read, up to the last whole line."""
        if self._later is not None:
            self._later()
            self._later = None
        if self._bookmark is None:
            return
        self._written_at = self._clock.monotonic()
        mark = self._mark
        if isinstance(self._source, Tailer):
            position = self._source.position(self.path, self._stream.pending)
            consumed = self._mark.consumed + self._stream.offset - self._stream.pending
            mark = _Bookmark(self._identity.boot_id, position, consumed, at=self._clock.now())
        # A bookmark that cannot be written costs a second delivery, which ids make harmless.
        with contextlib.suppress(OSError):
            write_whole(self._bookmark, msgspec.json.encode(mark))

    def _read_bookmark(self) -> _Bookmark | None:
        if self._bookmark is None:
            return None
        try:
            mark = msgspec.json.decode(self._bookmark.read_bytes(), type=_Bookmark)
        except (OSError, msgspec.MsgspecError):
            return None
        if mark.boot_id != self._identity.boot_id and not self._is_syslog:
            return None
        return msgspec.structs.replace(mark, boot_id=self._identity.boot_id)
