"""The reading side of telemetry slots, and the evacuation request.

Called by the launcher and the agent on the node of the rank, never in the training process. Nothing here
reads a clock; times in a `SlotView` are those of the rank. `layout` tells how a record stays whole.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from struct import Struct
from zlib import crc32

from holdfast.telemetry import layout as at

_STEP = Struct("=2q2dq2dq3d3qd2q2d2q")
_OLDER_STEP = Struct("=2q2dq2dq3d3qd2qdq")
_CHECKPOINT = Struct("=2q2dq2dq")
_RING = Struct(f"={at.RING_ENTRIES}d")
# A reader copies a page in about a microsecond; to miss both copies of a record this often in a row, the writer
# would have to write without pause and in step with us.
_READ_ATTEMPTS = 200


class SlotError(Exception):
    """A slot could not be read or written; the message names the file."""


class SlotMissingError(SlotError):
    """There is no such file, or it may not be read."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """What one rank last said of itself.

    `*_wall` are seconds since 1970, `*_mono` seconds of the node's CLOCK_MONOTONIC; None: has not happened yet.
    """

    path: Path
    pid: int
    rank: int
    local_rank: int
    world_size: int
    attempt: int
    epoch: int
    stack_signal: int  # 0: not armed, sending it would kill the rank
    evacuate: bool
    start_wall: float  # the process's start; a warm standby's lies before its attempt
    start_mono: float
    opened_wall: float  # the rank's first word
    opened_mono: float
    writes: int  # grows with every word of the rank
    phase: str  # one of layout.PHASES
    phase_mono: float
    step_begun: int | None
    step_ended: int | None
    step_s_last: float | None
    step_s_recent: tuple[float, ...]  # the last 64 at most, oldest first
    steps: int  # steps both begun and ended by this process
    samples: int
    tokens: int
    loss: float | None
    accuracy: float | None
    saves: int  # times that the checkpoint phase was left
    saves_s: float  # seconds spent in it: what the saves cost the training
    checkpoint_staged: int | None
    checkpoint_staged_mono: float | None
    checkpoint_durable: int | None
    checkpoint_durable_mono: float | None


def read_slot(path: str | Path, owners: Collection[int] | None = None) -> SlotView:
    """Read a rank's slot, whether the rank lives or not.

    Args:
        path: the slot.
        owners: users of whom one must own it; None: anybody may.

    Raises:
        SlotMissingError: there is no such file of an owner, or it may not be read.
        SlotError: it is no slot, or of an unknown version, or damaged.
    """
    path = Path(path)
    for _ in range(_READ_ATTEMPTS):
        page = _page(path, owners)
        version, header = _header(path, page)
        step = _step(page, version)
        checkpoint = _newest(page, at.CHECKPOINT_OFFSETS, _CHECKPOINT)
        if step is not None and checkpoint is not None:
            return _view(path, page, header, step, checkpoint)
    raise SlotError(f"{path}: no whole record in {_READ_ATTEMPTS} reads; the slot is damaged")


def _page(path: Path, owners: Collection[int] | None) -> bytes:
    # One unbuffered read of the whole page: the shorter the copy, the rarer a torn one.
    descriptor = _opened(path, os.O_RDONLY, owners)
    try:
        page = os.read(descriptor, at.SLOT_BYTES)
    except OSError as error:
        raise SlotMissingError(f"{path}: cannot be read ({error.strerror})") from error
    finally:
        os.close(descriptor)
    _check_page(path, page)
    return page


def _opened(path: Path, access: int, owners: Collection[int] | None = None) -> int:
    """A name that leads elsewhere, or to a pipe, is a user's trick on a reader with more rights: it is missing."""
    try:
        descriptor = os.open(path, access | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise SlotMissingError(f"{path}: cannot be read ({error.strerror})") from error
    found = os.fstat(descriptor)
    if S_ISREG(found.st_mode) and (owners is None or found.st_uid in owners):
        return descriptor
    os.close(descriptor)
    raise SlotMissingError(f"{path}: cannot be read (not a regular file of its user)")


def _check_page(path: Path, page: bytes) -> None:
    if page[: len(at.MAGIC)] != at.MAGIC[: len(page)]:
        raise SlotError(f"{path}: not a telemetry slot")
    if len(page) < at.SLOT_BYTES:
        raise SlotError(f"{path}: {len(page)} bytes, a telemetry slot has {at.SLOT_BYTES}")


def _header(path: Path, page: bytes) -> tuple[int, tuple[int | float, ...]]:
    """The version, and the words behind magic, version and size."""
    _, version, size, *rest = at.HEADER.unpack_from(page)
    if version not in {at.OLDER_VERSION, at.VERSION} or size != at.SLOT_BYTES:
        known = f"{at.OLDER_VERSION} and {at.VERSION}"
        raise SlotError(f"{path}: telemetry slot of version {version}, this Holdfast reads {known}")
    (crc,) = at.HEADER_CRC.unpack_from(page, at.HEADER.size)
    if crc != crc32(page[: at.HEADER.size]):
        raise SlotError(f"{path}: the header is damaged")
    return version, tuple(rest)


def _step(page: bytes, version: int) -> tuple[int | float, ...] | None:
    if version == at.VERSION:
        return _newest(page, at.STEP_OFFSETS, _STEP)
    older = _newest(page, at.STEP_OFFSETS, _OLDER_STEP)
    return None if older is None else (*older[:-1], 0.0, 0, older[-1])


def _newest(page: bytes, offsets: tuple[int, ...], words: Struct) -> tuple[int | float, ...] | None:
    newest = None
    for offset in offsets:
        record = words.unpack_from(page, offset)
        whole = record[0] > 0 and record[-1] == crc32(page[offset : offset + words.size - 8])
        if whole and (newest is None or record[0] > newest[0]):
            newest = record
    return newest


def _step_or_none(word: float) -> int | None:
    return None if word == at.NO_STEP else int(word)


def _view(
    path: Path,
    page: bytes,
    header: tuple[int | float, ...],
    step: tuple[int | float, ...],
    checkpoint: tuple[int | float, ...],
) -> SlotView:
    pid, rank, local_rank, world_size, attempt, epoch, stack_signal = (int(word) for word in header[:7])
    begun, ended = _step_or_none(step[at.BEGUN]), _step_or_none(step[at.ENDED])
    staged, durable = _step_or_none(checkpoint[at.STAGED]), _step_or_none(checkpoint[at.DURABLE])
    steps = int(step[at.STEPS])
    ring = _RING.unpack_from(page, at.RING_OFFSET)
    phase = int(step[at.PHASE])
    return SlotView(
        path=path,
        pid=pid,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        attempt=attempt,
        epoch=epoch,
        stack_signal=stack_signal,
        evacuate=page[at.EVACUATE_OFFSET] != 0,
        start_wall=header[7],
        start_mono=header[8],
        opened_wall=header[9],
        opened_mono=header[10],
        writes=int(step[at.SEQUENCE]) + int(checkpoint[at.SEQUENCE]),
        phase=at.PHASES[phase] if 0 <= phase < len(at.PHASES) else f"phase {phase}",
        phase_mono=step[at.PHASE_MONO],
        step_begun=begun,
        step_ended=ended,
        step_s_last=step[at.LAST_S] if steps else None,
        step_s_recent=tuple(ring[n % at.RING_ENTRIES] for n in range(max(0, steps - at.RING_VISIBLE), steps)),
        steps=steps,
        samples=int(step[at.SAMPLES]),
        tokens=int(step[at.TOKENS]),
        loss=step[at.LOSS] if step[at.LOSS_TOLD] else None,
        accuracy=step[at.ACCURACY] if step[at.ACCURACY_TOLD] else None,
        saves=int(step[at.SAVES]),
        saves_s=step[at.SAVES_S],
        checkpoint_staged=staged,
        checkpoint_staged_mono=None if staged is None else checkpoint[at.STAGED_MONO],
        checkpoint_durable=durable,
        checkpoint_durable_mono=None if durable is None else checkpoint[at.DURABLE_MONO],
    )


def request_evacuate(path: str | Path) -> None:
    """Ask ranks to save and stop: all of an attempt on this node (`path` is the telemetry folder), or one slot.

    Ranks that open their slot in the folder later are asked too. A slot that has vanished meanwhile is passed over.

    Raises:
        SlotError: the folder or the one slot cannot be written, or a slot is not one.
    """
    path = Path(path)
    if not path.is_dir():
        _set_evacuate(path)
        return
    try:
        (path / at.EVACUATE_NAME).touch()
    except OSError as error:
        raise SlotError(f"{path / at.EVACUATE_NAME}: cannot be written ({error.strerror})") from error
    for slot in sorted(path.glob("rank-*.slot")):
        try:
            _set_evacuate(slot)
        except SlotMissingError:
            continue


def _set_evacuate(path: Path) -> None:
    descriptor = _opened(path, os.O_RDWR)
    try:
        page = os.read(descriptor, at.SLOT_BYTES)
        _check_page(path, page)
        _header(path, page)
        os.pwrite(descriptor, b"\x01", at.EVACUATE_OFFSET)
    except OSError as error:
        raise SlotMissingError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        os.close(descriptor)
