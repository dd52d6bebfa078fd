"""`holdfast run` before the launch: what it takes from holdfast.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.run_start import _completed
from holdfast.launch.options import RunOptions


def test_a_site_policy_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A site that says observe must not be acted on in silence: the launcher names the file and what holds instead."""
    monkeypatch.setenv("HOLDFAST_CONFIG", str(tmp_path / "site.toml"))
    (tmp_path / "site.toml").write_text('policy = "observe.toml"\n')
    assert _completed(RunOptions(argv=("train.py",))).policy == ""
    said = capsys.readouterr().err
    assert said.startswith(f"holdfast: {tmp_path}/observe.toml, the policy that {tmp_path}/site.toml names, ")
    assert "mode act" in said

    assert _completed(RunOptions(argv=("train.py",), policy="mine.toml")).policy == "mine.toml"
    assert capsys.readouterr().err == ""

    (tmp_path / "observe.toml").write_text('mode = "observe"\n')
    assert _completed(RunOptions(argv=("train.py",))).policy == f"{tmp_path}/observe.toml"
    assert capsys.readouterr().err == ""
