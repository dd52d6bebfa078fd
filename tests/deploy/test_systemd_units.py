"""The shipped systemd units start commands that exist, restart, and are hardened."""

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.service"))
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "PrivateTmp": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectControlGroups": "yes",
    "RestrictSUIDSGID": "yes",
    "RestrictNamespaces": "yes",
    "LockPersonality": "yes",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
    "Restart": "always",
}


def settings(unit):
    """Key -> its last value, of all sections."""
    lines = [line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_hardened_and_restarted(unit):
    """Every unit has the same hardening; what it leaves out on purpose is said in it."""
    found = settings(unit)
    assert {key: found.get(key) for key in HARDENED} == HARDENED
    assert "Not set on purpose:" in unit.read_text()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_its_command_exists(unit):
    """The command and the options on its line are those of this version."""
    words = shlex.split(settings(unit)["ExecStart"])
    assert Path(words[0]).name == "holdfast"
    shown = CliRunner().invoke(app, [words[1], "--help"])
    assert shown.exit_code == 0, shown.output
    for option in (word for word in words if word.startswith("--")):
        assert option in shown.output
