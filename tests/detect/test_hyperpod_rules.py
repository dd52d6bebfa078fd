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
        (START | {"logpattern": "x"}, r'unknown key "logpattern"; did you mean "logPattern"'),
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


def test_patterns_begin_at_the_start_of_the_line():
    """A pattern without `.*` in front matches only at the start of a line, as `re.match` does in HyperPod's agent."""
    bare = watch({"name": "r", "logPattern": "ERROR", "faultOnMatch": True})
    assert bare.line("no ERROR here", 1) == []
    assert [c.after for c in bare.line("ERROR: here", 2)] == [RuleState.FAULTED]
    either = watch({"name": "r", "logPattern": ".*boom|crash", "faultOnMatch": True})
    assert either.line("no crash", 1) == []
    assert [c.after for c in either.line("a boom", 2)] == [RuleState.FAULTED]


def test_the_metric_is_the_last_in_the_line():
    """A greedy `.*` in front captures the last number of the line, as it does there."""
    monitor = watch({"name": "r", "logPattern": r".*rate=(\d+)", "metricThreshold": 5, "operator": "lt"})
    assert [c.after for c in monitor.line("rate=9 rate=3", 1)] == [RuleState.SLOW]


def test_a_fault_goes_before_a_stop():
    """One line that is both a fault and the stop is a fault; what hangs tells for how long."""
    monitor = watch(FAULT | {"stopPattern": ".*RuntimeError.*"})
    (change,) = monitor.line("RuntimeError: CUDA error", 1)
    assert (change.after, change.text) == (RuleState.FAULTED, "RuntimeError: CUDA error")
    (late,) = watch(START).tick(130)
    assert (late.for_s, late.why) == (130, "no line matched within 120 s of the start")
