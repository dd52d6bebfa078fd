"""What users have on a login node: the commands, the cockpit in a browser, and the processes of their training.

Called by the walks. All of it blocks, with a deadline where something is waited for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

from holdfast.os.tls import PLAIN_HTTP
from slurm_keeper import Kept


def holdfast(*words: str | Path, kept: Kept | None = None, columns: int = 160, limit_s: float = 200.0) -> str:
    """What a command prints, which must end with 0; with `kept` a command that asks this controller."""
    argv = [sys.executable, "-m", "holdfast.cli.main", *map(str, words)]
    env = {**os.environ, "COLUMNS": str(columns)}
    if kept is not None:
        assert kept.client is not None
        argv += ["--url", str(kept.client.base_url)]
        env |= {"HOLDFAST_TOKEN_FILE": f"{kept.folder}/controller/token", PLAIN_HTTP: "1"}  # the lab has no TLS
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=limit_s)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def page(kept: Kept, path: str) -> str:
    """A page of the cockpit as a browser gets it once its user has signed in."""
    assert kept.client is not None
    url = str(kept.client.base_url)
    with httpx.Client(base_url=url, follow_redirects=True, timeout=60) as browser:
        token = (kept.folder / "controller" / "token").read_text().strip()
        browser.post("/login", data={"token": token}, headers={"Origin": url.rstrip("/")}).raise_for_status()
        return browser.get(path).raise_for_status().text


def process_of(what: str, holds: Callable[[psutil.Process, list[str], dict[str, str]], bool]) -> psutil.Process:
    """The process whose command line and environment hold this. Fails the test when there is none."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if holds(process, process.cmdline(), process.environ()):
                return process
    raise AssertionError(f"there is no {what}")


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])
