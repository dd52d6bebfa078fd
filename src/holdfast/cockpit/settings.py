"""The settings page: the policy with its check and the difference before it takes effect, the mode, the brakes.

A policy from here is journalled like one from a file, with who and why, and holds from that event on. Called by
`routes.py`. No time passes but the controller's clock.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Mapping

from msgspec import Struct

from holdfast.api.auth import Identity, Role
from holdfast.cockpit.board import Board
from holdfast.cockpit.pages import Page, Values
from holdfast.controller import Controller
from holdfast.errors import ConfigError, RefusedError, StaleError, UsageError
from holdfast.model.events import PolicyLoaded
from holdfast.model.evidence import Remedy
from holdfast.model.policy import Mode
from holdfast.model.policy_toml import parse_policy

TOML_MAX = 200_000
FORM = "the cockpit's form"


class Draft(Struct, frozen=True):
    """A policy that a person has written, and what there is to say about it."""

    toml: str
    why: str = ""
    wrong: str = ""
    diff: tuple[tuple[str, str], ...] = ()
    """(`add`, `del` or nothing; line)."""
    based_on: int = 0


class SettingsPage:
    """See the module."""

    def __init__(self, controller: Controller, board: Board, presets: Mapping[str, str]) -> None:
        self._controller = controller
        self._board = board
        self._presets = presets

    async def page(self, _page: Page) -> Values:
        """What holds now."""
        return {
            "toml": self._toml(),
            "policy": self._board.policy,
            "modes": list(Mode),
            "rungs": [rung.value for rung in Remedy if rung not in {Remedy.NONE, Remedy.NOTIFY}],
            "brakes": sorted(self._board.fleet.brakes.values(), key=lambda brake: brake.group),
            "preset_names": sorted(self._presets),
            "draft": None,
        }

    def _toml(self) -> str:
        return self._board.policy.toml if self._board.policy is not None else ""

    def check(self, form: Mapping[str, str]) -> Draft:
        """Read a policy without letting it hold."""
        toml = form.get("toml", "").replace("\r\n", "\n")
        why = " ".join(form.get("why", "").split())
        if len(toml) > TOML_MAX:
            return Draft(toml[:TOML_MAX], why, f"it is longer than {TOML_MAX} characters")
        wrong = ""
        try:
            parse_policy(toml, FORM, self._presets)
        except ConfigError as error:
            wrong = str(error)
        now = self._board.policy
        return Draft(toml, why, wrong, difference(self._toml(), toml), now.seq if now is not None else 0)

    async def apply(self, identity: Identity, form: Mapping[str, str]) -> int:
        """Let a policy hold from now on; returns the number of its event.

        Raises:
            RefusedError: not an operator.
            UsageError: it is wrong, changes nothing, or nobody says why.
            StaleError: another policy was loaded since the difference was shown.
        """
        if not identity.may(Role.OPERATOR):
            raise RefusedError(f"the token of {identity.name!r} is {identity.role.one}'s; a policy needs an operator's")
        draft = self.check(form)
        if draft.wrong:
            raise UsageError(f"the policy was not taken: {draft.wrong}")
        if not draft.diff:
            raise UsageError("this is the policy that holds already")
        if not draft.why:
            raise UsageError("say in a few words why: it is kept in the journal")
        if form.get("based_on", "") != str(draft.based_on):
            raise StaleError("another policy was loaded meanwhile: look at the difference again")
        return await self._controller.submit(
            PolicyLoaded(
                id=f"policy:cockpit:{uuid.uuid4().hex}",
                at=self._controller.clock.now(),
                source=f"operator:{identity.name}",
                toml=draft.toml,
                file=f"cockpit, by {identity.name}: {draft.why}"[:2000],
            )
        )


def difference(before: str, after: str) -> tuple[tuple[str, str], ...]:
    """Lines of a unified difference; empty when both are the same."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "holds now", "would hold", lineterm="")
    return tuple(("add" if line[0] == "+" else "del" if line[0] == "-" else "", line) for line in lines if line)
