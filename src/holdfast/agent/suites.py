"""The suites of `holdfast validate` that a node must pass before it takes work again. Called by `health.validate`.

Nothing is kept: a run in the `validating` step is judged and told in one sentence. Time: that of the suites, each step
within its limit; the policy's `waits.validate_s` must leave room for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.adapters.probes.check import NodeConfig
from holdfast.errors import HoldfastError
from holdfast.ports import Clock
from holdfast.validate.place import Place
from holdfast.validate.registry import chosen
from holdfast.validate.results import Verdict
from holdfast.validate.session import Session, run
from holdfast.validate.under_test import Asked


async def suites_passed(config: NodeConfig, node: str, env: Mapping[str, str], clock: Clock) -> tuple[bool, str]:
    """Run them on this node. Returns (passed, one sentence); a setting that is wrong does not let the node back."""
    try:
        asked = Asked(suites=chosen(config.validate_suites), baseline=config.validate_baseline)
        found = await run(Session(asked=asked, place=Place(node=node), env=env, clock=clock))
    except HoldfastError as error:
        return False, f"validate_suites: {error}"
    if found is None:
        return False, "validate_suites: nothing was measured"
    bad = [item for one in found.nodes for item in one.items if item.verdict is Verdict.FAIL]
    if bad:
        return False, f"{bad[0].name}: {bad[0].why or bad[0].shown}"
    return True, f"suites {', '.join(config.validate_suites)} passed in {found.seconds:.0f} s"
