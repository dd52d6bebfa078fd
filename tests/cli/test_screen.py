"""`cli/screen.py`: a page that cannot be written is one sentence that says what to change."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from holdfast.cli import screen
from holdfast.errors import UserError


def test_a_page_replaces_the_one_before(tmp_path: Path) -> None:
    """Whole, with its mode kept."""
    page = tmp_path / "page.html"
    page.write_text("before")
    page.chmod(0o640)
    screen.save(page, "after")
    assert (page.read_text(), page.stat().st_mode & 0o777) == ("after", 0o640)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.EBUSY, "it is mounted by itself, so that no new page can take its place"),
        (errno.EACCES, "may not be written by you (Permission denied)"),
        (errno.EROFS, "may not be written by you (Read-only file system)"),
        (errno.ENOSPC, "No space left on device"),
    ],
)
def test_each_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    """A file that is mounted alone, a folder that may not be written, a full disk."""

    def refuses(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(screen, "write_whole", refuses)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match="cannot write") as told:
        screen.save(tmp_path / "page.html", "x")
    assert said in str(told.value)


def test_links_in_a_circle_and_no_folder_are_said(tmp_path: Path) -> None:
    """Neither is a traceback."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UserError, match="circle"):
        screen.save(tmp_path / "a", "x")
    with pytest.raises(UserError, match="No such file or directory"):
        screen.save(tmp_path / "none" / "page.html", "x")
