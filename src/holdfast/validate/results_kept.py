"""What an interrupted run has found already: one line of JSON per ended step, so that a second try goes on there.

Called by `examination`. A step that hung, failed or was lost is not taken from here but run again. Nothing waits.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.errors import UserError
from holdfast.validate.results import StepResult


class Kept(Struct, frozen=True, omit_defaults=True):
    """One line."""

    key: str
    """Node, step and what distinguishes it: `node03 cpu`, `node03 pair node04 1`."""
    result: StepResult


class Plan(Struct, frozen=True, kw_only=True):
    """What the run was asked for; another plan in the same folder is refused."""

    id: str
    at: float
    suites: tuple[str, ...]
    deep: bool
    nodes: tuple[str, ...]


class Results:
    """See the module.

    Args:
        folder: of the run; None: nothing is kept.
        resume: take what an earlier try left.
    """

    def __init__(self, folder: Path | None, *, resume: bool = False) -> None:
        self._file = folder / "steps.jsonl" if folder is not None else None
        self._plan = folder / "plan.json" if folder is not None else None
        self.known: dict[str, StepResult] = {}
        self.taken = 0
        """Steps that were not run again."""
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        if resume and self._file is not None and self._file.exists():
            for line in self._file.read_bytes().splitlines():
                try:
                    kept = msgspec.json.decode(line, type=Kept)
                except msgspec.MsgspecError:
                    continue  # the last line of a killed leader may be torn
                if not kept.result.error and not kept.result.hung:
                    self.known[kept.key] = kept.result
        elif self._file is not None:
            self._file.unlink(missing_ok=True)

    def plan(self, plan: Plan, *, resume: bool) -> Plan:
        """The plan that holds: the earlier one's id and time when it is resumed.

        Raises:
            UserError: the folder holds another run.
        """
        if self._plan is None:
            return plan
        if resume and self._plan.exists():
            try:
                earlier = msgspec.json.decode(self._plan.read_bytes(), type=Plan)
            except msgspec.MsgspecError as error:
                raise UserError(f"{self._plan} cannot be read: {error}; begin anew without --resume") from error
            if (earlier.suites, earlier.deep) != (plan.suites, plan.deep):
                raise UserError(
                    f"{self._plan.parent} holds a run of {', '.join(earlier.suites)}"
                    f"{' (deep)' if earlier.deep else ''}: resume it with the same suites, or name another --out"
                )
            return earlier
        self._plan.write_bytes(msgspec.json.encode(plan) + b"\n")
        return plan

    def get(self, key: str) -> StepResult | None:
        """An earlier result."""
        found = self.known.get(key)
        self.taken += found is not None
        return found

    def put(self, key: str, result: StepResult) -> None:
        """Keep a result. A disk that refuses costs a second run of the step after a restart, not this run."""
        if self._file is None:
            return
        try:
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(Kept(key, result)) + b"\n")
        except OSError:
            return
