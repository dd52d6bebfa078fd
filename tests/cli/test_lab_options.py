"""Options of `holdfast lab` that do not fit together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.cli.lab import UpOptions, up
from holdfast.errors import UsageError
from holdfast.lab.settings import cache_folder


def test_emulated_gpus_need_agents() -> None:
    """The node's agent makes them; refused before anything is started."""
    with pytest.raises(UsageError, match="--emulated-devices needs --agents"):
        up(2, asked=UpOptions(devices=True))


@pytest.mark.parametrize(("user", "expected"), [(0, "/var/cache/holdfast"), (1000, "/home/mei/.cache/holdfast")])
def test_the_lab_of_root_lies_where_other_users_may_enter(
    user: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """munged refuses a socket below root's home, which is closed to others; users' labs lie in their own caches."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/mei")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert cache_folder("slurm-lab", shared=True) == Path(expected, "slurm-lab")
