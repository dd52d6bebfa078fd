"""What another policy would have done with an incident: the recorded history, replayed through the same engine.

Called by `routes.py` when a person asks for it. The judging is `sim.counterfactual`'s; it runs in a thread, one at a
time, and only over a history that is short enough to wait for. Times are those of the recorded events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.controller import Controller
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.model.policy_toml import parse_policy
from holdfast.ports import Entry
from holdfast.sim.counterfactual import Told, recorded_in, replay
from holdfast.sim.side_by_side import Line, compare

EVENTS_MAX = 20_000


class WhatIf(Struct, frozen=True):
    """What would have been otherwise in one incident."""

    policy: str
    lines: tuple[Line, ...]
    note: str = ""


class Replayer:
    """Answers one question at a time."""

    def __init__(self, controller: Controller, presets: Mapping[str, str]) -> None:
        self._controller = controller
        self.presets = presets
        self._lock = asyncio.Lock()

    async def ask(self, incident: str, preset: str) -> WhatIf:
        """Replay everything up to now under a preset.

        Raises:
            NotFoundError: there is no such preset.
        """
        if preset not in self.presets:
            raise NotFoundError(f"there is no preset {preset!r}")
        if self._controller.seq > EVENTS_MAX:
            said = f"this journal has {self._controller.seq} events, more than a page waits for"
            return WhatIf(preset, (), f"Not replayed: {said}. Ask `holdfast simulate --replay` for it.")
        async with self._lock:
            entries, then = await recorded_in(self._controller.journal)
            return await asyncio.to_thread(_answer, entries, then, incident, preset, self.presets)


def _answer(entries: Sequence[Entry], then: Told, incident: str, preset: str, presets: Mapping[str, str]) -> WhatIf:
    try:
        policies = parse_policy(f'preset = "{preset}"\n', "", presets)
        made = replay(entries, policies, recorded=then.orders, presets=presets)
        cases = compare(then, made.told)
    except HoldfastError as error:
        return WhatIf(preset, (), f"It could not be replayed: {error}")
    found = next((case for case in cases if case.incident == incident), None)
    if found is None:
        return WhatIf(preset, (), "Under that policy no such incident would have been opened.")
    note = "" if made.complete else "The journal has dropped its oldest events, so what was before is not known."
    return WhatIf(preset, found.lines if found.differs else (), note)
