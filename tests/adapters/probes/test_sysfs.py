"""Reading /sys and /proc of other machines, laid out as their kernels lay them out."""

import os
from pathlib import Path

import pytest

from holdfast.adapters.probes import sysfs_reading as sysfs


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_infiniband_roce_and_efa(tmp_path):
    """mlx5 with counters and hw_counters, EFA with counters of its own; `lifespan` is no counter, `N/A` is none."""
    ib = "sys/class/infiniband/mlx5_0/ports/1"
    efa = "sys/class/infiniband/rdmap16s27/ports/1"
    lay(tmp_path, {
        f"{ib}/state": "4: ACTIVE\n", f"{ib}/phys_state": "5: LinkUp\n", f"{ib}/rate": "400 Gb/sec (4X NDR)\n",
        f"{ib}/link_layer": "InfiniBand\n", f"{ib}/counters/symbol_error": "12\n",
        f"{ib}/counters/port_xmit_wait": "N/A (no PMA)\n", f"{ib}/hw_counters/out_of_sequence": "3\n",
        f"{ib}/hw_counters/lifespan": "10\n",
        f"{efa}/state": "4: ACTIVE\n", f"{efa}/phys_state": "5: LinkUp\n", f"{efa}/rate": "100 Gb/sec (4X EDR)\n",
        f"{efa}/link_layer": "Unspecified\n", f"{efa}/hw_counters/rx_drops": "7\n",
        "sys/class/infiniband/rdmap16s27/hw_counters/cmds_err": "0\n",
    })  # fmt: skip
    first, second = sysfs.infiniband(tmp_path)
    assert (first["state"], first["physical"], first["rate_gbps"]) == ("ACTIVE", "LinkUp", 400.0)
    assert first["counters"] == {"symbol_error": 12, "out_of_sequence": 3}
    assert (second["device"], second["counters"]) == ("rdmap16s27", {"rx_drops": 7, "cmds_err": 0})


def test_a_file_that_cannot_be_read_tells_nothing(tmp_path):
    """A driver's error in place of a port's state or a counter is no state and no count: the whole reading fails."""
    for name, read in (
        ("sys/class/infiniband/rdmap0s0/ports/1/state", sysfs.infiniband),
        ("sys/devices/virtual/neuron_device/neuron0/stats/hardware/mem_ecc_uncorrected", sysfs.neuron),
    ):
        path = lay(tmp_path, {name: ""}) / name
        path.unlink()
        path.symlink_to(path.name)
        with pytest.raises(OSError, match="symbolic links"):
            read(tmp_path)
        path.unlink()


def test_lines_about_xids_of_the_kernel_log(tmp_path):
    """Of a file and in the device's form; what is not there is absent."""
    log = tmp_path / "kmsg"
    log.write_bytes(b"[ 1.0] booting\n6,12,900,-;NVRM: Xid (PCI:0000:b9:00): 79\n[ 2.0] NVRM: Xid (PCI:0000:b9:00): 74")
    assert sysfs.xid_lines(log) == ["NVRM: Xid (PCI:0000:b9:00): 79"]
    with pytest.raises(sysfs.AbsentError):
        sysfs.xid_lines(tmp_path / "none")


def test_nothing_there_is_absent(tmp_path):
    """Not an error: this machine has none."""
    for read in (sysfs.infiniband, sysfs.neuron, sysfs.edac, sysfs.pci, sysfs.nics):
        with pytest.raises(sysfs.AbsentError):
            read(tmp_path)


def test_nics_with_a_device_only(tmp_path):
    """Bridges and loopback are none; a card without a carrier has speed -1."""
    net = "sys/class/net"
    lay(tmp_path, {
        f"{net}/lo/operstate": "unknown\n",
        f"{net}/eth0/device/vendor": "0x15b3\n", f"{net}/eth0/operstate": "up\n", f"{net}/eth0/carrier": "1\n",
        f"{net}/eth0/speed": "200000\n", f"{net}/eth0/carrier_down_count": "2\n",
        f"{net}/eth0/statistics/rx_errors": "3\n", f"{net}/eth0/statistics/tx_errors": "4\n",
        f"{net}/eth1/device/vendor": "0x15b3\n", f"{net}/eth1/speed": "-1\n", f"{net}/eth1/carrier": "0\n",
    })  # fmt: skip
    first, second = sysfs.nics(tmp_path)
    assert (first["name"], first["carrier"], first["speed_mbps"], first["carrier_downs"], first["errors"]) == (
        "eth0",
        True,
        200_000,
        2,
        7,
    )
    assert (second["carrier"], second["speed_mbps"]) == (False, None)


@pytest.mark.parametrize("place", ["stats/hardware", "device/health"])
@pytest.mark.parametrize("tail", ["/total", ""])
def test_neuron_counters_of_two_drivers(tmp_path, tail, place):
    """Counters are folders with `total`, or files, wherever in the tree the driver has put them."""
    lay(
        tmp_path,
        {f"sys/devices/virtual/neuron_device/neuron{n}/{place}/mem_ecc_uncorrected{tail}": f"{n}\n" for n in range(2)},
    )
    assert [(d["index"], d["counters"]) for d in sysfs.neuron(tmp_path)] == [
        (0, {"mem_ecc_uncorrected": 0}),
        (1, {"mem_ecc_uncorrected": 1}),
    ]


