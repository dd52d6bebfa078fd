"""Whole logs of machines: kernels' logs and management controllers' beside a job's output, in their own formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.explain import explain_logs
from whole_logs import MATCHER, Whole, assert_right, megatron

OPEN = (
    "[   60.058486] NVRM: The NVIDIA GPU 0000:2c:00.0 (PCI ID: 10de:1d16)\n"
    "               NVRM: installed in this system is not supported by open\n"
    "               NVRM: nvidia.ko because it does not include the required GPU\n"
    "               NVRM: System Processor (GSP).\n"
    "[   60.063350] nvidia 0000:2c:00.0: probe with driver nvidia failed with error -1\n"
    "[   60.063409] NVRM: The NVIDIA probe routine failed for 1 device(s).\n"
)
LSPCI = (
    "1a:00.0 VGA compatible controller: NVIDIA Corporation TU102GL [Quadro RTX 6000/8000] (rev a1)\n"
    "1c:00.0 VGA compatible controller: NVIDIA Corporation TU102GL [Quadro RTX 6000/8000] (rev {rev})\n"
    "1c:00.1 Audio device: NVIDIA Corporation TU102 High Definition Audio Controller (rev {rev})\n"
)
SEL = (
    "4    slot4    2018-03-13 08:07:50    ipmid            SEL Entry: FRU: 4, Record: Standard (0x02), Time: 2018-03-13 "
    "08:07:50, Sensor: PMIC_ERR (0xB4), Event Data: (020500) DIMM A3 {what} Assertion\n"
)
FABRIC = (
    "Nov 15 14:15:47 n7 systemd[1]: Starting NVIDIA fabric manager service...\n"
    "Nov 15 14:15:47 n7 nv-fabricmanager[4177]: request to query NVSwitch device information from NVSwitch driver failed "
    "with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\n"
    "Nov 15 14:15:47 n7 systemd[1]: nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE\n"
    "Nov 15 14:15:47 n7 systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.\n"
)
CEPH = "Sep 21 06:51:58 n7 kernel: libceph: connect (1)10.0.0.46:6789 error -101\nSep 21 06:51:58 n7 kernel: libceph: mon2 (1)10.0.0.46:6789 connect error\n"
CEPH_BACK = "Sep 21 06:52:03 n7 kernel: libceph: mon1 (1)10.0.0.49:6789 session established\n"
OSD = "Sep 21 06:51:58 n7 kernel: libceph: osd2 (1)10.0.0.49:6801 socket closed (con state OPEN)\n"
BOOT = (
    "[   15.353167] systemd-journald[3450]: Received SIGTERM from PID 1 (systemd).\n"
    "[   15.643781] systemd[1]: initrd-switch-root.service: Deactivated successfully.\n"
    "[   16.170062] i2c_designware AMDI0010:00: Unknown Synopsys component type: 0xffffffff\n"
    "[   16.280779] ipmi_si IPI0001:00: The BMC does not support clearing the recv irq bit, compensating, but the BMC needs to be fixed.\n"
    "[   16.431578] EDAC MC0: Giving out device to module amd64_edac controller F19h_M10h: DEV 0000:00:18.3 (INTERRUPT)\n"
)
HOUSE = (
    "Mar  1 06:03:12 n7 snapd[1700]: stateengine.go:150: state ensure error: dial tcp: lookup api.snapcraft.io: Temporary failure in name resolution\n"
    "Mar  1 06:03:50 n7 irqbalance[1406]: Cannot change IRQ 0 affinity: Input/output error\n"
    "Mar  1 06:04:10 n7 systemd[1]: fwupd-refresh.service: Failed with result 'exit-code'.\n"
)
AER = (
    "pcieport 0000:00:1c.5: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=00e5(Receiver ID)\n"
    "pcieport 0000:00:1c.5: AER: Corrected error received: id=00e5\n"
    "pcieport 0000:00:1c.5: can't find device of ID00e5\n"
)
PORT = "Mar  1 10:{when} n7 kernel: mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link {what}\n"
GAVE_UP = (
    "2025-03-01T10:05:31.120 n7:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer "
    "10.0.0.236<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"
)

LOGS = (
    Whole("a GPU that the open driver does not know", OPEN, "fault", ("nvidia.driver.unfit",), "platform"),
    Whole("a probe that failed alone", OPEN.split("NVRM: System")[1], "fault", ("kernel.probe_failed",), "hardware"),
    Whole("a GPU that reads all ones", LSPCI.format(rev="ff"), "fault", ("pci.rev_ff",), "hardware"),
    Whole("all GPUs on the bus", LSPCI.format(rev="a1"), "unknown"),
    Whole("a DIMM's power", SEL.format(what="Vin Mgmt OV"), "fault", ("ipmi.openbmc",), "hardware"),
    Whole("a DIMM that was warm", SEL.format(what="High temp warning"), "healthy"),
    Whole("no NVSwitch", FABRIC, "fault", ("nvidia.fabric.no_switch",), "platform"),
    Whole("no monitor of Ceph", CEPH, "fault", ("kernel.ceph.refused",), "storage", nodes=("n7",)),
    Whole("another monitor of Ceph", CEPH + CEPH_BACK, "healthy"),
    Whole("an idle connection to an OSD", OSD, "healthy"),
    Whole("a boot", BOOT, "healthy"),
    Whole("housekeeping", HOUSE, "healthy"),
    Whole("corrected errors of nobody", AER * 4, "healthy"),
    Whole("a port at boot", "".join(PORT.format(when="00:00", what=w) for w in ("DOWN", "INIT", "ACTIVE")), "healthy"),
    Whole(
        "a port goes down and NCCL gives up",
        megatron(10) + PORT.format(when="05:09", what="DOWN") + GAVE_UP * 2,
        "fault",
        ("kernel.link_down",),
        "network",
        nodes=("n7",),
    ),
    Whole(
        "a port came back long before NCCL gave up",
        PORT.format(when="01:00", what="DOWN") + PORT.format(when="01:03", what="ACTIVE") + GAVE_UP,
        "fault",
        ("nccl.ib.completion",),
        "network",
    ),
)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_whole_log_is_explained_rightly(log: Whole, tmp_path: Path) -> None:
    assert_right(log, tmp_path)


def test_a_port_in_the_nodes_own_log(tmp_path: Path) -> None:
    job, kernel = tmp_path / "job-rank12.log", tmp_path / "n7-journal.txt"
    job.write_text(GAVE_UP * 2)
    kernel.write_text(PORT.format(when="05:09", what="DOWN"))
    said = explain_logs([job, kernel], matcher=MATCHER, now=1740830000.0)
    assert (said.cause, said.suspects.nodes) == ("kernel.link_down", ("n7",)), said
