"""Which drills share a job."""

from pathlib import Path

from holdfast.drill.campaign import CampaignSettings, job_for, plan
from holdfast.drill.scenario import find, shipped

SETTINGS = CampaignSettings(folder=Path("/tmp/none"), seed=7)


def names(sittings):
    return [[scenario.name for scenario in sitting.scenarios] for sitting in sittings]


def test_drills_that_need_the_same_job_share_it_and_the_others_do_not():
    """One job for the usual ones; completion, another workload and other folders get their own."""
    chosen = [find(name) for name in ("kill9", "good", "nan_loss", "exception", "disk_full", "sigstop")]
    assert names(plan(chosen, SETTINGS)) == [["kill9", "exception", "sigstop"], ["good"], ["nan_loss"], ["disk_full"]]


def test_fresh_gives_every_drill_its_own():
    """No sharing at all."""
    chosen = [find("kill9"), find("exception"), find("kill9")]
    fresh = CampaignSettings(folder=Path("/tmp/none"), fresh=True)
    assert names(plan(chosen, fresh)) == [["kill9"], ["exception"], ["kill9"]]


def test_every_shipped_drill_has_a_seat():
    """Nothing is left out of `--all`."""
    seated = [name for sitting in names(plan(shipped().values(), SETTINGS)) for name in sitting]
    assert sorted(seated) == sorted(shipped())


def test_the_job_is_what_the_scenario_needs():
    """Workload by the kind's need, seed by the campaign, checkpoints on the node where the scenario says so."""
    assert job_for(find("nan_loss"), SETTINGS).workload == "gpt"
    usual = job_for(find("kill9"), SETTINGS)
    assert (usual.workload, usual.seed, usual.checkpoint_dir, usual.mirror) == ("counter", 7, "checkpoints", "")
    full = job_for(find("disk_full"), SETTINGS)
    assert full.checkpoint_dir.startswith("{scratch}")
    assert full.mirror == "checkpoints"


def test_the_stages_policy_is_a_policy():
    """It lets the brakes go, and nothing else."""
    from importlib import resources

    from holdfast.model.policy import Policy
    from holdfast.model.policy_toml import parse_policy

    site = parse_policy((resources.files("holdfast.drill") / "policy.toml").read_text()).site
    assert site.brake.max_percent == 100.0
    assert (site.ladders, site.limits, site.hang) == (Policy().ladders, Policy().limits, Policy().hang)
