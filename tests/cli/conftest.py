"""Commands are run in this process through the real entry, `holdfast.cli.main.main`, with a clock that stands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Struct

sys.path.insert(0, str(Path(__file__).parent))

from journal_with_history import NOW, make

from holdfast.cli import screen
from holdfast.cli.main import main
from holdfast.wiring import settings_places


class Ran(Struct):
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """Its one line of complaint."""
        assert "Traceback" not in self.err
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("holdfast: ")
        return lines[0].removeprefix("holdfast: ")


Holdfast = Callable[..., Ran]


@pytest.fixture(scope="session")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite journal with history; read only by convention."""
    return make(tmp_path_factory.mktemp("journal") / "journal.db")


@pytest.fixture
def holdfast(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Holdfast]:
    """Run a command; nothing of the machine's own settings is seen."""
    for name in ("HOLDFAST_CONFIG", "HOLDFAST_CONTROLLER", "HOLDFAST_TOKEN_FILE", "HOLDFAST_DEBUG", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "no-data"))
    monkeypatch.setattr(settings_places, "SITE_FOLDER", tmp_path / "no-site")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(screen, "now", lambda: NOW)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    umask = os.umask(0o022)  # a holdfast.toml that the group may write would be passed over

    def run(*argv: object, columns: int = 80) -> Ran:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, argv)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    yield run
    os.umask(umask)
