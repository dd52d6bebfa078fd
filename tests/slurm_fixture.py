"""A real Slurm for tests, shared by all of a module: started at the first use, mended after every test.

    def test_something(slurm_lab: SlurmLab) -> None:
        job = slurm_lab.sbatch(["--nodes=2", "--wrap", "srun hostname"])
        slurm_lab.until_job(job, "COMPLETED")

`tests/conftest.py` imports the fixtures, so a test only names one. `slurm_lab` has 8 nodes: with networks of their own
where the tests run as root, plain ones otherwise. `netns_lab` is the same lab for tests that cannot do without. A test
may break what it likes: afterwards jobs are cancelled, daemons and nodes started again, networks healed, drained nodes
resumed. A test that needs other settings starts its own: `SlurmLab.start(LabSettings(...), short_folder)`.

Without Slurm's programs these tests are left out, and pytest's summary says so and how to get them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import LinkError
from holdfast.lab.packages import advice, missing_packages
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until

NODES = 8
ENDS_S = 100.0
"""slurmstepd waits a minute for a node below it that is gone."""


def need_slurm(*, dbd: bool = False, rest: bool = False, netns: bool = False) -> None:
    """Leave the calling test out, aloud, where Slurm's programs are not installed."""
    programs, packages = missing_packages(os.environ.get("PATH", ""), dbd=dbd, rest=rest, netns=netns)
    if programs:
        pytest.skip(f"no real Slurm here ({', '.join(programs)} missing); {advice(packages)}")
    if netns and os.geteuid() != 0:
        pytest.skip("nodes with networks of their own need root")


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder of ours that everybody may enter, whose name leaves room for sockets; pytest's `tmp_path` often does not."""
    folder = Path(tempfile.mkdtemp(prefix="hf-lab-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def _module_lab() -> Iterator[SlurmLab]:
    """Ends with its module: launcher tests end every child of this process that they did not start."""
    need_slurm()
    settings = LabSettings(nodes=NODES, netns=os.geteuid() == 0, boot_s=0.3)
    with short_folder() as folder, SlurmLab.start(settings, folder) as lab:
        yield lab


@pytest.fixture
def slurm_lab(_module_lab: SlurmLab) -> Iterator[SlurmLab]:
    """The module's lab, whole and without jobs; every node is idle and takes a task."""
    if not launches(_module_lab):
        mend(_module_lab)  # Slurm drains a node that was long in ending a step, also when the test before is over
    wait_until(lambda: launches(_module_lab), "every node takes a task", limit_s=60.0, logs=(_module_lab.ctld_log,))
    at_rest(_module_lab)
    yield _module_lab
    mend(_module_lab)


def launches(lab: SlurmLab) -> bool:
    """A node that was switched on again is idle in the scheduler's eyes a little before it takes a launch."""
    try:
        lab.run(["srun", f"--nodes={NODES}", f"--ntasks={NODES}", "--immediate=5", "true"])
    except LinkError:
        return False
    return True


def at_rest(lab: SlurmLab) -> None:
    """Wait until no job is in any state, also not ending, and every node is idle.

    The nodes of a step report its end to one of them; when one is switched off before it has, that one waits for it.
    """

    def idle() -> bool:
        states = lab.node_states()
        for name, state in states.items():
            if state.startswith(("drain", "drng", "down")):
                lab.resume(name)
        return set(states.values()) <= {"idle"} and not lab.run(["squeue", "-h"]).strip()

    wait_until(idle, "nodes are not idle", limit_s=ENDS_S, logs=(lab.ctld_log,))


@pytest.fixture
def netns_lab(slurm_lab: SlurmLab) -> SlurmLab:
    """The same, for tests that need networks, or true power-offs, of the nodes' own."""
    if not slurm_lab.facts.settings.netns:
        pytest.skip("nodes with networks of their own need root")
    return slurm_lab


def mend(lab: SlurmLab) -> None:
    """Bring a lab back to where it was after `start`: daemons and nodes up, no jobs, nothing drained."""
    lab.daemons.start_munge()
    lab.daemons.start_ctld()
    for name, node in lab.status()["nodes"].items():
        if node["dynamic"]:
            with contextlib.suppress(LinkError):
                lab.remove(name)
            continue
        if node["hung"]:
            lab.node("unhang", name)
        lab.node("heal", name)
        if node["power"] != "on" or not node["services"].get("slurmd", {}).get("running"):
            lab.start_node(name)
            lab.resume(name)
    lab.run(["scancel", "--signal=KILL", "--full", "--user", lab.facts.user])
    lab.run(["scancel", "--user", lab.facts.user])
    wait_until(lambda: not lab.run(["squeue", "-h"]).strip(), "jobs do not leave", limit_s=ENDS_S, logs=(lab.ctld_log,))
    for name, state in lab.node_states().items():
        if state != "idle":
            lab.resume(name)
    at_rest(lab)
