"""Notices in a file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.adapters.notify import FileNotifier
from holdfast.errors import TemporaryOrderError
from holdfast.model.orders import Notify
from holdfast.model.wire import decode


def test_each_notice_is_one_line_that_can_be_read_back(tmp_path: Path):
    """Notices are appended, in order, whole, readable by their owner only."""
    path = tmp_path / "notices.jsonl"
    notices = [Notify(id=f"o{n}", cause=n, topic="i1", title="node\ndown", text="x" * n) for n in range(3)]
    for notice in notices:
        asyncio.run(FileNotifier(path).send(notice))
    assert [decode(line, Notify) for line in path.read_bytes().splitlines()] == notices
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path):
    """The failure is temporary: the executor keeps the notice and comes back."""
    with pytest.raises(TemporaryOrderError, match="cannot be written"):
        asyncio.run(FileNotifier(tmp_path / "no" / "notices.jsonl").send(Notify(id="o", cause=1, topic="t")))
