"""What every replacement has in common, whoever does it: how many an hour, and the site's commands afterwards.

`Replacing` stands before the repairs and the orchestrator, and passes ReplaceNode on to the first that can. The hooks
run once the other machine is there and before it is checked; one that fails keeps the node out of service, since a
node without its mounts or with a stale host key would fail its next job. Time passes while they run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.adapters.repair.command import environment, facts_of
from holdfast.adapters.repair.once import Once
from holdfast.adapters.repair.settings import RepairConfig, filled
from holdfast.adapters.repair.words import Outcome, sentence
from holdfast.errors import PermanentOrderError, TemporaryOrderError
from holdfast.model import orders as o
from holdfast.os.files import write_whole
from holdfast.ports import Repair

HOUR_S = 3600.0
WAIT_MAX_S = 300.0


class Pace:
    """So many replacements an hour; remembered over restarts of the controller."""

    def __init__(self, per_hour: int, file: Path, now: Callable[[], float]) -> None:
        self._per_hour = per_hour
        self._file = file
        self._now = now
        self._begun: dict[str, float] = {}
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self._begun = msgspec.json.decode(file.read_bytes(), type=dict[str, float])

    def take(self, order_id: str) -> None:
        """Begin one. An order that has begun before is not counted again.

        Raises:
            TemporaryOrderError: the hour is used up.
        """
        now = self._now()
        self._begun = {key: at for key, at in self._begun.items() if now - HOUR_S < at <= now}
        if not self._per_hour or order_id in self._begun:
            return
        if len(self._begun) >= self._per_hour:
            wait_s = min(self._begun.values()) + HOUR_S - now
            raise TemporaryOrderError(
                f"{len(self._begun)} replacements were begun within the hour, the limit of replace_per_hour; the next "
                f"one may begin in {wait_s:.0f} s",
                retry_after_s=min(max(1.0, wait_s), WAIT_MAX_S),
            )
        self._begun[order_id] = now
        with contextlib.suppress(OSError):  # the limit then holds for this run of the controller
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._file, msgspec.json.encode(self._begun))


class Replacing:
    """See the module. Fulfils `ports.Repair`; the orchestrator may be among the doers, as the last."""

    def __init__(self, config: RepairConfig, doers: Sequence[Repair], once: Once, pace: Pace) -> None:
        self._config = config
        self._doers = doers
        self._once = once
        self._pace = pace

    def _doer(self, order: o.AnyOrder) -> Repair | None:
        return next((doer for doer in self._doers if doer.can(order)), None)

    def can(self, order: o.AnyOrder) -> bool:
        """Replacements, when somebody behind it does them."""
        return isinstance(order, o.ReplaceNode) and self._doer(order) is not None

    async def execute(self, order: o.AnyOrder) -> str:
        """See `ports.Orchestrator.execute`."""
        doer = self._doer(order)
        if doer is None or not isinstance(order, o.ReplaceNode):
            raise PermanentOrderError("nobody here replaces nodes")
        self._pace.take(order.id)
        detail = await doer.execute(order)
        facts = facts_of(order)
        told = {**environment(order, facts), "HOLDFAST_REPLACED_BY": detail[:1000]}
        for number, argv in enumerate(self._config.after_replace, 1):
            ended = await self._once.run(
                f"{order.id}.hook{number}", filled(argv, facts), told, self._config.hook_limit_s
            )
            if ended.code != 0 or ended.late:
                kind = Outcome.TIMED_OUT if ended.late else Outcome.FAILED
                raise PermanentOrderError(
                    sentence(kind, f"it was replaced ({detail}), but then {argv[0]}: {ended.last_line}")
                )
        done = len(self._config.after_replace)
        return f"{detail}; {done} site hook{'' if done == 1 else 's'} run" if done else detail
