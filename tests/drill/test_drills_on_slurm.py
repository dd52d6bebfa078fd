"""Drills on a real Slurm. A handful here; every one that works there with `make soak`, as `holdfast drill run --all --on slurm`."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.local.node_init import process_table
from holdfast.adapters.local.processes import environment_of
from holdfast.drill.campaign import CampaignSettings, run_campaign
from holdfast.drill.clusters import lacking_on_slurm
from holdfast.drill.kinds import SLURM
from holdfast.drill.scenario import find, shipped
from holdfast.lab.keeper import MARK
from slurm_fixture import need_slurm, short_folder

pytestmark = [pytest.mark.cluster]

NAMES = ("node_reboot", "kill9", "slurmctld_restarted", "xid_74_replace", "slurmdbd_away")


def run(names, folder, **settings):
    """One campaign; returns its results by name."""
    wanted = CampaignSettings(folder=folder, seed=3, on="slurm", **settings)
    done = asyncio.run(run_campaign([find(name) for name in names], wanted, clock=SystemClock()))
    return {drill.name: drill for drill in done.drills}


@pytest.fixture(scope="module")
def campaign():
    """One run of the handful, in a row on one lab."""
    need_slurm(dbd=True)
    with short_folder() as folder:
        results = run(NAMES, folder)
        written = {path.name for path in folder.iterdir()}
        marks = {environment_of(pid).get(MARK, "") for pid in process_table()}
    return results, written, [mark for mark in marks if mark.startswith(str(folder))]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_drill_passes(campaign, name):
    """Cause, suspect, remedy, times and losses are as the scenario says, with slurmctld and slurmd in between."""
    drill = campaign[0][name]
    assert [f"{check.name}: {check.expected} / {check.actual}" for check in drill.failures] == []
    assert drill.passed, drill.skipped


def test_nothing_is_left_running_and_everything_is_written_down(campaign):
    """No process carries the lab's mark any more; results and report are there."""
    _, written, left = campaign
    assert left == []
    assert {"drills.json", "junit.xml", "report-1.html"} <= written


def test_drills_of_the_scheduler_are_left_out_where_there_is_none():
    """A drill that breaks slurmctld says on an embedded cluster that it works on a lab only."""
    assert find("slurmctld_restarted").definition.lacking("local") == f"only on {SLURM}"
    assert find("kill9").definition.lacking("local") == find("kill9").definition.lacking(SLURM) == ""
    needs_root = "" if os.geteuid() == 0 else "needs root on a Slurm lab"
    assert lacking_on_slurm(find("network_cut").definition) == needs_root


@pytest.mark.soak
def test_every_drill_passes():
    """Each kind of fault, on one lab after the other."""
    need_slurm(dbd=True)
    names = [name for name, scenario in shipped().items() if not lacking_on_slurm(scenario.definition)]
    with short_folder() as folder:
        results = run(names, folder)
    failed = {
        name: [f"{check.name}: {check.expected} / {check.actual}" for check in drill.failures]
        for name, drill in results.items()
        if not drill.passed and not drill.skipped
    }
    assert failed == {}
    assert len(results) == len(names)


@pytest.mark.soak
def test_the_demo_runs_on_slurm():
    """Three faults survived on a real Slurm, the job complete, and its losses those of an undisturbed run to the last bit."""
    need_slurm()
    with short_folder() as folder:
        argv = [
            sys.executable,
            "-m",
            "holdfast.cli.main",
            "demo",
            "--on",
            "slurm",
            "--json",
            "--dir",
            str(folder / "d"),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
        assert done.stdout, done.stderr[-4000:]
        form = json.loads(done.stdout)
        left = [pid for pid in process_table() if environment_of(pid).get(MARK, "").startswith(str(folder))]
    assert [(drill["name"], drill["failed_checks"]) for drill in form["drills"]] == [
        ("crash_segfault", []),
        ("xid_74_replace", []),
        ("hang_allreduce", []),
    ]
    assert form["passed"], done.stderr[-4000:]
    assert form["loss"] == {"steps_compared": form["last_step"], "largest_difference": 0.0}
    assert left == []
