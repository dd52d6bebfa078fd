"""Whether a node's slurmd takes a connection: evidence about a node that has gone quiet.

A machine that is cut off or switched off cannot say so, and the scheduler itself notices after SlurmdTimeout (300 s by
default). Two daemons of one machine that fall silent together are the machine. Leading launchers ask so about their
followers' nodes, and the controller (`why_gone`) about its launchers'. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from holdfast.adapters.slurm.node_output import SlurmNode

CONNECT_S = 0.6
STARVED_S = 0.3
"""A time limit that comes so much too late says nothing of the node: we were not running."""
OTHERS = 3
"""Nodes that are asked beside a quiet one: when none of them answers, it is our own line that is broken."""
_DEAD = frozenset({"DOWN", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "FUTURE"})


class NodeAddress(Struct, frozen=True):
    """Where the scheduler reaches a node's daemon."""

    address: str
    port: int


class Knock(Enum):
    """What became of one connection."""

    OPEN = "somebody listens"
    REFUSED = "the machine runs, its slurmd does not"
    NOBODY = "no answer"
    STARVED = "we ourselves were not running"


def address_of(node: SlurmNode, port: int) -> NodeAddress | None:
    """Where its slurmd listens: at `port` (0: unknown), where it has none of its own; None when Slurm does not say."""
    own = node.port or port
    return NodeAddress(node.address, own) if node.address and own else None


async def daemon_answers(where: NodeAddress | None, limit_s: float = CONNECT_S) -> bool:
    """Whether somebody takes a connection at a node's slurmd port; a node of unknown address is taken to."""
    return where is None or await knock(where, limit_s) in {Knock.OPEN, Knock.STARVED}


async def answers_not(where: NodeAddress | None, *, tries: int = 2, limit_s: float = CONNECT_S) -> bool:
    """As evidence without a silence before it: asked again, because one packet may be lost, or its node be slow."""
    for _ in range(tries):
        if await daemon_answers(where, limit_s):
            return False
    return True


async def knock(where: NodeAddress, limit_s: float = CONNECT_S) -> Knock:
    """Open a connection and close it."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        async with asyncio.timeout(limit_s):
            _, writer = await asyncio.open_connection(where.address, where.port)
    except ConnectionRefusedError:
        return Knock.REFUSED
    except OSError:  # TimeoutError too
        return Knock.STARVED if loop.time() - begun > limit_s + STARVED_S else Knock.NOBODY
    writer.close()
    return Knock.OPEN


async def why_gone(name: str, nodes: Mapping[str, SlurmNode], port: int, *, claimed: bool = False) -> str:
    """The proof that a quiet node does not run; empty when there is none.

    Two tries in turn find nobody, not even a kernel that refuses, while another node answers us. A slurmd that does not
    run while its machine does is proof only where the machine's launcher has gone as well.

    Args:
        name: the node that is quiet.
        nodes: of the cluster, as last seen.
        port: of a slurmd that has none of its own.
        claimed: see `ports.Witness`.
    """
    node = nodes.get(name)
    where = address_of(node, port) if node is not None else None
    if where is None:
        return ""
    up = [one for one in nodes.values() if one.name != name and not one.states & _DEAD]
    known = [there for one in up if (there := address_of(one, port)) is not None]
    others = random.sample(known, min(OTHERS, len(known)))  # not its neighbours only: a rack may fail as one
    first, second, *theirs = await asyncio.gather(knock(where), _knock_again(where), *map(knock, others))
    if first is second is Knock.NOBODY and any(other in {Knock.OPEN, Knock.REFUSED} for other in theirs):
        return f"it is quiet, and nobody answers at {where.address}, while other nodes are reached"
    if claimed and first is second is Knock.REFUSED:
        return f"its slurmd does not run either: {where.address} refuses connections"
    return ""


async def _knock_again(where: NodeAddress) -> Knock:
    await asyncio.sleep(CONNECT_S / 2)
    return await knock(where)
