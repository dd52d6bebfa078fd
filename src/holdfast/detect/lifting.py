"""What would lift a quarantine: said beside the evidence that caused it, on the node's page and in the finding. Pure.

A state that a check watches lifts itself when the check finds it well; what has happened stays true, and only a repair
that passes validation or a person's word ends what follows from it. No time passes here.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.detect.meaning import Trait, Weight, has, meaning

BY_REPAIR = "a repair that passes validation, or `holdfast node confirm-healthy`"


def lifted_by(rule: str) -> str:
    """What ends the consequences of a finding of this rule, as the end of a sentence."""
    if _is_state(rule):
        return f"a look that finds it well ({rule}), {BY_REPAIR}"
    if meaning(rule).weight is Weight.LOST:
        return f"the node's agent beating again after a boot, {BY_REPAIR}"
    return BY_REPAIR


def all_lifted_by(rules: Sequence[str]) -> str:
    """What would lift a quarantine with this evidence; empty without any."""
    if not rules:
        return ""
    looked = [rule for rule in rules if _is_state(rule)]
    if len(looked) == len(rules):
        return f"looks that find it well ({', '.join(looked)}), {BY_REPAIR}"
    return BY_REPAIR


def _is_state(rule: str) -> bool:
    """Whether a check looks at what the rule tells of."""
    return has(rule, Trait.STATE) and not has(rule, Trait.EVENT)
