"""HyperPod's log rules and never-seen lines, live in `holdfast run`: real launchers, real processes, the real journal."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from holdfast.detect.hyperpod_rules import RuleState, log_rules
from holdfast.detect.log_rule_watch import TOLD_MAX, LogRuleWatch
from holdfast.launch.novel_lines import NovelLines, novelty_file, read_known
from holdfast.model.cluster import JobKey

MANIFEST = """\
apiVersion: sagemaker.amazonaws.com/v1
kind: HyperPodPyTorchJob
spec:
  runPolicy:
    logMonitoringConfiguration:
"""


def rules_file(tmp_path: Path, *rules: str) -> str:
    """A manifest with these rules, as a person moving over from HyperPod has it."""
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST + "".join(textwrap.indent(textwrap.dedent(rule), "      ") for rule in rules))
    return str(path)


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(text)
    return str(path)


def found(run, rule: str):
    return run.wait_event("finding_seen", lambda event: event.finding.rule == rule).finding


STEPS = """
import os, time
first = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == 0
for step in range(1, 60):
    print(f"iteration {step:8d}/     100 | consumed samples: {step} | elapsed time per iteration (ms): 50.0 | "
          f"lm loss: 2.5E+00 |", flush=True)
    time.sleep(0.05)
    EXTRA
