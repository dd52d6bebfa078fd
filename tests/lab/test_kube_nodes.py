"""`holdfast lab kubernetes node ...`: the programs that a site on the lab names for reboots and replacements."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tests.walks.eks_site import Site

from holdfast.lab.kube_lab import KubeLab
from holdfast.lab.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]


def machine(lab: KubeLab, node: str) -> tuple[str, str]:
    """(machine id, boot id) that the API server shows; empty while there is no such node."""
    found: dict[str, Any] = Site(lab).nodes().get(node, {"status": {"nodeInfo": {"machineID": "", "bootID": ""}}})
    info = found["status"]["nodeInfo"]
    return info["machineID"], info["bootID"]


@pytest.mark.parametrize(("verb", "is_another"), [("reboot", False), ("replace", True)])
def test_a_node_is_booted_or_replaced_by_one_command(kube_lab: KubeLab, verb: str, is_another: bool) -> None:
    """The API server shows another boot of the same machine, or another machine, under the node's name."""
    before = machine(kube_lab, "node02")
    argv = [sys.executable, "-m", "holdfast.cli.main", "lab", "kubernetes", "node", verb, "node02"]
    subprocess.run([*argv, "--dir", str(kube_lab.folder)], check=True, timeout=60)
    wait_until(lambda: machine(kube_lab, "node02")[1] not in {"", before[1]}, "another boot", limit_s=60.0)
    assert (machine(kube_lab, "node02")[0] != before[0]) == is_another
