"""The plan of all faults of a run, drawn from its seed before anything runs.

`world.py` and its neighbours make the faults take effect. Each kind has its own stream of luck, so that turning one
kind off, or dropping one fault, leaves all others where they were: that is what makes two policies comparable under the
same faults, and a failing run shrinkable. Times are seconds since the run's beginning.
"""

from __future__ import annotations

import decimal
import itertools
import random
from collections.abc import Iterator

from holdfast.errors import UsageError
from holdfast.sim.causes import TABLES, Cause
from holdfast.sim.options import DAY_S, SimOptions
from holdfast.sim.record import Fault

KINDS = {
    "gpu": "a part of the node breaks; its agent sees it, and a job there dies",
    "node": "the node stops",
    "crash": "a rank ends by itself",
    "cable": "a node's link to the fabric is down for minutes; its agent sees it, a job there breaks, and again",
    "link": "a connection breaks for a moment and a rank dies of it",
    "hang": "nobody dies, nothing moves",
    "corruption": "numbers go bad; it shows some steps later, and checkpoints in between hold it",
    "straggler": "the node makes every step slow until it is left",
    "switch": "a switch fails: its nodes are cut off",
    "rack": "a rack's top switch fails: its nodes are cut off",
    "power": "a power feed fails: all nodes of its racks stop, and boot when it is back",
    "storage": "the file system stands still",
    "preemption": "the scheduler takes a job's nodes for something more important",
    "partition": "agents and launchers of some nodes cannot reach the controller",
    "operator": "a person interferes",
    "reuse": "a job is cancelled and its id is used again",
    "kill": "the controller is killed",
    "second": "a second controller is started beside the first",
    "disk_full": "the journal's disk is full",
    "torn": "the controller is killed while it writes",
    "slow_disk": "the journal's disk is slow",
}


def luck(options: SimOptions, name: str) -> random.Random:
    """A stream of its own, the same on every machine."""
    return random.Random(f"{name}/{options.seed}")  # noqa: S311 - repeatable, not secret


def log(x: float) -> float:
    """Natural logarithm, rounded correctly: the C library's differs in its last bit between processors."""
    return float(decimal.Decimal(x).ln(_EXACT))


def power(x: float, y: float) -> float:
    """`x` to the `y`, the same on every machine."""
    return float(_EXACT.power(decimal.Decimal(x), decimal.Decimal(y)))


_EXACT = decimal.Context(prec=28)


def plan(options: SimOptions) -> tuple[Fault, ...]:
    """All faults in order of time. Raises UsageError for a table of causes that does not exist."""
    made = [*_components(options), *_groups(options), *_singles(options)]
    return tuple(sorted(made, key=lambda fault: (fault.at_s, fault.id)))


def node_name(index: int) -> str:
    """`n0001` and on."""
    return f"n{index + 1:04d}"


def switch_of(options: SimOptions, index: int) -> int:
    """Number of the leaf switch that a node hangs on."""
    return index // options.nodes_per_switch


def topology(options: SimOptions, index: int) -> str:
    """Failure domain path of a node: `feed0/rack1/switch3`."""
    switch = switch_of(options, index)
    rack = switch // options.switches_per_rack
    return f"feed{rack // options.racks_per_feed}/rack{rack}/switch{switch}"


def lemons(options: SimOptions) -> list[int]:
    """Which machines are lemons from the start."""
    dice = luck(options, "lemons")
    return [index for index in range(options.nodes) if dice.random() < options.lemons]


def failures_per_day(options: SimOptions, nodes: int) -> float:
    """Failures of components a day on so many of the nodes."""
    growth = power(options.nodes / options.scale_from, options.scale_exponent)
    return options.failures / 1000.0 * nodes * growth


def _times(dice: random.Random, per_day: float, until_s: float) -> Iterator[float]:
    """A Poisson process."""
    at = 0.0
    while per_day > 0.0:
        at += -log(1.0 - dice.random()) / per_day * DAY_S
        if at >= until_s:
            return
        yield at


def _components(options: SimOptions) -> Iterator[Fault]:
    """Failures of single nodes and of what runs on them: lemons more often, the mean as it was asked for."""
    table = TABLES.get(options.causes)
    if table is None:
        raise UsageError(f"no table of causes {options.causes!r}: use {', '.join(TABLES)}")
    if options.spares_apart:
        at_work = options.nodes - options.spares
        yield from _failures(options, table, "components", 0, at_work)
        yield from _failures(options, table, "spares", at_work, options.spares)
    else:
        yield from _failures(options, table, "components", 0, options.nodes)


