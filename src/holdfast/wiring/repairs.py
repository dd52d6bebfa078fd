"""Wires `[repair]` of holdfast.toml: the site's own programs, EC2, and what follows every replacement.

Called by `holdfast controller` when it starts. Order matters: what is configured here is asked before the scheduler's
own way, programs before EC2. No time passes here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.adapters.repair.command import CommandRepair
from holdfast.adapters.repair.ec2 import Ec2Repair
from holdfast.adapters.repair.hooks import Pace, Replacing
from holdfast.adapters.repair.once import Once
from holdfast.adapters.repair.settings import RepairConfig
from holdfast.ports import Orchestrator, Repair


def make_repairs(
    config: RepairConfig, orchestrator: Orchestrator, folder: Path, environ: Mapping[str, str]
) -> list[Repair]:
    """The repairs of a controller.

    Args:
        config: `[repair]`.
        orchestrator: replaces nodes, too, where it can.
        folder: where commands that were run are written down.
        environ: what the site's programs get.

    Raises:
        UsageError: EC2 is configured, and boto3 is not installed.
    """
    if not config.named:
        return []
    once = Once(folder, environ)
    repairs: list[Repair] = [CommandRepair(config.command, once)]
    if config.ec2 is not None:
        repairs.append(Ec2Repair(config.ec2))
    pace = Pace(config.replace_per_hour, folder / "pace.json", time.time)
    return [Replacing(config, [*repairs, orchestrator], once, pace), *repairs]
