"""Which nodes share a switch, a rack or a power feed: read from a file or from Slurm, and told with every look.

`wiring/controller.py` puts `Placed` around the orchestrator, whatever its kind, when a topology is named. Two forms are
understood: Slurm's (`topology.conf`, `topology.yaml`, `scontrol show topology`: switches in a tree, or blocks), and
TOML, one path of failure domains per set of nodes::

    [domains]
    "feed1/rack3/switch7" = "node[097-112]"

What cannot be read leaves the topology as it was, or nodes without one: nothing is correlated then, and all else works.
Time: it is read again every ten minutes, when somebody looks.
"""

from __future__ import annotations

import asyncio
import re
import time
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog
import yaml
from ClusterShell.NodeSet import NodeSet, NodeSetException
from msgspec import Struct, structs

from holdfast.errors import ConfigError, LinkError
from holdfast.model.cluster import WorldView
from holdfast.model.orders import AnyOrder
from holdfast.os.programs import Command, run
from holdfast.ports import Orchestrator

READ_AGAIN_S = 600.0
SCONTROL_LIMIT_S = 20.0
LEVELS_MAX = 8
NOTHING = "No topology information"
"""What scontrol says where slurmctld has no topology plugin."""
_log = structlog.get_logger("holdfast.topology")


_YAML_START = re.compile(r"^\s*-\s+topology\s*:", re.MULTILINE)
"""The first attribute of every topology in topology.yaml(5)."""


class _Switch(Struct, frozen=True):
    """A switch or a block, as any of Slurm's forms names it."""

    name: str
    children: str
    nodes: str
    line: int = 0


class _YamlSwitch(Struct, frozen=True):
    switch: str
    children: str = ""
    nodes: str = ""


class _YamlBlock(Struct, frozen=True):
    block: str
    nodes: str = ""


class _Tree(Struct, frozen=True):
    switches: tuple[_YamlSwitch, ...] = ()


class _Blocks(Struct, frozen=True):
    blocks: tuple[_YamlBlock, ...] = ()


class _Topology(Struct, frozen=True):
    """One of topology.yaml(5); a flat one has no switches."""

    cluster_default: bool = False
    tree: _Tree = _Tree()
    block: _Blocks = _Blocks()


def parse(text: str, file: str = "") -> dict[str, str]:
    """Failure domain path of each node, outermost domain first.

    Raises:
        ConfigError: neither form; with the file, and the line where there is one.
    """
    if _YAML_START.search(text):
        return _of_yaml(text, file)
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    if any(line.lower().startswith(("switchname=", "blockname=")) for line in lines):
        return of_slurm(lines, file)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is neither Slurm's topology.conf or topology.yaml nor TOML: {error}", file=file) from error
    domains = data.get("domains")
    if not isinstance(domains, dict) or set(data) != {"domains"}:
        raise ConfigError('says nothing of nodes: write [domains] and lines like "rack3/switch7" = "n[1-8]"', file=file)
    found: dict[str, str] = {}
    for path, names in domains.items():
        if not isinstance(names, str) or not path.strip("/"):
            raise ConfigError(f'"{path}": write the nodes as one set, such as "node[01-16]"', file=file)
        for node in _nodes(names, file, 0):
            if node in found:
                raise ConfigError(f"{node} stands in two domains, {found[node]} and {path}", file=file)
            found[node] = path.strip("/")
    return found


def of_slurm(lines: Sequence[str], file: str = "") -> dict[str, str]:
    """Switches name their nodes or the switches below them; a node hangs on the lowest that names it.

    Raises:
        ConfigError: what should be a set of nodes or switches is none.
    """
    found: list[_Switch] = []
    for number, line in enumerate(lines, 1):
        words = {key.lower(): value for key, _, value in (word.partition("=") for word in line.split())}
        if name := words.get("switchname") or words.get("blockname"):
            found.append(_Switch(name, words.get("switches", ""), words.get("nodes", ""), number))
    return _paths(found, file)


