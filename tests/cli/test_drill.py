"""`holdfast drill list`, `show`, and what it refuses; running drills is tests/drill/test_drills_end_to_end.py."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from holdfast.cli.drill import app
from holdfast.drill.scenario import shipped
from holdfast.errors import ConfigError, NotFoundError, UsageError


def invoke(*argv):
    return CliRunner().invoke(app, list(argv))


def test_list_shows_every_drill():
    """By name, for people and as JSON."""
    out = invoke("list").stdout
    assert all(name in out for name in shipped())
    form = json.loads(invoke("list", "--json").stdout)
    assert form["version"] == 1
    assert {drill["name"] for drill in form["drills"]} == set(shipped())


def test_show_prints_a_file_that_can_be_copied(tmp_path):
    """What `show` prints is a scenario again."""
    out = invoke("show", "straggler").stdout
    path = tmp_path / "mine.toml"
    path.write_text(out)
    again = json.loads(invoke("show", str(path), "--json").stdout)
    assert again["name"] == "straggler"
    assert again["params"]["extra_s"] == 0.3


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["run"], UsageError),
        (["run", "--all", "kill9"], UsageError),
        (["run", "kil9"], NotFoundError),
        (["show", "nothing"], NotFoundError),
        (["run", "kill9", "--launcher", "torchrun"], UsageError),
        (["run", "kill9", "--out", "/proc"], UsageError),
    ],
)
def test_mistakes_are_refused_before_anything_starts(argv, error):
    """Names, files and folders are checked first."""
    assert isinstance(invoke(*argv).exception, error)


def test_a_wrong_scenario_is_one_sentence_with_its_line(tmp_path):
    """Through the real command: exit code 78 and no traceback."""
    path = tmp_path / "mine.toml"
    path.write_text('name = "x"\nkind = "kill9"\n[expect]\nlost_step_max = 3\n')
    assert isinstance(invoke("run", str(path)).exception, ConfigError)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "drill", "run", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 78
    assert f"{path}:4:" in done.stderr
    assert "lost_steps_max" in done.stderr
    assert "Traceback" not in done.stderr
