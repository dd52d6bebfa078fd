"""Parsers on recorded outputs: see recorded/SOURCES.md for where each comes from."""

from pathlib import Path

import pytest

from holdfast.adapters.probes import dcgm_output as dcgm
from holdfast.adapters.probes import smi_output, tool_output

RECORDED = Path(__file__).parent / "recorded"


def text(name):
    return (RECORDED / name).read_text(encoding="utf-8")


def test_diag_of_dcgm_3_with_text_before_it_and_holes_in_it():
    """Version 3.1 prints warnings before the JSON and `null` between tests; all tests passed."""
    diag = dcgm.parse_diag(text("dcgmi_diag_3_1.json"))
    assert (diag.failures, diag.error) == ((), "")


def test_skipped_tests_are_no_failures():
    """Level 3 on a card that supports none of it."""
    diag = dcgm.parse_diag(text("dcgmi_diag_3_2_skip.json"))
    assert (diag.failures, diag.error) == ((), "")


@pytest.mark.parametrize(
    ("name", "gpus"), [("dcgmi_diag_4_2_3.json", [0]), ("dcgmi_diag_4_hyperpod.json", list(range(8)))]
)
def test_diag_of_dcgm_4_names_gpu_and_severity(name, gpus):
    """Version 4 puts results by entity; persistence mode is a matter of configuration (severity 5)."""
    diag = dcgm.parse_diag(text(name))
    assert [failure.gpu for failure in diag.failures] == gpus
    assert {(failure.test, failure.severity) for failure in diag.failures} == {("software", dcgm.CONFIG)}
    assert "Persistence mode for GPU 0 is disabled" in diag.failures[0].text


@pytest.mark.parametrize(
    ("out", "err", "why"),
    [
        ("", "", "it printed nothing"),
        (
            "Error: unable to establish a connection to the specified host: localhost\n",
            "",
            "Error: unable to establish",
        ),
        ('{"DCGM Diagnostic": {}}', "", "it ran no test"),
        ('{"DCGM GPU Diagnostic": {"runtime_error": "no group"}}', "", "no group"),
        ("{torn", "", "{torn"),
        ("[]", "boom", "[]"),
    ],
)
def test_a_diag_that_did_not_run_says_why(out, err, why):
    """Nothing to read is never a pass."""
    assert dcgm.parse_diag(out, err).error.startswith(why)


def test_health_report():
    """Two troubles of GPU 0, the texts of wrapped rows joined."""
    overall, items = dcgm.parse_health(text("dcgmi_health_3.txt"))
    assert overall == "Warning"
    assert [(item.gpu, item.system, item.failure, item.text) for item in items] == [
        (0, "PCIe", False, "Detected more than 8 PCIe replays per minute for GPU 0: 13"),
        (0, "InfoROM", False, "A corrupt InfoROM has been detected in GPU 0."),
    ]
    assert dcgm.parse_health("Error: watches are not enabled") == ("", ())


def test_policy_violations_line_by_line():
    """Every kind of condition that dcgmi prints, with its value."""
    lines = dcgm.PolicyLines()
    found = [one for line in text("dcgmi_policy_reg.txt").splitlines() if (one := lines.feed(line))]
    assert [(one.kind, one.value) for one in found] == [
        ("pcie", 99999), ("dbe", 4), ("retired", 0), ("thermal", 91), ("power", 740), ("nvlink", 12), ("xid", 79),
    ]  # fmt: skip


def test_exporter_pages():
    """Of two versions; MIG instances fold into their GPU; blank values are left out; other metrics are ignored."""
    old = dcgm.parse_exporter(text("dcgm_exporter_3_535.txt"))
    assert (sorted(old), old[0].values) == ([0, 7], {"DCGM_FI_DEV_XID_ERRORS": 0.0})
    new = dcgm.parse_exporter(text("dcgm_exporter_4_580.txt"))
    assert (new[0].uuid, new[0].values["DCGM_FI_DEV_XID_ERRORS"]) == ("GPU-f809e614-a528-4083-acbf-334600000000", 0.0)
    blank = dcgm.parse_exporter(text("dcgm_exporter_blank.txt"))
    assert blank[0].values == {
        "DCGM_FI_DEV_GPU_TEMP": 91.0,
        "DCGM_FI_DEV_XID_ERRORS": 94.0,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 100.0,
    }
    assert blank[1].values == {}


