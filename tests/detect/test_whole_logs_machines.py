"""Whole logs of machines without a job beside them: kernels, journals, management controllers. Values are made up."""

from __future__ import annotations

import pytest

from whole_logs import Whole, assert_right

XID_ISO = (
    "2025-03-01T10:00:00.123456+00:00 gpu7 systemd[1]: Started session-3.scope.\n"
    "2025-03-01T10:00:05.123456+00:00 gpu7 kernel: [ 1234.567890] NVRM: Xid (PCI:0000:b9:00): 79, pid=12, name=python, GPU has fallen off the bus.\n"
)
SLOT_GONE = (
    "[ 1000.100000] pcieport 0000:16:01.0: pciehp: Slot(12): Link Down\n"
    "[ 1000.100002] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
)
OOPS = (
    "[ 1000.100000] BUG: unable to handle page fault for address: ffffb0e5c0a9f000\n"
    "[ 1000.200000] Oops: 0002 [#1] SMP NOPTI\n"
    "[ 1000.300000] Kernel panic - not syncing: Fatal exception\n"
)
NFS_PANIC = (
    "[ 1000.100000] nfs: server 10.0.0.1 not responding, still trying\n"
    "[ 1130.100000] INFO: task python:99 blocked for more than 120 seconds.\n"
    "[ 1130.300000] Kernel panic - not syncing: hung_task: blocked tasks\n"
)
CHECKED = (
    "[ 1000.100000] mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400\n"
    "[ 1000.300000] Kernel panic - not syncing: Fatal machine check\n"
)
ATA = (
    "Mar  1 10:00:09 gpu7 kernel: [ 2907.886743] ata3: hard resetting link\n"
    "Mar  1 10:00:12 gpu7 kernel: [ 2911.304076] ata3: SATA link up 1.5 Gbps (SStatus 113 SControl 310)\n"
    "Mar  1 10:00:13 gpu7 kernel: [ 2912.568745] ata3: exception Emask 0x10 SAct 0x0 SErr 0x90200 action 0xe frozen\n"
    "Mar  1 10:00:13 gpu7 kernel: [ 2912.568758] ata3: SError: { Persist PHYRdyChg 10B8B }\n"
)
LOOKUP = (
    "[  123.456789] LustreError: 77:0:(dir.c:1:ll_dir_ioctl()) lookup failed: rc = -2\n"
    "[  124.456789] Lustre: scratch-MDT0000: Client 77 (at 10.0.0.9@o2ib) reconnecting\n"
)
ENA = (
    "[13718.517318] ena 0000:00:05.0 ens5: Found a Tx that wasn't completed on time, qid 2, index 0.\n"
    "[13719.339996] ena 0000:00:05.0 ens5: The number of lost tx completions is above the threshold (1019 > 128). Reset the device\n"
)
IOMMU = "".join(
    f"[ 77.{n}00000] nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x8{n}040 flags=0x0020]\n"
    for n in range(4)
)
BTRFS = (
    "[ 3135.311298] BTRFS: error (device nvme2n1) in __btrfs_update_delayed_inode:1075: errno=-5 IO failure\n"
    "[ 3135.316955] BTRFS info (device nvme2n1): forced readonly\n"
)
BTRFS_FULL = "[ 2146.030449] BTRFS: Transaction aborted (error -28)\n"
EVICTED = (
    "[ 3677.123718] ceph: mds0 closed our session\n"
    "[ 3677.128019] ceph: mds0 reconnect start\n"
    "[ 3678.093378] ceph: mds0 reconnect denied\n"
    "[ 3678.196747] libceph: mds0 10.0.0.9:6812 socket closed (con state OPEN)\n"
)
HIP_FAULT = (
    "[ 2480.727732] amdgpu 0000:0e:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:173 vmid:8 pasid:32791)\n"
    "[ 2480.727739] amdgpu 0000:0e:00.0: amdgpu:  Process python3 pid 15615 thread python3 pid 15615\n"
)
PEERMEM = (
    "[ 51.100001] nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client\n"
    "[ 51.100002] nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)\n"
)
IML = "1346 Critical  04:07  11/05/2018 0001\nLOG: Uncorrectable Machine Check Exception (Board 0, Processor 1, APIC ID 0x00000010)\n"
FABRIC = (
    "[Feb 27 2025 14:10:02] [INFO] [tid 1808] multicast group 1 is allocated.\n"
    "[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61\n"
)
SWITCH = (
    "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, pid=77, name=python, Graphics Exception: ESR 0x57c730=0xc04000b\n"
    "[Fri Aug 30 11:43:14 2024] NVRM: Xid (PCI:0000:cb:00): 109, pid=77, name=python, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005\n"
)
ISCSI = (
    "Jan 03 03:57:25 n7 kernel:  connection3:0: detected conn error (1020)\n"
    "Jan 03 03:57:34 n7 iscsid[40456]: iscsid: can't bind conn 3:0 to session 3, retcode -107 (115)\n"
)
ISCSI_BACK = "Jan 03 03:57:36 n7 iscsid[40456]: connection3:0 is operational after recovery (1 attempts)\n"
INTEL = (
    "[ 77.100001] i915 0000:33:00.0: GPU HANG: ecode 12:0:00000000\n"
    "[ 77.100002] i915 0000:33:00.0: [drm] Resetting chip for GuC failed to reset rcs0 (reason=0x00000000)\n"
)
SEL_RESET = (
    "  1a | 03/01/2025 | 09:00:00 | System Boot Initiated #0x05 | Initiated by power up | Asserted\n"
    "  1c | 03/01/2025 | 10:00:00 | Watchdog2 #0xca | Hard reset | Asserted\n"
)
SEL_POWER = "   4 | 03/01/2025 | 10:00:00 | Power Supply PSU2 | Power Supply AC lost | Asserted\n"
SEL_POWER_BACK = "   5 | 03/01/2025 | 10:05:00 | Power Supply PSU2 | Power Supply AC lost | Deasserted\n"
I40E = (
    "Jun  3 09:03:26 n7 kernel: i40e 0000:08:00.1: eth9: tx_timeout recovery level 1\n"
    "Jun  3 09:03:27 n7 kernel: i40e 0000:08:00.1: eth9: NIC Link is Down\n"
    "Jun  3 09:03:28 n7 kernel: i40e 0000:08:00.1: eth9: NIC Link is Up 10 Gbps Full Duplex, Flow Control: None\n"
)
VFIO = "[ 586.359281] vfio-pci 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible\n"
HUNG_DRIVER = "[ 721.028170] INFO: task nvc:[driver]:5403 blocked for more than 120 seconds.\n"
BOOT = (
    "[    0.400000] {1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 0\n"
    "[    0.400002] {1}[Hardware Error]: event severity: corrected\n"
    "[    0.500001] DMAR: DRHD: handling fault status reg 2\n"
    "[    0.500003] AMD-Vi: Event logged [IO_PAGE_FAULT device=20:00.0 domain=0x0003 address=0x000000f4001eef80 flags=0x0010]\n"
    "[    0.600001] tpm_tis: probe of 00:05 failed with error -1\n"
    "[    1.000000] ata1: SATA link down (SStatus 0 SControl 300)\n"
    "[    1.000001] ata5: softreset failed (device not ready)\n"
    "[    1.400003] EXT4-fs (nvme0n1p2): recovery complete\n"
    "[    2.100000] BTRFS info (device sda1): bdev /dev/sda1 errs: wr 0, rd 0, flush 0, corrupt 0, gen 0\n"
    "[    2.100002] nvidia: module verification failed: signature and/or required key missing - tainting kernel\n"
    "[    2.200002] mlx5_core 0000:3b:00.0: mlx5_pcie_event:301:(pid 5): Detected insufficient power on the PCIe slot (27W).\n"
    "[    3.500000] Direct firmware load for regulatory.db failed with error -2\n"
)

