"""`holdfast demo` where it cannot run: one sentence, and nothing touched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.cli.demo import MARK, clear, demo
from holdfast.errors import UsageError


def test_without_pytorch_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not after a cluster was started in which every rank ends with an import error."""
    monkeypatch.setitem(sys.modules, "torch", None)
    folder = tmp_path / "demo"
    with pytest.raises(UsageError, match="pip install torch numpy"):
        demo(folder=folder)
    assert not folder.exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """Only what an earlier demo made is cleared."""
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("do not lose me")
    with pytest.raises(UsageError, match="no demo made"):
        clear(tmp_path)
    with pytest.raises(UsageError, match="is a file"):
        clear(thesis)
    assert thesis.read_text() == "do not lose me"
    earlier = tmp_path / "earlier"
    clear(earlier)
    (earlier / "report.html").touch()
    clear(earlier)
    assert [path.name for path in earlier.iterdir()] == [MARK]
