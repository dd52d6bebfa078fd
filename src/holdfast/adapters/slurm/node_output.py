"""What Slurm prints of its nodes -> plain facts. Pure.

`scontrol show nodes -o` is read at every look: it is ten times cheaper than the JSON, and what it holds is written by
admins and daemons, not by users. The JSON (23.02 and later; `sinfo --json` of 22.05) is what it is checked against.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.adapters.slurm.output import node_names, number, pulse_of, seconds, text, time_of, words
from holdfast.errors import WireError


class SlurmNode(Struct, frozen=True, kw_only=True):
    """One node record, as Slurm gives it."""

    name: str
    states: frozenset[str] = frozenset()
    state_text: str = ""
    reason: str = ""
    comment: str = ""
    reason_by: str = ""
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

    state = field("State")
    reason, comment = _NODE_REASON.search(line), _COMMENT.search(line)
    said = text(comment.group(1)) if comment is not None else ""
    return SlurmNode(
        name=line.removeprefix("NodeName=").partition(" ")[0],
        states=states_of_node(state),
        state_text=state,
        reason=_plain(reason.group(1)) if reason is not None else "",
        comment=said,
        reason_by=reason.group(2) if reason is not None else "",
        reason_at=time_of(reason.group(3)) if reason is not None else 0.0,
        boot_at=time_of(field("BootTime")),
        slurmd_at=time_of(field("SlurmdStartTime")),
        address=field("NodeAddr"),
        port=number(field("Port"), 0) or 0,
        partitions=words(field("Partitions")),
        gpus=sum(int(count) for count in _GPUS.findall(field("Gres"))),
        machine=field("InstanceId"),
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


def states_of_node(state: str) -> frozenset[str]:
    """`IDLE+DRAIN*` -> its words; signs become the words that they stand for."""
    found: set[str] = set()
    for part in state.split("+"):
        bare = part.rstrip("".join(_MARKS))
        found.add(bare.upper())
        found.update(_MARKS[mark] for mark in part[len(bare) :])
    return frozenset(found - {""})


# --- JSON -------------------------------------------------------------------------------------------------------------


class _Node(Struct):
    name: Any = None
    state: Any = None
    state_flags: Any = None
    reason: Any = None
    comment: Any = None
    reason_set_by_user: Any = None
    reason_changed_at: Any = None
    boot_time: Any = None
    slurmd_start_time: Any = None
    address: Any = None
    port: Any = None
    partitions: Any = None
    gres: Any = None
    instance_id: Any = None


class _Nodes(Struct):
    nodes: list[_Node]


_nodes_decoder = msgspec.json.Decoder(_Nodes)


def nodes_of_json(raw: bytes) -> list[SlurmNode]:
    """The nodes in `scontrol show nodes --json`, any version's, or in `sinfo --json` of 22.05.

    Raises:
        WireError: it is no such document.
    """
    try:
        found = _nodes_decoder.decode(raw[max(raw.find(b"{"), 0) :])
    except msgspec.MsgspecError as error:
        raise WireError(f"no list of nodes: {error}") from error
    return [_node_of_json(node) for node in found.nodes]


def _node_of_json(raw: _Node) -> SlurmNode:
    states = [*words(raw.state), *words(raw.state_flags)]
    joined = "+".join(state.upper() for state in states)
    return SlurmNode(
        name=text(raw.name),
        states=states_of_node(joined),
        state_text=joined,
        reason=_plain(text(raw.reason)),
        comment=text(raw.comment),
        reason_by=text(raw.reason_set_by_user),
        reason_at=seconds(raw.reason_changed_at),
        boot_at=seconds(raw.boot_time),
        slurmd_at=seconds(raw.slurmd_start_time),
        address=text(raw.address),
        port=number(raw.port, 0) or 0,
        partitions=words(raw.partitions),
        gpus=sum(int(count) for count in _GPUS.findall(text(raw.gres))),
        machine=text(raw.instance_id),
    )


class _NodePulse(Struct):
    name: msgspec.Raw = msgspec.Raw()
    state: msgspec.Raw = msgspec.Raw()
    state_flags: msgspec.Raw = msgspec.Raw()
    reason: msgspec.Raw = msgspec.Raw()
    reason_changed_at: msgspec.Raw = msgspec.Raw()


class _NodePulses(Struct):
    nodes: list[_NodePulse]


_node_pulse_decoder = msgspec.json.Decoder(_NodePulses)


def pulse_of_nodes(raw: bytes) -> bytes:
    """Of a document of nodes, what differs when something changed that matters, as `commands.PULSE_NODES` prints it.

    Raises:
        WireError: it is no such document.
    """
    try:
        nodes = _node_pulse_decoder.decode(raw).nodes
    except msgspec.MsgspecError as error:
        raise WireError(f"no list of nodes: {error}") from error
    return pulse_of(nodes)
