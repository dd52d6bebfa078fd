"""Accounting of a lab: a slurmdbd that does not start is told with its reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import LinkError
from holdfast.lab import database
from holdfast.lab.settings import LabFacts, LabSettings
from holdfast.lab.waiting import wait_until


@pytest.mark.parametrize("name", ["slurmdbd.out", "slurmdbd.log"])
def test_a_slurmdbd_that_cannot_start_is_told_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Before it has read its configuration it has no log file: what it says then is on its standard error."""
    for folder in ("etc", "log"):
        (tmp_path / folder).mkdir()
    facts = LabFacts(dir=str(tmp_path), settings=LabSettings(), host="here", user="root", root=True, port=20000)

    def spawn(_name: str, _argv: list[str], _log: Path) -> None:
        (tmp_path / "log" / name).write_text("slurmdbd: fatal: slurmdbd.conf not owned by SlurmUser\n")

    def at_once(_true: Callable[[], object], what: str, *, limit_s: float, logs: tuple[Path, ...]) -> None:
        assert limit_s > 0
        wait_until(lambda: False, what, limit_s=0.0, logs=logs)

    monkeypatch.setattr(database, "wait_until", at_once)
    with pytest.raises(LinkError, match="not owned by SlurmUser"):
        database.start_slurmdbd(facts, {}, spawn)
