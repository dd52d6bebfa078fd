"""HyperPod's log rules behave as documented: WAITING, HEALTHY, SLOW, HANGING, FAULTED."""

import pytest

from holdfast.detect.hyperpod_rules import LogRuleMonitor, RuleState, finding_rule, log_rules
from holdfast.errors import ConfigError

START = {"name": "JobStart", "logPattern": ".*Experiment configuration.*", "expectedStartCutOffInSeconds": 120}
HANG = {
    "name": "JobHangingDetection",
    "logPattern": r".*\[Epoch 0 Batch \d+.*'training_loss_step': (\d+(\.\d+)?).*",
    "expectedRecurringFrequencyInSeconds": 300,
    "expectedStartCutOffInSeconds": 600,
}
SLOW = {
    "name": "LowThroughput",
    "logPattern": r".*'samples\/sec': (\d+(\.\d+)?).*",
    "metricThreshold": 80,
    "operator": "lteq",
    "metricEvaluationDataPoints": 3,
}
FAULT = {"name": "Bad", "logPattern": ".*RuntimeError: CUDA.*", "faultOnMatch": True}


def watch(*entries):
    return LogRuleMonitor(log_rules(entries), 0.0)


def test_start_cut_off():
    """No match within the cut-off is HANGING; a match in time is HEALTHY for good."""
    late = watch(START)
    assert late.tick(119) == []
    (change,) = late.tick(121)
    assert (change.before, change.after, finding_rule(change.after)) == (
        RuleState.WAITING,
        RuleState.HANGING,
        "hyperpod.hang",
    )
    good = watch(START)
    good.line("INFO Experiment configuration: x", 10)
    assert (good.tick(99999), good.states) == ([], {"JobStart": RuleState.HEALTHY})


def test_recurring():
    """A pattern that stops coming is HANGING, and HEALTHY again when it comes; a NaN loss does not match a number."""
    monitor = watch(HANG)
    line = "[Epoch 0 Batch 7] 'training_loss_step': {}"
    monitor.line(line.format("2.5"), 100)
    assert monitor.tick(399) == []
    monitor.line(line.format("nan"), 399)
    assert [c.after for c in monitor.tick(401)] == [RuleState.HANGING]
    assert [c.after for c in monitor.line(line.format("2.4"), 402)] == [RuleState.HEALTHY]


def test_slow():
    """The metric must be bad for as many matches in a row as asked for; a good one starts the count anew."""
    monitor = watch(SLOW)
    rates = [90, 70, 70, 85, 70, 70]
    assert [c.after for i, r in enumerate(rates) for c in monitor.line(f"'samples/sec': {r}", i)] == [RuleState.HEALTHY]
    assert [c.after for c in monitor.line("'samples/sec': 60.5", 9)] == [RuleState.SLOW]
    assert [c.after for c in monitor.line("'samples/sec': 99", 10)] == [RuleState.HEALTHY]


def test_fault_and_stop():
    """faultOnMatch is final; a stop pattern ends a rule's work."""
    monitor = watch(FAULT)
    assert [c.after for c in monitor.line("RuntimeError: CUDA error", 1)] == [RuleState.FAULTED]
    assert monitor.line("anything", 2) == []
    stopped = watch(HANG | {"stopPattern": ".*training done.*"})
    stopped.line("[Epoch 0 Batch 7] 'training_loss_step': 1", 1)
    stopped.line("training done", 2)
    assert stopped.tick(99999) == []


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (START | {"logpattern": "x"}, r'unknown key "logpattern" \(did you mean "logPattern"'),
        (START | {"expectedStartCutOffInSeconds": "120"}, "wrong type"),
        (SLOW | {"operator": "<"}, 'operator "<" is not one of'),
        (SLOW | {"logPattern": "samples"}, "needs a group"),
        (START | {"logPattern": "(a+)+b"}, "catastrophic"),
        ({"name": "x"}, "logPattern is missing"),
    ],
)
def test_mistakes_are_named(entry, message):
    """A wrong entry is named with its index and name."""
    with pytest.raises(ConfigError, match=message):
        log_rules([entry], file="job.yaml")
