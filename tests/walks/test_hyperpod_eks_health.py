"""W2.5: the health checks that HyperPod runs on nodes, each in five outcomes, by `holdfast check` as a person runs it.

The check is real, and so is all that lies between it and the tool. What stands in for hardware: NVIDIA's library,
nvidia-smi and dcgmi are Holdfast's emulated ones, stress-ng is a script, /sys and the kernel log are an embedded node's.
Hung: it does not answer. Absent: what it asks is not there. Refused: it answers that it will not, or with an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.adapters.emulated import devices
from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices

pytestmark = pytest.mark.cluster

GPUS = [(f"0000:{bus}:00", f"GPU-{bus}") for bus in ("53", "64", "75", "86", "97", "a8", "b9", "ca")]
BOOTED = "[    1.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"
XID = "[  912.000000] NVRM: Xid (PCI:0000:b9:00): {}, pid=42, name=python, Ch 1\n"
COUNTER = "sys/devices/virtual/neuron_device/neuron0/stats/hardware/mem_ecc_uncorrected"
STATE = "sys/class/infiniband/rdmap0s0/ports/1/state"
HANG_S, LIMIT_S = 2.0, 60.0
"""A machine with other work answers late, and is not hung."""
CACHE = Path.home() / ".cache"
"""Of the compiled catalogue: as a machine has it on which `holdfast` has run before."""
STRESS = "stress-ng: {}: [42] {}"
OUTCOMES = {
    "passed": (0, "OK"),
    "failed": (2, "CRITICAL"),
    "hung": (3, "UNKNOWN"),
    "absent": (0, "-"),
    "refused": (3, "UNKNOWN"),
}
"""Exit code, and the word that the line begins with."""


class Node:
    """An embedded node's folder: what `holdfast check --node-dir` reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tools = folder / "tools"
        self.tools.mkdir(parents=True)
        self.is_embedded = True

    def gpus(self) -> None:
        devices.prepare(self.folder / "devices", GPUS, machine="i-1", booted="b-1")

    def hit(self, fault: str, **how: int) -> None:
        """What `holdfast drill inject FAULT` does."""
        with Devices(self.folder / "devices/state") as found:
            FAULTS[fault].apply(found, Hit(**how))

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def hangs(self, name: str) -> None:
        """Whoever reads this file waits for ever."""
        path = self.file(name, "")
        path.unlink()
        os.mkfifo(path)

    def errs(self, name: str) -> None:
        """Whoever reads this file gets an error, as from a driver that is unwell; root too."""
        path = self.file(name, "")
        path.unlink()
        path.symlink_to(path.name)

    def stress(self, script: str) -> None:
        """A `stress-ng` on PATH; the machine itself is loaded, so that no embedded node is looked at."""
        self.is_embedded = False
        self.file("tools/stress-ng", f"#!/bin/sh\n{script}\n").chmod(0o755)

    def efa(self, *states: str) -> None:
        for number, state in enumerate(states):
            self.file(STATE.replace("rdmap0s0", f"rdmap{number}s0"), state)
        (self.folder / "sys").mkdir(exist_ok=True)

    def neuron(self, count: int) -> None:
        for number in range(count):
            self.file(COUNTER.replace("neuron0", f"neuron{number}"), "0\n")
        (self.folder / "sys").mkdir(exist_ok=True)

    def start(self, check: str, outcome: str) -> subprocess.Popen[str]:
        """`holdfast check CHECK`, with a short limit, in the almost empty environment that Slurm and Nagios give."""
        limit_s = HANG_S if outcome == "hung" else LIMIT_S
        profile = "" if outcome == "absent" else "[profile]\nefa = 2\nneuron = 2\n"
        config = self.file("agent.toml", f"dcgm_policy = true\n{profile}[checks.{check}]\nlimit_s = {limit_s}\n")
        argv = [sys.executable, "-m", "holdfast.cli.main", "check", check, "--config", str(config)]
        argv += ["--node-dir", str(self.folder)] if self.is_embedded else []
        env = {"PATH": f"{self.tools}:/bin", "HOME": str(self.folder), "XDG_CACHE_HOME": str(CACHE)}
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def gpus(*faults: str) -> Callable[[Node], None]:
    """Eight emulated GPUs, some with a fault."""

    def prepare(node: Node) -> None:
        node.gpus()
        for fault in faults:
            node.hit(fault, gpu=6)

    return prepare


