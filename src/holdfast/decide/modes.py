"""How far Holdfast may go with each rung, in each group: observe, advise or act.

The engine asks before every order that changes the world. Observe judges as act does: it diagnoses, tells people,
counts the fault, and writes down each order that it would have given (status `observed`); none is carried out. A
person's SET_MODE at run time goes before the policy, the more particular word before the more general one. No time
passes here.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.model.evidence import Remedy
from holdfast.model.policy import Mode, Policy


def mode_of(policy: Policy, overrides: Mapping[str, Mapping[str, Mode]], group: str, rung: Remedy) -> Mode:
    """The mode that holds for a rung: override (group and rung, group, rung, all), then the policy's."""
    if overrides:
        for name in (group, "") if group else ("",):
            spoken = overrides.get(name)
            if spoken:
                for key in (str(rung), ""):
                    if key in spoken:
                        return spoken[key]
    return policy.mode_for(rung)


WOULD = {
    Remedy.RESTART_IN_PLACE: "restarted in place",
    Remedy.EVACUATE: "asked to save and stop",
    Remedy.REQUEUE: "requeued",
    Remedy.STOP: "given up",
    Remedy.QUARANTINE: "quarantined",
    Remedy.RESET_GPU: "repaired by a GPU reset",
    Remedy.REBOOT: "repaired by a reboot",
    Remedy.REPLACE: "replaced",
    Remedy.RETIRE: "retired",
}
"""What would have been done (observe), said of a job or node: `n2 would have been quarantined`."""


def set_mode(overrides: dict[str, dict[str, Mode]], group: str, rung: str, mode: Mode) -> None:
    """Keep a person's word. Without a rung it replaces what was said about single rungs of that group."""
    if not rung:
        overrides[group] = {"": mode}
    else:
        overrides.setdefault(group, {})[rung] = mode
