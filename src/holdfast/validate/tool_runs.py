"""Runs other people's programs inside a step. Called by steps only.

The program stays in the step's process group, which is killed at the step's limit, and dies with the step. Time passes
until it ends, at most `limit_s`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.adapters.local.node_init import die_with_parent

OUTPUT_MAX = 4 << 20
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/amazon/efa/bin:/opt/nccl-tests/build"


class Done(Struct, frozen=True, kw_only=True):
    """How a program ended."""

    code: int | None = None
    """None: it was killed at its limit, or could not be started."""
    out: str = ""
    err: str = ""
    hung: bool = False

    @property
    def said(self) -> str:
        """The last line that it said."""
        lines = [line.strip() for line in f"{self.out}\n{self.err}".splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"


def where(name: str, folder: str = "") -> str:
    """Path of a program; empty when it is not here."""
    path = f"{folder}:" if folder else ""
    return shutil.which(name, path=f"{path}{os.environ.get('PATH', '')}:{PATHS}") or ""


def start(argv: Sequence[str]) -> subprocess.Popen[str]:
    """Start a program that runs on beside others."""
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=die_with_parent,  # noqa: PLW1509 - a step has one thread when it starts programs
    )


def finish(process: subprocess.Popen[str], limit_s: float) -> Done:
    """Wait for a program's end."""
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return Done(out=out[:OUTPUT_MAX], err=err[:OUTPUT_MAX], hung=True)
    return Done(code=process.returncode, out=out[:OUTPUT_MAX], err=err[:OUTPUT_MAX])


def run(argv: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None) -> Done:
    """Run a program to its end; never raises for what it does."""
    if env is not None:
        argv = ("env", *(f"{key}={value}" for key, value in env.items()), *argv)
    try:
        process = start(argv)
    except OSError as error:
        return Done(err=error.strerror or str(error))
    return finish(process, limit_s)