@pytest.mark.parametrize(
    ("version", "pci", "why"),
    [
        ("369", "0000:03:00.0", "GPU is lost.  Reboot"),
        ("520", "0000:0B:00.0", "Unknown Error"),
        ("535", "0000:07:00.0", "Unknown Error"),
    ],
)
def test_nvidia_smi_tells_of_a_lost_gpu(version, pci, why):
    """Three drivers, three ways to write it."""
    facts = smi_output.parse_smi(text(f"nvidia_smi_lost_{version}.txt"), "", 15)
    assert (facts.lost, facts.unknown) == (((pci, why),), "")


def test_nvidia_smi_rows():
    """What a GPU does not have is None, whatever the driver calls it."""
    rows = "0, GPU-1, 4\n1, GPU-2, [N/A]\n2, GPU-3, [Not Supported]\n3, GPU-4, N/A\n"
    gpus = smi_output.parse_smi(rows, "", 0).gpus
    assert [(g.index, g.uuid, g.ecc_uncorrected) for g in gpus] == [
        (0, "GPU-1", 4), (1, "GPU-2", None), (2, "GPU-3", None), (3, "GPU-4", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "mismatch"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", False),
        ("No devices were found", False),
        ("Failed to initialize NVML: Driver/library version mismatch", True),
    ],
)
def test_nvidia_smi_without_gpus(said, mismatch):
    """Why there are none is understood."""
    facts = smi_output.parse_smi(said, "", 9)
    assert (facts.gpus, facts.lost, facts.mismatch, facts.unknown) == ((), (), mismatch, "")


def test_what_nvidia_smi_never_said_before_is_unknown():
    """Not understood is not well."""
    assert smi_output.parse_smi("", "Segmentation fault", -11).unknown == "Segmentation fault"
    assert smi_output.parse_smi("", "", 1).unknown


def test_fi_info_of_several_instances():
    """Indented or not; two entries of one device; no EFA at all."""
    assert [one.domain for one in tool_output.parse_fi_info(text("fi_info_efa_p4d.txt"))] == [
        "rdmap16s27-rdm",
        "rdmap32s27-rdm",
    ]
    assert len(tool_output.parse_fi_info(text("fi_info_efa_hpc6a.txt"))) == 2
    assert tool_output.parse_fi_info(text("fi_info_efa_p3dn.txt"))[0].domain == "efa_0-rdm"
    assert tool_output.parse_fi_info(text("fi_info_tcp_1_17.txt"))[0].provider == "tcp;ofi_rxm"
    assert tool_output.parse_fi_info("fi_getinfo: -61 (No data available)\n") == ()


def test_pingpong_table():
    """Sizes in bytes; a refusal has no rates and says why."""
    found = tool_output.parse_pingpong(text("fi_pingpong_1_17.txt"))
    assert (found.rates[64], found.rates[1 << 20], found.latencies[65_536]) == (0.08, 206.6, 404.77)
    refused = tool_output.parse_pingpong(
        "", "[error] util/pingpong.c:568 : ctrl/read: no data or remote connection closed\n"
    )
    assert (refused.rates, refused.error[:20]) == ({}, "[error] util/pingpon")


def test_stress_log():
    """A good run, and a processor that computes wrongly."""
    good = tool_output.parse_stress(text("stress_ng_0_15.txt"))
    assert (good.finished, good.failures, good.rates) == (True, (), {"cpu": 1098.51})
    bad = tool_output.parse_stress(
        "stress-ng: fail:  [9] cpu: prime error detected, number of primes has been miscalculated\n"
    )
    assert (bad.finished, len(bad.failures)) == (False, 1)


def test_services_and_clock():
    """`systemctl is-active` answers in order; chrony's CSV form."""
    assert tool_output.parse_active(("slurmd", "munge"), "active\nfailed\n") == {"slurmd": "active", "munge": "failed"}
    line = "A9FEA97B,169.254.169.123,4,1700000000.1,-0.000012,0.00001,0.00002,1.2,0.0,0.01,0.0003,0.0001,16.2,Normal\n"
    tracking = tool_output.parse_tracking(line)
    assert (tracking.source, tracking.offset_s, tracking.leap) == ("169.254.169.123", -0.000012, "Normal")
    assert tool_output.parse_tracking("506 Cannot talk to daemon\n") is None
