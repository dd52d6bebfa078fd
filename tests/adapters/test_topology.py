"""Failure domains of nodes: read from Slurm's form and from TOML, told with every look, never in the way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.adapters import topology
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.memory import MemoryOrchestrator
from holdfast.adapters.topology import Placed, parse, read_file
from holdfast.errors import ConfigError
from holdfast.model.cluster import NodeView, WorldView

CONF = """
# two leaf switches below one spine, as slurm's guide to topology has it
SwitchName=s0 Nodes=tux[0-3] LinkSpeed=900
SwitchName=s1 nodes=tux[4-7]   # lower case is accepted by Slurm, too
SwitchName=s2 Switches=s[0-1]
"""
SHOWN = """SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-3]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=tux[4-7]
SwitchName=s2 Level=1 LinkSpeed=1 Nodes=tux[0-7] Switches=s[0-1]
"""


@pytest.mark.parametrize("text", [CONF, SHOWN, "\n".join(reversed(SHOWN.splitlines()))])
def test_slurms_switches_become_paths(text: str) -> None:
    """From topology.conf and from `scontrol show topology`, in any order of lines."""
    found = parse(text)
    assert (found["tux0"], found["tux7"], len(found)) == ("s2/s0", "s2/s1", 8)


def test_blocks_are_domains_too() -> None:
    """topology/block: one level."""
    text = "BlockName=b1 Nodes=node[01-02]\nBlockName=b2 Nodes=node[03-04]\nBlockSizes=2\n"
    assert parse(text) == {"node01": "b1", "node02": "b1", "node03": "b2", "node04": "b2"}


def test_a_topology_yaml_counts_its_default_first() -> None:
    """topology.yaml(5): a tree, blocks for nodes outside it, and a flat one."""
    text = """---
- topology: blocks  # not the cluster's own
  block:
    block_sizes: [2]
    blocks:
      - block: b1
        nodes: node[01-02]
      - block: b2
        nodes: node05
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - {switch: root, children: "s[1-2]"}
      - {switch: s1, nodes: "node[01-02]"}
      - {switch: s2, nodes: "node[03-04]"}
- topology: rest
  flat: true
"""
    wanted = {"node01": "root/s1", "node02": "root/s1", "node03": "root/s2", "node04": "root/s2", "node05": "b2"}
    assert parse(text) == wanted


def test_toml_says_it_for_power_and_racks() -> None:
    """One path per set of nodes, outermost first."""
    text = '[domains]\n"feed1/rack3/switch7" = "node[097-098]"\n"feed1/rack4" = "node099"\n'
    path = "feed1/rack3/switch7"
    assert parse(text) == {"node097": path, "node098": path, "node099": "feed1/rack4"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello there", "neither Slurm's topology.conf or topology.yaml nor TOML"),
        ("- topology: t\n  tree: 5\n", "is not a topology.yaml of Slurm"),
        ("- topology: [", "is not a topology.yaml of Slurm"),
        ("[racks]\na = 'b'", r"write \[domains\]"),
        ("[domains]\nr1 = 5", "write the nodes as one set"),
        ("[domains]\nr1 = 'n[1-2]'\nr2 = 'n2'", "n2 stands in two domains, r1 and r2"),
        ("SwitchName=s0 Nodes=n[1-", "t.conf:1: .*no set of nodes"),
    ],
)
def test_what_is_neither_is_named(text: str, words: str) -> None:
    """One sentence, by file."""
    with pytest.raises(ConfigError, match=words):
        parse(text, "t.conf")


def test_switches_that_name_each_other_do_not_hang_the_reader() -> None:
    """A loop in the file ends somewhere."""
    found = parse("SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=n1\nSwitchName=a Switches=c\n")
    assert found["n1"].endswith("a/c")


class Cluster(MemoryOrchestrator):
    """Three nodes, one of which the scheduler itself has placed."""

    async def observe(self) -> WorldView:
        nodes = (NodeView("n1"), NodeView("n2", topology="own/place"), NodeView("n3"))
        return WorldView(cluster="c", at=1.0, nodes=nodes)


def test_every_look_tells_where_nodes_hang_and_a_scheduler_knows_better(tmp_path: Path, monkeypatch) -> None:
    """What the file becomes later is read again; while it is broken the last good one holds, and looks go on."""
    monkeypatch.setattr(topology, "READ_AGAIN_S", 0.0)
    file = tmp_path / "topology.toml"
    file.write_text("[domains]\n'rack1' = 'n[1-2]'\n")
    placed = Placed(Cluster(SystemClock()), lambda: read_file(file))

    def look() -> list[str]:
        return [node.topology for node in asyncio.run(placed.observe()).nodes]

    assert look() == ["rack1", "own/place", ""]
    file.write_text("[domains\n")
    assert look() == ["rack1", "own/place", ""]
    file.unlink()
    assert look() == ["rack1", "own/place", ""]
    file.write_text("[domains]\n'rack2' = 'n3'\n")
    assert look() == ["", "own/place", "rack2"]
