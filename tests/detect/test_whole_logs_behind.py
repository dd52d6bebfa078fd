"""Every whole log behind 70 MiB of steps, where only samples are read for progress: the same verdict and cause.

`make test` takes a few of them, drawn by their names; `make soak` all.
"""

from __future__ import annotations

import random
from importlib import import_module
from pathlib import Path

import pytest
from tests.whole_logs import assert_same_behind, explain, steps

SIZE = 70 << 20
DRAWN = 12


def whole_logs():
    """Name -> text of all whole logs of the tests beside this one."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("test_whole_logs*.py")):
        if path.stem != Path(__file__).stem:
            for value in vars(import_module(f"tests.detect.{path.stem}")).values():
                logs = value if isinstance(value, list) else []
                found |= {log.name: log.text for log in logs if hasattr(log, "verdict")}
    return found


LOGS = whole_logs()


@pytest.fixture(scope="module")
def long_log(tmp_path_factory):
    """A file of steps, which each log is written behind in its turn."""
    path = tmp_path_factory.mktemp("behind") / "job.log"
    some = steps(SIZE)
    path.write_bytes(some)
    yield path, len(some), some.count(b"\n")
    path.unlink()


def assert_right_behind(name, long_log, tmp_path):
    path, size, lines = long_log
    alone = tmp_path / "job.log"
    alone.write_text(LOGS[name])
    with path.open("r+b") as file:
        file.seek(size)
        file.write(alone.read_bytes())
        file.truncate()
    assert_same_behind(name, explain(alone), explain(path), lines)


@pytest.mark.parametrize("name", random.Random(20).sample(sorted(LOGS), DRAWN))
def test_behind_70_mib_of_steps(name, long_log, tmp_path):
    """The same verdict, cause, suspects and line."""
    assert_right_behind(name, long_log, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(LOGS))
def test_each_behind_70_mib_of_steps(name, long_log, tmp_path):
    """The same verdict, cause, suspects and line."""
    assert_right_behind(name, long_log, tmp_path)
