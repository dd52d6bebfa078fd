"""HyperPod's log rules in the agent: real files, written by real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.probes.check import LogFile
from holdfast.agent.job_log_rules import held_open
from holdfast.agent.job_logs import LogWatch
from holdfast.agent.node_facts import NodeIdentity
from holdfast.detect.matcher import Matcher
from holdfast.model.evidence import Finding
from parsers import ParserInside

WRITER = """
import sys, time
with open(sys.argv[1], "a", buffering=1) as out:
    for step in range(3):
        print(f"step {step} of 900", file=out)
    print("WROTE", flush=True)
    sys.stdin.readline()
"""
RULES = "- {name: Steps, logPattern: '.*step (\\d+) of.*', expectedRecurringFrequencyInSeconds: 1}\n"


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return read_matcher(read_catalogue())


class SetClock(SystemClock):
    """A machine whose wall clock can be set."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


def watched(
    folder: Path,
    rules: str,
    matcher: Matcher,
    during: Callable[[], object],
    enough: Callable[[list], bool],
    clock: SystemClock | None = None,
):
    """Findings of an agent's log watch over `*.out` in this folder, until there are enough."""
    (folder / "rules.yaml").write_text(rules)
    found: list[Finding] = []

    async def body() -> None:
        log = LogFile(path=f"{folder}/*.out", log_rules=str(folder / "rules.yaml"))
        identity = NodeIdentity(name="node07", boot_id="b", instance_id="i")
        watch = LogWatch(
            [log],
            identity=identity,
            parser=ParserInside(matcher),
            clock=clock or SystemClock(),
            on_finding=found.append,
        )
        work = asyncio.create_task(watch.run())
        try:
            await asyncio.sleep(0)
            during()
            watch.find()
            deadline = time.monotonic() + 20.0
            while not enough(found) and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    asyncio.run(body())
    return found


def write(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "WROTE\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=90)


def test_a_job_that_stops_printing_hangs_while_its_process_lives(tmp_path: Path, matcher: Matcher):
    """The finding names the node, by which the controller knows the job; its writer still has the file open."""
    writers: list[subprocess.Popen[str]] = []
    try:
        found = watched(tmp_path, RULES, matcher, lambda: writers.append(write(tmp_path / "job.out")), bool)
        assert held_open(str(tmp_path / "job.out"))
    finally:
        for writer in writers:
            end(writer)
    assert [(f.rule, f.place.node, f.job) for f in found] == [("hyperpod.hang", "node07", None)]
    assert "no line matched for 1 s" in found[0].summary
    assert not held_open(str(tmp_path / "job.out"))


def test_the_output_of_a_job_that_is_over_does_not_hang(tmp_path: Path, matcher: Matcher):
    """Nobody has the file open any more: silence is no hang; a fault that it holds is told all the same."""
    rules = RULES + "- {name: Boom, logPattern: '.*step 2 of.*', faultOnMatch: true}\n"
    began = time.monotonic()
    found = watched(
        tmp_path, rules, matcher, lambda: end(write(tmp_path / "job.out")), lambda _: time.monotonic() - began > 4.0
    )
    assert [f.rule for f in found] == ["hyperpod.fault"]


@pytest.mark.parametrize("by_s", [-3600.0, 3600.0])
def test_a_rules_fault_is_told_by_the_clock_as_it_is_set_now(tmp_path: Path, matcher: Matcher, by_s: float):
    """The agent's beats tell of that clock: by another one the controller would take the fault for an old one."""
    clock = SetClock()

    def set_clock_and_print() -> None:
        clock.ahead_s = by_s
        (tmp_path / "job.out").write_text("step 2 of 900\n")

    rules = "- {name: Boom, logPattern: '.*step 2 of.*', faultOnMatch: true}\n"
    found = watched(tmp_path, rules, matcher, set_clock_and_print, bool, clock)
    assert [f.rule for f in found] == ["hyperpod.fault"]
    assert abs(found[0].at - clock.now()) < 60.0


def test_bad_rules_leave_the_rest_of_the_watch_alone(tmp_path: Path, matcher: Matcher):
    """A file of rules that cannot be used is told; the catalogue's rules still read the output."""

    def print_oom() -> None:
        (tmp_path / "job.out").write_text("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n")

    found = watched(tmp_path, "- {name: x}\n", matcher, print_oom, bool)
    assert [f.rule for f in found] == ["torch.cuda.oom"]
