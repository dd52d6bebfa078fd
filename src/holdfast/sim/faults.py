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

from msgspec import Struct

from holdfast.errors import UsageError
from holdfast.sim.causes import TABLES, Cause
from holdfast.sim.options import DAY_S, SimOptions
from holdfast.sim.record import Fault

WARNING = "check.gpu_trend_ecc"
"""What an agent says of a part that will break."""


class Kind(Struct, frozen=True):
    """One kind of fault: what it does and, where it comes at random times of its own, how often and for how long."""

    text: str
    option: str = ""
    """Name of the option that holds its rate; empty: drawn together with others, see `_components` and `_groups`."""
    shortest_s: float = 0.0
    longest_s: float = 0.0
    cause: str = ""
    """Rule id of the finding that names it truly."""


KINDS: dict[str, Kind] = {
    "gpu": Kind("a part of the node breaks; its agent sees it, and a job there dies"),
    "node": Kind("the node stops"),
    "link": Kind("a connection breaks for a moment and a rank dies of it"),
    "switch": Kind("a switch fails: its nodes are cut off"),
    "rack": Kind("a rack's top switch fails: its nodes are cut off"),
    "power": Kind("a power feed fails: all nodes of its racks stop, and boot when it is back"),
    "crash": Kind("a rank ends by itself", "crashes", cause="exit.signal.11"),
    "hang": Kind("nobody dies, nothing moves", "hangs", cause="hang.step"),
    "cable": Kind(
        "a node's link to the fabric is down for minutes; its agent sees it, a job there breaks, and again",
        "link_faults",
        60.0,
        1800.0,
        "check.fabric_port_down",
    ),
    "straggler": Kind(
        "the node makes every step slow until it is left", "stragglers", 600.0, 14400.0, "straggler.rank"
    ),
    "corruption": Kind(
        "numbers go bad; it shows some steps later, and checkpoints in between hold it",
        "corruptions",
        cause="loss.nan",
    ),
    "storage": Kind("the file system stands still", "storage_outages", 60.0, 1800.0, "fs.stale"),
    "preemption": Kind("the scheduler takes a job's nodes for something more important", "preemptions"),
    "partition": Kind("agents and launchers of some nodes cannot reach the controller", "partitions", 20.0, 900.0),
    "operator": Kind("a person interferes", "operators"),
    "reuse": Kind("a job is cancelled and its id is used again", "reused_ids"),
    "kill": Kind("the controller is killed", "kills"),
    "second": Kind("a second controller is started beside the first", "second_controllers"),
    "disk_full": Kind("the journal's disk is full", "disk_full", 5.0, 300.0),
    "torn": Kind("the controller is killed while it writes", "torn_writes"),
    "slow_disk": Kind("the journal's disk is slow", "slow_fsync", 30.0, 900.0),
    "batch": Kind("parts of several nodes of one job break at once", "batches", cause="nvidia.xid.95"),
    "warning": Kind(
        "a part of the node will break, and its agent says so some minutes before", "warnings", cause=WARNING
    ),
    "pause": Kind("nothing moves for a while, and then it does", "pauses", 20.0, 120.0, "hang.step"),
    "command": Kind("a person asks Holdfast for something", "commands"),
    "blind": Kind("the scheduler cannot be read", "blindness", 30.0, 600.0),
    "vanishing": Kind("the scheduler does not know the node for a while", "vanishings", 60.0, 3600.0),
    "drill": Kind("a person's drill makes a rank end", "drills", cause="exit.signal.9"),
    "prolog": Kind("the scheduler's own check fails on the node, which it drains", "prologs"),
    "hostile": Kind("an agent, a launcher or a user says what is not so", "hostiles", 60.0, 1800.0),
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


def topology(options: SimOptions, index: int) -> str:
    """Failure domain path of a node: `feed0/rack1/switch3`."""
    switch = index // options.nodes_per_switch
    rack = switch // options.switches_per_rack
    return f"feed{rack // options.racks_per_feed}/rack{rack}/switch{switch}"


def lemons(options: SimOptions) -> list[int]:
    """Which machines are lemons from the start."""
    dice = luck(options, "lemons")
    return [index for index in range(options.nodes) if dice.random() < options.lemons]


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
    at_work = options.nodes - (options.spares if options.spares_apart else 0)
    yield from _failures(options, table, "components", 0, at_work)
    yield from _failures(options, table, "spares", at_work, options.nodes - at_work)


def _failures(options: SimOptions, table: tuple[Cause, ...], name: str, first: int, nodes: int) -> Iterator[Fault]:
    """Failures of `nodes` nodes from the `first` on."""
    dice = luck(options, name)
    prefix = "" if name == "components" else "spare-"
    bad = [index for index in lemons(options) if first <= index < first + nodes]
    weight = len(bad) * options.lemon_factor
    share = weight / (weight + nodes - len(bad)) if weight else 0.0
    good = sorted(set(range(first, first + nodes)) - set(bad))
    chances = list(itertools.accumulate(cause.count for cause in table))
    growth = power(options.nodes / options.scale_from, options.scale_exponent)
    per_day = options.failures / 1000.0 * nodes * growth
    for number, at in enumerate(_times(dice, per_day, options.fault_s), 1):
        of_lemon = bool(bad) and dice.random() < share
        index = bad[int(dice.random() * len(bad))] if of_lemon else good[int(dice.random() * len(good))]
        pick = dice.random() * chances[-1]
        cause = table[next(place for place, edge in enumerate(chances) if pick < edge)]
        yield Fault(
            id=f"{prefix}{cause.kind}-{number}",
            at_s=at,
            kind=cause.kind,
            cause=cause.rule,
            label=cause.label,
            node=node_name(index),
            machine=machine_name(index) if of_lemon else "",
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


def _singles(options: SimOptions) -> Iterator[Fault]:
    for name, kind in KINDS.items():
        if not kind.option:
            continue
        dice = luck(options, name)
        for number, at in enumerate(_times(dice, getattr(options, kind.option), options.fault_s), 1):
            yield Fault(
                id=f"{name}-s{number}",
                at_s=at,
                kind=name,
                cause=kind.cause,
                label=kind.text,
                node=node_name(int(dice.random() * options.nodes)),
                for_s=dice.uniform(kind.shortest_s, kind.longest_s),
                luck=dice.random(),
            )
