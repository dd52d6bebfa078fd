"""Repairs by the site's own programs: reset, reboot, replace, each an argument list with places to fill in.

How a program's end is read: 0 is done; 75 (EX_TEMPFAIL) is worth another try, `tries` times in all; 69 (EX_UNAVAILABLE)
is no capacity; 77 (EX_NOPERM) is permission denied; anything else has failed, and its last line says why. It also gets
its facts in the environment: HOLDFAST_NODE, HOLDFAST_GPU, HOLDFAST_BOOT_ID, HOLDFAST_INSTANCE_ID, HOLDFAST_ORDER,
HOLDFAST_INCIDENT, HOLDFAST_WHY. Time passes while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.adapters.repair.once import Ended, Once
from holdfast.adapters.repair.settings import CommandConfig, filled
from holdfast.adapters.repair.words import Outcome, node_of, sentence, word
from holdfast.errors import PermanentOrderError, TemporaryOrderError
from holdfast.model import orders as o

TRY_AGAIN = 75
"""sysexits.h EX_TEMPFAIL."""
_OUTCOMES: Mapping[int, Outcome] = {69: Outcome.NO_CAPACITY, 77: Outcome.PERMISSION}
"""sysexits.h EX_UNAVAILABLE and EX_NOPERM."""


def facts_of(order: o.NodeOrder) -> dict[str, str]:
    """What a command may be told of an order. Raises PermanentOrderError when a fact is not fit for one."""
    return {
        "node": node_of(order),
        "gpu": word(getattr(order, "gpu", ""), "the GPU"),
        "boot_id": word(getattr(order, "boot_id", ""), "the boot id"),
        "instance_id": word(order.instance_id, "the machine's id"),
        "order": word(order.id, "the order"),
        "incident": word(order.incident, "the incident"),
    }


def environment(order: o.NodeOrder, facts: Mapping[str, str]) -> dict[str, str]:
    """The same facts as environment variables, and why; a reason may hold anything, and is on one line."""
    named = {f"HOLDFAST_{name.upper()}": value for name, value in facts.items()}
    return {**named, "HOLDFAST_WHY": " ".join(order.why.replace("\0", " ").split())[:1000]}


class CommandRepair:
    """See the module. Fulfils `ports.Repair`."""

    def __init__(self, config: CommandConfig, once: Once) -> None:
        self._config = config
        self._once = once

    def _argv(self, order: o.AnyOrder) -> tuple[str, ...]:
        if isinstance(order, o.ResetGpu):
            return self._config.reset
        if isinstance(order, o.RebootNode):
            return self._config.reboot
        return self._config.replace if isinstance(order, o.ReplaceNode) else ()

    def can(self, order: o.AnyOrder) -> bool:
        """Is a program named for it?"""
        return bool(self._argv(order))

    async def execute(self, order: o.AnyOrder) -> str:
        """See `ports.Orchestrator.execute`."""
        argv = self._argv(order)
        if not argv or not isinstance(order, o.NodeOrder):
            raise PermanentOrderError(f"no program is named for {type(order).__name__}")
        facts = facts_of(order)
        words = filled(argv, facts)
        tried = 0
        while tried < self._config.tries:
            tried += 1
            key = f"{order.id}.{tried}"
            known = self._once.ended(key)
            if known is not None and known.code == TRY_AGAIN and tried < self._config.tries:
                continue  # that try is over and done with, also when it was before a restart of this controller
            ended = known or await self._once.run(key, words, environment(order, facts), self._config.limit_s)
            if ended.code == TRY_AGAIN and not ended.late and tried < self._config.tries:
                raise TemporaryOrderError(f"{argv[0]}: {ended.last_line}", retry_after_s=self._config.pause_s)
            return read_end(argv[0], ended, self._config.limit_s, tried)
        raise PermanentOrderError(f"{argv[0]} was tried {tried} times")


def read_end(program: str, ended: Ended, limit_s: float, tried: int = 1) -> str:
    """What a program's end means: one line when it is done.

    Raises:
        PermanentOrderError: it is not; named by `Outcome`.
    """
    if ended.late:
        raise PermanentOrderError(sentence(Outcome.TIMED_OUT, f"{program} did not end within {limit_s:g} s"))
    if ended.code == 0:
        return " ".join(ended.last_line.split())[:400] if ended.said else f"{program} has done it"
    often = f" ({tried} times)" if tried > 1 else ""
    raise PermanentOrderError(
        sentence(_OUTCOMES.get(ended.code, Outcome.FAILED), f"{program}: {ended.last_line}{often}")
    )