def test_edac_memory_and_pci(tmp_path):
    """Controllers, sizes, and the devices that matter; a server's graphics chip is no GPU."""
    pci = "sys/bus/pci/devices"
    lay(tmp_path, {
        "sys/devices/system/edac/mc/mc0/ce_count": "12\n", "sys/devices/system/edac/mc/mc0/ue_count": "1\n",
        "proc/meminfo": "MemTotal:       528000000 kB\nMemFree: 1 kB\nMemAvailable:   100000000 kB\n",
        "sys/devices/system/cpu/online": "0-47,96-143\n",
        "sys/devices/system/node/node0/cpulist": "", "sys/devices/system/node/node1/cpulist": "",
        f"{pci}/0000:53:00.0/class": "0x030200\n", f"{pci}/0000:53:00.0/vendor": "0x10de\n",
        f"{pci}/0000:53:00.0/numa_node": "1\n", f"{pci}/0000:53:00.0/current_link_width": "8\n",
        f"{pci}/0000:53:00.0/max_link_width": "16\n", f"{pci}/0000:53:00.0/max_link_speed": "32.0 GT/s PCIe\n",
        f"{pci}/0000:02:00.0/class": "0x030000\n", f"{pci}/0000:02:00.0/vendor": "0x1a03\n",
    })  # fmt: skip
    assert sysfs.edac(tmp_path) == [{"name": "mc0", "corrected": 12, "uncorrected": 1}]
    node = sysfs.node(tmp_path)
    assert (node["cpus"], node["numa_nodes"], node["memory_total"]) == (96, 2, 528_000_000 * 1024)
    (gpu,) = sysfs.pci(tmp_path)
    assert (gpu["kind"], gpu["numa"], gpu["width"], gpu["width_max"], gpu["speed_max"]) == ("gpu", 1, 8, 16, 32.0)


def test_mounts_are_asked_where_they_are_local(tmp_path):
    """A file system of another machine is listed and not touched; pseudo ones are left out."""
    (tmp_path / "data").mkdir()
    lay(tmp_path, {"proc/self/mountinfo": (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 ro,errors=remount-ro\n"
        "23 22 0:20 / /proc rw - proc proc rw\n"
        "24 22 0:40 / /home\\040x rw - nfs4 srv:/home rw,vers=4.2\n"
        "25 22 8:2 / /data ro,nosuid - xfs /dev/sdb rw\n"
    )})  # fmt: skip
    found = {one["point"]: one for one in sysfs.mounts(tmp_path)}
    assert set(found) == {"/", "/home x", "/data"}
    assert (found["/"]["read_only"], found["/data"]["read_only"]) == (True, False)
    assert found["/"]["total"] > 0
    assert "total" not in found["/home x"]


def test_write_probe_on_a_full_and_a_missing_folder(tmp_path):
    """A folder that takes a file, one that is not there, and the device that is always full."""
    assert sysfs.write_probe(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []
    assert sysfs.write_probe(tmp_path / "none") == {"error": "No such file or directory"}


def test_processes_of_a_job_and_not_our_own(tmp_path):
    """The job's id stands in the environment; we and our ancestors are never left over."""
    me = os.getpid()
    lay(tmp_path, {
        "proc/4242/environ": "PATH=/bin\0SLURM_JOB_ID=12\0", "proc/4242/comm": "python\n",
        "proc/4243/environ": "SLURM_JOB_ID=13\0", "proc/4243/comm": "python\n",
        f"proc/{me}/environ": "SLURM_JOB_ID=12\0", f"proc/{me}/comm": "holdfast\n", f"proc/{me}/stat": f"{me} (x) S 1 0\n",
    })  # fmt: skip
    assert [(p["pid"], p["job"]) for p in sysfs.processes(tmp_path, "12")] == [(4242, "12")]


def test_a_job_beside_ours_is_not_left_over(tmp_path):
    """By its control group, of both hierarchies, or below its slurmstepd; what a dead job left has neither."""
    lay(tmp_path, {
        "proc/10/cgroup": "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n",
        "proc/11/cgroup": "4:memory:/slurm/uid_1000/job_78/step_batch\n",
        "proc/12/cgroup": "0::/system.slice/slurmstepd.scope/job_12/step_0\n",
        "proc/13/cgroup": "0::/\n", "proc/13/stat": "13 (python) S 9 0", "proc/13/environ": "SLURM_JOB_ID=79\0",
        "proc/9/comm": "slurmstepd\n", "proc/9/stat": "9 (slurmstepd) S 1 0",
        "proc/14/cgroup": "0::/\n", "proc/14/stat": "14 (python) S 1 0", "proc/14/environ": "SLURM_JOB_ID=70\0",
    })  # fmt: skip
    assert [sysfs.of_another_job(tmp_path, pid, "12") for pid in (10, 11, 12, 13, 14)] == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_this_machine_can_be_read():
    """The real tree under us."""
    node = sysfs.node(Path("/"))
    assert node["cpus"] >= 1
    assert node["memory_total"] > 1 << 28
    assert any(mount["point"] == "/" and mount["total"] > 0 for mount in sysfs.mounts(Path("/")))