"""


def test_a_line_that_stops_coming_restarts_the_job(launched, tmp_path: Path):
    """HANGING after the frequency: a finding, stacks, and a new attempt whose rules start anew."""
    body = STEPS.replace("EXTRA", "while first and step == 5: time.sleep(0.1)")
    rules = rules_file(
        tmp_path, "- {name: Steps, logPattern: '.*iteration +(\\d+).*', expectedRecurringFrequencyInSeconds: 2}\n"
    )
    run = launched("--standbys", "0", "--log-rules", rules, script(tmp_path, body))
    hang = found(run, "hyperpod.hang")
    assert "no line matched for 2 s" in hang.summary
    assert hang.attempt == 0
    run.wait_event("attempt_started", lambda event: event.attempt == 1)
    assert run.wait() == 0
    ends = [event.stopped for event in run.events("attempt_ended")]
    assert ends == [True, False]


def test_a_job_that_does_not_begin_in_time_is_restarted(launched, tmp_path: Path):
    """expectedStartCutOffInSeconds counts from the start of the attempt."""
    body = "import os, time\nif int(os.environ['TORCHELASTIC_RESTART_COUNT']) == 0: time.sleep(60)\nprint('Experiment configuration')\n"
    rules = rules_file(
        tmp_path, "- {name: JobStart, logPattern: '.*Experiment configuration.*', expectedStartCutOffInSeconds: 2}\n"
    )
    run = launched("--standbys", "0", "--log-rules", rules, script(tmp_path, body))
    assert "no line matched within 2 s of the start" in found(run, "hyperpod.hang").summary
    assert run.wait() == 0


def test_a_line_that_stands_for_a_fault_restarts_the_job_at_once(launched, tmp_path: Path):
    """faultOnMatch: the rank lives on, the line alone ends the attempt; the rank and its line are named."""
    body = STEPS.replace("EXTRA", "if first and step == 3: print('optimizer went boom', flush=True); time.sleep(60)")
    rules = rules_file(tmp_path, "- {name: Boom, logPattern: '.*went boom.*', faultOnMatch: true}\n")
    run = launched("--standbys", "0", "--log-rules", rules, script(tmp_path, body))
    fault = found(run, "hyperpod.fault")
    assert (fault.place.rank, fault.evidence[0].text) == (0, "optimizer went boom")
    assert run.wait() == 0
    story = (run.job_dir / "story.txt").read_text()
    assert 'Log rule "Boom" is FAULTED' in story


def test_a_slow_metric_is_told_and_a_stop_pattern_ends_a_rule(launched, tmp_path: Path):
    """SLOW after so many bad values in a row; a rule that met its stop pattern neither hangs nor slows any more."""
    body = (
        "import time\nprint('train ends', flush=True)\n"
        + "".join(
            f"print({line!r}, flush=True); time.sleep(0.2)\n"
            for line in ["samples/sec: 90.5", "samples/sec: 70", "samples/sec: 60", "samples/sec: 50", "good bye"]
        )
        + "time.sleep(3)\n"
    )
    rules = rules_file(
        tmp_path,
        "- {name: Slow, logPattern: '.*samples/sec: (\\d+(\\.\\d+)?).*', metricThreshold: 80, operator: lteq, metricEvaluationDataPoints: 3}\n",
        "- {name: Stopped, logPattern: '.*never.*', expectedStartCutOffInSeconds: 1, stopPattern: '.*train ends.*'}\n",
    )  # fmt: skip
    run = launched("--max-restarts", "0", "--log-rules", rules, "--", "python", script(tmp_path, body))
    slow = found(run, "hyperpod.slow")
    assert '"Slow" is SLOW: 50 is lteq 80, 3 times in a row' in slow.summary
    run.wait()
    assert [e.finding.rule for e in run.events("finding_seen")] == ["hyperpod.slow"]


def test_rules_come_from_holdfast_toml(launched, tmp_path: Path):
    """`log_rules` in holdfast.toml, relative to it, serves every job that is started beside it."""
    rules_file(tmp_path, "- {name: Boom, logPattern: '.*boom.*', faultOnMatch: true}\n")
    (tmp_path / "holdfast.toml").write_text('log_rules = "job.yaml"\n')
    run = launched("--max-restarts", "0", "--", "bash", "-c", "echo boom; sleep 1")
    found(run, "hyperpod.fault")
    run.wait()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- {name: x, logpattern: y}", 'logMonitoringConfiguration[0] "x": unknown key "logpattern"'),
        ("a: [1, 2", "is not YAML"),
        ("a: 1", "holds no logMonitoringConfiguration"),
        ("- 7", "is not a rule"),
    ],
)
def test_bad_rules_are_refused_before_anything_starts(launched, tmp_path: Path, text: str, says: str):
    """One sentence that names the file and the mistake; no attempt is begun."""
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    run = launched("--log-rules", str(path), "--", "true")
    assert run.wait() == 78
    assert says in run.text()
    assert "rules.yaml" in run.text()


def test_lines_never_printed_before_are_told_when_no_rule_matches(launched, tmp_path: Path):
    """A rank that exits 3 after a line no rule knows: the story quotes it; what it prints when well is kept in the folder."""
    body = STEPS.replace(
        "EXTRA",
        "print(f'shard {step} of the corpus opened', flush=True)\n"
        "    if step == 30: print('flux capacitor 3 reports brownout', flush=True); os._exit(3)",
    )
    run = launched("--standbys", "0", "--max-restarts", "1", script(tmp_path, body))
    new = found(run, "novelty.line")
    assert new.evidence[0].text == "flux capacitor 3 reports brownout"
    assert run.wait() != 0
    assert (
        'never while the job was well: "flux capacitor 3 reports brownout"' in (run.job_dir / "story.txt").read_text()
    )
    (kept,) = run.job_dir.glob("novelty-*.json")
    assert ["shard", "#", "of", "the", "corpus", "opened"] in json.loads(kept.read_text())
    assert "brownout" not in kept.read_text()


def test_nothing_is_new_where_a_rule_says_why(launched, tmp_path: Path):
    """A traceback explains the end: lines that are merely new are not told beside it."""
    body = STEPS.replace("EXTRA", "if step == 30: print('flux capacitor', flush=True); raise ValueError('bad shape')")
    run = launched("--standbys", "0", "--max-restarts", "0", script(tmp_path, body))
    assert run.wait() == 1
    rules = {event.finding.rule for event in run.events("finding_seen")}
    assert "novelty.line" not in rules
    assert any(rule.startswith("python.") for rule in rules)


# --- without processes ---


def watch_of(*entries, at=0.0):
    from holdfast.adapters.catalogue_files import read_catalogue

    return LogRuleWatch(
        log_rules(entries), at, job=JobKey("c", "7"), node="n1", attempt=0, rank=0, id_prefix="p", catalogue=read_catalogue
    )  # fmt: skip


def test_a_rule_that_flaps_falls_silent():
    """Each finding has an id of its own, and there are at most so many of them."""
    watch = watch_of({"name": "r", "logPattern": ".*x.*", "expectedRecurringFrequencyInSeconds": 5})
    ids = []
    for turn in range(20):
        watch.lines([b"x"], turn * 20.0)
        ids += [finding.id for finding in watch.tick(turn * 20.0 + 10)]
    assert len(ids) == len(set(ids)) == TOLD_MAX
    assert watch.states == {"r": RuleState.HANGING}


def test_time_is_looked_at_once_a_second():
    """Between two looks nothing is judged by time; lines are judged at once."""
    watch = watch_of({"name": "r", "logPattern": ".*x.*", "expectedStartCutOffInSeconds": 0.5})
    assert watch.tick(0.9) == []
    assert len(watch.tick(1.0)) == 1


def test_only_lines_that_the_job_lived_on_after_are_learned(tmp_path: Path):
    """Lines before the last step are known, later ones are not; the file is bounded, shared, and may be torn."""
    novel = NovelLines(tmp_path, "n1")
    novel.lines(0, [b"warming up", b"cache filled"], 1.0)
    novel.progress(2.0)
    novel.lines(0, [b"warming up", b"strange thing"], 3.0)
    assert novel.strangest(0) == ("strange thing",)
    novel.save(3.0, now=True)
    assert not read_known(tmp_path).is_new("cache filled")
    assert read_known(tmp_path).is_new("strange thing")
    novelty_file(tmp_path, "n2").write_text("[[")
    assert NovelLines(tmp_path, "n3").strangest(0) == ()
    assert len(read_known(tmp_path)) == 2


def test_a_flood_is_learned_at_a_bounded_rate(tmp_path: Path):
    """A hundred thousand different lines in one second are not all taken apart."""
    novel = NovelLines(tmp_path, "n1")
    for start in range(0, 100_000, 400):
        novel.lines(
            0, [f"{'abcdefghij'[i % 10] * (1 + i // 10 % 97)} {i:b}".encode() for i in range(start, start + 400)], 1.0
        )
        novel.progress(1.5)
    assert novel.known.learned <= 301


def test_many_lines_read_at_once_are_learned_up_to_the_last_step_but_one(tmp_path: Path):
    """A launcher that reads late sees lines and steps in one go: their order tells what the job lived on after."""
    novel = NovelLines(tmp_path, "n1")
    novel.lines(0, [b"warming up", b"step 1 of 9", b"cache filled", b"step 2 of 9", b"strange thing"], 1.0)
    novel.progress(1.0)
    novel.proven(0, "step 2 of 9", 1.0)
    assert not novel.known.is_new("cache filled")
    assert novel.strangest(0) == ("strange thing",)


def test_each_state_is_said_once():
    """From WAITING on, with the reason, for the launcher's lines that people read."""
    watch = watch_of({"name": "r", "logPattern": ".*x.*", "expectedRecurringFrequencyInSeconds": 5})
    assert watch.said() == ('Log rule "r" is WAITING',)
    watch.lines([b"x"], 1.0)
    watch.tick(7.0)
    assert watch.said() == ('Log rule "r" is HEALTHY: matched', 'Log rule "r" is HANGING: no line matched for 5 s')
    assert watch.said() == ()
