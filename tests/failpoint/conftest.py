"""Real rank processes that are open to drills; each is ended with its test."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.failpoint import site_path
from holdfast.failpoint.command import FaultCommand, abort_name, command_name, encode, failed_name, fired_name
from holdfast.telemetry.signals import STACK_SIGNAL
from holdfast.telemetry.slot import SlotError, read_slot
from holdfast.telemetry.stacks import parse_faulthandler

# A script of steps without end, as most drills want it.
STEPS = """
import sys, time
from holdfast import telemetry
i = 0
while True:
    with telemetry.step(i):
        time.sleep(0.002)
    i += 1
"""


def wait_for(condition, deadline_s=30.0, what="the condition"):
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    pytest.fail(f"{what} did not come within {deadline_s} s")


class Job:
    """The folders of a job on this node, and its rank processes."""

    def __init__(self, folder):
        self.drills = folder / "drills"
        self.telemetry = folder / "telemetry"
        self.drills.mkdir()
        self.telemetry.mkdir()
        self.processes = []

    def start(self, code, rank=0, **environment):
        env = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_") and k != "RANK"}
        env |= {"HOLDFAST_DRILL_DIR": str(self.drills), "HOLDFAST_TELEMETRY_DIR": str(self.telemetry)}
        env |= {"PYTHONPATH": site_path(), **environment}
        if rank is not None:
            env["RANK"] = str(rank)
        script = Path(self.telemetry.parent, f"script-{len(self.processes)}.py")
        script.write_text(code)
        process = subprocess.Popen(
            [sys.executable, str(script)],
            env={k: v for k, v in env.items() if v is not None},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def write(self, name, text=""):
        new = self.drills / f".{name}.new"
        new.write_text(text)
        new.rename(self.drills / name)

    def command(self, kind, drill_id="d1", ranks=(0,), at_step=None, attempt=None, **params):
        self.write(command_name(drill_id), encode(FaultCommand(drill_id, kind, ranks, at_step, attempt, params)))

    def abort(self, drill_id="d1"):
        self.write(abort_name(drill_id))

    def _word(self, name):
        path = self.drills / name
        return json.loads(wait_for(lambda: path.exists() and path.read_text(), what=name))

    def fired(self, drill_id="d1", rank=0):
        return self._word(fired_name(drill_id, rank))

    def failed(self, drill_id="d1", rank=0):
        return self._word(failed_name(drill_id, rank))

    def has_fired(self, drill_id="d1", rank=0):
        return (self.drills / fired_name(drill_id, rank)).exists()

    def slot(self, rank=0):
        return read_slot(self.telemetry / f"rank-{rank:05d}.slot")

    def reach(self, step, rank=0):
        """Wait until the rank has ended a step not below `step`."""

        def reached():
            try:
                ended = self.slot(rank).step_ended
            except SlotError:
                return False
            return ended is not None and ended >= step

        wait_for(reached, what=f"step {step} of rank {rank}")

    def main_stack(self, rank=0):
        """Functions of the main thread by its own faulthandler, innermost first, which works under a held lock."""
        view = self.slot(rank)
        file = self.telemetry / f"rank-{rank:05d}.stacks"
        size = file.stat().st_size
        os.kill(view.pid, STACK_SIGNAL)

        def main_thread():
            stacks = parse_faulthandler(file.read_bytes()[size:].decode())
            # The main thread is the one whose outermost frame is the script's; it is dumped last.
            return [s for s in stacks if s.frames and s.frames[-1].function == "<module>"]

        return [frame.function for frame in wait_for(main_thread, what="the main thread's stack")[0].frames]

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    yield job
    job.end()


@pytest.fixture
def steps():
    return STEPS


@pytest.fixture
def until():
    return wait_for
