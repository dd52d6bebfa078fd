"""The shell around the pure engine: journal first, then deeds. `Controller` is what `cli/` and the launcher run.

`loop.py` decides and stores; `executors.py` carries out orders, `mailbox.py` those that launchers and agents must do;
`watch.py` looks at the orchestrator, `presence.py` takes beats; `timers.py` waits; `state.py` is what survives.
"""

from __future__ import annotations

from holdfast.controller.figures import Figures
from holdfast.controller.loop import Controller
from holdfast.controller.settings import Settings
from holdfast.controller.state import EngineFactory, EngineLike
from holdfast.model.answers import Health

__all__ = ["Controller", "EngineFactory", "EngineLike", "Figures", "Health", "Settings"]
