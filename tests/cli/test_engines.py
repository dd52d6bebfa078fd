"""The controller's engines, and what others in its process may ask of them."""

from __future__ import annotations

from holdfast.adapters.policy_files import packaged_presets
from holdfast.decide.ladder import set_mode
from holdfast.model.evidence import Remedy
from holdfast.model.policy import Mode, Policy, PolicySet
from holdfast.wiring.engines import Engines


def test_how_far_it_may_go_is_the_newest_engines_word():
    """Nothing before the start; then the group's policy, and a person's word over it."""
    policies = PolicySet(site=Policy(mode=Mode.OBSERVE), groups={"gpu": Policy(mode=Mode.ACT)})
    engines = Engines(policies, packaged_presets())
    assert not engines.acts("gpu", Remedy.QUARANTINE)
    engine = engines(None)
    assert engines.acts("gpu", Remedy.QUARANTINE)
    assert not engines.acts("cpu", Remedy.QUARANTINE)
    set_mode(engine.state.modes, "gpu", "", Mode.ADVISE)
    assert not engines.acts("gpu", Remedy.QUARANTINE)
    assert not engines.acts("gpu", Remedy.REBOOT)


def test_an_engine_of_a_snapshot_is_the_newest_one():
    """A controller that goes on from its snapshot is asked in its state."""
    policies = PolicySet(site=Policy(mode=Mode.ACT))
    engines = Engines(policies, packaged_presets())
    first = engines(None)
    set_mode(first.state.modes, "", "", Mode.OBSERVE)
    engines(first.snapshot())
    assert not engines.acts("gpu", Remedy.QUARANTINE)