LOGS = (
    Whole("rsyslog's long stamps name the node", XID_ISO, "fault", ("nvidia.xid.79",), nodes=("gpu7",)),
    Whole("a slot and its GPU are gone", SLOT_GONE, "fault", ("nvidia.xid.79",), "hardware"),
    Whole("a panic over an oops", OOPS, "fault", ("kernel.oops",), "platform"),
    Whole("a panic over a server that does not answer", NFS_PANIC, "fault", ("kernel.nfs.silent",), "storage"),
    Whole("a panic over a machine check", CHECKED, "fault", ("kernel.mce",), "hardware"),
    Whole("a disk's link freezes", ATA, "fault", ("kernel.ata",), "storage", nodes=("gpu7",)),
    Whole("Lustre looked for a file that is not there", LOOKUP, "healthy"),
    Whole("ENA loses completions", ENA, "fault", ("kernel.nic",), "network"),
    Whole("the IOMMU blocks peer-to-peer access", IOMMU, "fault", ("kernel.iommu",), "platform"),
    Whole("btrfs stops writing", BTRFS, "fault", ("kernel.btrfs",), "storage"),
    Whole("btrfs is full", BTRFS_FULL, "fault", ("disk.full.btrfs",), "storage"),
    Whole("Ceph evicts the client", EVICTED, "fault", ("kernel.ceph.evicted",), "storage"),
    Whole("a program's page fault on an AMD GPU (newer words)", HIP_FAULT, "fault", ("kernel.amdgpu.fault",)),
    Whole("a module of another build", PEERMEM, "fault", ("kernel.module",), "platform"),
    Whole("iLO's log of a machine check", IML, "fault", ("ipmi.told",), "hardware"),
    Whole("a context switch after a program's fault", SWITCH, "fault", ("nvidia.xid.13",), "application"),
    Whole("an iSCSI target is gone", ISCSI, "fault", ("kernel.iscsi",), "storage"),
    Whole("an iSCSI target came back", ISCSI + ISCSI_BACK, "healthy"),
    Whole("an Intel GPU hangs", INTEL, "fault", ("kernel.gpu.hang",), "hardware"),
    Whole("a watchdog reset the node", SEL_RESET, "fault", ("ipmi.watchdog",), "platform"),
    Whole("a power supply has no input", SEL_POWER, "fault", ("ipmi.limit",), "hardware"),
    Whole("a power supply had no input for a while", SEL_POWER + SEL_POWER_BACK, "healthy"),
    Whole("a card stops sending and is reset", I40E, "fault", ("kernel.nic",), "network", nodes=("n7",)),
    Whole("a card given to a guest is gone", VFIO, "fault", ("kernel.pci.inaccessible",), "hardware"),
    Whole("the GPU driver's own thread hangs", HUNG_DRIVER, "fault", ("kernel.hung_task.gpu",), "platform"),
    Whole("the fabric manager tells of what ends nothing", FABRIC, "healthy"),
    Whole("a boot full of frightening lines", BOOT, "healthy"),
)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_whole_log(log, tmp_path):
    """Verdict, cause, domain and suspects of the whole log are right."""
    assert_right(log, tmp_path)
