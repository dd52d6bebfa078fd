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
from typing import Any

import msgspec
from msgspec import structs

from holdfast.adapters.local.node_init import descendants, process_table, send_signal
from holdfast.adapters.local.nodes import NodeFacts, gpu_table
from holdfast.errors import LinkError, NotFoundError, RefusedError
from holdfast.lab import network, slurm_conf
from holdfast.lab.machine import MachinePlan, run_forked
from holdfast.lab.settings import NODE_NAME, LabFacts
from holdfast.os.files import write_whole
from holdfast.os.processes import strike

ANSWER_S = 10.0
CUT_NAME = "cut"
"""As on an embedded node: Holdfast's own transports look for it. Real cuts need a network of the node's own."""


class Node:
    """One node of the lab: on, off, or about to boot; its first process, and the talk with it."""

    def __init__(self, facts: LabFacts, name: str, number: int) -> None:
        self.facts = facts
        self.name = name
        self.number = number
        self.folder = facts.folder / "nodes" / name
        self.pid = 0
        """The keeper's child: the first process, or the one that waits for it outside its namespaces."""
        self.init = 0
        """The first process, in the keeper's numbering."""
        self.held = -1
        """A descriptor of it, which is its own while its number may be given to another."""
        self.link: socket.socket | None = None
        self.unread = b""
        self.hung = False
        self.cut = False
        self.boot_at: float | None = None
        self.dynamic = ""
        """What slurmd says of a node that slurm.conf does not name."""
        self.boots = 0
        self.known = NodeFacts(name=name, boot_id="", instance_id="", booted_at=0.0)
        """Its machine and its boot, as its agent reads them."""

    @property
    def is_on(self) -> bool:
        """Does its first process run?"""
        return self.link is not None

    def status(self) -> dict[str, Any]:
        """In plain words."""
        return {
            "power": "on" if self.is_on else "booting" if self.boot_at is not None else "off",
            "pid": self.init,
            "hung": self.hung,
            "cut": self.cut,
            "boot_id": self.known.boot_id,
            "booted_at": self.known.booted_at,
            "instance_id": self.known.instance_id,
            "dynamic": bool(self.dynamic),
            "address": self.facts.node_address(self.number),
            "services": self.ask("look")["services"] if self.is_on else {},
        }

    def prepare(self) -> None:
        """A fresh boot: boot id, empty kernel log, facts for the agent."""
        self.boot_at, self.hung = None, False
        self.boots += 1
        instance_id = self.known.instance_id or new_instance()
        self.known = NodeFacts(
            name=self.name,
            boot_id=str(uuid.uuid4()),
            instance_id=instance_id,
            booted_at=time.time(),
            drill_ok=self.facts.settings.drill_ok,
            gpus=gpu_table(instance_id, self.facts.settings.gpus),
        )
        for sub in ("tmp", "telemetry"):
            (self.folder / sub).mkdir(parents=True, exist_ok=True)
        kmsg = self.folder / "kmsg"
        if kmsg.exists():
            kmsg.replace(self.folder / "kmsg.before")
        kmsg.write_text(f"[    0.000000] Booting lab node {self.name} (machine {instance_id})\n", encoding="utf-8")
        write_whole(self.folder / "node.json", msgspec.json.format(msgspec.json.encode(self.known), indent=2))

    def fork(self) -> None:
        """Make its first process, which says hello when it is there."""
        wanted = self.facts.settings
        plan = MachinePlan(
            name=self.name,
            folder=str(self.folder),
            log=str(self.facts.folder / "log" / f"{self.name}.log"),
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
        self.pid, self.link, self.unread = pid, ours, b""

    def greet(self) -> None:
        """Wait until it is there. Raises LinkError with what it says instead."""
        while (said := self._read())["say"] != "forked":
            if said["say"] == "failed":
                raise LinkError(said["error"])
        self.init = int(said["init"])
        try:
            self.held = os.pidfd_open(self.init)
        except OSError as error:
            raise LinkError(f"{self.name}: its first process has ended") from error

    def start(self, service: Mapping[str, Any], *, is_boot: bool = False) -> None:
        """Have it start a service that does not run."""
        extra: list[str] = []
        if service["id"] == "slurmd":
            # slurmd reads the machine's own uptime, which tells nothing about its node: `-b` says that it booted.
            extra += ["-b"] if is_boot and self.boots > 1 else []
            extra += ["-Z", "--conf", self.dynamic] if self.dynamic else []
        names = {"node": self.name, "folder": str(self.folder)}
        self._order(
            "serve",
            id=service["id"],
            argv=[*(word.format_map(names) for word in service["argv"]), *extra],
            env={key: value.format_map(names) for key, value in service["env"].items()},
            cwd=str(self.folder),
            out=service["out"].format_map(names),
            again_s=service.get("again_s", 0.0),
        )

    def end_process(self) -> None:
        """End everything on it at once."""
        if self.init and self.facts.settings.netns:
            self.end_first()
        elif self.pid:
            self._end_tree(self.init or self.pid)
        if self.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)

    def end_first(self) -> None:
        """Kill its first process, which is no child of ours: what has its number since is left alone."""
        if self.held >= 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self.held, signal.SIGKILL)

    def let_go(self) -> None:
        """Its processes have ended."""
        if self.link is not None:
            self.link.close()
        if self.held >= 0:
            os.close(self.held)
        self.link, self.pid, self.init, self.held, self.hung, self.cut = None, 0, 0, -1, False, False

    def _end_tree(self, root: int) -> None:
        # Stop first: a dying parent must not start or report anything. The first process, still alive, adopts orphans.
        deadline = time.monotonic() + ANSWER_S
        while left := self._below(root):
            strike(left, signal.SIGSTOP, of=lambda: self._below(root))
            strike(left, signal.SIGKILL, of=lambda: self._below(root))
            if time.monotonic() > deadline:
                raise LinkError(f"these processes would not end: {left}")
            time.sleep(0.001)
        if root == self.pid:
            send_signal([root], signal.SIGKILL)  # a child that has not been waited for keeps its number
        else:
            self.end_first()

    def _below(self, root: int) -> list[int]:
        return list(descendants(root, process_table()))

    def signal_all(self, sig: int) -> int:
        """Signal its every process; returns how many there are."""
        return len(strike(self._below(self.init), sig, of=lambda: self._below(self.init)))

    def ask(self, what: str, **facts: Any) -> dict[str, Any]:
        """Have its first process do something; returns the answer. Raises LinkError."""
        nonce = uuid.uuid4().hex
        self._order(what, nonce=nonce, **facts)
        while (answer := self._read()).get("nonce") != nonce:
            pass
        return answer

    def _order(self, what: str, **facts: Any) -> None:
        if self.link is None:
            raise LinkError(f"{self.name} is off")
        try:
            self.link.sendall(json.dumps({"do": what, **facts}).encode() + b"\n")
        except OSError as error:
            raise LinkError(f"{self.name} does not listen: {error}") from error

    def _read(self) -> dict[str, Any]:
        if self.link is None:
            raise LinkError(f"{self.name} is off")
        while b"\n" not in self.unread:
            try:
                data = self.link.recv(1 << 16)
            except OSError as error:
                raise LinkError(f"{self.name} did not answer: {error}") from error
            if not data:
                raise LinkError(f"{self.name} ended; see {self.facts.folder}/log/{self.name}.log")
            self.unread += data
        line, _, self.unread = self.unread.partition(b"\n")
        return dict(json.loads(line))


