"""A handful of drills on the embedded cluster with real processes. All of them: `holdfast drill run --all`."""

import asyncio

import pytest

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.local import processes
from holdfast.drill.campaign import CampaignSettings, run_campaign
from holdfast.drill.scenario import find

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NAMES = ("crash_segfault", "hang_allreduce", "sigstop", "xid_74_replace", "lookalike_lines", "corrupt_checkpoint")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """One run of all of them, in a row on one cluster."""
    folder = tmp_path_factory.mktemp("drills")
    settings = CampaignSettings(folder=folder, workload="counter", seed=3)
    run = asyncio.run(run_campaign([find(name) for name in NAMES], settings, clock=SystemClock()))
    return folder, {drill.name: drill for drill in run.drills}


@pytest.mark.parametrize("name", NAMES)
def test_drill_passes(campaign, name):
    """Cause, suspect, remedy, times and losses are as the scenario says."""
    _, drills = campaign
    assert [f"{check.name}: {check.expected} / {check.actual}" for check in drills[name].failures] == []
    assert drills[name].passed


def test_nothing_is_left_running_and_everything_is_written_down(campaign):
    """No process carries a cluster's mark any more; results and report are there."""
    folder, _ = campaign
    assert processes.marked(folder / "cluster-1") == []
    assert {"drills.json", "junit.xml", "report-1.html"} <= {path.name for path in folder.iterdir()}
