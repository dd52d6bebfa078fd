"""An embedded node: a folder, a kernel-log file, a boot id, an instance id, and a first process that holds all others.

The daemon owns one `LocalNode` per name. What counts as evidence, stated once:

- **It is up**: its first process (`node_init`) has said hello or sent a beat within `silent_after_s`.
- **It is gone** (`alive=False`): the socket to its first process is at its end, or the scheduler itself switched it
  off. The kernel closes that socket when the process dies, so a power-off is seen within milliseconds. An agent that
  dies is no such evidence: it is started again.
- **Not known** (`alive=None`): nothing heard for `silent_after_s`, because the node is cut off, stopped or starved.

While the file `cut` exists in its folder, nothing passes between the scheduler and the node, in either direction:
what the node says is kept back and read when the cut is healed, orders to end tasks are given then.

Time: boots take `boot_s`; silence is measured by the loop's clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
import uuid
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from holdfast.adapters.local import node_init, processes
from holdfast.adapters.local.link import CUT_NAME, NodeLink
from holdfast.errors import PermanentOrderError, TemporaryOrderError
from holdfast.os.files import write_whole
from holdfast.os.processes import strike
from holdfast.os.tls import CA_FILE

GPU_BUSES = ("53", "64", "75", "86", "97", "a8", "b9", "ca")
"""PCI bus numbers of the eight GPUs of a common H100 server, so that published Xid lines hit a GPU of the table."""


class NodeSettings(Struct, frozen=True, kw_only=True):
    """What all nodes of a cluster have in common. Durations in seconds."""

    boot_s: float = 1.0
    beat_s: float = 0.5
    silent_after_s: float = 3.0
    tmp_bytes: int = 32 << 20
    gpus: int = 8
    drill_ok: bool = False
    agent_argv: tuple[str, ...] = ()
    """Command of the agent, without the node's own options; empty: no agents."""
    env: dict[str, str] = {}
    """Environment of everything on a node, before the job's own."""
    ca_file: Path | None = None
    """Everything on a node trusts this authority of the controller's certificate, once the file is there."""
    first: dict[str, str] = {}
    """Variables that hold paths -> a folder inside the node's own that comes first in them."""


class Power(StrEnum):
    """Is the emulated machine switched on?"""

    OFF = "off"
    BOOTING = "booting"
    UP = "up"


class NodeEvents(Protocol):
    """What a node tells the scheduler."""

    def task_started(self, node: str, task: str, pid: int, at: float) -> None:
        """A task's main process runs."""

    def task_ended(self, node: str, task: str, code: int | None, sig: int | None, at: float) -> None:
        """A task's main process has ended."""

    def task_gone(self, node: str, task: str) -> None:
        """No process of the task is left."""

    def node_lost(self, node: str, evidence: str) -> None:
        """All that ran there is provably gone."""

    def changed(self) -> None:
        """Something that an observer can see is different."""


class GpuFact(Struct, frozen=True):
    """One emulated GPU."""

    index: int
    pci: str
    uuid: str


class NodeFacts(Struct, frozen=True, kw_only=True):
    """The contents of `node.json`, which the agent reads."""

    name: str
    boot_id: str
    instance_id: str
    booted_at: float
    spare: bool = False
    drill_ok: bool = False
    gpus: tuple[GpuFact, ...] = ()
    emulated: bool = True


def gpu_table(instance_id: str, count: int) -> tuple[GpuFact, ...]:
    """Emulated GPUs with bus addresses and UUIDs that stay over a reboot and change with the machine."""
    buses = [*GPU_BUSES, *(f"{number:02x}" for number in range(0x01, 0x50))][:count]
    seed = uuid.uuid5(uuid.NAMESPACE_URL, instance_id)
    return tuple(
        GpuFact(index=i, pci=f"0000:{bus}:00", uuid=f"GPU-{uuid.uuid5(seed, bus)}") for i, bus in enumerate(buses)
    )


