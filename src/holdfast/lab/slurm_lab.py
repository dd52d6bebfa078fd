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

from holdfast.adapters.local.processes import environment_of, process_table, send_signal
from holdfast.errors import LinkError, NotFoundError, RefusedError, UsageError
from holdfast.lab import database, machine, network, packages, slurm_conf
from holdfast.lab.keeper import MARK
from holdfast.lab.settings import LabFacts, LabSettings, check_settings, port_range, read_facts, write_facts
from holdfast.lab.waiting import ends, wait_gone, wait_until
from holdfast.lab.wire import SOCKET_NAME, ask, is_running
from holdfast.os.daemons import start_daemon
from holdfast.os.programs import Command, run_blocking

REBOOT_PROGRAM = """\
#!{python} -IS
# RebootProgram of this lab: slurmd runs it on the node. It gets almost no environment, so all it knows stands here; the
# keeper finds out by itself which node is calling.
import socket
with socket.socket(socket.AF_UNIX) as link:
    link.settimeout(30)
    link.connect({sock!r})
    link.sendall(b'{{"op": "rebooted"}}\\n')
    link.recv(4096)
"""
VERB_PROGRAM = """\
#!{python} -IS
# What a BMC or a provider is elsewhere: `{verb}` for the node that is named last.
import json, socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.settimeout(60)
    link.connect({sock!r})
    link.sendall(json.dumps({{"op": "node", "verb": {verb!r}, "node": sys.argv[-1]}}).encode() + b"\\n")
    answer = json.loads(link.makefile().readline())
sys.exit(None if answer["ok"] else answer["error"])
"""
VERB_PROGRAMS = {"power-cycle": "reboot", "replace-node": "replace"}
"""Programs in the lab's `bin` for a controller's `[slurm]` settings, and the verbs that they stand for."""
KEPT_ENV = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
"""What daemons get of the starter's environment; SLURM_* and HOLDFAST_* would mislead them."""
UP_STATES = ("idle", "mix", "alloc", "comp")
FILLER = ".filled-by-drill"
COMMAND_S = 30.0
END_S = 30.0


