"""`holdfast run` before the launch: what it takes from holdfast.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.adapters.policy_files import packaged_presets
from holdfast.cli.run_start import _completed
from holdfast.cli.srun import DEFAULT_POLICY, _in_the_sites_mode
from holdfast.launch.options import RunOptions
from holdfast.model.evidence import Remedy
from holdfast.model.policy import Mode


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


def test_a_supervised_step_is_in_the_sites_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`holdfast srun` keeps its own ladders; how far it may go is the site's word, or that of the step's partition."""
    monkeypatch.setenv("HOLDFAST_CONFIG", str(tmp_path / "site.toml"))
    monkeypatch.delenv("SLURM_JOB_PARTITION", raising=False)
    (tmp_path / "site.toml").write_text('policy = "policy.toml"\n')
    (tmp_path / "policy.toml").write_text('mode = "observe"\n[groups.canary]\nmode = "act"\n')
    presets = packaged_presets()
    policies, name = _in_the_sites_mode(presets)
    ours = policies.for_job("batch", name)
    assert (name, ours.mode_for(Remedy.RESTART_IN_PLACE)) == (DEFAULT_POLICY, Mode.OBSERVE)

    monkeypatch.setenv("SLURM_JOB_PARTITION", "canary")
    canary = _in_the_sites_mode(presets)[0].for_job("canary", name)
    assert canary.mode_for(Remedy.RESTART_IN_PLACE) is Mode.ACT
    assert canary.ladders == ours.ladders
