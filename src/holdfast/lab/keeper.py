"""The process that a lab descends from: it starts every daemon and node, answers on `lab.sock`, and ends them all.

Started by `slurm_lab` as `python -m holdfast.lab.keeper --dir DIR`. Two processes: the warden, which does nothing but
wait, and the keeper proper below it. The keeper ends the lab when it is told to, on SIGTERM, and when the process named
by `--parent-pid` ends; should the keeper itself be killed, the warden ends what is left, and should the warden be
killed, the keeper ends the lab. Both are child subreapers, so that nothing which a daemon or a job forks gets away.

As root the keeper has its own view of /etc/hosts, with the names of the lab's nodes; the machine's file stays as it is.

Time: one `select` over the socket, ends of children, the parent's end, and boots that are due.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.adapters.local.node_init import (
    become_subreaper,
    die_with_parent,
    end_descendants,
    mount_tmpfs,
    own_mounts,
    quieted,
    reaped,
    send_signal,
    spawn,
    woken_by_signals,
)
from holdfast.adapters.local.processes import marked
from holdfast.errors import HoldfastError, LinkError, NotFoundError, RefusedError
from holdfast.lab import machine, network
from holdfast.lab.rack import Rack
from holdfast.lab.settings import FACTS_NAME, LabFacts, read_facts
from holdfast.lab.wire import SOCKET_NAME
from holdfast.os.processes import strike
from holdfast.os.unix_sockets import socket_address

MARK = "HOLDFAST_LAB_DIR"
"""Environment variable of everything that a keeper started, unless it drops its environment as slurmstepd does."""


class Keeper:
    """State and loop of a lab's keeper."""

    def __init__(self, facts: LabFacts, *, parent_pid: int) -> None:
        self.facts = facts
        self.folder = facts.folder
        self.daemons: dict[str, dict[str, Any]] = {}
        self.rack = Rack(facts)
        self.parent = os.pidfd_open(parent_pid) if parent_pid else -1
        self.ended = False
        self.listener = socket.socket(socket.AF_UNIX)
        self.clients: dict[socket.socket, bytes] = {}
        self.outside = os.open("/proc/self/ns/mnt", os.O_RDONLY)
        """The machine's own view of the file systems."""

    # --- what can be asked for; each returns what is answered ---

    def ping(self, ask: Mapping[str, Any]) -> object:  # noqa: ARG002 - all have one shape
        """Is anybody there?"""
        return {"pid": os.getpid()}

    def status(self, ask: Mapping[str, Any]) -> object:  # noqa: ARG002 - as above
        """Every daemon and node."""
        daemons = {name: {"pid": d["pid"], "code": d["code"]} for name, d in self.daemons.items()}
        return {"pid": os.getpid(), "daemons": daemons, "nodes": self.rack.status()}

    def spawn(self, ask: Mapping[str, Any]) -> object:
        """Start a daemon in the foreground unless it runs; returns its pid."""
        name = ask["name"]
        known = self.daemons.get(name)
        if known is None or not known["pid"]:
            pid = spawn(ask["argv"], env=self._environment(ask["env"]), cwd=str(self.folder), out=ask["out"])
            self.daemons[name] = {"pid": pid, "code": None}
        return self.daemons[name]["pid"]

    def signal(self, ask: Mapping[str, Any]) -> object:
        """Signal a daemon; returns its pid, 0 when it does not run."""
        known = self.daemons.get(ask["name"])
        if known is None:
            raise NotFoundError(f"this lab has no {ask['name']}")
        if known["pid"]:
            send_signal([known["pid"]], ask["sig"])
        return known["pid"]

    def services(self, ask: Mapping[str, Any]) -> object:
        """Say what every node starts when it boots; `{node}` and `{folder}` in it are the node's own."""
        for service in ask["services"]:
            service["env"] = self._environment(service["env"])
        self.rack.services = ask["services"]
        return None

    def boot(self, ask: Mapping[str, Any]) -> object:
        """Switch on nodes that are off; returns their names."""
        return self.rack.boot(ask["nodes"])

    def node(self, ask: Mapping[str, Any]) -> object:
        """Do one thing to one node: a verb of the rack, with the facts that it takes."""
        facts = {name: fact for name, fact in ask.items() if name not in {"op", "peer", "verb", "node"}}
        return self.rack.verbs[ask["verb"]](self.rack, ask["node"], **facts)

    def rebooted(self, ask: Mapping[str, Any]) -> object:
        """A node's RebootProgram calls: the caller's own descent says which node."""
        name = self.rack.owner_of(ask["peer"])
        if name is None:
            raise RefusedError("only a program on one of the lab's nodes may reboot it this way")
        self.rack.reboot(name)
        return name

    def end(self, ask: Mapping[str, Any]) -> object:  # noqa: ARG002 - as above
        """End the lab; the answer comes first."""
        self.ended = True
        return {"pid": os.getppid()}

    does: Mapping[str, Callable[[Keeper, Mapping[str, Any]], object]] = {
        "ping": ping,
        "status": status,
        "spawn": spawn,
        "signal": signal,
        "services": services,
        "boot": boot,
        "node": node,
        "rebooted": rebooted,
        "end": end,
    }

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**env, MARK: self.facts.dir}

    # --- the loop ---

    def open(self) -> None:
        """Make the bridge, put the lab's hosts file in place, and listen."""
        if self.facts.settings.netns:
            network.raise_bridge(self.facts)
        if self.facts.root and own_mounts():
            machine.bind(self.folder / "etc" / "hosts", "/etc/hosts")
        path = self.folder / SOCKET_NAME
        path.unlink(missing_ok=True)
        with socket_address(path) as where:
            self.listener.bind(where)
        path.chmod(0o600)
        self.listener.listen(64)

    def run(self, ready: int) -> None:
        """Serve until the end, then end everything."""
        wake = woken_by_signals(self._told_to_end, signal.SIGTERM, signal.SIGINT)
        try:
            self.open()
            os.write(ready, b"up\n")
            os.close(ready)
            while not self.ended:
                self._turn(wake)
        finally:
            self.close()

    def _told_to_end(self, *_: object) -> None:
        self.ended = True

    def _turn(self, wake: int) -> None:
        self._reap()
        due = self.rack.boot_what_is_due()
        watched: list[Any] = [self.listener, wake, *self.clients, *([self.parent] if self.parent >= 0 else [])]
        readable, _, _ = select.select(watched, [], [], due)
        for source in readable:
            if source is self.listener:
                self.clients[self.listener.accept()[0]] = b""
            elif source == wake:
                quieted(wake)
            elif source == self.parent:
                self.ended = True
            else:
                self._hear(source)

    def _hear(self, client: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = client.recv(1 << 20)
        if not data:
            del self.clients[client]
            client.close()
            return
        *lines, self.clients[client] = (self.clients[client] + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(OSError):
                client.sendall(json.dumps(self._answer(client, line)).encode() + b"\n")

    def _answer(self, client: socket.socket, line: bytes) -> dict[str, Any]:
        try:
            ask = json.loads(line)
            peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            ask["peer"] = struct.unpack("3i", peer)[0]
            self._reap()
            return {"ok": True, "result": self.does[ask["op"]](self, ask)}
        except HoldfastError as error:
            code = {"NotFoundError": "not_found", "RefusedError": "refused"}.get(type(error).__name__, "")
            return {"ok": False, "error": str(error), "code": code}
        except (OSError, KeyError, ValueError, TypeError) as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def _reap(self) -> None:
        for pid, code in reaped():
            for daemon in self.daemons.values():
                if daemon["pid"] == pid:
                    daemon.update(pid=0, code=code)
            self.rack.note_end(pid)

    def close(self) -> None:
        """End everything: nodes first, then slurmctld before what it stores its records in."""
        self.listener.close()
        (self.folder / SOCKET_NAME).unlink(missing_ok=True)
        self.rack.close()
        for name in ("slurmrestd", "slurmctld", "slurmdbd", "mariadbd", "munged"):
            daemon = self.daemons.get(name)
            if daemon and daemon["pid"]:
                self._end_daemon(daemon)
        end_descendants()
        # What others started for this lab, such as a controller, carries the mark.
        others = set(marked(self.folder, MARK)) - {os.getppid()}
        strike(others, signal.SIGKILL, of=lambda: marked(self.folder, MARK))
        if self.facts.settings.netns:
            network.remove_bridge(self.facts)
        if self.facts.settings.shared_mib:
            machine.go_back(self.outside)
            machine.unmount(shared_folder(self.facts))

    def _end_daemon(self, daemon: dict[str, Any]) -> None:
        # A lab is thrown away: only a second to write things down.
        send_signal([daemon["pid"]], signal.SIGTERM)
        deadline = time.monotonic() + 1.0
        while daemon["pid"] and time.monotonic() < deadline:
            time.sleep(0.005)
            self._reap()


def shared_folder(facts: LabFacts) -> Path:
    """Where a lab's shared file system lies."""
    return facts.folder / "shared"


def mount_shared(facts: LabFacts) -> None:
    """Make the lab's shared file system, outside the keeper's own view: whoever starts jobs must see it too."""
    folder = shared_folder(facts)
    folder.mkdir(exist_ok=True)
    if not mount_tmpfs(folder, facts.settings.shared_mib << 20, mode="1777"):
        raise LinkError(f"{folder}: the kernel mounts no file system there")


def _watch_over(keeper: int, facts: LabFacts) -> int:
    """Wait for the keeper's end; if it was killed, do what it could not do any more."""
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda number, _: send_signal([keeper], number))
    code = 1
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if pid == keeper:
            code = os.waitstatus_to_exitcode(status)
            break
    if code < 0:
        end_descendants()
        if facts.settings.netns:
            network.remove_bridge(facts)
        (facts.folder / SOCKET_NAME).unlink(missing_ok=True)
    if facts.settings.shared_mib:
        machine.unmount(shared_folder(facts))
    return 0 if code == 0 else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run a lab's keeper; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.lab.keeper", description="Keeper of a lab.")
    parser.add_argument("--dir", type=Path, required=True, help=f"the lab's folder, with {FACTS_NAME}")
    parser.add_argument("--parent-pid", type=int, default=0, help="end when this process ends")
    parser.add_argument("--ready-fd", type=int, required=True, help="where to say that the socket is there")
    args = parser.parse_args(argv)
    try:
        facts = read_facts(args.dir)
        become_subreaper()
        if facts.settings.shared_mib:
            mount_shared(facts)
        child = os.fork()
        if child:
            os.close(args.ready_fd)
            return _watch_over(child, facts)
        die_with_parent(signal.SIGTERM)
        become_subreaper()
        Keeper(facts, parent_pid=args.parent_pid).run(args.ready_fd)
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
