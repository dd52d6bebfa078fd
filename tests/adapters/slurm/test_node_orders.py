"""What orders about nodes tell Slurm, and whose drains they leave alone. Without a Slurm."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.adapters.slurm.asks import PREFIX
from holdfast.adapters.slurm.looks import Reading
from holdfast.adapters.slurm.memory import Memory
from holdfast.adapters.slurm.node_orders import NodeOrders
from holdfast.adapters.slurm.node_output import SlurmNode
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.errors import PermanentOrderError
from holdfast.model import orders as o

DRAINED = frozenset({"IDLE", "DRAIN"})


class Slurm:
    """Slurm's tools and their words: one node in three partitions."""

    def __init__(self, node: SlurmNode) -> None:
        self.node = node
        self.told: list[str] = []
        self.partitions = ""

    async def fresh(self) -> Reading:
        return Reading(at=0.0, jobs={}, nodes={self.node.name: self.node})

    async def text(self, argv: Sequence[str]) -> str:
        assert "partitions" in argv
        return self.partitions

    async def run(self, argv: Sequence[str], **_: object) -> bytes:
        self.told.append(" ".join(argv))
        return b""

    def orders(self) -> NodeOrders:
        async def at_once(_node: str) -> None:
            return

        return NodeOrders(self, self, Memory(None), SlurmConfig(), until_killed=at_once)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["fan is broken", "", "Not responding"])
def test_a_drain_that_is_not_ours_is_not_lifted(reason: str) -> None:
    """Whoever drained it decides: the return is refused, and Slurm is told nothing."""
    slurm = Slurm(SlurmNode(name="node01", states=DRAINED, reason=reason))
    with pytest.raises(PermanentOrderError, match="drained by someone else"):
        asyncio.run(slurm.orders().execute(o.ReturnNode(id="1", cause=1, node="node01")))
    assert slurm.told == []


def test_a_node_comes_back_into_every_partition_that_it_has_lost() -> None:
    """A replaced machine is in none of them; each partition keeps the nodes that it has."""
    slurm = Slurm(SlurmNode(name="node01", states=frozenset({"IDLE"}), partitions=("a", "b", "c")))

    async def work() -> str:
        orders = slurm.orders()
        await orders.execute(o.QuarantineNode(id="1", cause=1, node="node01", why="Xid 79"))
        slurm.node = replace(slurm.node, states=DRAINED, reason=f"{PREFIX} Xid 79", partitions=("b",))
        slurm.partitions = "".join(
            f"PartitionName={name} AllowGroups=ALL Nodes={nodes} State=UP\n"
            for name, nodes in (("a", "node02"), ("b", "node01,node02"), ("c", "node03"))
        )
        slurm.told.clear()
        return await orders.execute(o.ReturnNode(id="2", cause=2, node="node01"))

    assert asyncio.run(work()) == "in service, and back in a, c"
    assert slurm.told[:2] == [
        "scontrol update PartitionName=a Nodes=node[01-02]",
        "scontrol update PartitionName=c Nodes=node[01,03]",
    ]
    assert "NodeName=node01 State=RESUME" in slurm.told[2]