def _failures(options: SimOptions, table: tuple[Cause, ...], name: str, first: int, nodes: int) -> Iterator[Fault]:
    """Failures of `nodes` nodes from the `first` on."""
    dice = luck(options, name)
    prefix = "" if name == "components" else "spare-"
    bad = [index for index in lemons(options) if first <= index < first + nodes]
    weight = len(bad) * options.lemon_factor
    share = weight / (weight + nodes - len(bad)) if weight else 0.0
    good = sorted(set(range(first, first + nodes)) - set(bad))
    chances = list(itertools.accumulate(cause.count for cause in table))
    for number, at in enumerate(_times(dice, failures_per_day(options, nodes), options.fault_s), 1):
        of_lemon = bool(bad) and dice.random() < share
        index = bad[int(dice.random() * len(bad))] if of_lemon else good[int(dice.random() * len(good))]
        pick = dice.random() * chances[-1]
        cause = table[next(place for place, edge in enumerate(chances) if pick < edge)]
        yield _of_cause(f"{prefix}{cause.kind}-{number}", at, index, cause, dice, lemon=of_lemon)


def _of_cause(name: str, at: float, index: int, cause: Cause, dice: random.Random, *, lemon: bool) -> Fault:
    return Fault(
        id=name,
        at_s=at,
        kind=cause.kind,
        cause=cause.rule,
        label=cause.label,
        node=node_name(index),
        machine=machine_name(index) if lemon else "",
        luck=dice.random(),
        remedy=cause.remedy,
    )


def machine_name(index: int, number: int = 0) -> str:
    """Instance id of a node's machine; its `number` grows with each replacement."""
    return f"m{index + 1:04d}.{number}"


_GROUPS = (("switch", "switch_faults", 2), ("rack", "rack_faults", 1), ("power", "power_faults", 0))


def _groups(options: SimOptions) -> Iterator[Fault]:
    paths = [topology(options, index).split("/") for index in range(options.nodes)]
    for kind, option, level in _GROUPS:
        dice = luck(options, kind)
        for number, at in enumerate(_times(dice, getattr(options, option), options.fault_s), 1):
            centre = paths[int(dice.random() * options.nodes)][: level + 1]
            members = tuple(node_name(index) for index, path in enumerate(paths) if path[: level + 1] == centre)
            yield Fault(
                id=f"{kind}-{number}",
                at_s=at,
                kind=kind,
                cause="node.lost",
                label=f"{kind} {centre[-1]}",
                group=members,
                for_s=dice.uniform(300.0, 7200.0),
                luck=dice.random(),
            )


_SINGLES: tuple[tuple[str, str, float, float, str], ...] = (
    ("crash", "crashes", 0.0, 0.0, "exit.signal.11"),
    ("hang", "hangs", 0.0, 0.0, "hang.step"),
    ("cable", "link_faults", 60.0, 1800.0, "check.fabric_port_down"),
    ("straggler", "stragglers", 600.0, 14400.0, "straggler.rank"),
    ("corruption", "corruptions", 0.0, 0.0, "loss.nan"),
    ("storage", "storage_outages", 60.0, 1800.0, "fs.stale"),
    ("preemption", "preemptions", 0.0, 0.0, ""),
    ("partition", "partitions", 20.0, 900.0, ""),
    ("operator", "operators", 0.0, 0.0, ""),
    ("reuse", "reused_ids", 0.0, 0.0, ""),
    ("kill", "kills", 0.0, 0.0, ""),
    ("second", "second_controllers", 0.0, 0.0, ""),
    ("disk_full", "disk_full", 5.0, 300.0, ""),
    ("torn", "torn_writes", 0.0, 0.0, ""),
    ("slow_disk", "slow_fsync", 30.0, 900.0, ""),
)
"""Kind, its option, shortest and longest duration in seconds, true cause."""


def _singles(options: SimOptions) -> Iterator[Fault]:
    for kind, option, shortest, longest, cause in _SINGLES:
        dice = luck(options, kind)
        for number, at in enumerate(_times(dice, getattr(options, option), options.fault_s), 1):
            yield Fault(
                id=f"{kind}-s{number}",
                at_s=at,
                kind=kind,
                cause=cause,
                label=KINDS[kind],
                node=node_name(int(dice.random() * options.nodes)),
                for_s=dice.uniform(shortest, longest),
                luck=dice.random(),
            )
