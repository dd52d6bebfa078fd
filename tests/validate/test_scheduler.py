"""Slurm settings that would defeat recovery, on what a real scontrol printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.validate.results import Item, Verdict
from holdfast.validate.scheduler import judge

RECORDED = Path(__file__).parent / "recorded"
CONFIG = (RECORDED / "scontrol_config_lab.txt").read_text(encoding="utf-8")
PARTITION = (RECORDED / "scontrol_partition_lab.txt").read_text(encoding="utf-8")


def changed(**values: str) -> str:
    """The recorded configuration with other values."""
    config = CONFIG
    for key, value in values.items():
        config, count = re.subn(rf"(?m)^({key}\s*=) .*$", rf"\1 {value}", config)
        assert count == 1, key
    return config


def items(config: str, partition: str = PARTITION, **more: float) -> dict[str, Item]:
    return {item.name.removeprefix("scheduler."): item for item in judge(config, partition, **more)}


def test_the_version_and_every_value_are_shown() -> None:
    """Also what is well has a line."""
    found = items(CONFIG)
    assert found["slurm"].text == "22.05.8"
    assert {"JobRequeue", "ReturnToService", "SlurmdTimeout", "RebootProgram", "partition.main"} <= set(found)


@pytest.mark.parametrize(
    ("values", "name", "verdict", "line"),
    [
        ({"JobRequeue": "0"}, "JobRequeue", Verdict.FAIL, "JobRequeue=1"),
        ({"ReturnToService": "2"}, "ReturnToService", Verdict.WARN, "ReturnToService=1"),
        ({"ReturnToService": "0"}, "ReturnToService", Verdict.WARN, "ReturnToService=1"),
        ({"SlurmdTimeout": "0 sec"}, "SlurmdTimeout", Verdict.FAIL, "SlurmdTimeout=120"),
        ({"SlurmdTimeout": "3600 sec"}, "SlurmdTimeout", Verdict.WARN, "SlurmdTimeout=120"),
        ({"SlurmdTimeout": "20 sec"}, "SlurmdTimeout", Verdict.WARN, "SlurmdTimeout=120"),
        (
            {"SchedulerParameters": "defer,disable_job_shrink"},
            "job_shrink",
            Verdict.WARN,
            "take disable_job_shrink out",
        ),
        ({"KillWait": "600 sec"}, "KillWait", Verdict.WARN, "KillWait=30"),
        ({"MessageTimeout": "60 sec"}, "UnkillableStepTimeout", Verdict.WARN, "UnkillableStepTimeout=300"),
        ({"ResumeTimeout": "60 sec"}, "ResumeTimeout", Verdict.WARN, "ResumeTimeout=900"),
        ({"RebootProgram": "(null)"}, "RebootProgram", Verdict.WARN, "RebootProgram="),
        ({"HealthCheckProgram": "/usr/bin/x"}, "HealthCheckInterval", Verdict.WARN, "HealthCheckInterval=300"),
        ({"Prolog": "/etc/p.sh", "PrologEpilogTimeout": "65534 sec"}, "PrologEpilogTimeout", Verdict.WARN, "=300"),
        ({"MinJobAge": "10 sec"}, "MinJobAge", Verdict.WARN, "MinJobAge=300"),
    ],
)
def test_a_bad_value_comes_with_the_line_for_slurm_conf(
    values: dict[str, str], name: str, verdict: Verdict, line: str
) -> None:
    """Each by itself."""
    item = items(changed(**values))[name]
    assert item.verdict is verdict
    assert item.advice.startswith("slurm.conf: ")
    assert line in item.advice
    assert item.why


def test_a_partition_that_cancels_or_is_down_is_told() -> None:
    """Preemption by cancelling loses the job."""
    cancels = PARTITION.replace("PreemptMode=OFF", "PreemptMode=CANCEL")
    assert items(CONFIG, cancels)["partition.main"].why.startswith("a job that is preempted in main is cancelled")
    down = PARTITION.replace("State=UP", "State=DOWN")
    assert "never starts" in items(CONFIG, down)["partition.main"].why


def test_torchrun_must_wait_longer_than_a_replacement_takes() -> None:
    """Its own default is 600 s; a replacement takes half an hour here."""
    assert items(CONFIG)["rendezvous"].verdict is Verdict.WARN
    assert "join_timeout=2250" in items(CONFIG)["rendezvous"].advice
    assert items(CONFIG, rendezvous_s=3600.0)["rendezvous"].verdict is Verdict.PASS
