"""holdfast.telemetry.slot: whole records from a writer that never waits, and clear words for damaged files."""

import os
import signal
import time

import pytest

from holdfast.telemetry import layout
from holdfast.telemetry.slot import (
    SlotError,
    SlotMissingError,
    read_slot,
    request_evacuate,
)
from holdfast.telemetry.writer import open_slot

HAMMER = """
from holdfast import telemetry
i = 0
while True:
    telemetry.step_begin(i)
    telemetry.step_end(i, loss=float(i), samples=1, tokens=10)
    i += 1
"""


def check(view):
    """Everything in the record was written by one and the same call."""
    ended = -1 if view.step_ended is None else view.step_ended
    assert view.step_begun - ended in {0, 1}
    assert view.steps == view.samples == view.tokens // 10 == ended + 1
    if view.loss is not None:
        assert view.loss == float(ended)
    assert len(view.step_s_recent) == min(view.steps, 64)


def is_overtaken(view):
    """The ring stands outside the records: a reader that is held up for 64 of the hammer's steps (50 us) sees later ones."""
    return view.steps > 0 and view.step_s_recent[-1] != view.step_s_last


def test_a_reader_never_sees_a_torn_record(start, until):
    """20,000 reads, 500 of them fresh, beside a busy writer: each record is whole and none is older than the last."""
    process = start(HAMMER)
    path = start.folder / "rank-00000.slot"
    until(lambda: path.exists() and read_slot(path).steps > 100, what="the hammering writer")
    last = seen = reads = overtaken = 0
    deadline = time.monotonic() + 30.0
    while reads < 20_000 or seen <= 500:
        assert time.monotonic() < deadline, f"{seen} fresh records in {reads} reads"
        view = read_slot(path)
        check(view)
        assert view.writes >= last
        overtaken += is_overtaken(view)
        seen += view.writes != last
        last = view.writes
        reads += 1
    assert overtaken <= reads // 1000
    assert process.poll() is None


def test_a_killed_writer_leaves_a_whole_record(start, until):
    """However a rank is killed in the middle of its writes, its last state can be read."""
    path = start.folder / "rank-00000.slot"
    for _ in range(8):
        process = start(HAMMER)
        until(lambda p=process: path.exists() and read_slot(path).pid == p.pid and read_slot(path).steps > 50)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        check(read_slot(path))
        assert not is_overtaken(read_slot(path))


def test_half_a_write_does_not_hide_the_record_before_it(tmp_path):
    """With the newer copy damaged the older one is read; with both damaged the file is called torn."""
    writer = open_slot(str(tmp_path), 3)
    writer.step_begin(1)
    writer.step_begin(2)
    path = tmp_path / "rank-00003.slot"
    page = bytearray(path.read_bytes())
    newest = max(layout.STEP_OFFSETS, key=lambda offset: page[offset])
    page[newest + 50] ^= 0xFF
    damaged = tmp_path / "copy"
    damaged.write_bytes(page)
    assert (read_slot(path).step_begun, read_slot(damaged).step_begun) == (2, 1)
    for offset in layout.STEP_OFFSETS:
        page[offset + 40] ^= 0xFF
    damaged.write_bytes(page)
    with pytest.raises(SlotError, match="copy"):
        read_slot(damaged)


def test_each_wrong_file_has_its_own_error(tmp_path):
    """Missing, empty, short, foreign, newer and damaged files are told apart, each naming the file."""
    open_slot(str(tmp_path), 0)
    good = (tmp_path / "rank-00000.slot").read_bytes()
    newer = good[:8] + (99).to_bytes(4, "little") + good[12:]
    cases = {
        "empty": (b"", SlotError),
        "short": (good[:1000], SlotError),
        "foreign": (b"#!/bin/sh\n" * 1000, SlotError),
        "newer": (newer, SlotError),
        "header": (good[:20] + b"\xff" + good[21:], SlotError),
        "zeros": (bytes(4096), SlotError),
    }
    for name, (data, error) in cases.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(error, match=name):
            read_slot(path)
        assert issubclass(error, SlotError)
    with pytest.raises(SlotMissingError, match="nowhere"):
        read_slot(tmp_path / "nowhere")
    with pytest.raises(SlotMissingError, match="cannot be read"):
        read_slot(tmp_path)


@pytest.mark.parametrize("leftover", [b"", b"short", b"x" * 9999])
def test_a_leftover_of_any_kind_is_replaced(tmp_path, leftover):
    """A writer never maps a file that it did not make itself, whatever lies under its name."""
    path = tmp_path / "rank-00000.slot"
    path.write_bytes(leftover)
    open_slot(str(tmp_path), 0).step_begin(5)
    assert read_slot(path).step_begun == 5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank-00000.slot", "rank-00000.stacks"]


def test_one_slot_can_be_asked_to_evacuate(tmp_path):
    """A slot's path asks that rank alone; a path that is no slot is refused and left as it was."""
    one, two = open_slot(str(tmp_path), 1), open_slot(str(tmp_path), 2)
    request_evacuate(one.path)
    assert (one.evacuate_requested(), two.evacuate_requested()) == (True, False)
    text = tmp_path / "notes.txt"
    text.write_text("mine")
    with pytest.raises(SlotError):
        request_evacuate(text)
    assert text.read_text() == "mine"
    with pytest.raises(SlotMissingError):
        request_evacuate(tmp_path / "gone.slot")
