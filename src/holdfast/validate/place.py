"""Where this process stands in a fleet run: alone, leader or worker; and how the leader is found.

Under `srun` the leader is rank 0. It writes its address and the run's secret into a file (0600) in a folder that all
nodes see; elsewhere (Kubernetes) address and secret are handed in. Read by the command only; waits are bounded.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.adapters.slurm.output import node_names
from holdfast.errors import LinkError, UsageError
from holdfast.os.files import BOOT_ID, text_of, write_whole
from holdfast.os.listeners import host_and_port
from holdfast.validate.wire import Hello

FILE = "leader.json"
POLL_S = 0.2


class Place(Struct, frozen=True, kw_only=True):
    """See the module."""

    node: str
    rank: int = 0
    world: int = 1
    names: tuple[str, ...] = ()
    """Nodes by rank, where the scheduler says them."""
    run: str = ""
    """What tells this run from an earlier one in the same folder."""


class Leader(Struct, frozen=True, kw_only=True):
    """What workers must know."""

    run: str
    hosts: tuple[str, ...]
    port: int
    secret: str


def place_of(env: Mapping[str, str]) -> Place:
    """Read it from Slurm's step, Kubernetes' indexed job, or nothing."""
    name = env.get("SLURMD_NODENAME") or env.get("HOLDFAST_NODE") or socket.gethostname().partition(".")[0]
    if "SLURM_STEP_ID" in env and int(env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", "1"))) > 1:
        names = node_names(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST", ""))
        return Place(
            node=name,
            rank=int(env.get("SLURM_PROCID", "0")),
            world=int(env.get("SLURM_STEP_NUM_NODES", len(names))),
            names=names,
            run=f"{env.get('SLURM_JOB_ID', '0')}.{env['SLURM_STEP_ID']}",
        )
    if env.get("JOB_COMPLETION_INDEX", "").isdigit():
        return Place(node=env.get("NODE_NAME") or name, rank=int(env["JOB_COMPLETION_INDEX"]))
    return Place(node=name)


def hello_of(place: Place, env: Mapping[str, str], address: str = "") -> Hello:
    """How this node introduces itself."""
    return Hello(
        node=place.node,
        rank=place.rank,
        boot=text_of(BOOT_ID),
        address=address,
        gpu=gpu_name(),
        cpu=_field(Path("/proc/cpuinfo"), "model name", "Model"),
        instance=env.get("HOLDFAST_INSTANCE_TYPE") or _instance(),
    )


def gpu_name() -> str:
    """The first GPU's name, from the driver's own record; empty without one."""
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        if name := _field(path, "Model"):
            return name
    return ""


def _field(path: Path, *keys: str) -> str:
    """The value of the first `KEY : VALUE` line with one of these keys; empty when there is none."""
    for line in text_of(path).splitlines():
        key, mark, value = line.partition(":")
        if mark and key.strip() in keys:
            return value.strip()
    return ""


def _instance() -> str:
    """EC2 writes its instance type into the firmware's tables."""
    if "Amazon" not in text_of(Path("/sys/class/dmi/id/sys_vendor")):
        return ""
    return text_of(Path("/sys/class/dmi/id/product_name"))


def addresses(node: str) -> tuple[str, ...]:
    """Under which others may reach this node: what its name means, the way out, the name itself."""
    found: list[str] = []
    for name in (node, socket.gethostname()):
        try:
            known = socket.getaddrinfo(name, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
        except OSError:
            continue
        found += [str(one[4][0]) for one in known if not str(one[4][0]).startswith(("127.", "::1", "fe80"))]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1 (RFC 5737): nothing is sent, only the route is looked up
            found.append(str(probe.getsockname()[0]))
        except OSError:
            pass
    return tuple(dict.fromkeys([*found, node]))


def publish(folder: Path, leader: Leader) -> None:
    """Write the leader's file, for this user only."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FILE, msgspec.json.encode(leader), mode=0o600)


async def find_leader(folder: Path, run: str, limit_s: float) -> Leader:
    """Wait for the leader's file of this run. Raises LinkError when it does not come."""
    try:
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    leader = msgspec.json.decode((folder / FILE).read_bytes(), type=Leader)
                except (OSError, msgspec.MsgspecError):
                    pass
                else:
                    if leader.run == run:
                        return leader
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise LinkError(
            f"no leader wrote {folder / FILE} within {limit_s:g} s: all nodes must see that folder (--out)"
        ) from None


def leader_at(text: str) -> tuple[str, int]:
    """`HOST:PORT`. Raises UsageError."""
    found = host_and_port(text)
    if found is None:
        raise UsageError(f"--leader {text}: write HOST:PORT")
    return found
