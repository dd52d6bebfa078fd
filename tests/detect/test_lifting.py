"""What would lift a quarantine is said rightly for states, events and losses."""

from holdfast.detect.lifting import all_lifted_by, lifted_by


def test_states_lift_themselves_and_events_do_not():
    """A hot GPU cools; an uncorrectable error has happened."""
    assert lifted_by("check.gpu_thermal").startswith("a look that finds it well (check.gpu_thermal), a repair")
    assert (
        lifted_by("check.gpu_ecc_uncorrected")
        == lifted_by("nvidia.xid.79")
        == "a repair that passes validation, or `holdfast node confirm-healthy`"
    )
    assert "beating again" in lifted_by("node.lost")


def test_all_the_evidence_must_be_gone():
    """One event among states is enough to need a repair."""
    assert all_lifted_by([]) == ""
    assert all_lifted_by(["check.gpu_thermal", "check.nic_down"]).startswith(
        "looks that find it well (check.gpu_thermal, check.nic_down)"
    )
    assert "look" not in all_lifted_by(["check.gpu_thermal", "nvidia.xid.74"])
