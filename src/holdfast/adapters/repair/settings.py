"""`[repair]` of holdfast.toml: how this site repairs its machines, whatever schedules their jobs.

Read by `wiring/settings.py`. A word of a command may hold `{node}`, `{gpu}`, `{boot_id}`, `{instance_id}`, `{order}`
and `{incident}`; where no word holds `{node}`, the node's name is added as the last one. Durations are seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from holdfast.model.toml_lines import Problem, did_you_mean

PLACES = ("node", "gpu", "boot_id", "instance_id", "order", "incident")
"""What a command may be told."""
_PLACE = re.compile(r"\{([A-Za-z_]+)\}")
Seconds = Annotated[float, Meta(gt=0)]


class CommandConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[repair.command]`: the site's own programs. What is not named is left to others."""

    reset: tuple[str, ...] = ()
    """Resets a GPU (`{gpu}`) of a drained node."""
    reboot: tuple[str, ...] = ()
    """Reboots a node; ends with 0 when it is on its way up."""
    replace: tuple[str, ...] = ()
    """Puts another machine in a node's place; ends with 0 when that one answers, or is about to."""
    limit_s: Seconds = 3000.0
    """Longest run; then the program and all that it started are killed."""
    tries: Annotated[int, Meta(ge=1, le=20)] = 3
    """How often a program that ends with 75 (try again later) is run."""
    pause_s: Seconds = 30.0
    """Between two of these."""


class Replacing(StrEnum):
    """Who puts a new instance in the place of a terminated one."""

    OFF = "off"
    """EC2 is not asked to replace anything."""
    TERMINATE = "terminate"
    """An Auto Scaling group, ParallelCluster or Karpenter: it is waited for."""
    LAUNCH = "launch"
    """Holdfast, from the launch template."""


class Ec2Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[repair.ec2]`: nodes are EC2 instances. Needs the extra `aws` (boto3); credentials as boto3 finds them."""

    region: str
    find: str = "private-dns-name"
    """How a node's name leads to its instance: `private-dns-name`, `tag:KEY`, or `instance-id`."""
    filters: dict[str, tuple[str, ...]] = {}
    """Further filters of DescribeInstances that every instance touched must pass, such as a cluster's tag."""
    reboot: bool = True
    replace: Replacing = Replacing.TERMINATE
    launch_template: str = ""
    """Id or name, for `replace = "launch"`; its newest default version is taken."""
    wait_s: Seconds = 2700.0
    """Longest wait for a replacement to run."""
    poll_s: Seconds = 10.0
    """Between two looks at EC2; one look serves all nodes that wait."""
    endpoint: str = ""
    """Address of the service, where it is not the usual one (a VPC endpoint, a stand-in)."""


class RepairConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole section."""

    command: CommandConfig = CommandConfig()
    ec2: Ec2Config | None = None
    after_replace: tuple[tuple[str, ...], ...] = ()
    """Commands run, one after another, once a replacement is there and before it is checked: remap a home, forget a
    stale host key, mount. One that fails keeps the node out of service, for a person."""
    hook_limit_s: Seconds = 300.0
    """Longest run of each of them."""
    replace_per_hour: Annotated[int, Meta(ge=0)] = 20
    """So many replacements are begun in an hour at most, whoever does them; further ones wait. 0: no limit."""

    @property
    def named(self) -> bool:
        """Is anything of it in use?"""
        command = self.command
        return bool(command.reset or command.reboot or command.replace or self.ec2 or self.after_replace)


def problems_of(config: RepairConfig) -> list[Problem]:
    """What cannot be meant, by place in the file."""
    found: list[Problem] = []
    for name in ("reset", "reboot", "replace"):
        found += _of_argv(getattr(config.command, name), ("repair", "command", name))
    for index, argv in enumerate(config.after_replace):
        if not argv:
            found.append(Problem(("repair", "after_replace", index), "a command of after_replace is empty"))
        found += _of_argv(argv, ("repair", "after_replace", index))
    ec2 = config.ec2
    if ec2 is not None:
        if ec2.find not in {"private-dns-name", "instance-id"} and not ec2.find[4:] * ec2.find.startswith("tag:"):
            text = f'find cannot be "{ec2.find}"; known: private-dns-name, instance-id, tag:KEY'
            found.append(Problem(("repair", "ec2", "find"), text))
        if ec2.replace is Replacing.LAUNCH and not ec2.launch_template:
            text = 'replace = "launch" needs launch_template'
            found.append(Problem(("repair", "ec2", "replace"), text))
    return found


def _of_argv(argv: Sequence[str], path: tuple[str | int, ...]) -> Iterator[Problem]:
    for text in argv:
        for place in _PLACE.findall(text):
            if place not in PLACES:
                yield Problem(path, f'"{{{place}}}" is not known{did_you_mean(place, PLACES)}')


def filled(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The command with its places filled in, each word for itself: a value never becomes more than one word."""
    words = [_PLACE.sub(lambda found: values.get(found[1], found[0]), text) for text in argv]
    return words if any("{node}" in text for text in argv) else [*words, values["node"]]