class SlurmLab:
    """See the module."""

    def __init__(self, facts: LabFacts, *, owns: bool = False) -> None:
        self.facts = facts
        self.folder = facts.folder
        self.owns = owns
        """Does the lab end with this object (`end`, `with`)?"""
        self.keeper: subprocess.Popen[bytes] | None = None

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
        lab = cls._fresh(settings, folder, follow=follow)
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

    @classmethod
    def _fresh(cls, settings: LabSettings, folder: Path, *, follow: bool) -> Self:
        kept = 0
        with contextlib.suppress(NotFoundError, LinkError):
            kept = read_facts(folder).port
        tried: set[int] = set()
        while True:
            subnet = network.free_subnet(folder, tried=tried) if settings.netns else 0
            facts = LabFacts(
                dir=str(folder),
                settings=settings,
                host=socket.gethostname().partition(".")[0],
                user=pwd.getpwuid(os.geteuid()).pw_name,
                root=os.geteuid() == 0,
                port=port_range(settings, folder, kept=kept),
                subnet=subnet,
            )
            _lay_out(facts)
            lab = cls(facts, owns=follow)
            try:
                lab._start_keeper(follow=follow)
            except LinkError as error:
                # Another lab took the network between our look and the keeper's.
                if not settings.netns or "File exists" not in str(error) or len(tried) >= 8:
                    raise
                tried.add(subnet)
            else:
                return lab

    def _start_keeper(self, *, follow: bool) -> None:
        argv = [sys.executable, "-m", "holdfast.lab.keeper", "--dir", self.facts.dir]
        argv += ["--parent-pid", str(os.getpid())] * follow
        log = self.folder / "log" / "keeper.log"
        env = {key: value for key, value in os.environ.items() if key in KEPT_ENV}
        self.keeper, ready = start_daemon(argv, log, limit_s=15.0, env=env)
        if not ready:
            self.end()
            raise LinkError(f"the lab in {self.folder} did not start{ends(log)}")

    def bring_up(self, limit_s: float) -> None:
        """Start what does not run, in order, and wait until every node is up."""
        self.start_munge()
        if self.facts.settings.dbd:
            database.start_mariadb(self.facts, self.env(), self._spawn)
            self.start_dbd()
        self.start_ctld()
        ask(self.folder, "services", services=self._services())
        ask(self.folder, "boot", nodes=self.facts.names, limit_s=limit_s)
        for name, node in self.status()["nodes"].items():
            if node["power"] == "on" and not node["services"].get("slurmd", {}).get("running"):
                self.node("start", name)
        self.until_up(limit_s=limit_s)
        if self.facts.settings.rest:
            self.start_rest()

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
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "HOLDFAST_"))}
        path = packages.search_path(kept.get("PATH", os.defpath))
        return {**kept, "PATH": path, "SLURM_CONF": str(self.facts.conf), **extra}

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

    @property
    def ctld_log(self) -> Path:
        """Log of slurmctld."""
        return self.folder / "log" / "slurmctld.log"

    def slurmd_log(self, node: str) -> Path:
        """Log of a node's slurmd."""
        return self.folder / "log" / f"slurmd-{node}.log"

    def node_dir(self, node: str) -> Path:
        """A node's folder: node.json, kmsg, telemetry, its own tmp."""
        return self.folder / "nodes" / node

    # --- daemons ---

    def start_munge(self) -> None:
        """Start the lab's own munged, with its own key, and wait until it signs."""
        folder = self.folder / "munge"
        key = folder / "key"
        if not key.exists():
            fd = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(os.urandom(128))
        argv = ["munged", "--foreground", "--num-threads=4", f"--socket={folder}/socket", f"--key-file={key}"]
        argv += [f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed"]
        # munged wants every folder above its socket open to all; a user's own lab may lie in a closed home.
        argv += [] if self.facts.root else ["--force"]
        self._spawn("munged", argv, self.folder / "log" / "munged.out")
        self._until_answers(["munge", "-n", "-S", f"{folder}/socket"], "munged", (self.folder / "log" / "munged.out",))

    def start_ctld(self) -> None:
        """Start slurmctld, or see that it runs, and wait until it answers."""
        out = self.folder / "log" / "slurmctld.out"
        self._spawn("slurmctld", ["slurmctld", "-D", "-f", str(self.facts.conf)], out)
        self._until_answers(["scontrol", "ping"], "slurmctld", (self.ctld_log,))

    def stop_ctld(self, *, sig: int = signal.SIGTERM) -> None:
        """End slurmctld and wait until it is gone; with SIGKILL as a crash would."""
        self._stop("slurmctld", sig)

    def start_dbd(self) -> None:
        """Start slurmdbd and wait until it answers."""
        database.start_slurmdbd(self.facts, self.env(), self._spawn)

    def stop_dbd(self, *, sig: int = signal.SIGTERM) -> None:
        """End slurmdbd and wait until it is gone."""
        self._stop("slurmdbd", sig)

    def start_rest(self) -> None:
        """Start slurmrestd on `run/slurmrestd.sock` and wait until it listens."""
        sock, out = self.folder / "run" / "slurmrestd.sock", self.folder / "log" / "slurmrestd.out"
        sock.unlink(missing_ok=True)
        argv = ["slurmrestd", "-f", str(self.facts.conf)]
        if not self.facts.settings.dbd:
            # Its database plugin ends it at once where there is no slurmdbd: name the others alone.
            argv += ["-s", "openapi/v0.0.38"]
        argv += ["-a", "rest_auth/local", f"unix:{sock}"]
        # Version 22.05 refuses to run as root or SlurmUser unless it is told otherwise; a lab has no other user.
        self._spawn("slurmrestd", argv, out, SLURMRESTD_SECURITY="disable_user_check")
        wait_until(sock.exists, "slurmrestd does not listen", limit_s=10.0, logs=(out,))

    def stop_rest(self, *, sig: int = signal.SIGTERM) -> None:
        """End slurmrestd and wait until it is gone."""
        self._stop("slurmrestd", sig)

    def _spawn(self, name: str, argv: list[str], out: Path, **extra: str) -> None:
        ask(self.folder, "spawn", name=name, argv=argv, env=self._daemon_env(**extra), out=str(out))

    def _stop(self, name: str, sig: int) -> None:
        pid = ask(self.folder, "signal", name=name, sig=int(sig))
        if pid:
            wait_gone(pid, name, limit_s=END_S)

    def _until_answers(self, argv: list[str], name: str, logs: tuple[Path, ...]) -> None:
        def answers() -> bool:
            daemon = self.status()["daemons"][name]
            if not daemon["pid"]:
                raise LinkError(f"{name} ended with {daemon['code']}{ends(*logs)}")
            return run_blocking(Command(argv=tuple(argv), env=self.env()), COMMAND_S).code == 0

        wait_until(answers, f"{name} does not answer", limit_s=END_S, logs=logs)

    def _daemon_env(self, **extra: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key in KEPT_ENV}
        path = packages.search_path(kept.get("PATH", os.defpath))
        return {**kept, "PATH": path, "SLURM_CONF": str(self.facts.conf), **extra}

    def _services(self) -> list[dict[str, Any]]:
        log = f"{self.folder}/log"
        marks = {"HOLDFAST_NODE": "{node}", "HOLDFAST_NODE_DIR": "{folder}"}
        slurmd: dict[str, Any] = {
            "id": "slurmd",
            "argv": ["slurmd", "-D", "-N", "{node}", "-f", str(self.facts.conf)],
            "env": self._daemon_env(),
            "out": f"{log}/{{node}}.out",
        }
        if not self.facts.settings.agents:
            return [slurmd]
        argv = [sys.executable, "-m", "holdfast.agent", "--node-dir", "{folder}"]
        argv += ["--controller-file", f"{self.folder}/controller/controller.json"]
        argv += ["--beat-s", f"{self.facts.settings.agent_beat_s:g}"]
        argv += ["--emulated-devices", "--poll-s", "1"] if self.facts.settings.devices else []
        argv += ["--config", self.facts.settings.agent_config] if self.facts.settings.agent_config else []
        agent = {"id": "agent", "argv": argv, "env": self._daemon_env() | marks, "again_s": 0.5}
        return [slurmd, agent | {"out": "{folder}/agent.log"}]

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

    def kill_slurmd(self, name: str, *, sig: int = signal.SIGKILL) -> None:
        """End slurmd alone; the node's jobs go on."""
        self.node("kill", name, sig=int(sig))

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
        with contextlib.suppress(OSError), (self.folder / "shared" / FILLER).open("wb", buffering=0) as file:
            while True:  # until ENOSPC
                file.write(b"\0" * (1 << 20))

    def free_shared(self) -> None:
        """Undo `fill_shared`."""
        (self.folder / "shared" / FILLER).unlink(missing_ok=True)


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
        send_signal(left, signal.SIGKILL)
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
    return [pid for pid in table if pid not in ours and environment_of(pid).get(MARK) == str(folder)]


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
    programs, wanted = packages.missing_packages(
        os.environ.get("PATH", os.defpath), dbd=settings.dbd, rest=settings.rest, netns=settings.netns
    )
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
    site = {"python": sys.executable, "sock": f"{folder}/{SOCKET_NAME}"}
    programs = {"reboot": REBOOT_PROGRAM.format_map(site)}
    programs |= {name: VERB_PROGRAM.format_map(site | {"verb": verb}) for name, verb in VERB_PROGRAMS.items()}
    for name, text in programs.items():
        program = folder / "bin" / name
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    write_facts(facts)
