"""What a lab is asked to be, and the facts that follow: folder, ports, subnet. Written to `lab.json` in its folder.

Called by `slurm_lab` (which chooses and writes them) and `keeper` (which reads them). No time passes here.
"""

from __future__ import annotations

import os
import re
import socket
import zlib
from ipaddress import IPv4Address
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.errors import LinkError, NotFoundError, UsageError
from holdfast.os.files import write_whole

FACTS_NAME = "lab.json"
SHARED_CACHE = Path("/var/cache/holdfast")
PATH_BYTES_MAX = 60
"""Slurm and munge put sockets of up to 45 bytes more below the lab's folder; sun_path holds 107 (unix(7))."""
NODES_MAX = 4000
PORTS_FROM, PORTS_TO = 12_000, 32_000
"""Below Linux's ephemeral ports (ip_local_port_range begins at 32768)."""
NODE_PORT = 16
"""The first 16 ports of a lab are its daemons'."""
NETWORK = IPv4Address("10.176.0.0")
SUBNETS = 128
NODE_NAME = re.compile(r"[a-z][a-z0-9-]{0,29}")


def cache_folder(name: str, *, shared: bool = False) -> Path:
    """A lab's own place in the user's cache. Short, because Slurm puts sockets below it.

    Args:
        name: of the folder.
        shared: users other than root need what root has there, so it lies outside root's home, which is closed to them.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if shared and not base and os.geteuid() == 0:
        return SHARED_CACHE / name
    return (Path(base) if base else Path.home() / ".cache") / "holdfast" / name


class LabSettings(Struct, frozen=True, kw_only=True):
    """What was asked for. Durations in seconds."""

    nodes: int = 8
    netns: bool = False
    """Own network, host name and process tree for each node (root only): power-off and cuts are what they say."""
    dbd: bool = False
    """Accounting: slurmdbd and a MariaDB of its own."""
    rest: bool = False
    """slurmrestd on a Unix socket."""
    prefix: str = ""
    """Where the Slurm to run is installed (`bin` and `sbin` below); empty: the one on the PATH."""
    defaults: bool = False
    """Keep Slurm's own credential time, SlurmdTimeout, KillWait, scheduling intervals."""
    gpus: int = 8
    """Fake GPUs of each node: character devices, as slurmd refuses anything else."""
    cpus: int = 4
    memory_mib: int = 4000
    boot_s: float = 2.0
    slurmd_timeout_s: int = 6
    """SlurmdTimeout unless `defaults`."""
    agents: bool = False
    """Run `holdfast agent` on every node; it follows `controller/controller.json` in the lab's folder."""
    agent_beat_s: float = 1.0
    devices: bool = False
    """Agents give their nodes emulated GPUs, looked at every second; `dcgmi` is in a node's `devices/bin`."""
    agent_config: str = ""
    """The agents' agent.toml; empty: none."""
    drill_ok: bool = True
    """Agents say that their nodes may be broken on purpose."""
    port: int = 0
    """First port; 0: a free range."""
    extra_conf: str = ""
    """Lines appended to slurm.conf."""
    shared_mib: int = 0
    """Size of a file system of its own at `shared/`, which all nodes see and which can be filled (root); 0: none."""
    tmp_mib: int = 32
    """Size of each node's own scratch file system, where root may mount one."""


class LabFacts(Struct, frozen=True, kw_only=True):
    """A lab as it is laid out. `version` counts changes of this form."""

    version: int = 1
    kind: str = "slurm"
    dir: str
    settings: LabSettings
    host: str
    """Short host name of this machine: slurmctld insists on it."""
    user: str
    root: bool
    port: int
    subnet: int = 0
    """Index of the lab's network, netns only."""

    @property
    def folder(self) -> Path:
        """The lab's folder."""
        return Path(self.dir)

    @property
    def conf(self) -> Path:
        """slurm.conf."""
        return self.folder / "etc" / "slurm.conf"

    @property
    def names(self) -> list[str]:
        """Names of the nodes that slurm.conf lists."""
        return [node_name(number) for number in range(1, self.settings.nodes + 1)]

    @property
    def ctld_address(self) -> str:
        """Where nodes reach slurmctld, and a Holdfast controller."""
        return address(self.subnet, 1) if self.settings.netns else "127.0.0.1"

    @property
    def bridge(self) -> str:
        """The interface that joins the nodes of a lab with networks of their own."""
        return f"hfl{self.subnet}br"

    def wire(self, number: int) -> str:
        """The machine's end of a node's wire."""
        return f"hfl{self.subnet}n{number}"

    def node_address(self, number: int) -> str:
        """Address of the node with this number, counted from 1."""
        return address(self.subnet, 16 + number) if self.settings.netns else "127.0.0.1"

    def node_port(self, number: int) -> int:
        """Port of that node's slurmd."""
        return self.port + NODE_PORT + (0 if self.settings.netns else number)


