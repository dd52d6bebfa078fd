"""What Slurm prints of its nodes -> plain facts. Pure.

`scontrol show nodes -o` is read at every look: it is ten times cheaper than the JSON, and what it holds is written by
admins and daemons, not by users. The JSON (23.02 and later; `sinfo --json` of 22.05) is what it is checked against.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.adapters.slurm.output import decoder_of, node_names, number, record, seconds, text, time_of, words
from holdfast.errors import WireError


class SlurmNode(Struct, frozen=True, kw_only=True):
    """One node record, as Slurm gives it."""

    name: str
    states: frozenset[str] = frozenset()
    state_text: str = ""
    reason: str = ""
    comment: str = ""
    reason_at: float = 0.0
    was_resumed: bool = False
    """The reason that Slurm shows is that of a drain which is over, so `reason` is empty: `Memory.without_stale`."""
    boot_at: float = 0.0
    slurmd_at: float = 0.0
    address: str = ""
    port: int = 0
    """Where its slurmd listens; 0: the cluster's SlurmdPort."""
    partitions: tuple[str, ...] = ()
    gpus: int = 0
    machine: str = ""
    """The cloud's instance id, where Slurm knows it (23.02 and later)."""


_GPUS = re.compile(r"gpu(?::[^:,()]+)?:(\d+)")
_NODE_REASON = re.compile(r" Reason=(.*?) \[([^\s@\[\]]*)@([^\]]*)\]")
_COMMENT = re.compile(r" Comment=(.*?)(?= (?:Extra|InstanceId|InstanceType|Reason)=|$)")
_FIELD = {
    key: re.compile(rf" {key}=(\S+)")
    for key in ("State", "NodeAddr", "Port", "BootTime", "SlurmdStartTime", "Partitions", "Gres", "InstanceId")
}


@lru_cache(maxsize=1024)
def _gpus(gres: str) -> int:
    return sum(int(count) for count in _GPUS.findall(gres))


def _plain(reason: str) -> str:
    """The reason as it was given: Slurm appends to it while it reboots a node."""
    return text(re.sub(r"(?: : reboot (?:issued|requested|complete|timed out|ASAP))+$", "", reason.strip()))


def nodes_of_text(raw: str) -> list[SlurmNode]:
    """The nodes in `scontrol show nodes -o`."""
    return [_node(line) for line in raw.splitlines() if line.startswith("NodeName=")]


def _node(line: str) -> SlurmNode:
    def field(key: str) -> str:
        hit = _FIELD[key].search(line)
        return text(hit.group(1)) if hit is not None else ""

    reason, comment = _NODE_REASON.search(line), _COMMENT.search(line)
    return _read(
        _Node(
            name=line.removeprefix("NodeName=").partition(" ")[0],
            state=field("State"),
            reason=reason.group(1) if reason is not None else "",
            comment=comment.group(1) if comment is not None else "",
            reason_changed_at=time_of(reason.group(3)) if reason is not None else 0.0,
            boot_time=time_of(field("BootTime")),
            slurmd_start_time=time_of(field("SlurmdStartTime")),
            address=field("NodeAddr"),
            port=field("Port"),
            partitions=field("Partitions"),
            gres=field("Gres"),
            instance_id=field("InstanceId"),
        )
    )


def partition_nodes(raw: str) -> dict[str, tuple[str, ...]]:
    """The nodes of each partition in `scontrol show partitions -o`."""
    found: dict[str, tuple[str, ...]] = {}
    for line in raw.splitlines():
        hit = re.search(r"^PartitionName=(\S+).* Nodes=(\S*)", line)
        if hit is not None:
            found[hit.group(1)] = node_names(text(hit.group(2)))
    return found


_MARKS = {"*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWERING_DOWN", "%": "POWERING_DOWN",
          "$": "MAINTENANCE", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED"}  # fmt: skip
"""Signs behind a state, from scontrol(1) and sinfo(1)."""


@lru_cache(maxsize=1024)
def states_of_node(state: str) -> frozenset[str]:
    """`IDLE+DRAIN*` -> its words; signs become the words that they stand for."""
    found: set[str] = set()
    for part in state.split("+"):
        bare = part.rstrip("".join(_MARKS))
        found.add(bare.upper())
        found.update(_MARKS[mark] for mark in part[len(bare) :])
    return frozenset(found - {""})


def nodes_of_json(raw: bytes) -> list[SlurmNode]:
    """The nodes in `scontrol show nodes --json`, any version's, or in `sinfo --json` of 22.05.

    Raises:
        WireError: it is no such document.
    """
    try:
        found = _nodes_decoder.decode(raw[max(raw.find(b"{"), 0) :])
    except msgspec.MsgspecError as error:
        raise WireError(f"no list of nodes: {error}") from error
    return [_read(node) for node in found.nodes]


_READ: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", text),
    "reason": ("reason", lambda value: _plain(text(value))),
    "comment": ("comment", text),
    "reason_at": ("reason_changed_at", seconds),
    "boot_at": ("boot_time", seconds),
    "slurmd_at": ("slurmd_start_time", seconds),
    "address": ("address", text),
    "port": ("port", lambda value: number(value, 0) or 0),
    "partitions": ("partitions", words),
    "gpus": ("gres", lambda value: _gpus(text(value))),
    "machine": ("instance_id", text),
}
"""Field of `SlurmNode` -> that of the JSON, and how it is read; `_read` reads the states."""
_Node: Any = record(["state", "state_flags", *(key for key, _ in _READ.values())])
_nodes_decoder = decoder_of("nodes", _Node)


def _read(raw: Any) -> SlurmNode:
    joined = "+".join(state.upper() for state in (*words(raw.state), *words(raw.state_flags)))
    read = {field: read(getattr(raw, key)) for field, (key, read) in _READ.items()}
    return SlurmNode(states=states_of_node(joined), state_text=joined, **read)
