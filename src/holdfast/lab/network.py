"""The wires of a lab whose nodes have networks of their own: one bridge on the machine, one pair of ends per node.

Called by `keeper` (which makes and removes them) and `settings`' chooser. Everything goes through `ip` in batches: one
run for hundreds of nodes. The node's end lives in the node's network and ends with it. No time passes but `ip`'s own.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address
from pathlib import Path

from holdfast.errors import LinkError
from holdfast.lab.settings import NETWORK, SUBNETS, LabFacts, address
from holdfast.os.programs import Command, run_blocking

PREFIX_BITS = 20
IP_LIMIT_S = 30.0


def free_subnet(folder: Path, *, tried: Iterable[int] = ()) -> int:
    """Index of a network that no interface of this machine is in.

    Raises:
        LinkError: `ip` fails or all are taken.
    """
    taken = set(tried)
    for interface in json.loads(_ip(["-j", "-4", "addr", "show"]) or "[]"):
        for entry in interface.get("addr_info", ()):
            taken.add((int(IPv4Address(entry.get("local", "127.0.0.1"))) - int(NETWORK)) >> 12)
    first = zlib.crc32(os.fsencode(folder)) % SUBNETS
    for step in range(SUBNETS):
        index = (first + step) % SUBNETS
        if index not in taken:
            return index
    raise LinkError(f"all {SUBNETS} networks of labs are taken on this machine; `ip -4 addr` shows by whom")


def raise_bridge(facts: LabFacts) -> None:
    """Make the lab's bridge. Raises LinkError when it exists: another lab was quicker."""
    _batch(
        [
            f"link add {facts.bridge} type bridge",
            f"addr add {address(facts.subnet, 1)}/{PREFIX_BITS} dev {facts.bridge}",
            f"link set {facts.bridge} up",
        ]
    )


def wire_nodes(facts: LabFacts, nodes: Sequence[tuple[int, int]]) -> None:
    """Give each node, by number and pid of its first process, a wire to the bridge and an address. Raises LinkError."""
    lines = []
    for number, pid in nodes:
        lines.append(f"link add {facts.wire(number)} type veth peer name eth0 netns {pid}")
        lines.append(f"link set {facts.wire(number)} master {facts.bridge} up")
    _batch(lines)
    for number, pid in nodes:
        lines = [f"addr add {facts.node_address(number)}/{PREFIX_BITS} dev eth0", "link set eth0 up", "link set lo up"]
        _batch([*lines, f"route add default via {facts.ctld_address}"], within=pid)


def drop_wires(facts: LabFacts, numbers: Iterable[int]) -> None:
    """Remove wires of nodes that are off; a wire that went with its node is fine."""
    for number in numbers:
        with contextlib.suppress(LinkError):
            _ip(["link", "del", facts.wire(number)])


def set_wire(facts: LabFacts, number: int, *, up: bool) -> None:
    """Cut a node's wire, or heal it: packets vanish, nobody is told.

    The wire is taken off the bridge rather than switched off: the node keeps its carrier, as behind a dead switch.
    """
    _ip(["link", "set", facts.wire(number), *(["master", facts.bridge] if up else ["nomaster"])])


def remove_bridge(facts: LabFacts) -> None:
    """Remove the lab's bridge and the wires that are left on it; nothing there is fine."""
    with contextlib.suppress(LinkError):
        for interface in json.loads(_ip(["-j", "link", "show", "master", facts.bridge]) or "[]"):
            with contextlib.suppress(LinkError):
                _ip(["link", "del", interface["ifname"]])
    with contextlib.suppress(LinkError):
        _ip(["link", "del", facts.bridge])


def has_bridge(facts: LabFacts) -> bool:
    """Is the lab's bridge there?"""
    return Path("/sys/class/net", facts.bridge).exists()


def _ip(args: Sequence[str], text: str = "", within: int = 0) -> str:
    """Run `ip`, in the network of the process `within` if there is one."""
    enter = ("nsenter", f"--net=/proc/{within}/ns/net") if within else ()
    ran = run_blocking(Command(argv=(*enter, "ip", *args), given=text.encode()), IP_LIMIT_S)
    if ran.code is None:
        raise LinkError(f"`ip` cannot be run (Debian: iproute2): {ran.err or f'no answer within {IP_LIMIT_S:g} s'}")
    if ran.code:
        raise LinkError(f"`ip {' '.join(args)}` failed: {ran.err.strip()}")
    return ran.out


def _batch(lines: Sequence[str], within: int = 0) -> None:
    if lines:
        _ip(["-batch", "-"], "\n".join(lines) + "\n", within)
