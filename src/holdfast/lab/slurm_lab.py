"""A real Slurm on this machine, brought up and taken down as one thing.

    with SlurmLab.start(LabSettings(nodes=8, netns=True), folder) as lab:
        job = lab.sbatch(["--nodes=2", "--wrap", "srun hostname"])
        lab.until_job(job, "COMPLETED")
        lab.crash("node03")

`start` with `follow` (the default) makes a lab that ends when this process ends, however that happens; without, it goes
on until `down`. `attach` takes up one that runs. Used by the command line, drills, benchmarks and tests; all methods
block. Time: every wait has a deadline, and its error shows the end of the daemon's log.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.adapters.local import processes
from holdfast.adapters.local.node_init import fill_up, process_table
from holdfast.errors import LinkError, NotFoundError, RefusedError, UsageError
from holdfast.lab import machine, network, packages, slurm_conf
from holdfast.lab.keeper import MARK
from holdfast.lab.settings import LabFacts, LabSettings, check_settings, port_range, read_facts, write_facts
from holdfast.lab.slurm_daemons import COMMAND_S, END_S, SlurmDaemons, daemon_environment
from holdfast.lab.waiting import ends, start_keeper, wait_gone, wait_until
from holdfast.lab.wire import SOCKET_NAME, ask, is_running, write_program
from holdfast.os.processes import strike
from holdfast.os.programs import Command, run_blocking

PROGRAMS = {"reboot": {"op": "rebooted"}} | {
    name: {"op": "node", "verb": verb} for name, verb in (("power-cycle", "reboot"), ("replace-node", "replace"))
}
"""Programs in the lab's `bin` and what they ask of the keeper: RebootProgram, which slurmd runs on the node (the keeper
finds out by itself which one is calling), and two for a controller's `[slurm]` settings."""
FILLER = ".filled-by-drill"


