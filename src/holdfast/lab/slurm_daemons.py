"""The daemons of a Slurm lab: munge, slurmctld, accounting, slurmrestd, and what each node starts when it boots.

Owned by `slurm_lab.SlurmLab`; the keeper runs them. Time: each start is awaited with a deadline, and its error shows
the end of the daemon's log.
"""

from __future__ import annotations

import os
import pwd
import re
import signal
import sys
from pathlib import Path
from typing import Any

from holdfast.errors import LinkError
from holdfast.lab import database, packages
from holdfast.lab.settings import LabFacts
from holdfast.lab.waiting import ends, wait_gone, wait_until
from holdfast.lab.wire import ask
from holdfast.os.confined import NOBODY
from holdfast.os.programs import Command, run_blocking
from holdfast.os.tls import PLAIN_HTTP

KEPT_ENV = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
"""What daemons get of the starter's environment; SLURM_* and HOLDFAST_* would mislead them."""
COMMAND_S = 30.0
END_S = 30.0


def daemon_environment() -> dict[str, str]:
    """What of this process's environment a daemon gets."""
    return {key: value for key, value in os.environ.items() if key in KEPT_ENV}


class SlurmDaemons:
    """See the module. A start of one that runs only sees that it answers."""

    def __init__(self, facts: LabFacts) -> None:
        self._facts = facts
        self._folder = facts.folder
        self.ctld_log = facts.folder / "log" / "slurmctld.log"
        """Log of slurmctld."""

    def start_all(self) -> None:
        """Start what jobs need, in order."""
        self.start_munge()
        if self._facts.settings.dbd:
            database.start_mariadb(self._facts, self.env(), self._spawn)
            self.start_dbd()
        self.start_ctld()

    def env(self, **extra: str) -> dict[str, str]:
        """Environment for Slurm's commands and for programs that call them."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "HOLDFAST_"))}
        return self._with_slurm(kept) | extra

    def start_munge(self) -> None:
        """Start the lab's own munged, with its own key, and wait until it signs."""
        folder = self._folder / "munge"
        key = folder / "key"
        if not key.exists():
            fd = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(os.urandom(128))
        argv = ["munged", "--foreground", "--num-threads=4", f"--socket={folder}/socket", f"--key-file={key}"]
        argv += [f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed"]
        # munged wants every folder above its socket open to all; a user's own lab may lie in a closed home.
        argv += [] if self._facts.root else ["--force"]
        out = self._folder / "log" / "munged.out"
        self._spawn("munged", argv, out)
        self._until_answers(["munge", "-n", "-S", f"{folder}/socket"], "munged", out)

    def start_ctld(self) -> None:
        """Start slurmctld and wait until it answers."""
        argv = ["slurmctld", "-D", "-f", str(self._facts.conf)]
        self._spawn("slurmctld", argv, self._folder / "log" / "slurmctld.out")
        self._until_answers(["scontrol", "ping"], "slurmctld", self.ctld_log)

    def start_dbd(self) -> None:
        """Start slurmdbd and wait until it answers."""
        database.start_slurmdbd(self._facts, self.env(), self._spawn)

    def start_rest(self) -> None:
        """Start slurmrestd on `run/slurmrestd.sock`, unless it runs, and wait until it listens."""
        if ask(self._folder, "status")["daemons"].get("slurmrestd", {}).get("pid"):
            return  # the socket of one that listens must stay
        sock, out = self._folder / "run" / "slurmrestd.sock", self._folder / "log" / "slurmrestd.out"
        sock.unlink(missing_ok=True)
        program, security, plugins = self.rest_command()
        argv = [*program, "-f", str(self._facts.conf), "-a", "rest_auth/local"]
        if not self._facts.settings.dbd:
            # A database plugin ends slurmrestd at once where there is no slurmdbd: name the others alone.
            argv += ["-s", ",".join(plugins)]
        self._spawn("slurmrestd", [*argv, f"unix:{sock}"], out, **security)
        wait_until(sock.exists, "slurmrestd does not listen", limit_s=10.0, logs=(out,))

    def rest_command(self) -> tuple[list[str], dict[str, str], list[str]]:
        """How the installed version runs here: its command, that one's environment, its plugins without a database."""
        ways = [(["slurmrestd"], {"SLURMRESTD_SECURITY": "disable_user_check"})]
        if self._facts.root:
            # 25.11 does not know that word and runs neither as root nor as SlurmUser.
            nobody = pwd.getpwnam(NOBODY)
            as_nobody = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
            ways.append(([*as_nobody, "slurmrestd"], {}))
        said = ""
        for program, security in ways:
            ran = run_blocking(Command(argv=(*program, "-s", "list"), env=self.env(**security)), COMMAND_S)
            said = ran.err or ran.out
            plugins = [name for name in re.findall(r"openapi/\S+", f"{ran.out}{ran.err}") if "db" not in name]
            if plugins:
                if not security:
                    (self._folder / "run").chmod(0o1777)  # its socket is made there
                return program, security, plugins
        raise LinkError(f"slurmrestd cannot be run: {said.strip()}")

    def stop(self, name: str, *, sig: int = signal.SIGTERM) -> None:
        """End one and wait until it is gone; with SIGKILL as a crash would."""
        pid = ask(self._folder, "signal", name=name, sig=int(sig))
        if pid:
            wait_gone(pid, name, limit_s=END_S)

    def of_a_node(self) -> list[dict[str, Any]]:
        """What each node starts when it boots: slurmd, and an agent where one is wanted."""
        wanted = self._facts.settings
        slurmd: dict[str, Any] = {
            "id": "slurmd",
            "argv": ["slurmd", "-D", "-N", "{node}", "-f", str(self._facts.conf)],
            "env": self._with_slurm(daemon_environment()),
            "out": f"{self._folder}/log/{{node}}.out",
        }
        if not wanted.agents:
            return [slurmd]
        argv = [sys.executable, "-m", "holdfast.agent", "--node-dir", "{folder}"]
        argv += ["--controller-file", f"{self._folder}/controller/controller.json"]
        # By a token: a node that is cut off would still reach the controller's socket, which lies on this machine.
        argv += ["--token-file", f"{self._folder}/controller/agent-token"]
        argv += ["--beat-s", f"{wanted.agent_beat_s:g}"]
        argv += ["--emulated-devices", "--poll-s", "1"] if wanted.devices else []
        argv += ["--config", wanted.agent_config] if wanted.agent_config else []
        env = slurmd["env"] | {"HOLDFAST_NODE": "{node}", "HOLDFAST_NODE_DIR": "{folder}"}
        return [slurmd, {"id": "agent", "argv": argv, "env": env, "again_s": 0.5, "out": "{folder}/agent.log"}]

    def _with_slurm(self, kept: dict[str, str]) -> dict[str, str]:
        path = packages.search_path(kept.get("PATH", os.defpath), self._facts.settings.prefix)
        # The lab's network is on this machine, so its launchers and agents may send tokens over plain HTTP.
        return {**kept, "PATH": path, "SLURM_CONF": str(self._facts.conf), PLAIN_HTTP: "1"}

    def _spawn(self, name: str, argv: list[str], out: Path, **extra: str) -> None:
        env = self._with_slurm(daemon_environment()) | extra
        ask(self._folder, "spawn", name=name, argv=argv, env=env, out=str(out))

    def _until_answers(self, argv: list[str], name: str, log: Path) -> None:
        def answers() -> bool:
            daemon = ask(self._folder, "status")["daemons"][name]
            if not daemon["pid"]:
                raise LinkError(f"{name} ended with {daemon['code']}{ends(log)}")
            return run_blocking(Command(argv=tuple(argv), env=self.env()), COMMAND_S).code == 0

        wait_until(answers, f"{name} does not answer", limit_s=END_S, logs=(log,))
