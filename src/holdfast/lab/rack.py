"""The lab's nodes as the keeper sees them: switching on and off, hanging, cutting, rebooting, replacing.

Owned by the keeper, which calls it from its one thread. A node that is off has no process; its folder stays. Time: an
answer of a node's first process is awaited up to ANSWER_S, and a boot takes `boot_s`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.adapters.local.node_init import descendants, process_table, send_signal
from holdfast.adapters.local.nodes import NodeFacts, gpu_table
from holdfast.errors import LinkError, NotFoundError, RefusedError
from holdfast.lab import network, slurm_conf
from holdfast.lab.machine import MachinePlan, run_forked
from holdfast.lab.settings import NODE_NAME, LabFacts
from holdfast.os.files import write_whole

ANSWER_S = 10.0
CUT_NAME = "cut"
"""As on an embedded node: Holdfast's own transports look for it. Real cuts need a network of the node's own."""


class Node:
    """One node of the lab: on, off, or about to boot."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name = name
        self.number = number
        self.folder = folder
        self.pid = 0
        """The keeper's child: the first process, or the one that waits for it outside its namespaces."""
        self.init = 0
        """The first process, in the keeper's numbering."""
        self.link: socket.socket | None = None
        self.unread = b""
        self.hung = False
        self.cut = False
        self.boot_at: float | None = None
        self.dynamic = ""
        """What slurmd says of a node that slurm.conf does not name."""
        self.boots = 0
        self.boot_id = ""
        self.instance_id = ""
        self.booted_at = 0.0

    @property
    def is_on(self) -> bool:
        """Does its first process run?"""
        return self.link is not None


