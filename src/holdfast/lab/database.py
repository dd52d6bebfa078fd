"""Accounting for a lab: a MariaDB of its own and slurmdbd. Called by `slurm_lab` when accounting was asked for.

Job ids begin at 1 with every fresh lab, so the tables do too. Time: both daemons are awaited with deadlines.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.errors import LinkError
from holdfast.lab import slurm_conf
from holdfast.lab.settings import LabFacts
from holdfast.lab.waiting import ends, wait_until
from holdfast.os.programs import Command, run_blocking

Spawn = Callable[[str, list[str], Path], None]
"""(name, argv, log): have the keeper start a daemon."""
INSTALL_LIMIT_S = 60.0
ASK_LIMIT_S = 20.0


def start_mariadb(facts: LabFacts, env: Mapping[str, str], spawn: Spawn) -> None:
    """Make the database folder when there is none, start the daemon, and give slurmdbd a user in it.

    Raises:
        LinkError: a step failed; the message holds the end of its log.
    """
    folder, log = facts.folder / "db", facts.folder / "log" / "mariadb.log"
    password = _password(facts)
    if not (folder / "mysql").is_dir():
        argv = ["mariadb-install-db", "--no-defaults", f"--datadir={folder}", f"--user={facts.user}"]
        argv += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        if run_blocking(Command(argv=tuple(argv), env=env, log=log), INSTALL_LIMIT_S).code != 0:
            raise LinkError(f"mariadb-install-db failed{ends(log)}")
    sock = facts.folder / "run" / "mysql.sock"
    argv = ["mariadbd", "--no-defaults", f"--datadir={folder}", f"--user={facts.user}", f"--socket={sock}"]
    argv += [f"--port={facts.port + slurm_conf.SQL_PORT}", "--bind-address=127.0.0.1", "--skip-name-resolve"]
    argv += [f"--pid-file={facts.folder}/run/mariadb.pid"]
    # A lab's records are thrown away with it: nothing is gained by waiting for the disk.
    argv += ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"]
    spawn("mariadbd", argv, log)
    # slurmdbd makes the database itself; the account is all that it needs.
    grant = f"create user if not exists slurm@'127.0.0.1' identified by '{password}';"
    grant += " grant all on slurm_acct_db.* to slurm@'127.0.0.1';"
    client = ["mariadb", "--no-defaults", "-u", "root", "-S", str(sock), "-e", grant]
    wait_until(lambda: _works(client, env), "MariaDB takes no connection", limit_s=30.0, logs=(log,))


def start_slurmdbd(facts: LabFacts, env: Mapping[str, str], spawn: Spawn) -> None:
    """Start slurmdbd and enter the cluster, an account and the lab's user.

    Raises:
        LinkError: it does not answer; the message holds the end of its log.
    """
    conf = facts.folder / "etc" / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.chmod(0o600)
    conf.write_text(slurm_conf.slurmdbd_conf(facts, _password(facts)), encoding="utf-8")
    # What keeps it from starting stands in the one or the other.
    out, log = (facts.folder / "log" / name for name in ("slurmdbd.out", "slurmdbd.log"))
    spawn("slurmdbd", ["slurmdbd", "-D"], out)
    show = ["sacctmgr", "-n", "show", "cluster", "format=cluster"]
    wait_until(lambda: _works(show, env), "slurmdbd does not answer", limit_s=30.0, logs=(out, log))
    for argv in (
        ["sacctmgr", "-i", "add", "cluster", slurm_conf.CLUSTER],
        ["sacctmgr", "-i", "add", "account", "lab", f"Cluster={slurm_conf.CLUSTER}"],
        ["sacctmgr", "-i", "add", "user", facts.user, "Account=lab", "AdminLevel=Admin"],
    ):
        _works(argv, env)  # "already there" is a failure to sacctmgr, and fine


def _password(facts: LabFacts) -> str:
    path = facts.folder / "etc" / "db-password"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(16), encoding="ascii")
    return path.read_text(encoding="ascii")


def _works(argv: list[str], env: Mapping[str, str]) -> bool:
    return run_blocking(Command(argv=tuple(argv), env=env), ASK_LIMIT_S).code == 0
