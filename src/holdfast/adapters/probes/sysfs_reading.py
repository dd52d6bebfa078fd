"""Reads /sys, /proc and mounted file systems, inside the reading process: any of it may hang with a broken driver.

Every function takes the root folder, so that a copy of another machine's tree can be read. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections import deque
from pathlib import Path
from typing import Any

from holdfast.adapters.kernel_record import parse_record

COUNTER_MAX = 1 << 63
WRITE_BYTES = 4096
RECORD_BYTES = 8192
"""Each read of /dev/kmsg gives one record, which fits into this."""
XIDS_MAX = 500
NETWORK = ("nfs", "lustre", "fuse.", "gpfs", "beegfs", "ceph", "glusterfs", "cifs", "smb", "9p", "wekafs", "pvfs")
"""File systems that live on other machines: they may not answer."""
_PSEUDO = frozenset((
    "proc", "sysfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "debugfs", "tracefs", "securityfs", "pstore",
    "bpf", "configfs", "fusectl", "autofs", "binfmt_misc", "hugetlbfs", "rpc_pipefs", "nsfs", "efivarfs", "ramfs",
    "selinuxfs", "squashfs", "overlay.ro",
))  # fmt: skip
_PCI_KINDS = {"0x0302": "gpu", "0x0300": "gpu", "0x0207": "network", "0x0200": "network", "0x0108": "nvme"}
_NVIDIA = "0x10de"
_NEURON_COUNTERS: dict[Path, list[Path]] = {}
_JOB_GROUP = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
_UNSYNCED = 0x0040
"""STA_UNSYNC of adjtimex(2)."""


class AbsentError(Exception):
    """What is to be read is not here."""


def _there(folder: Path, absent: str) -> Path:
    """The folder. Raises AbsentError with these words when there is none."""
    if not folder.is_dir():
        raise AbsentError(absent)
    return folder


def kernels_text(line: bytes, *, is_device: bool = True) -> bytes:
    """The text of a record of the kernel's own, empty for a program's; of a file also a line that is no record."""
    record = parse_record(line)
    if record is None:
        return b"" if is_device else line
    return record.text if record.facility == 0 else b""


def xid_lines(path: Path) -> list[str]:
    """Lines of this boot's kernel log that tell of a GPU's error, the newest `XIDS_MAX`. Raises OSError."""
    found: deque[str] = deque(maxlen=XIDS_MAX)
    try:
        is_device = path.is_char_device()
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if is_device else 0))
    except FileNotFoundError as error:
        raise AbsentError(f"there is no {path}") from error
    rest = b""
    with os.fdopen(file, "rb", buffering=0) as log:
        while True:
            try:
                data = os.read(log.fileno(), RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the ring was overwritten before it was read: what is there now comes next
                continue
            *lines, rest = (rest + data).split(b"\n")
            texts = (kernels_text(line, is_device=is_device) for line in lines if b"Xid" in line)
            found.extend(text.decode(errors="replace") for text in texts if text)
            if not data:
                break
    return list(found)


def infiniband(root: Path) -> list[dict[str, Any]]:
    """Ports of all InfiniBand, RoCE and EFA devices: `facts.PortFacts`."""
    folder = _there(root / "sys/class/infiniband", "there is no InfiniBand or EFA device")
    found = []
    for device in sorted(folder.iterdir()):
        driver = ""
        with contextlib.suppress(OSError):
            driver = (device / "device/driver").resolve(strict=True).name
        for port in sorted((device / "ports").iterdir()) if (device / "ports").is_dir() else []:
            counters = _counters(port / "counters") | _counters(port / "hw_counters")
            found.append(
                {
                    "device": device.name,
                    "port": int(port.name),
                    "driver": driver,
                    "state": _after_colon(_told(port / "state")),
                    "physical": _after_colon(_line(port / "phys_state")),
                    "rate_gbps": _number(_line(port / "rate").partition(" ")[0]),
                    "counters": counters | _counters(device / "hw_counters"),
                }
            )
    return found


def nics(root: Path) -> list[dict[str, Any]]:
    """Network interfaces with a device behind them: `facts.NicFacts`."""
    folder = _there(root / "sys/class/net", "there is no /sys/class/net")
    found = []
    for nic in sorted(folder.iterdir()):
        if not (nic / "device").exists():
            continue
        errors = [_count(_line(nic / "statistics" / name)) for name in ("rx_errors", "tx_errors")]
        carrier = _line(nic / "carrier")
        speed = _count(_line(nic / "speed"))
        found.append(
            {
                "name": nic.name,
                "carrier": None if carrier == "" else carrier == "1",
                "speed_mbps": speed if speed is not None and speed > 0 else None,
                "carrier_downs": _count(_line(nic / "carrier_down_count")),
                "errors": sum(error for error in errors if error is not None),
            }
        )
    return found


def neuron(root: Path) -> list[dict[str, Any]]:
    """Neuron devices and their memory-error counters: `facts.NeuronFacts`.

    Driver 2.31 moved nodes of this tree, so the counters are looked for by name, once per reading process.
    """
    folder = _there(root / "sys/devices/virtual/neuron_device", "there is no Neuron device")
    found = []
    for device in sorted(folder.glob("neuron*")):
        if not device.name.removeprefix("neuron").isdigit():
            continue
        if device not in _NEURON_COUNTERS:
            _NEURON_COUNTERS[device] = [path for path in device.rglob("*_uncorrected") if "ecc" in path.name]
        counters: dict[str, int] = {}
        for path in _NEURON_COUNTERS[device]:
            count = _count(_told(path / "total" if path.is_dir() else path))
            if count is not None:
                counters[path.name] = counters.get(path.name, 0) + count
        found.append({"index": int(device.name.removeprefix("neuron")), "counters": counters})
    return found


def edac(root: Path) -> list[dict[str, Any]]:
    """Memory controllers: `facts.MemoryControllerFacts`."""
    folders = sorted((root / "sys/devices/system/edac/mc").glob("mc[0-9]*"))
    if not folders:
        raise AbsentError("EDAC has no memory controller")
    return [
        {
            "name": folder.name,
            "corrected": _count(_line(folder / "ce_count")) or 0,
            "uncorrected": _count(_line(folder / "ue_count")) or 0,
        }
        for folder in folders
    ]


def node(root: Path) -> dict[str, Any]:
    """Processors, memory, clock: `facts.NodeFacts`."""
    memory: dict[str, str] = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE))
    numa = list((root / "sys/devices/system/node").glob("node[0-9]*"))
    online = _line(root / "sys/devices/system/cpu/online")
    return {
        "cpus": _ranges(online) if online else os.cpu_count() or 0,
        "numa_nodes": len(numa),
        "memory_total": int(memory.get("MemTotal", 0)) * 1024,
        "memory_available": int(memory.get("MemAvailable", memory.get("MemTotal", 0))) * 1024,
        "clock_synced": _is_clock_synced() if root == Path("/") else None,
    }


def pci(root: Path) -> list[dict[str, Any]]:
    """GPUs, network cards and NVMe drives on the PCI bus: `facts.PciFacts`."""
    folder = _there(root / "sys/bus/pci/devices", "there is no PCI bus")
    found = []
    for device in sorted(folder.iterdir()):
        kind = _PCI_KINDS.get(_line(device / "class")[:6], "")
        if not kind or (kind == "gpu" and _line(device / "vendor") != _NVIDIA):
            continue
        found.append(
            {
                "address": device.name,
                "kind": kind,
                "numa": _count(_line(device / "numa_node")),
                "width": _count(_line(device / "current_link_width")),
                "width_max": _count(_line(device / "max_link_width")),
                "speed_max": _number(_line(device / "max_link_speed").partition(" ")[0]),
            }
        )
    return found


def processes(root: Path, job: str) -> list[dict[str, Any]]:
    """Processes of ordinary users that hold a GPU or carry this job's id, ours left out: `facts.ProcessFacts`."""
    found = []
    ours = _ancestors(root, os.getpid())
    for folder in (root / "proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in ours:
            continue
        with contextlib.suppress(OSError, ValueError):
            uid = folder.stat().st_uid
            owner = _job_of(folder)
            left = uid >= 1000 and _holds_gpu(folder) and not of_another_job(root, int(folder.name), job)
            if (job and owner == job) or left:
                found.append({"pid": int(folder.name), "name": _line(folder / "comm"), "job": owner})
    return found


def running(root: Path) -> list[str]:
    """Names of all processes, each once."""
    return sorted({_line(folder / "comm") for folder in (root / "proc").iterdir() if folder.name.isdigit()})


def of_another_job(root: Path, pid: int, job: str) -> bool:
    """Does the process belong to a Slurm job that runs here beside ours? Nodes may be shared.

    It does when it stands in that job's control group, or below a `slurmstepd` while its environment names another job.
    What a dead job left has neither: its group is gone, or its parent is.
    """
    folder = root / "proc" / str(pid)
    groups = set(_JOB_GROUP.findall(_text(folder / "cgroup")))
    if groups:
        return job not in groups
    owner = _job_of(folder)
    if owner and owner == job:
        return False
    return any(_line(root / "proc" / str(one) / "comm") == "slurmstepd" for one in _ancestors(root, pid))


def mounts(root: Path) -> list[dict[str, Any]]:
    """Mounted file systems; those of this machine are asked for their space: `facts.MountFacts`."""
    found: dict[str, dict[str, Any]] = {}
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) < 6 or len(rest) < 2 or rest[0] in _PSEUDO:
            continue
        point = fields[4].replace("\\040", " ")
        # Read-only for the mount may be wanted (a bind of a folder); for the file system it is what errors lead to.
        options = set((rest[2] if len(rest) > 2 else "").split(","))
        one = {"point": point, "kind": rest[0], "device": rest[1], "read_only": "ro" in options}
        if not rest[0].startswith(NETWORK):
            one |= statvfs(str(root / point.lstrip("/")))
        found[point] = one
    return list(found.values())


