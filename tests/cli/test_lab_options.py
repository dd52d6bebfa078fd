"""Options of `holdfast lab` that do not fit together."""

from __future__ import annotations

import pytest

from holdfast.cli.lab import UpOptions, up
from holdfast.errors import UsageError


def test_emulated_gpus_need_agents() -> None:
    """The node's agent makes them; refused before anything is started."""
    with pytest.raises(UsageError, match="--emulated-devices needs --agents"):
        up(2, asked=UpOptions(devices=True))