def _of_yaml(text: str, file: str) -> dict[str, str]:
    """A file may hold several topologies: the cluster's default counts, and another one for nodes that are not in it.

    Raises:
        ConfigError: no such file.
    """
    try:
        told = msgspec.convert(yaml.safe_load(text), list[_Topology])
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(f"is not a topology.yaml of Slurm: {error}", file=file) from error
    paths: dict[str, str] = {}
    for one in sorted(told, key=lambda one: not one.cluster_default):
        found = [_Switch(s.switch, s.children, s.nodes) for s in one.tree.switches]
        found += [_Switch(b.block, "", b.nodes) for b in one.block.blocks]
        paths = _paths(found, file) | paths
    return paths


def _paths(found: Sequence[_Switch], file: str) -> dict[str, str]:
    leaves: dict[str, str] = {}
    above: dict[str, str] = {}
    for switch in found:
        if below := _nodes(switch.children, file, switch.line):
            # A switch above others repeats their nodes in `scontrol show topology`.
            above.update(dict.fromkeys(below, switch.name))
            continue
        for node in _nodes(switch.nodes, file, switch.line):
            leaves.setdefault(node, switch.name)
    return {node: "/".join(_upwards(leaf, above)) for node, leaf in leaves.items()}


def _upwards(leaf: str, above: Mapping[str, str]) -> list[str]:
    path = [leaf]
    while path[0] in above and above[path[0]] not in path and len(path) < LEVELS_MAX:
        path.insert(0, above[path[0]])
    return path


def _nodes(text: str, file: str, line: int) -> list[str]:
    if not text or text == "(null)":
        return []
    try:
        return list(NodeSet(text))
    except NodeSetException as error:
        raise ConfigError(f"{text!r} is no set of nodes: {error}", file=file, line=line) from error


async def read_file(path: Path) -> dict[str, str]:
    """The topology of a file. Raises ConfigError."""
    try:
        text = await asyncio.to_thread(path.read_text, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", file=str(path)) from error
    return parse(text, str(path))


async def read_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """What slurmctld knows; empty where it has no topology plugin.

    Raises:
        LinkError: scontrol cannot be run, or slurmctld does not answer.
    """
    ran = await run(Command(argv=("scontrol", "show", "topology"), env={**environ, "LC_ALL": "C"}), SCONTROL_LIMIT_S)
    if ran.hung:
        raise LinkError(f"scontrol gave no answer within {SCONTROL_LIMIT_S:g} s")
    if ran.code is None:
        raise LinkError(f"scontrol cannot be run: {ran.err}")
    if NOTHING in ran.out + ran.err:
        return {}
    if ran.code:
        raise LinkError(f"scontrol show topology: {ran.err.strip()[:200]}")
    return parse(ran.out, "scontrol show topology") if "Name=" in ran.out else {}


class Placed:
    """An orchestrator whose nodes know where they hang. Fulfils `ports.Orchestrator`.

    Args:
        inner: does everything.
        read: the topology; its errors are said once, and the last good one holds on.
    """

    def __init__(self, inner: Orchestrator, read: Callable[[], Awaitable[dict[str, str]]]) -> None:
        self._inner = inner
        self._read = read
        self._paths: dict[str, str] = {}
        self._read_at = float("-inf")
        self._said = ""
        self.name = inner.name

    @property
    def inner(self) -> Orchestrator:
        """The orchestrator itself."""
        return self._inner

    async def observe(self) -> WorldView:
        """See `ports.Orchestrator.observe`."""
        if time.monotonic() - self._read_at >= READ_AGAIN_S:
            await self._learn()
        world = await self._inner.observe()
        paths = self._paths
        if not paths:
            return world
        nodes = tuple(
            structs.replace(node, topology=paths[node.name]) if node.name in paths and not node.topology else node
            for node in world.nodes
        )
        return structs.replace(world, nodes=nodes)

    async def _learn(self) -> None:
        self._read_at = time.monotonic()
        try:
            self._paths = await self._read()
        except (ConfigError, LinkError) as error:
            if str(error) != self._said:
                _log.error("the topology was not read; faults of one switch are not seen as one", why=str(error))
            self._said = str(error)
        else:
            self._said = ""

    async def wait_change(self, timeout_s: float) -> bool:
        """See `ports.Orchestrator.wait_change`."""
        return await self._inner.wait_change(timeout_s)

    def can(self, order: AnyOrder) -> bool:
        """See `ports.Orchestrator.can`."""
        return self._inner.can(order)

    async def execute(self, order: AnyOrder) -> str:
        """See `ports.Orchestrator.execute`."""
        return await self._inner.execute(order)
