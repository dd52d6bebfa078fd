"""Files that are written as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.os.files import write_whole


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """The new content stands, nothing is left beside it, and what a killed writer left does not matter."""
    path = tmp_path / "state.json"
    (tmp_path / ".state.json.new").write_bytes(b"half of an earlier o")
    for data in (b"one", b"two"):
        write_whole(path, data, durable=data == b"two")
        assert (path.read_bytes(), os.listdir(tmp_path)) == (data, ["state.json"])


def test_a_private_file_is_private_from_its_beginning(tmp_path: Path) -> None:
    """Its permissions are those asked for, whatever the file before had."""
    path = tmp_path / "token"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_whole(path, b"new", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_refuses_leaves_the_file_before(tmp_path: Path) -> None:
    """The error is the caller's to tell."""
    path = tmp_path / "state.json"
    path.write_bytes(b"one")
    (tmp_path / ".state.json.new").mkdir()
    with pytest.raises(OSError):
        write_whole(path, b"two")
    assert path.read_bytes() == b"one"
