"""The shell around the pure engine: journal first, then deeds. `Controller` is what `cli/` and the launcher run.

`loop.py` puts the parts together; `intake.py` judges and stores; `consequences.py` acts on what is stored, by
`executors.py` and, for what launchers and agents must do, `mailbox.py`. `lease.py` keeps the lead.
`watch.py` looks at the orchestrator, `presence.py` takes beats; `fleet.py` is the cluster at a glance; `state.py` is
what survives.
"""

from __future__ import annotations

from holdfast.controller.figures import Figures
from holdfast.controller.loop import Controller
from holdfast.controller.settings import Settings
from holdfast.controller.state import EngineFactory
from holdfast.model.answers import Health

__all__ = ["Controller", "EngineFactory", "Figures", "Health", "Settings"]