def statvfs(point: str) -> dict[str, Any]:
    """`total`, `free` and `error` of a mounted file system."""
    try:
        answer = os.statvfs(point)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"total": answer.f_blocks * answer.f_frsize, "free": answer.f_bavail * answer.f_frsize}


def write_probe(folder: Path) -> dict[str, Any]:
    """Write, sync, read back and remove a small file."""
    path = folder / f".holdfast-probe-{os.getpid()}"
    data = os.urandom(WRITE_BYTES)
    try:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        whole = path.read_bytes() == data
    except OSError as error:
        return {"error": error.strerror or str(error)}
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    return {} if whole else {"error": "what was read is not what was written"}


class _Timex(ctypes.Structure):
    """`struct timex` of adjtimex(2), as far as it is read; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("room", ctypes.c_char * 256),
    )


def _is_clock_synced() -> bool | None:
    """Does the kernel think that its clock is disciplined?"""
    try:
        timex = _Timex()
        if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return not timex.status & _UNSYNCED


def _ancestors(root: Path, pid: int) -> set[int]:
    found = set()
    while pid > 1 and pid not in found:
        found.add(pid)
        fields = _line(root / "proc" / str(pid) / "stat").rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found


def _job_of(folder: Path) -> str:
    try:
        pairs = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((pair[13:].decode(errors="replace") for pair in pairs if pair.startswith(b"SLURM_JOB_ID=")), "")


def _holds_gpu(folder: Path) -> bool:
    try:
        return any(str(fd.readlink()).startswith("/dev/nvidia") for fd in (folder / "fd").iterdir())
    except OSError:
        return False


def _counters(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        return {}
    found = {}
    for file in folder.iterdir():
        count = _count(_line(file))
        # `lifespan` is how long the others are cached, and counts of bytes are no errors.
        if count is not None and file.name != "lifespan":
            found[file.name] = count
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _line(path: Path) -> str:
    return _text(path).partition("\n")[0].strip()


def _told(path: Path) -> str:
    """The first line. A file that is not there is empty; one that cannot be read raises OSError: it tells nothing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except FileNotFoundError:
        return ""


def _after_colon(text: str) -> str:
    """`4: ACTIVE` -> `ACTIVE`."""
    return text.rpartition(":")[2].strip()


def _count(text: str) -> int | None:
    try:
        value = int(text, 0)
    except ValueError:
        return None
    return value if abs(value) < COUNTER_MAX else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _ranges(text: str) -> int:
    """How many numbers `0-3,8` names."""
    total = 0
    for part in text.split(","):
        low, _, high = part.partition("-")
        total += int(high or low) - int(low) + 1
    return total