def node_name(number: int) -> str:
    """`node01`, `node64`, `node128`."""
    return f"node{number:02d}"


def address(subnet: int, host: int) -> str:
    """Address of a host in a lab's network: 10.176.0.0/13 cut into 128 networks of 4,094 hosts."""
    return str(NETWORK + (subnet << 12) + host)


def check_settings(settings: LabSettings, folder: Path) -> None:
    """Raise UsageError for what cannot work."""
    if not 1 <= settings.nodes <= NODES_MAX:
        raise UsageError(f"{settings.nodes} nodes: a lab has 1 to {NODES_MAX}")
    if settings.prefix and not Path(settings.prefix, "sbin", "slurmctld").exists():
        raise UsageError(f"--prefix {settings.prefix}: there is no sbin/slurmctld below it")
    if not 0 <= settings.gpus <= 64:
        raise UsageError(f"--gpus {settings.gpus}: a node has 0 to 64")
    if not settings.netns and settings.nodes > 1000:
        raise UsageError("more than 1000 nodes need --netns: otherwise each takes a port of this machine")
    if settings.shared_mib and os.geteuid() != 0:
        raise UsageError("a shared file system of the lab's own needs root")
    if settings.netns and os.geteuid() != 0:
        raise UsageError("--netns needs root; without it the lab runs as any user")
    if len(os.fsencode(folder)) > PATH_BYTES_MAX:
        raise UsageError(
            f"{folder} is longer than {PATH_BYTES_MAX} bytes, and Slurm's sockets below it would not fit: "
            "name a shorter --dir"
        )


def port_range(settings: LabSettings, folder: Path, *, kept: int = 0) -> int:
    """First port of a range that is free now.

    Args:
        settings: says how many, and which one if the person chose.
        folder: decides where to look first, so that labs beside each other rarely meet.
        kept: the range of an earlier lab in this folder; taken again when it is still free.

    Raises:
        UsageError: the person's range is taken.
        LinkError: no range is free.
    """
    span = NODE_PORT + 1 + (0 if settings.netns else settings.nodes)
    if settings.port:
        if not all_free(settings.port, span):
            raise UsageError(f"--port {settings.port}: some of the {span} ports from there are taken")
        return settings.port
    return free_range(span, zlib.crc32(os.fsencode(folder)), kept=kept)


def free_range(span: int, seed: int, *, kept: int = 0) -> int:
    """First of so many free ports in a row; `seed` says where to look first, after `kept`. Raises LinkError."""
    rooms = (PORTS_TO - PORTS_FROM) // span
    for begin in [*([kept] if kept else []), *(PORTS_FROM + (seed + step) % rooms * span for step in range(rooms))]:
        if all_free(begin, span):
            return begin
    raise LinkError(f"no {span} free ports in a row between {PORTS_FROM} and {PORTS_TO}")


def all_free(begin: int, span: int) -> bool:
    """Can every port of the range be listened on?"""
    for port in range(begin, begin + span):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))  # noqa: S104 - only tried, and given back at once
            except OSError:
                return False
    return True


def read_facts(folder: Path) -> LabFacts:
    """The lab in this folder, running or not. Raises NotFoundError when there is none."""
    path = folder / FACTS_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=LabFacts)
    except FileNotFoundError:
        raise NotFoundError(f"there is no lab in {folder}; `holdfast lab slurm up` starts one") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise LinkError(f"{path} cannot be read: {error}; remove {folder} and start the lab anew") from error


def write_facts(facts: LabFacts) -> None:
    """Store them in the lab's folder."""
    write_whole(facts.folder / FACTS_NAME, msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
