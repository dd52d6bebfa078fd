"""Real rank processes for the telemetry tests; each is ended with its test."""

import os
import subprocess
import sys
import time

import pytest


def wait_for(condition, deadline_s=20.0, what="the condition"):
    """Poll until `condition()` is true and return its value; fail after the deadline."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    pytest.fail(f"{what} did not come within {deadline_s} s")


@pytest.fixture
def until():
    return wait_for


@pytest.fixture
def start(tmp_path):
    """`start(code, rank=0, **environment)` runs Python code as a rank whose slot lies in tmp_path / "telemetry"."""
    folder = tmp_path / "telemetry"
    folder.mkdir()
    started = []

    def run(code, rank=0, folder=folder, **environment):
        env = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
        env.update({"HOLDFAST_TELEMETRY_DIR": str(folder), "RANK": str(rank), **environment})
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    run.folder = folder
    yield run
    for process in started:
        process.kill()
        process.communicate()