def new_instance() -> str:
    """An id of a machine that has not been there before."""
    return f"i-{uuid.uuid4().hex[:12]}"


class Rack:
    """All nodes."""

    def __init__(self, facts: LabFacts) -> None:
        self.facts = facts
        self.services: list[dict[str, Any]] = []
        self.nodes: dict[str, Node] = {}
        for number, name in enumerate(facts.names, 1):
            self._make(name, number)

    def _make(self, name: str, number: int) -> Node:
        node = self.nodes[name] = Node(self.facts, name, number)
        return node

    def node(self, name: str) -> Node:
        """By name. Raises NotFoundError."""
        if name not in self.nodes:
            raise NotFoundError(f'the lab has no node "{name}": {", ".join(list(self.nodes)[:8])} ...')
        return self.nodes[name]

    def status(self) -> dict[str, Any]:
        """Every node in plain words."""
        return {node.name: node.status() for node in self.nodes.values()}

    # --- on and off ---

    def boot(self, names: Sequence[str]) -> list[str]:
        """Switch on those of the named nodes that are off; all at once, so that hundreds take seconds."""
        fresh = [node for name in names if not (node := self.node(name)).is_on]
        for node in fresh:
            node.prepare()
        try:
            for node in fresh:
                node.fork()
            for node in fresh:
                node.greet()
            if self.facts.settings.netns and fresh:
                network.wire_nodes(self.facts, [(node.number, node.init) for node in fresh])
        except BaseException:  # also a signal: no half-made node is left
            for node in fresh:
                self.power_off(node.name)
            raise
        for node in fresh:
            for service in self.services:
                node.start(service, is_boot=True)
        return [node.name for node in fresh]

    def power_off(self, name: str) -> object:
        """End everything on the node at once, as a power failure would."""
        node = self.node(name)
        was_on, node.boot_at = node.is_on, None
        if node.init and self.facts.settings.netns and not node.cut:
            # First the wire: dying processes would say good-bye on it, and a machine without power does not.
            with contextlib.suppress(LinkError):
                network.set_wire(self.facts, node.number, up=False)
        node.end_process()
        self._forget_process(node)
        return was_on

    def _forget_process(self, node: Node) -> None:
        if node.is_on and self.facts.settings.netns:
            # Its end of the wire went with its network; the kernel may take a moment, and the name is needed again.
            network.drop_wires(self.facts, [node.number])
        node.let_go()
        with contextlib.suppress(FileNotFoundError):
            (node.folder / CUT_NAME).unlink()

    def note_end(self, pid: int) -> None:
        """A child of the keeper has ended; if it was a node's first process, the node is off."""
        for node in self.nodes.values():
            if node.pid == pid:
                self._forget_process(node)

    def close(self) -> None:
        """Switch off everything."""
        for node in self.nodes.values() if self.facts.settings.netns else ():
            node.end_first()
        for node in self.nodes.values():
            node.boot_at = None
            if node.pid:
                self.power_off(node.name)

    # --- reboots ---

    def reboot(self, name: str, seconds: float | None = None) -> object:
        """Power off now, on again after `boot_s` (or `seconds`)."""
        node = self.node(name)
        self.power_off(name)
        node.boot_at = time.monotonic() + (self.facts.settings.boot_s if seconds is None else seconds)
        return node.boot_at

    def replace(self, name: str, seconds: float | None = None) -> object:
        """Another machine under the same name: new instance id, nothing left of the old one's disk."""
        node = self.node(name)
        self.power_off(name)
        for folder in (node.folder, self.facts.folder / "spool" / name):
            shutil.rmtree(folder, ignore_errors=True)
        node.known = structs.replace(node.known, instance_id=new_instance())
        self.reboot(name, seconds)
        return node.known.instance_id

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

    def add(self, name: str, conf: str = "") -> object:
        """Switch on a node that slurm.conf does not name: `slurmd -Z`."""
        if not self.facts.settings.netns:
            raise RefusedError("nodes can join only a lab with --netns: each needs an address of its own")
        if name in self.nodes:
            raise RefusedError(f"the lab has a node {name} already")
        if not NODE_NAME.fullmatch(name):
            raise RefusedError(f'"{name}" is no node name: small letters, digits and -, at most 30')
        number = max((node.number for node in self.nodes.values()), default=0) + 1
        node = self._make(name, number)
        node.dynamic = conf or slurm_conf.node_size(self.facts)
        self._write_hosts()
        self.boot([name])
        return self.facts.node_address(number)

    def remove(self, name: str) -> object:
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

    def hang(self, name: str) -> object:
        """Stop every process of the node: there, but silent."""
        node = self._on(name)
        node.hung = True
        return node.signal_all(signal.SIGSTOP)

    def unhang(self, name: str) -> object:
        """Undo `hang`."""
        node = self._on(name)
        node.hung = False
        return node.signal_all(signal.SIGCONT)

    def cut_off(self, name: str) -> object:
        """Cut the node's network."""
        if not self.facts.settings.netns:
            raise RefusedError("a node can be cut off only in a lab with --netns: here all share one network")
        node = self._on(name)
        network.set_wire(self.facts, node.number, up=False)
        node.cut = True
        return None

    def heal(self, name: str) -> object:
        """Undo `cut_off`; a node that is not cut is fine."""
        node = self.node(name)
        if node.cut:
            network.set_wire(self.facts, node.number, up=True)
            node.cut = False
        return None

    def start(self, name: str) -> object:
        """Switch the node on, or start what of its services does not run."""
        node = self.node(name)
        if not node.is_on:
            return self.boot([name])
        for service in self.services:
            node.start(service)
        return []

    def kill(self, name: str, sig: int = signal.SIGKILL, service: str = "slurmd") -> object:
        """Signal one service of the node, and nothing else; says whether it ran."""
        return self._on(name).ask("signal", id=service, sig=int(sig))["ran"]

    def disk(self, name: str, *, full: bool) -> object:
        """Fill the node's scratch file system, or free it."""
        return self._on(name).ask("fill" if full else "free")["how"]

    verbs: Mapping[str, Callable[..., object]] = {
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

    def _on(self, name: str) -> Node:
        node = self.node(name)
        if not node.is_on:
            raise RefusedError(f"{name} is off: `holdfast lab slurm node start {name}` switches it on")
        return node
