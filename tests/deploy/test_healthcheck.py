"""deploy/slurm/healthcheck.sh on a real Slurm, whose RESUME leaves a node's Reason standing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.lab.slurm_lab import SlurmLab

pytestmark = pytest.mark.cluster
SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "healthcheck.sh"


def test_a_node_that_is_sick_again_is_drained_despite_its_old_reason(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Sick, well, sick: drained, resumed, drained. A drain of somebody else's is not lifted."""
    node, check = "node02", tmp_path / "holdfast"

    def after(code: int, said: str) -> str:
        """The node's state after one turn of the script, whose check ends so."""
        check.write_text(f"#!/bin/sh\necho '{said}'\nexit {code}\n")
        check.chmod(0o755)
        more = {"HOLDFAST": str(check), "SCONTROL": str(shutil.which("scontrol")), "SLURMD_NODENAME": node}
        subprocess.run(["/bin/sh", str(SCRIPT)], env=slurm_lab.env() | more, check=True, timeout=60)
        return slurm_lab.node_states()[node]

    sick, well = (2, "CRITICAL gpu-remap GPU 4 has no spare row left"), (0, "OK")
    assert after(*sick).startswith("drain")
    assert after(*well).startswith("idle")
    # Newer versions leave it standing after RESUME; 22.05 does not, so it is set.
    slurm_lab.run(["scontrol", "update", f"NodeName={node}", "Reason=[holdfast check] gpu-remap GPU 4"])
    assert after(*well).startswith("idle")
    assert after(*sick).startswith("drain")
    slurm_lab.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=fan is loud"])
    assert after(*well).startswith("drain")
