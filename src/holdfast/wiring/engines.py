"""Makes the controller's engine, and tells others in the process how far it may go.

`holdfast controller` hands one of these to its controller, which calls it at its start. No time passes here.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.decide.engine import Engine
from holdfast.decide.ladder import mode_of
from holdfast.model.evidence import Remedy
from holdfast.model.policy import Mode, PolicySet


class Engines:
    """Makes the engine anew, or from a snapshot.

    Args:
        policies: the site's.
        presets: packaged policies by name.
        scope: `allocation` for the engine of a launcher.
    """

    def __init__(self, policies: PolicySet, presets: Mapping[str, str], *, scope: str = "cluster") -> None:
        self._policies = policies
        self._scope = scope
        self._presets = presets
        self._newest: Engine | None = None

    def __call__(self, state: bytes | None) -> Engine:
        """Raises WireError when the state cannot be read."""
        if state is None:
            self._newest = Engine(self._policies, scope=self._scope, presets=self._presets)
        else:
            self._newest = Engine.restore(state, self._policies, presets=self._presets)
        return self._newest

    def acts(self, group: str, rung: Remedy) -> bool:
        """Would this rung act in this group of nodes now, by the policy or a person's word? Not before the start."""
        engine = self._newest
        if engine is None:
            return False
        return mode_of(engine.policies.for_group(group), engine.state.modes, group, rung) is Mode.ACT