class SlurmLab:
    """See the module."""

    def __init__(self, facts: LabFacts, keeper: subprocess.Popen[bytes] | None = None, *, owns: bool = False) -> None:
        self.facts = facts
        self.folder = facts.folder
        self.daemons = SlurmDaemons(facts)
        self.ctld_log = self.daemons.ctld_log
        self.owns = owns
        """Does the lab end with this object (`end`, `with`)?"""
        self.keeper = keeper

    # --- up and down ---

    @classmethod
    def start(cls, settings: LabSettings, folder: Path, *, follow: bool = True, limit_s: float = 60.0) -> Self:
        """Bring up a fresh lab, or check and mend one that runs there with the same settings.

        Args:
            settings: what is wanted.
            folder: the lab's folder, made when missing; what an earlier lab left there is removed.
            follow: end with this process.
            limit_s: until every node is up.

        Raises:
            UsageError: packages are missing, or the settings do not fit together; says what to do.
            LinkError: something did not start; holds the end of its log.
        """
        folder = folder.expanduser().resolve()
        check_settings(settings, folder)
        _check_packages(settings)
        if is_running(folder):
            running = read_facts(folder)
            if running.settings == settings and not follow:
                lab = cls(running)
                lab.bring_up(limit_s)
                return lab
            if follow:
                raise UsageError(f"a lab runs in {folder} already: `holdfast lab slurm down --dir {folder}` ends it")
        down(folder)
        lab = cls(*_new_keeper(settings, folder, follow=follow), owns=follow)
        try:
            lab.bring_up(limit_s)
        except BaseException:  # also Ctrl-C: a lab that did not come up is not left behind
            lab.end()
            raise
        return lab

    @classmethod
    def attach(cls, folder: Path) -> Self:
        """The lab that runs in this folder. Raises NotFoundError, LinkError."""
        folder = folder.expanduser().resolve()
        facts = read_facts(folder)
        ask(folder, "ping")
        return cls(facts)

    def bring_up(self, limit_s: float) -> None:
        """Start what does not run, in order, and wait until every node is up."""
        self.daemons.start_all()
        ask(self.folder, "services", services=self.daemons.of_a_node())
        ask(self.folder, "boot", nodes=self.facts.names, limit_s=limit_s)
        for name, node in self.status()["nodes"].items():
            if node["power"] == "on" and not node["services"].get("slurmd", {}).get("running"):
                self.node("start", name)
        self.until_up(limit_s=limit_s)
        if self.facts.settings.rest:
            self.daemons.start_rest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.owns:
            self.end()

    def end(self) -> None:
        """End the lab and everything in it; its folder stays. Raises LinkError when something would not end."""
        down(self.folder)
        if self.keeper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.keeper.wait(5.0)

    # --- using it ---

    def env(self, **extra: str) -> dict[str, str]:
        """Environment for Slurm's commands and for programs that call them."""
        return self.daemons.env(**extra)

    def run(
        self,
        argv: Sequence[str],
        *,
        limit_s: float = COMMAND_S,
        cwd: Path | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command of Slurm; returns what it printed.

        Raises:
            LinkError: it failed or took too long; holds what it said.
        """
        command = Command(argv=tuple(argv), env=self.env(**(extra or {})), cwd=cwd or self.folder / "jobs")
        ran = run_blocking(command, limit_s)
        if ran.hung:
            raise LinkError(f"`{' '.join(argv)}` did not end within {limit_s:g} s")
        if ran.code is None:
            raise LinkError(f"`{' '.join(argv)}` cannot be run: {ran.err}")
        if ran.code:
            raise LinkError(f"`{' '.join(argv)}` ended with {ran.code}: {(ran.err or ran.out).strip()}")
        return ran.out

    def sbatch(self, args: Sequence[str], *, script: str = "", cwd: Path | None = None, **extra: str) -> str:
        """Queue a batch job; returns its id. `script` is its text, unless `args` name a file or `--wrap`."""
        argv = ["sbatch", "--parsable", *args]
        if script:
            path = self.folder / "jobs" / f"script-{time.monotonic_ns()}.sh"
            path.write_text(script, encoding="utf-8")
            argv.append(str(path))
        return self.run(argv, cwd=cwd, extra=extra).strip().partition(";")[0]

    def job(self, job_id: str) -> dict[str, str]:
        """What `scontrol show job` says, by field. Raises LinkError when it is not known any more."""
        return _fields(self.run(["scontrol", "show", "job", "-o", job_id]))

    def until_job(self, job_id: str, *states: str, limit_s: float = 30.0) -> dict[str, str]:
        """Wait until the job is in one of these states (as `JobState` says them); returns its fields."""
        last: dict[str, str] = {}

        def there() -> bool:
            last.update(self.job(job_id))
            return last.get("JobState") in states

        try:
            wait_until(there, f"job {job_id} {'/'.join(states)}", limit_s=limit_s, logs=(self.ctld_log,))
        except LinkError as error:
            raise LinkError(f"{error}\n  it is {last.get('JobState')} ({last.get('Reason')})") from None
        return last

    def node_states(self) -> dict[str, str]:
        """State of every node as sinfo's `%t` has it."""
        rows = (line.split() for line in self.run(["sinfo", "-h", "-N", "-o", "%N %t"]).splitlines())
        return {row[0]: row[1] for row in rows if len(row) == 2}

    def until_up(self, *, limit_s: float = 60.0) -> None:
        """Wait until slurmctld has heard from every node that is switched on."""
        wanted = [n for n, node in self.status()["nodes"].items() if node["power"] == "on" and not node["hung"]]
        silent: list[str] = []

        def heard() -> bool:
            states = self.node_states()
            silent[:] = [name for name in wanted if states.get(name, "").endswith("*") or _is_unheard(states, name)]
            return not silent

        try:
            wait_until(heard, "nodes are not up", limit_s=limit_s, logs=(self.ctld_log,))
        except LinkError as error:
            raise LinkError(f"{error}{ends(*(self.slurmd_log(name) for name in silent[:2]))}") from None

    def status(self) -> dict[str, Any]:
        """Daemons and nodes, from the keeper."""
        return dict(ask(self.folder, "status"))

    def slurmd_log(self, node: str) -> Path:
        """Log of a node's slurmd."""
        return self.folder / "log" / f"slurmd-{node}.log"

    def node_dir(self, node: str) -> Path:
        """A node's folder: node.json, kmsg, telemetry, its own tmp."""
        return self.folder / "nodes" / node

    # --- nodes ---

    def node(self, verb: str, name: str, **facts: Any) -> Any:
        """Do one thing to one node: a verb of `rack.Rack`. Raises NotFoundError, RefusedError, LinkError."""
        return ask(self.folder, "node", verb=verb, node=name, **facts)

    def crash(self, name: str) -> None:
        """Power failure: slurmd, slurmstepd and every task die at once, and nobody is told."""
        self.node("crash", name)

    def start_node(self, name: str) -> None:
        """Switch a node on, or start its slurmd when only that is missing."""
        self.node("start", name)

    def resume(self, name: str, *, limit_s: float = 40.0) -> None:
        """Have a node that is switched on back in service, whatever was said of it: rebooted, drained, down.

        Raises:
            LinkError: Slurm has not heard from its newest boot, or does not take it back, within the limit.
        """
        booted_at = int(self.status()["nodes"][name]["booted_at"])

        def is_back() -> bool:
            node = _fields(self.run(["scontrol", "show", "node", "-o", name]))
            started = node.get("SlurmdStartTime", "None")
            if started[:1].isdigit() and time.mktime(time.strptime(started[:19], "%Y-%m-%dT%H:%M:%S")) < booted_at:
                return False
            states = set(node.get("State", "").split("+"))
            if states & {"DOWN", "DRAIN", "FAIL", "NOT_RESPONDING"} or node.get("State", "").endswith("*"):
                with contextlib.suppress(LinkError):  # not yet, or by itself meanwhile
                    self.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
                return False
            return started[:1].isdigit()

        wait_until(is_back, f"{name} is back in service", limit_s=limit_s, logs=(self.ctld_log, self.slurmd_log(name)))

    def kill_slurmd(self, name: str) -> None:
        """End slurmd alone; the node's jobs go on."""
        self.node("kill", name, sig=int(signal.SIGKILL))

    def add(self, name: str, conf: str = "") -> str:
        """Have a machine join that slurm.conf does not name; returns its address once slurmctld has heard from it."""
        where = str(self.node("add", name, conf=conf))
        self.until_up(limit_s=END_S)
        return where

    def remove(self, name: str) -> None:
        """Take a machine that joined away, from Slurm too (jobs that it runs must be over)."""
        self.node("remove", name)
        self.run(["scontrol", "delete", f"NodeName={name}"])

    def kmsg(self, name: str, text: str) -> None:
        """Append lines to a node's kernel log. Raises NotFoundError."""
        if not self.node_dir(name).is_dir():
            raise NotFoundError(f'the lab in {self.folder} has no node "{name}"')
        with (self.node_dir(name) / "kmsg").open("a", encoding="utf-8") as log:
            log.writelines(f"{line}\n" for line in text.splitlines() if line.strip())

    def fill_shared(self) -> None:
        """Leave no space on the shared file system. Raises RefusedError when the lab has none of its own."""
        if not self.facts.settings.shared_mib:
            raise RefusedError("this lab has no shared file system of its own that could be filled")
        fill_up(self.folder / "shared" / FILLER)

    def free_shared(self) -> None:
        """Undo `fill_shared`."""
        (self.folder / "shared" / FILLER).unlink(missing_ok=True)


def _new_keeper(settings: LabSettings, folder: Path, *, follow: bool) -> tuple[LabFacts, subprocess.Popen[bytes]]:
    """Lay a fresh lab out and start its keeper; another network is chosen while the chosen one is taken."""
    kept = 0
    with contextlib.suppress(NotFoundError, LinkError):
        kept = read_facts(folder).port
    tried: set[int] = set()
    while True:
        facts = LabFacts(
            dir=str(folder),
            settings=settings,
            host=socket.gethostname().partition(".")[0],
            user=pwd.getpwuid(os.geteuid()).pw_name,
            root=os.geteuid() == 0,
            port=port_range(settings, folder, kept=kept),
            subnet=network.free_subnet(folder, tried=tried) if settings.netns else 0,
        )
        _lay_out(facts)
        argv = [sys.executable, "-m", "holdfast.lab.keeper", "--dir", facts.dir]
        log = folder / "log" / "keeper.log"
        try:
            return facts, start_keeper(argv, log, daemon_environment(), follow=follow, limit_s=15.0)
        except LinkError as error:
            down(folder)
            # Another lab took the network between our look and the keeper's.
            if not settings.netns or "File exists" not in str(error) or len(tried) >= 8:
                raise
            tried.add(facts.subnet)


def down(folder: Path) -> bool:
    """End the lab in this folder, whoever started it, and what a lab that was killed left. Returns whether any ran.

    Raises:
        LinkError: something of it would not end.
    """
    folder = folder.expanduser().resolve()
    ran = False
    try:
        warden = ask(folder, "end")["pid"]
    except LinkError:
        pass
    else:
        ran = True
        wait_gone(warden, f"the lab in {folder}", limit_s=END_S)
    if (folder / "shared").is_mount():
        machine.unmount(folder / "shared")  # of a lab whose every keeper was killed at once
    left = _marked(folder)
    if left:
        ran = True
        strike(left, signal.SIGKILL, of=lambda: _marked(folder))
        wait_until(lambda: not _marked(folder), f"processes of the lab in {folder}", limit_s=END_S)
    with contextlib.suppress(NotFoundError, LinkError):
        facts = read_facts(folder)
        if facts.settings.netns and network.has_bridge(facts):
            network.remove_bridge(facts)
    return ran


def _marked(folder: Path) -> list[int]:
    """Live processes that a keeper of this folder started, or whose parents it did."""
    table, me = process_table(), os.getpid()
    ours = set()
    while me in table:  # a job of the lab may end it
        ours.add(me)
        me = table[me]
    return [pid for pid in processes.marked(folder, MARK) if pid not in ours]


def _is_unheard(states: Mapping[str, str], name: str) -> bool:
    return states.get(name, "") in {"", "unk", "boot", "future"} or states[name].startswith("unk")


def _fields(line: str) -> dict[str, str]:
    """`A=1 B=2 3` -> {"A": "1", "B": "2 3"}: a word without `=` goes on the value before it."""
    found: dict[str, str] = {}
    last = ""
    for word in line.split():
        key, sign, value = word.partition("=")
        if sign and key.replace(":", "").replace("/", "").isalnum():
            found[key], last = value, key
        elif last:
            found[last] += f" {word}"
    return found


def _check_packages(settings: LabSettings) -> None:
    path = packages.search_path(os.environ.get("PATH", os.defpath), settings.prefix)
    programs, wanted = packages.missing_packages(path, dbd=settings.dbd, rest=settings.rest, netns=settings.netns)
    if programs:
        raise UsageError(f"this lab needs {', '.join(programs)}; {packages.advice(wanted)}")


def _lay_out(facts: LabFacts) -> None:
    """Folders and files of a fresh lab; what an earlier one left is removed."""
    folder = facts.folder
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # other users' jobs reach munge's socket and the configuration through it
    for name in ("state", "spool", "log", "nodes", "run", "db", "controller"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("etc", "state", "spool", "log", "dev", "munge", "run", "bin", "nodes", "jobs", "controller"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "munge").chmod(0o755)
    (folder / "jobs").chmod(0o1777)
    for name in ("socket", "socket.lock", "pid"):
        (folder / "munge" / name).unlink(missing_ok=True)
    if facts.root:
        for path in map(Path, slurm_conf.gpu_files(facts)):
            if not path.exists():
                # A device like /dev/null: slurmd wants a character device, and takes its number from the name.
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    etc = folder / "etc"
    (etc / "slurm.conf").write_text(slurm_conf.slurm_conf(facts), encoding="utf-8")
    (etc / "gres.conf").write_text(slurm_conf.gres_conf(facts), encoding="utf-8")
    (etc / "hosts").write_text(slurm_conf.hosts(facts), encoding="utf-8")
    (etc / "resolv.conf").write_text(slurm_conf.RESOLV_CONF, encoding="utf-8")
    (etc / "plugstack.conf").write_text("", encoding="utf-8")
    # Read by slurmd at start-up although nothing here uses cgroups; v2 would look for systemd.
    (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")
    for name, question in PROGRAMS.items():
        write_program(folder / "bin" / name, folder / SOCKET_NAME, **question)
    write_facts(facts)