class Rack:
    """All nodes."""

    def __init__(self, facts: LabFacts) -> None:
        self.facts = facts
        self.services: list[dict[str, Any]] = []
        self.nodes: dict[str, Node] = {}
        for number, name in enumerate(facts.names, 1):
            self._make(name, number)

    def _make(self, name: str, number: int) -> Node:
        node = self.nodes[name] = Node(name, number, self.facts.folder / "nodes" / name)
        return node

    def node(self, name: str) -> Node:
        """By name. Raises NotFoundError."""
        if name not in self.nodes:
            raise NotFoundError(f'the lab has no node "{name}": {", ".join(list(self.nodes)[:8])} ...')
        return self.nodes[name]

    def status(self) -> dict[str, Any]:
        """Every node in plain words."""
        return {
            node.name: {
                "power": "on" if node.is_on else "booting" if node.boot_at is not None else "off",
                "pid": node.init,
                "hung": node.hung,
                "cut": node.cut,
                "boot_id": node.boot_id,
                "booted_at": node.booted_at,
                "instance_id": node.instance_id,
                "dynamic": bool(node.dynamic),
                "address": self.facts.node_address(node.number),
                "services": self._order(node, do="look") if node.is_on else {},
            }
            for node in self.nodes.values()
        }

    # --- on and off ---

    def boot(self, names: Sequence[str]) -> list[str]:
        """Switch on those of the named nodes that are off; all at once, so that hundreds take seconds."""
        fresh = [node for name in names if not (node := self.node(name)).is_on]
        for node in fresh:
            self._prepare(node)
        try:
            for node in fresh:
                self._fork(node)
            for node in fresh:
                node.init = self._greet(node)
            if self.facts.settings.netns and fresh:
                network.wire_nodes(self.facts, [(node.number, node.init) for node in fresh])
                for node in fresh:
                    self._join_network(node)
        except BaseException:  # also a signal: no half-made node is left
            for node in fresh:
                self.power_off(node.name)
            raise
        for node in fresh:
            for service in self.services:
                # slurmd reads the machine's own uptime, which tells nothing about its node: `-b` says that it booted.
                self._start(node, service, ["-b"] if node.boots > 1 else [])
        return [node.name for node in fresh]

    def _join_network(self, node: Node) -> None:
        said = self._order(node, do="network", lines=network.node_side(self.facts, node.number))
        if said:
            raise LinkError(f"{node.name}: its network cannot be set up: {said}")

    def _prepare(self, node: Node) -> None:
        """A fresh boot: boot id, empty kernel log, facts for the agent."""
        node.boot_at, node.hung = None, False
        node.boots += 1
        node.boot_id, node.booted_at = str(uuid.uuid4()), time.time()
        node.instance_id = node.instance_id or f"i-{uuid.uuid4().hex[:12]}"
        for sub in ("tmp", "telemetry"):
            (node.folder / sub).mkdir(parents=True, exist_ok=True)
        kmsg = node.folder / "kmsg"
        if kmsg.exists():
            kmsg.replace(node.folder / "kmsg.before")
        kmsg.write_text(f"[    0.000000] Booting lab node {node.name} (machine {node.instance_id})\n", encoding="utf-8")
        facts = NodeFacts(
            name=node.name,
            boot_id=node.boot_id,
            instance_id=node.instance_id,
            booted_at=node.booted_at,
            drill_ok=self.facts.settings.drill_ok,
            gpus=gpu_table(node.instance_id, self.facts.settings.gpus),
        )
        write_whole(node.folder / "node.json", msgspec.json.format(msgspec.json.encode(facts), indent=2))

    def _fork(self, node: Node) -> None:
        wanted = self.facts.settings
        plan = MachinePlan(
            name=node.name,
            folder=str(node.folder),
            log=str(self.facts.folder / "log" / f"{node.name}.log"),
            own_network=wanted.netns,
            own_mounts=self.facts.root,
            tmp_bytes=wanted.tmp_mib << 20,
            resolv=str(self.facts.folder / "etc" / "resolv.conf"),
        )
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            run_forked(theirs, plan)
        theirs.close()
        ours.settimeout(ANSWER_S)
        node.pid, node.link, node.unread = pid, ours, b""

    def _greet(self, node: Node) -> int:
        hello = self._read(node)
        if hello.get("say") != "hello":
            raise LinkError(str(hello.get("error", f"{node.name} did not come up")))
        return int(hello["init"])

    def _start(self, node: Node, service: Mapping[str, Any], words: Sequence[str] = ()) -> None:
        extra = [*words] if service["id"] == "slurmd" else []
        if service["id"] == "slurmd" and node.dynamic:
            extra += ["-Z", "--conf", node.dynamic]
        names = {"node": node.name, "folder": str(node.folder)}
        self._order(
            node,
            do="start",
            id=service["id"],
            argv=[*(word.format_map(names) for word in service["argv"]), *extra],
            env={key: value.format_map(names) for key, value in service["env"].items()},
            cwd=str(node.folder),
            out=service["out"].format_map(names),
            again_s=service.get("again_s", 0.0),
        )

    def power_off(self, name: str, ask: Mapping[str, Any] | None = None) -> object:  # noqa: ARG002 - a verb's shape
        """End everything on the node at once, as a power failure would."""
        node = self.node(name)
        was_on, node.boot_at = node.is_on, None
        if node.init and self.facts.settings.netns:
            if not node.cut:
                # First the wire: dying processes would say good-bye on it, and a machine without power does not.
                with contextlib.suppress(LinkError):
                    network.set_wire(self.facts, node.number, up=False)
            send_signal([node.init], signal.SIGKILL)
            self._collect(node.pid)
        elif node.pid:
            self._end_tree(node.init or node.pid)
            self._collect(node.pid)
        self._forget_process(node)
        return was_on

    def _end_tree(self, root: int) -> None:
        # Stop first: a dying parent must not start or report anything. The first process, still alive, adopts orphans.
        deadline = time.monotonic() + ANSWER_S
        while left := descendants(root, process_table()):
            send_signal(left, signal.SIGSTOP)
            send_signal(left, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise LinkError(f"these processes would not end: {left}")
            time.sleep(0.001)
        send_signal([root], signal.SIGKILL)

    def _collect(self, pid: int) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)

    def _forget_process(self, node: Node) -> None:
        if node.link is not None:
            node.link.close()
        if node.is_on and self.facts.settings.netns:
            # Its end of the wire went with its network; the kernel may take a moment, and the name is needed again.
            network.drop_wires(self.facts, [node.number])
        node.link, node.pid, node.init, node.hung, node.cut = None, 0, 0, False, False
        with contextlib.suppress(FileNotFoundError):
            (node.folder / CUT_NAME).unlink()

    def note_end(self, pid: int) -> None:
        """A child of the keeper has ended; if it was a node's first process, the node is off."""
        for node in self.nodes.values():
            if node.pid == pid:
                self._forget_process(node)

    def close(self) -> None:
        """Switch off everything."""
        inits = [node.init for node in self.nodes.values() if node.init]
        if self.facts.settings.netns:
            send_signal(inits, signal.SIGKILL)
        for node in self.nodes.values():
            node.boot_at = None
            if node.pid:
                self.power_off(node.name)

    # --- reboots ---

    def reboot(self, name: str, ask: Mapping[str, Any] | None = None) -> object:
        """Power off now, on again after `boot_s` (or `seconds`)."""
        node = self.node(name)
        self.power_off(name)
        node.boot_at = time.monotonic() + float((ask or {}).get("seconds", self.facts.settings.boot_s))
        return node.boot_at

    def replace(self, name: str, ask: Mapping[str, Any] | None = None) -> object:
        """Another machine under the same name: new instance id, nothing left of the old one's disk."""
        node = self.node(name)
        self.power_off(name)
        for folder in (node.folder, self.facts.folder / "spool" / name):
            shutil.rmtree(folder, ignore_errors=True)
        node.instance_id = f"i-{uuid.uuid4().hex[:12]}"
        self.reboot(name, ask)
        return node.instance_id

    def boot_what_is_due(self) -> float | None:
        """Boot the nodes whose time has come; seconds until the next one is due, None when none is."""
        now = time.monotonic()
        due = [node for node in self.nodes.values() if node.boot_at is not None and node.boot_at <= now]
        for node in due:
            try:
                self.boot([node.name])
            except (LinkError, OSError) as error:
                node.boot_at = None
                sys.stderr.write(f"{node.name} did not boot: {error}\n")
        times = [node.boot_at for node in self.nodes.values() if node.boot_at is not None]
        return max(0.0, min(times) - now) if times else None

    def owner_of(self, pid: int) -> str | None:
        """The node that a process runs on."""
        table = process_table()
        inits = {node.init: node.name for node in self.nodes.values() if node.init}
        while pid in table:
            if pid in inits:
                return inits[pid]
            pid = table[pid]
        return None

    # --- nodes that join and leave ---

    def add(self, name: str, ask: Mapping[str, Any]) -> object:
        """Switch on a node that slurm.conf does not name: `slurmd -Z`."""
        if not self.facts.settings.netns:
            raise RefusedError("nodes can join only a lab with --netns: each needs an address of its own")
        if name in self.nodes:
            raise RefusedError(f"the lab has a node {name} already")
        if not NODE_NAME.fullmatch(name):
            raise RefusedError(f'"{name}" is no node name: small letters, digits and -, at most 30')
        number = max((node.number for node in self.nodes.values()), default=0) + 1
        node = self._make(name, number)
        node.dynamic = ask.get("conf") or slurm_conf.node_size(self.facts)
        self._write_hosts()
        self.boot([name])
        return self.facts.node_address(number)

    def remove(self, name: str, ask: Mapping[str, Any]) -> object:  # noqa: ARG002 - a verb's shape
        """Take a node that joined away for good."""
        node = self.node(name)
        if not node.dynamic:
            raise RefusedError(f"{name} stands in slurm.conf; only nodes that were added can be removed")
        self.power_off(name)
        del self.nodes[name]
        self._write_hosts()
        return None

    def _write_hosts(self) -> None:
        # In place: nodes have this very file bound over their own.
        joined = [(self.facts.node_address(n.number), n.name) for n in self.nodes.values() if n.dynamic]
        (self.facts.folder / "etc" / "hosts").write_text(slurm_conf.hosts(self.facts, joined), encoding="utf-8")

    # --- trouble ---

    def hang(self, name: str, ask: Mapping[str, Any]) -> object:  # noqa: ARG002 - a verb's shape
        """Stop every process of the node: there, but silent."""
        node = self._on(name)
        node.hung = True
        tree = descendants(node.init, process_table())
        send_signal(tree, signal.SIGSTOP)
        return len(tree)

    def unhang(self, name: str, ask: Mapping[str, Any]) -> object:  # noqa: ARG002 - as above
        """Undo `hang`."""
        node = self._on(name)
        node.hung = False
        tree = descendants(node.init, process_table())
        send_signal(tree, signal.SIGCONT)
        return len(tree)

    def cut_off(self, name: str, ask: Mapping[str, Any]) -> object:  # noqa: ARG002 - as above
        """Cut the node's network."""
        self._needs_network("cut off")
        node = self._on(name)
        network.set_wire(self.facts, node.number, up=False)
        node.cut = True
        return None

    def heal(self, name: str, ask: Mapping[str, Any]) -> object:  # noqa: ARG002 - as above
        """Undo `cut_off`; a node that is not cut is fine."""
        node = self.node(name)
        if node.cut:
            network.set_wire(self.facts, node.number, up=True)
            node.cut = False
        return None

    def _needs_network(self, what: str) -> None:
        if not self.facts.settings.netns:
            raise RefusedError(f"a node can be {what} only in a lab with --netns: here all share one network")

    def start(self, name: str, ask: Mapping[str, Any]) -> object:  # noqa: ARG002 - as above
        """Switch the node on, or start what of its services does not run."""
        node = self.node(name)
        if not node.is_on:
            return self.boot([name])
        for service in self.services:
            self._start(node, service)
        return []

    def kill(self, name: str, ask: Mapping[str, Any]) -> object:
        """Signal one service of the node (slurmd unless `service` says otherwise), and nothing else."""
        order = {"id": ask.get("service", "slurmd"), "sig": ask.get("sig", int(signal.SIGKILL)), "stop": True}
        return self._order(self._on(name), do="signal", **order)

    def disk(self, name: str, ask: Mapping[str, Any]) -> object:
        """Fill the node's scratch file system, or free it."""
        return self._order(self._on(name), do="fill" if ask["full"] else "free")

    verbs: Mapping[str, Callable[[Rack, str, Mapping[str, Any]], object]] = {
        "crash": power_off,
        "reboot": reboot,
        "replace": replace,
        "add": add,
        "remove": remove,
        "hang": hang,
        "unhang": unhang,
        "cut": cut_off,
        "heal": heal,
        "start": start,
        "kill": kill,
        "disk": disk,
    }

    def verb(self, verb: str, name: str, ask: Mapping[str, Any]) -> object:
        """Do one thing to one node."""
        return self.verbs[verb](self, name, ask)

    # --- talking with first processes ---

    def _on(self, name: str) -> Node:
        node = self.node(name)
        if not node.is_on:
            raise RefusedError(f"{name} is off: `holdfast lab slurm node start {name}` switches it on")
        return node

    def _order(self, node: Node, **order: Any) -> Any:
        if node.link is None:
            raise LinkError(f"{node.name} is off")
        nonce = uuid.uuid4().hex
        try:
            node.link.sendall(json.dumps({**order, "nonce": nonce}).encode() + b"\n")
        except OSError as error:
            raise LinkError(f"{node.name} does not listen: {error}") from error
        while True:
            answer = self._read(node)
            if answer.get("nonce") == nonce:
                return answer["result"]

    def _read(self, node: Node) -> dict[str, Any]:
        if node.link is None:
            raise LinkError(f"{node.name} is off")
        while b"\n" not in node.unread:
            try:
                data = node.link.recv(1 << 16)
            except OSError as error:
                raise LinkError(f"{node.name} did not answer: {error}") from error
            if not data:
                raise LinkError(f"{node.name} ended; see {self.facts.folder}/log/{node.name}.log")
            node.unread += data
        line, _, node.unread = node.unread.partition(b"\n")
        return dict(json.loads(line))