class LocalNode:
    """One embedded node, seen from the scheduler."""

    def __init__(self, name: str, folder: Path, settings: NodeSettings, events: NodeEvents, *, spare: bool) -> None:
        self.name = name
        self.folder = folder
        self.settings = settings
        self.events = events
        self.spare = spare
        self.link = NodeLink(folder)
        self.power = Power.OFF
        self.evidence = "not booted yet"
        self.boot_id = ""
        self.instance_id = f"i-{uuid.uuid4().hex[:12]}"
        self.drained = False
        self.drain_reason = ""
        self.tasks: dict[str, int] = {}
        """Task id -> pid of its main process; kept until the task is wholly gone."""
        self.pid = 0
        self.agent_pid = 0
        self.tmp = ""
        self.heard_at = 0.0
        self.booted_at = 0.0
        self.up = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._kept_back: list[bytes] = []
        self._to_end: dict[str, float] = {}
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._booting: asyncio.Task[None] | None = None
        self._was_alive: bool | None = False

    # --- what an observer sees ---

    @property
    def alive(self) -> bool | None:
        """True: heard lately. False: provably not running. None: silent."""
        if self.power is not Power.UP:
            return False
        silence = asyncio.get_running_loop().time() - self.heard_at
        return True if silence <= self.settings.silent_after_s else None

    @property
    def reachable(self) -> bool:
        """Would an order arrive now?"""
        return self.alive is True and not self.link.is_cut

    @property
    def state_text(self) -> str:
        """The scheduler's words for people."""
        if self.power is Power.BOOTING:
            return f"booting ({self.evidence})"
        if self.power is Power.OFF:
            return f"off ({self.evidence})"
        words = "not responding" if self.alive is None else "busy" if self.tasks else "idle"
        return f"{words}, drained" if self.drained else words

    def tick(self) -> None:
        """Notice silence and healed cuts; the daemon calls this a few times a second."""
        if self._kept_back and not self.link.is_cut:
            self._catch_up()
        if self.power is Power.UP and not self.link.is_cut:
            for task, grace_s in self._to_end.items():
                self._order({"do": "end", "id": task, "grace_s": grace_s})
            self._to_end.clear()
        if self.alive is not self._was_alive:
            self._was_alive = self.alive
            self.events.changed()

    # --- power ---

    def power_up(self, why: str, *, delay_s: float | None = None) -> None:
        """Switch on: after `boot_s` a new boot id, an empty kernel log, the first process, the agent. See `up`."""
        self.power, self.evidence = Power.BOOTING, why
        self.events.changed()
        self._booting = asyncio.create_task(self._boot(self.settings.boot_s if delay_s is None else delay_s))

    async def _boot(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        self._prepare_folder()
        ours, theirs = socket.socketpair()
        argv = [sys.executable, "-I", "-S", node_init.__file__, "--fd", str(theirs.fileno()), "--node", self.name]
        argv += ["--folder", str(self.folder), "--beat-s", str(self.settings.beat_s)]
        argv += ["--tmp-bytes", str(self.settings.tmp_bytes)]
        try:
            self.pid = node_init.spawn(
                argv,
                env=self.environment(),
                cwd=str(self.folder),
                out=str(self.folder / "node.log"),
                keep_fds=[theirs.fileno()],
                parent_death=signal.SIGTERM,
            )
        except OSError as error:
            ours.close()
            self.power, self.evidence = Power.OFF, f"cannot start: {error}"
            self.events.changed()
            return
        finally:
            theirs.close()
        reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
        self._reading = asyncio.create_task(self._read(reader))

    def _prepare_folder(self) -> None:
        for sub in ("tmp", "telemetry"):
            (self.folder / sub).mkdir(parents=True, exist_ok=True)
        kmsg = self.folder / "kmsg"
        if self.boot_id and kmsg.exists():
            kmsg.replace(self.folder / f"kmsg.{self.boot_id}")
        self.boot_id = str(uuid.uuid4())
        self.booted_at = time.time()
        facts = NodeFacts(
            name=self.name,
            boot_id=self.boot_id,
            instance_id=self.instance_id,
            booted_at=self.booted_at,
            spare=self.spare,
            drill_ok=self.settings.drill_ok,
            gpus=gpu_table(self.instance_id, self.settings.gpus),
        )
        kmsg.touch()
        self.append_kmsg(f"Booting embedded node {self.name} (emulated machine {self.instance_id})")
        write_whole(self.folder / "node.json", msgspec.json.format(msgspec.json.encode(facts), indent=2))

    def environment(self) -> dict[str, str]:
        """What everything on this node is started with."""
        found = {**self.settings.env, "HOLDFAST_NODE": self.name, "HOLDFAST_NODE_DIR": str(self.folder)}
        if self.settings.ca_file is not None and self.settings.ca_file.exists():
            found[CA_FILE] = str(self.settings.ca_file)
        for name, part in self.settings.first.items():
            found[name] = ":".join(filter(None, (str(self.folder / part), found.get(name, ""))))
        return found

    def switch_off(self, evidence: str) -> None:
        """SIGKILL everything on the node at once; parents before children, so that nothing is left to report."""
        if self.pid:
            strike(self.pids_of("node"), signal.SIGKILL, of=lambda: self.pids_of("node"))
        self._lost(evidence)

    async def shut_down(self, limit_s: float) -> None:
        """Orderly end: the first process kills all others and exits."""
        if self.power is Power.UP and self._reading is not None:
            self._order({"do": "off"})
            node_init.send_signal([self.pid], signal.SIGCONT)
            await asyncio.wait([self._reading], timeout=limit_s)
        self.switch_off("shut down")

    def _lost(self, evidence: str) -> None:
        """The node is off from here on, and nothing of it runs any more when this returns."""
        self.power, self.evidence, self._was_alive = Power.OFF, evidence, False
        self.up.clear()
        for work in (self._booting, self._reading):
            if work is not None and work is not asyncio.current_task():
                work.cancel()
        self._booting = self._reading = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.tasks.clear()
        self._kept_back.clear()
        self._to_end.clear()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(TemporaryOrderError(f"{self.name} went down: {evidence}"))
        pid, self.pid, self.agent_pid = self.pid, 0, 0
        if pid:
            # A dying process closes its sockets before its children fall to us: only its end makes the tree final.
            processes.end_child(pid)
            self.events.node_lost(self.name, evidence)
        self.events.changed()

    def become_another(self) -> None:
        """Take a fresh machine's identity; the old machine's folder is kept beside for its evidence."""
        if self.folder.exists():
            self.folder.rename(self.folder.with_name(f".{self.name}.{self.instance_id}"))
        self.instance_id = f"i-{uuid.uuid4().hex[:12]}"
        self.boot_id = ""

    # --- talking with the first process ---

    async def _read(self, reader: asyncio.StreamReader) -> None:
        line = b"-"
        while line:
            try:
                line = await reader.readline()
            except (ConnectionError, ValueError):
                line = b""
            if self.link.is_cut:
                self._kept_back.append(line)
            elif self._kept_back:
                self._kept_back.append(line)
                self._catch_up()
            else:
                self._take(line)

    def _catch_up(self) -> None:
        lines, self._kept_back = self._kept_back, []
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        if not line:
            self._lost("connection reset")
            return
        message = json.loads(line)
        self.heard_at = asyncio.get_running_loop().time()
        say = message["say"]
        if say == "hello":
            self._greet(message)
        elif say == "started":
            if message["id"] == "agent":
                self.agent_pid = message["pid"]
            else:
                self.tasks[message["id"]] = message["pid"]
                self.events.task_started(self.name, message["id"], message["pid"], message["at"])
        elif say == "ended":
            self.events.task_ended(self.name, message["id"], message["code"], message["signal"], message["at"])
        elif say == "gone":
            self.tasks.pop(message["id"], None)
            self.events.task_gone(self.name, message["id"])
        elif say == "filled":
            answer = self._answers.pop(message["nonce"], None)
            if answer is not None and not answer.done():
                answer.set_result(message)

    def _greet(self, hello: dict[str, Any]) -> None:
        self.power, self.evidence, self._was_alive = Power.UP, "", True
        self.tmp = hello["tmp"]
        if self.settings.agent_argv:
            argv = [*self.settings.agent_argv, "--node-dir", str(self.folder)]
            out = str(self.folder / "agent.log")
            service = {"id": "agent", "argv": argv, "env": self.environment(), "cwd": str(self.folder), "out": out}
            self._order({"do": "serve", "again_s": 0.5, **service})
        self.up.set()
        self.events.changed()

    def _order(self, order: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(order).encode() + b"\n")

    # --- orders ---

    def start_task(self, task: str, *, argv: list[str], env: dict[str, str], cwd: str, out: str) -> None:
        """Have a task started; `task_started` or `task_ended` follows."""
        self.tasks[task] = 0
        self._order({"do": "start", "id": task, "argv": argv, "env": env, "cwd": cwd, "out": out})

    def end_task(self, task: str, grace_s: float) -> None:
        """Have a task ended; given when the cut is healed if the node is cut off now."""
        if self.link.is_cut:
            self._to_end[task] = grace_s
        else:
            self._order({"do": "end", "id": task, "grace_s": grace_s})

    async def disk(self, *, full: bool) -> str:
        """Fill or free the node's scratch file system. Returns how it was done."""
        if not self.reachable:
            raise TemporaryOrderError(f"{self.name} does not answer")
        nonce = uuid.uuid4().hex
        answer = asyncio.get_running_loop().create_future()
        self._answers[nonce] = answer
        self._order({"do": "fill" if full else "free", "nonce": nonce})
        return str((await asyncio.wait_for(answer, 10.0))["how"])

    def append_kmsg(self, text: str) -> None:
        """Append lines to the kernel log, each with the seconds since boot as the kernel prints them."""
        if "\0" in text:
            raise PermanentOrderError("a kernel-log line cannot hold a NUL byte")
        stamp = f"[{max(0.0, time.time() - self.booted_at):12.6f}] "
        lines = [line if line.startswith(("[", "<")) else stamp + line for line in text.splitlines() if line.strip()]
        fd = os.open(self.folder / "kmsg", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(fd, "".join(f"{line}\n" for line in lines).encode())
        finally:
            os.close(fd)

    def cut(self) -> None:
        """Cut the node's network."""
        (self.folder / CUT_NAME).touch()
        self.events.changed()

    def heal(self) -> None:
        """Undo `cut`."""
        (self.folder / CUT_NAME).unlink(missing_ok=True)
        self.tick()
        self.events.changed()

    def pids_of(self, target: str) -> list[int]:
        """Processes on this node by name: `agent`, `task`, `job`, `node`."""
        tree = node_init.descendants(self.pid, node_init.process_table()) if self.pid else []
        mains = [pid for pid in self.tasks.values() if pid]
        if target == "agent":
            return [self.agent_pid] if self.agent_pid else []
        if target == "task":
            return mains
        if target == "job":
            agent = node_init.descendants(self.agent_pid, node_init.process_table()) if self.agent_pid else []
            return [pid for pid in tree if pid != self.agent_pid and pid not in agent]
        if target == "node":
            return [self.pid, *tree] if self.pid else []
        raise PermanentOrderError(f"`{target}` is no target: agent, task, job or node")
