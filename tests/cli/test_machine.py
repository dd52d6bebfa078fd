"""What `holdfast doctor` says of the machine's own tools."""

from pathlib import Path

import pytest

from holdfast.cli import machine
from holdfast.cli.machine import State


def programs(folder: Path, **said: str) -> None:
    for name, script in said.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"sinfo": "echo slurm 25.11.7"}, (State.OK, "slurm 25.11.7")),
        (
            {"sinfo": "exit 1", "slurmd": "echo slurm 24.11.5"},
            (State.ABSENT, "slurm 24.11.5, but no cluster is configured"),
        ),
        (
            {"sinfo": "exit 1", "slurmd": "exit 1"},
            (State.ABSENT, "its commands are here, but no cluster is configured"),
        ),
    ],
)
def test_slurms_version_is_named_also_without_a_cluster(tmp_path, monkeypatch, said, expected):
    """Without slurm.conf Slurm's commands fail before they say theirs; the daemons do not."""
    programs(tmp_path, **said)
    monkeypatch.setattr(machine, "search_path", lambda path: path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.slurm() == expected