def nothing(node: Node) -> None:
    """Neither driver nor tool, device or log."""


def kernel(*lines: str) -> Callable[[Node], None]:
    return lambda node: node.file("kmsg", "".join((BOOTED, *lines))) and None


def efa(*states: str) -> Callable[[Node], None]:
    return lambda node: node.efa(*states)


def neuron(count: int) -> Callable[[Node], None]:
    return lambda node: node.neuron(count)


def stress(script: str) -> Callable[[Node], None]:
    return lambda node: node.stress(script)


def then(prepare: Callable[[Node], None], what: Callable[[Node, str], None], name: str) -> Callable[[Node], None]:
    """As prepared, but for one file that hangs or errs."""

    def both(node: Node) -> None:
        prepare(node)
        what(node, name)

    return both


DCGM = {
    "passed": gpus(),
    "failed": gpus("row_remap"),
    "hung": gpus("nvml_hang"),
    "absent": nothing,
    "refused": gpus("nvml_refused"),
}
TABLE: dict[str, dict[str, Callable[[Node], None]]] = {
    "dcgm-policy": {**DCGM, "failed": gpus()},
    "nvidia-smi": {**DCGM, "failed": gpus("gpu_lost")},
    "kernel-xid": {
        "passed": kernel(XID.format(13)),
        "failed": kernel(XID.format(79)),
        "hung": lambda node: node.hangs("kmsg"),
        "absent": nothing,
        "refused": lambda node: node.errs("kmsg"),
    },
    "neuron": {
        "passed": neuron(2),
        "failed": neuron(1),
        "hung": then(neuron(2), Node.hangs, COUNTER),
        "absent": lambda node: node.neuron(0),
        "refused": then(neuron(2), Node.errs, COUNTER),
    },
    "efa": {
        "passed": efa("4: ACTIVE", "4: ACTIVE"),
        "failed": efa("4: ACTIVE", "1: DOWN"),
        "hung": then(efa("4: ACTIVE", "4: ACTIVE"), Node.hangs, STATE),
        "absent": efa(),
        "refused": then(efa("4: ACTIVE", "4: ACTIVE"), Node.errs, STATE),
    },
    "dcgm-diag-2": DCGM,
    "dcgm-diag-4": DCGM,
    "cpu-stress": {
        "passed": stress(f"echo '{STRESS.format('info', 'successful run completed in 20 secs')}'"),
        "failed": stress(f"echo '{STRESS.format('fail', 'cpu: sqrt error detected on cpu 3')}'; exit 2"),
        "hung": stress("exec sleep 600"),
        "absent": lambda node: setattr(node, "is_embedded", False),
        "refused": stress("echo 'stress-ng: permission denied' >&2; exit 126"),
    },
}


@pytest.mark.walk("W2.5")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("check", TABLE)
def test_each_health_check_in_five_outcomes(check: str, tmp_path: Path) -> None:
    """Passed and absent end with 0, failed with 2, hung and refused with 3: only a check that saw a fault fails a node."""
    runs: dict[str, subprocess.Popen[str]] = {}
    try:
        for outcome, prepare in TABLE[check].items():
            node = Node(tmp_path / outcome)
            prepare(node)
            runs[outcome] = node.start(check, outcome)
            if (check, outcome) == ("dcgm-policy", "failed"):
                violating(node, runs[outcome])
        told = {outcome: run.communicate(timeout=120)[0] for outcome, run in runs.items()}
    finally:
        for run in runs.values():
            run.kill()
    print("".join(told.values()))
    found = {outcome: (run.returncode, told[outcome].split(maxsplit=1)[0]) for outcome, run in runs.items()}
    assert found == OUTCOMES, told
    for outcome, text in told.items():
        assert text.split(maxsplit=1)[1].startswith(check), (outcome, text)
    assert "within 2 s" in told["hung"]


def violating(node: Node, run: subprocess.Popen[str]) -> None:
    """PCIe replays go on coming for as long as the check listens."""
    while run.poll() is None:
        node.hit("pcie_replay", gpu=1, value=9)
        time.sleep(0.05)
