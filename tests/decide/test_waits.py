"""How long what a finding tells of had lasted: which rules are waits, and what a straggler costs the others."""

import pytest

from holdfast.decide.waits import waited_s, waited_share
from holdfast.model.evidence import Finding


@pytest.mark.parametrize(
    "rule",
    [
        "nccl.timeout",
        "nccl.watchdog.stuck",
        "gloo.timeout",
        "rccl.timeout",
        "jax.timeout",
        "horovod.stalled",
        "hang.step",
        "hang.rank",
        "hyperpod.hang",
    ],
)
def test_a_wait_in_vain_is_as_old_as_it_says(rule):
    """Time-outs of every library and hangs are seen at their end: they tell how long they had waited."""
    assert waited_s(Finding(id="f", rule=rule, at=1000.0, captures={"elapsed_ms": "90000"})) == 90.0


@pytest.mark.parametrize("rule", ["nccl.remote", "exit.code.1", "nvidia.xid.79", "slurm.time_limit", "data.bug"])
def test_other_findings_waited_for_nothing(rule):
    """A finding of another rule is as old as its line, whatever numbers stand in it."""
    assert waited_s(Finding(id="f", rule=rule, at=1000.0, captures={"elapsed_ms": "90000"})) == 0.0


def test_a_hang_says_how_long_nothing_moved():
    """The watcher's own number is taken, and a misprint of more than a day counts as a day."""
    assert waited_s(Finding(id="f", rule="hang.step", at=0.0, captures={"stuck_s": "12.5"})) == 12.5
    assert waited_s(Finding(id="f", rule="hang.step", at=0.0, captures={"stuck_s": "999999"})) == 86400.0
    assert waited_s(Finding(id="f", rule="hang.step", at=0.0, captures={"stuck_s": "soon"})) == 0.0


@pytest.mark.parametrize(
    ("slow", "usual", "share"),
    [("4.0", "1.0", 0.75), ("0.5", "0.4", 0.2), ("0.05", "0.01", 0.8), ("1.0", "2.0", 0.0), ("0", "1", 0.0), ("", "", 0.0)],
)  # fmt: skip
def test_the_share_that_others_wait_for_a_straggler(slow, usual, share):
    """Of each slow step the others wait for what it takes longer than usual, also where steps take under a second."""
    finding = Finding(id="f", rule="straggler.rank", at=0.0, captures={"slow_step_s": slow, "usual_step_s": usual})
    assert waited_share(finding) == pytest.approx(share)
