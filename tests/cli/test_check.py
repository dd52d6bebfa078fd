"""`holdfast check` as people and Slurm run it: Nagios codes, almost no environment, scripts of deploy/slurm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.adapters.emulated import devices
from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices
from holdfast.adapters.probes.rounds import uptime_s

GPUS = [(f"0000:{bus}:00", f"GPU-{bus}") for bus in ("53", "64", "75", "86", "97", "a8", "b9", "ca")]
SCRIPTS = Path(__file__).resolve().parents[2] / "deploy" / "slurm"


@pytest.fixture
def node(tmp_path):
    devices.prepare(tmp_path / "node" / "devices", GPUS, machine="i-1", booted="b-1")
    return tmp_path / "node"


def inject(node, kind, **hit):
    with Devices(node / "devices" / "state") as found:
        FAULTS[kind].apply(found, Hit(**hit))


def check(*argv, node=None):
    env = {} if node is None else {"HOLDFAST_NODE_DIR": str(node)}
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "check", *argv], capture_output=True, text=True, timeout=90, env=env
    )


@pytest.fixture
def program(tmp_path, node):
    """`holdfast` as the scripts call it: one program, over the emulated node."""
    path = tmp_path / "holdfast"
    path.write_text(f'#!/bin/sh\nHOLDFAST_NODE_DIR={node} exec {sys.executable} -m holdfast.cli.main "$@"\n')
    path.chmod(0o755)
    return path


def script(name, program, **env):
    known = {"HOLDFAST": str(program), **env}
    return subprocess.run([SCRIPTS / name], capture_output=True, text=True, timeout=90, env=known)


def test_well_bad_and_unknown(node):
    """0, 2 and 3 in an empty environment; the line says what and where."""
    assert check("gpu-*", node=node).returncode == 0
    inject(node, "ecc_corrected", gpu=1, value=5)
    assert check("gpu-ecc", node=node).returncode == 0
    inject(node, "ecc", gpu=3, value=2)
    bad = check("gpu-ecc", "gpu-remap", "--quiet", node=node)
    assert bad.returncode == 2
    assert "CRITICAL  gpu-ecc    2 uncorrectable memory errors on GPU 3" in bad.stdout
    inject(node, "nvml_garbage")
    unknown = check("gpu-ecc", node=node)
    assert (unknown.returncode, unknown.stdout.startswith("UNKNOWN")) == (3, True)


def test_json_names_rule_and_place(node):
    """A stable form for scripts."""
    inject(node, "nvlink", gpu=2, link=7)
    config = node / "agent.toml"
    config.write_text("[profile]\nnvlinks_per_gpu = 18\n")
    form = json.loads(check("gpu-nvlink", "--json", "--config", str(config), node=node).stdout)
    assert (form["version"], form["exit_code"], form["checks"][0]["status"]) == (1, 2, "critical")
    (problem,) = form["checks"][0]["problems"]
    assert (problem["rule"], problem["place"]["gpu"], problem["place"]["link"]) == ("check.gpu_nvlink_down", 2, "7")


def test_a_wrong_name_is_unknown_and_says_the_right_one():
    """3, not 2: a typing error must not look like a bad node."""
    wrong = check("gpu-eck")
    assert (wrong.returncode, 'did you mean "gpu-ecc"' in wrong.stderr) == (3, True)
    both = check("gpu-ecc", "--mode", "deep")
    assert (both.returncode, "not both" in both.stderr) == (3, True)


def test_list_and_profile(node):
    """All checks with what they need; the node as a profile that can be kept."""
    listed = json.loads(check("--list", "--json").stdout)["checks"]
    assert {"gpu-ecc", "dcgm-diag-4", "fi-pingpong", "left-over"} <= {one["check"] for one in listed}
    assert all(one["needs"] and one["limit_s"] > 0 for one in listed)
    printed = check("--profile", node=node).stdout
    assert 'gpus = 8\ngpu_name = "NVIDIA H100 80GB HBM3 (emulated)"\nnvlinks_per_gpu = 18' in printed
    (node / "agent.toml").write_text(printed)
    assert check("gpu-*", "cpu", "--config", str(node / "agent.toml"), node=node).returncode == 0


def test_the_prolog_drains_for_a_bad_node_only(node, program, tmp_path):
    """Well: 0. Critical: 1. A hung or missing tool, and a `holdfast` that was called wrongly: 0."""
    good = script("prolog.sh", program)
    assert (good.returncode, "CRITICAL" in good.stdout) == (0, False)
    inject(node, "row_remap", gpu=4)
    bad = script("prolog.sh", program)
    assert (bad.returncode, "CRITICAL  gpu-remap" in bad.stdout) == (1, True)
    wrong = tmp_path / "wrong"
    wrong.write_text("#!/bin/sh\necho 'no such option: --mode'\nexit 2\n")
    wrong.chmod(0o755)
    assert script("prolog.sh", wrong).returncode == 0
    assert script("epilog.sh", tmp_path / "missing").returncode == 0


@pytest.mark.parametrize(
    ("age_s", "of_boot", "lines", "env", "expected"),
    [
        (10, "", "", {}, (0, "")),
        (10, "", "WARNING   disk-space  nearly full\n", {}, (0, "WARNING   disk-space  nearly full\n")),
        (10, "", "CRITICAL  gpu-ecc  2 errors\n", {}, (1, "CRITICAL  gpu-ecc  2 errors\n")),
        (61, "", "CRITICAL  gpu-ecc  2 errors\n", {}, (0, "looked\n")),
        (61, "", "", {"HOLDFAST_PROLOG_AGE_S": "120"}, (0, "")),
        (10, "", "", {"HOLDFAST_PROLOG_AGE_S": "0"}, (0, "looked\n")),
        (10, "another", "CRITICAL  gpu-ecc  2 errors\n", {}, (0, "looked\n")),
        (61, "", "", {"HOLDFAST_PROLOG_OLD": "start"}, (0, "")),
        (61, "", "", {"HOLDFAST_PROLOG_OLD": "refuse"}, (1, "CRITICAL  agent  no result of the node's agent within 60 s\n")),
        (None, "", "", {}, (0, "looked\n")),
        (None, "", "", {"HOLDFAST_PROLOG_OLD": "start"}, (0, "")),
    ],
)  # fmt: skip
def test_the_prolog_reads_what_the_agent_has_found(tmp_path, age_s, of_boot, lines, env, expected):
    """A result of this boot that is young enough; without one, what the site says: check now, start, or refuse."""
    program = tmp_path / "holdfast"
    program.write_text("#!/bin/sh\necho looked\n")
    program.chmod(0o755)
    boot = of_boot or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if age_s is not None:
        (tmp_path / "latest").write_text(f"holdfast 1 {boot} {int(uptime_s()) - age_s}\n{lines}")
    ran = script("prolog.sh", program, HOLDFAST_AGENT_STATE=str(tmp_path), **env)
    assert (ran.returncode, ran.stdout, ran.stderr) == (*expected, "")


def test_the_prolog_measures_when_it_is_told_to(tmp_path):
    """Only "not fit" drains; a node that is fit, suites of a wrong name, and a program that breaks do not."""
    program = tmp_path / "holdfast"
    for said, code, expected in (
        ("node1: pass", 0, 0),
        ("not fit: node1", 1, 1),
        ('holdfast: there is no suite "cpuu"', 2, 0),
        ("Traceback (most recent call last):", 1, 0),
    ):
        program.write_text(
            f'#!/bin/sh\n[ "$1" = check ] && exit 0\necho "$@" > {tmp_path}/asked\necho \'{said}\'\nexit {code}\n'
        )
        program.chmod(0o755)
        ran = script("prolog.sh", program, HOLDFAST_PROLOG_SUITES="software,cpu")
        assert (ran.returncode, said in ran.stdout) == (expected, True)
        assert (tmp_path / "asked").read_text().split() == [
            "validate", "--suite", "software,cpu", "--journal", "none", "--quiet"
        ]  # fmt: skip


def test_the_health_check_program_overwrites_nobodys_reason(node, program, tmp_path):
    """It drains a bad node once, leaves an admin's drain alone, and lifts only its own."""
    said, reason = tmp_path / "said", tmp_path / "reason"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        f'#!/bin/sh\nif [ "$1" = show ]; then echo "NodeName=n1 $(cat {reason} 2>/dev/null) Comment=x"; exit; fi\necho "$@" >> {said}\n'
    )
    scontrol.chmod(0o755)
    env = {"SCONTROL": str(scontrol), "SLURMD_NODENAME": "n1"}
    reason.write_text("State=IDLE")
    assert script("healthcheck.sh", program, **env).returncode == 0
    assert not said.exists()
    inject(node, "row_remap", gpu=4)
    script("healthcheck.sh", program, **env)
    (line,) = said.read_text().splitlines()
    assert line.startswith(
        "update nodename=n1 state=drain reason=[holdfast check] gpu-remap GPU 4 has no spare row left"
    )
    reason.write_text("State=IDLE+DRAIN Reason=fan is loud [root@2026-11-21T12:00:00]")
    script("healthcheck.sh", program, **env)
    assert len(said.read_text().splitlines()) == 1
    with Devices(node / "devices" / "state") as found:
        found.gpu(4).remap_failed = 0
    script("healthcheck.sh", program, **env)
    assert len(said.read_text().splitlines()) == 1
    reason.write_text("")
    script("healthcheck.sh", program, **env)
    assert len(said.read_text().splitlines()) == 1, "a state that cannot be read changes nothing"
    reason.write_text("State=IDLE+DRAIN Reason=[holdfast check] gpu-remap GPU 4 [root@2026-11-21T12:00:00]")
    script("healthcheck.sh", program, **env)
    assert said.read_text().splitlines()[1:] == ["update nodename=n1 state=resume"]
    reason.write_text("State=IDLE Reason=[holdfast check] gpu-remap GPU 4 [root@2026-11-21T12:00:00]")
    script("healthcheck.sh", program, **env)
    assert len(said.read_text().splitlines()) == 2, "it is in service already"
    inject(node, "row_remap", gpu=4)
    script("healthcheck.sh", program, **env)
    assert "state=drain reason=[holdfast check]" in said.read_text().splitlines()[2], "RESUME had left the reason"


def test_real_tools_of_this_machine_where_they_are(tmp_path):
    """fi_pingpong over tcp and fi_info, when libfabric is here: through the real tools, not recordings."""
    config = tmp_path / "agent.toml"
    config.write_text('fabric_provider = "tcp"\n')
    found = check("fi-pingpong", "fi-info", "--json", "--config", str(config))
    states = {one["check"]: one["status"] for one in json.loads(found.stdout)["checks"]}
    here = any((Path(folder) / "fi_pingpong").exists() for folder in os.environ["PATH"].split(":"))
    assert states["fi-pingpong"] == ("ok" if here else "not applicable")
