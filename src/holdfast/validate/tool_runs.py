"""Finds and runs other people's programs inside a step. Called by steps only.

A program has a group of its own, which ends at its limit and with the step. Time passes until it ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.os import programs
from holdfast.os.programs import Command, Ran

PATHS = f"{programs.DEFAULT_PATH}:/opt/amazon/efa/bin:/opt/nccl-tests/build"


def where(name: str, folder: str = "") -> str:
    """Path of a program; empty when it is not here."""
    path = f"{folder}:" if folder else ""
    return programs.where(name, f"{path}{os.environ.get('PATH', '')}:{PATHS}")


def run(argv: Sequence[str], limit_s: float) -> Ran:
    """Run a program to its end; never raises for what it does."""
    return programs.run_blocking(Command(argv=tuple(argv)), limit_s)
