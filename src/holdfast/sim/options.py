"""Every number of a simulated run, in one value. `draw(seed)` makes a swarm's options; the command line makes the rest.

`run.simulate` takes it, `faults.plan` draws the faults from it. Two equal values give two equal runs, to the byte.
Durations are virtual seconds, rates are per day of virtual time unless the name says otherwise. No time passes here.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
from msgspec import Struct, structs

from holdfast.errors import UsageError

DAY_S = 86400.0
GPUS_PER_NODE = 8
SCALE_FROM = 128
"""Nodes of the cluster whose rate of failures is given."""


class JobPlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job that its owner submits."""

    id: str = "1"
    nodes: int = 1
    work_s: float = 0.0
    """Seconds of training that it needs to complete; 0.0: it never does."""
    priority: int = 0
    arrives_s: float = 0.0
    step_s: float = 10.0
    checkpoint_s: float = 3600.0
    """Seconds of training between two checkpoints (dt)."""
    save_s: float = 60.0
    """Seconds that a checkpoint keeps the job from training (w)."""
    durable_s: float = 0.0
    """Seconds until it is durable, while training goes on."""
    start_s: float = 60.0
    """From the scheduler's start to all processes started: images, imports, groups of ranks."""
    load_s: float = 120.0
    """From the processes' start to training going on: checkpoint read, first step."""
    in_place_s: float = 5.0
    """In `start_s`'s place when it is restarted inside its allocation."""
    launcher: bool = True
    """Is it started by `holdfast run`? Without one only the scheduler tells of it."""
    recover: bool = True
    resubmit_s: float = 0.0
    """Its owner queues it again so long after it has ended unfinished; 0.0: never."""
    max_requeues: int | None = None
    spares: int = 0
    """Nodes of its allocation that stand by."""
    user: str = "mei"


class SimOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module. Defaults are a quiet small cluster: every kind of fault is off until its number is set."""

    seed: int = 0

    # --- the cluster ---
    nodes: int = 8
    gpus_per_node: int = GPUS_PER_NODE
    spares: int = 0
    """The last so many of `nodes` are marked as spares."""
    nodes_per_switch: int = 16
    switches_per_rack: int = 2
    racks_per_feed: int = 4
    """Racks behind one power feed."""
    jobs: tuple[JobPlan, ...] = (JobPlan(),)

    # --- the run ---
    fault_s: float = DAY_S
    """Length of the phase in which faults happen."""
    converge_s: float = 0.0
    """Then so long at most, without faults, for everything to come to rest; 0.0: the run ends with the faults."""
    policy: str = ""
    """Policy text (TOML); empty: the defaults."""
    drop: tuple[str, ...] = ()
    """Ids of planned faults that do not happen: what a shrinker sets. All else stays as it was drawn."""
    keep_journal: bool = True
    """Keep all events; False: old ones are dropped by the real retention and only the digest covers them."""
    check: bool = False
    """Check the engine's own invariants after every event."""

    # --- failures of components ---
    failures: float = 0.0
    """Per 1000 node-days, at `scale_from` nodes."""
    causes: str = "llama3"
    """Which causes they have: `llama3` (its 419 stops by count), `node` (losses of a node only), `gpu`, `software`."""
    scale_exponent: float = 0.0
    """Rate per node grows with (nodes / scale_from) to this power: MTBF falls faster than 1/N when above 0."""
    scale_from: int = SCALE_FROM
    spares_apart: bool = False
    """Spares fail by a stream of luck of their own: then their number changes no fault of the other nodes."""
    lemons: float = 0.0
    """Share of machines that are lemons."""
    lemon_factor: float = 20.0
    """How much oftener a lemon fails."""
    switch_faults: float = 0.0
    rack_faults: float = 0.0
    power_faults: float = 0.0
    stragglers: float = 0.0
    straggler_factor: float = 1.5
    corruptions: float = 0.0
    """Silent data corruption: numbers go bad later, and checkpoints in between hold them."""
    storage_outages: float = 0.0
    preemptions: float = 0.0
    """Times a day that a job loses its nodes to something that is not simulated."""
    preempt: bool = False
    """A job that waits takes the nodes of running ones of lower priority."""
    crashes: float = 0.0
    """Ends of a rank that have nothing to do with a node."""
    hangs: float = 0.0
    pauses: float = 0.0
    """Standstills that end by themselves."""
    batches: float = 0.0
    """Parts of several nodes of one job that break at once."""
    warnings: float = 0.0
    """Parts that break some minutes after their agent has said that they will."""
    prologs: float = 0.0
    """The scheduler's own check fails on a healthy node, which it drains."""
    vanishings: float = 0.0
    """Nodes that the scheduler does not know for a while."""
    drills: float = 0.0
    link_faults: float = 0.0
    """Links of nodes to the fabric that are down for minutes."""
    echoes: float = 0.0
    """Share of ends of a rank of which a peer complains, too: its collective fails, and it says so in its own words."""

    # --- how soon things are seen ---
    detect_s: float = 0.2
    """From a rank's death or a line in a log to its finding."""
    hang_s: float = 30.0
    """From a standstill to its finding."""
    silent_s: float = 30.0
    """Silence of an agent until it is said."""
    down_s: float = 300.0
    """Until the scheduler says that a node is down (SlurmdTimeout's default)."""
    attribution: float = 1.0
    """Share of hardware faults that an agent sees as such; the others look like a crash."""
    late_looks: float = 0.0
    """Share of those that it sees only minutes later, and tells as what the broken attempt died of."""
    early_words: bool = False
    """Launchers tell of checkpoints that are not durable yet, too."""

    # --- messages and clocks ---
    message_s: float = 0.01
    message_jitter_s: float = 0.0
    message_loss: float = 0.0
    message_duplicate: float = 0.0
    message_reorder: float = 0.0
    clock_drift_s: float = 0.0
    """A node's clock is off by up to so much when the run begins."""
    clock_drift_ppm: float = 0.0
    """And it runs fast or slow: by up to so many microseconds in a second."""
    partitions: float = 0.0

    # --- the scheduler's commands, as shares of commands ---
    command_s: float = 1.0
    command_fail: float = 0.0
    command_hang: float = 0.0
    command_lie: float = 0.0
    """It works and says that it failed."""
    command_late: float = 0.0
    """It says that it failed and works minutes later."""
    command_refuse: float = 0.0
    """It is refused for good."""
    blindness: float = 0.0
    """Times a day that the scheduler cannot be read for a while."""

    # --- repairs ---
    reset_s: float = 60.0
    reboot_s: float = 600.0
    replace_s: float = 1500.0
    """20 to 30 minutes are published for managed clusters."""
    validate_s: float = 300.0
    repair_fail: float = 0.0
    validate_fail: float = 0.0
    """Share of healthy nodes that fail their checks all the same."""
    agents_check: bool = False
    """Agents run the checks, are asked and answer by mail; else the repair shop runs them."""
    retired_back_s: float = 7 * DAY_S
    """A person brings a retired node back after so long; 0.0: never."""

    # --- people ---
    operators: float = 0.0
    """Times a day that a person drains, resumes, holds, releases, requeues or cancels something."""
    commands: float = 0.0
    """Times a day that a person asks Holdfast for something."""
    answers: float = 0.0
    """Share of proposals that a person decides; the others lapse."""
    cleans_up: bool = False
    """In the calm people see to what Holdfast might not or could not do."""
    holds_last: bool = False
    """What a person holds through Holdfast is held for hours, some of it to the end."""
    reused_ids: float = 0.0
    hostiles: float = 0.0
    """Times a day that one agent, launcher or user, the same in all of a run, begins to lie: see `hostile.py`."""

    # --- the controller and its disk ---
    kills: float = 0.0
    restart_s: float = 5.0
    """From a controller's death to the next one's start."""
    second_controllers: float = 0.0
    disk_full: float = 0.0
    torn_writes: float = 0.0
    """The controller is killed while it writes: the batch is stored, or it is not, and nobody is told."""
    slow_fsync: float = 0.0
    lease_s: float = 15.0
    tick_s: float = 0.5
    watch_pause_s: float = 0.5
    """Between two looks at the scheduler."""
    snapshot_every: int = 5000

    def lines(self) -> list[str]:
        """Every option as `name = value`, for printing."""
        return [f"{name} = {msgspec.json.encode(getattr(self, name)).decode()}" for name in self.__struct_fields__]


_INTENSE = 24.0
"""Times a day that a fault of a swarm happens on average, when its kind is on: once in an hour."""
_KINDS = (
    "switch_faults",
    "rack_faults",
    "power_faults",
    "stragglers",
    "corruptions",
    "storage_outages",
    "preemptions",
    "crashes",
    "hangs",
    "partitions",
    "operators",
    "reused_ids",
    "kills",
    "second_controllers",
    "disk_full",
    "torn_writes",
    "slow_fsync",
)
EDITION_2 = 10_000
"""Seeds from this one on draw more: clocks that run fast or slow, links that are down, peers that complain. Those
before draw what they always drew, so that a seed that found a bug goes on meaning what it meant."""
EDITION_3 = 20_000
"""Seeds from this one on draw the mode as well: act, or observe."""
EDITION_4 = 30_000
"""Seeds from this one on draw what the table of reached states had shown as never reached: see `_draw_edition_4`."""
EDITION_5 = 1_000_000_000
"""Seeds from this one on draw a hostile reporter as well: see `_draw_edition_5`."""
EDITION_6 = 2_000_000_000
"""Seeds from this one on draw whose word suffices and how many people decide: see `_draw_edition_6`. Those of
`make fuzz` begin here."""
_KINDS_4 = ("pauses", "batches", "warnings", "prologs", "vanishings", "drills", "commands", "blindness")
_POLICIES_4 = (
    "",
    "",
    'mode = "advise"\n',
    '[mode]\ndefault = "act"\nquarantine = "observe"\n',
    '[mode]\ndefault = "act"\nrequeue = "advise"\nreboot = "advise"\nreplace = "observe"\n',
    "[node]\nrepair_when_drained = false\nfailed_prolog_is_a_fault = true\nflap_hold_s = 3600.0\n",
    '[ladders]\nhang = ["requeue", "stop"]\nstraggler = ["evacuate", "requeue", "stop"]\n[node]\nvalidate = false\n',
)
SHARES = (
    "message_loss",
    "message_duplicate",
    "message_reorder",
    "command_fail",
    "command_hang",
    "command_lie",
    "command_late",
    "repair_fail",
    "validate_fail",
)
"""Shares of messages, commands and repairs that go wrong in a swarm."""


def draw(seed: int) -> SimOptions:
    """The options of one run of a swarm: a small cluster, some hours of many faults, then calm.

    Each kind of fault is on in about half of the runs (swarm testing, Groce et al., ISSTA 2012): what is off leaves
    room for what is on, so that rare meetings of faults come up more often than when everything is always on.
    """
    dice = random.Random(f"options/{seed}")  # noqa: S311 - a simulation must be repeatable, not secret
    nodes = dice.randint(4, 16)
    values: dict[str, Any] = {
        "seed": seed,
        "nodes": nodes,
        "spares": dice.randint(0, 2),
        "nodes_per_switch": dice.choice((2, 4)),
        "fault_s": dice.uniform(1.0, 4.0) * 3600.0,
        "converge_s": 12 * 3600.0,
        "check": True,
        "jobs": _draw_jobs(dice, nodes),
        "failures": dice.choice((0.0, 1000.0, 3000.0)) * dice.uniform(0.5, 2.0),
        "lemons": dice.choice((0.0, 0.2)),
        "attribution": dice.choice((1.0, 0.7)),
        "message_jitter_s": dice.choice((0.0, 0.5, 5.0)),
        "clock_drift_s": dice.choice((0.0, 1.0, 10.0)),
        "command_s": dice.choice((0.1, 1.0, 5.0)),
        "reset_s": 30.0,
        "reboot_s": dice.uniform(60.0, 600.0),
        "replace_s": dice.uniform(120.0, 1500.0),
        "validate_s": dice.uniform(10.0, 300.0),
        "retired_back_s": dice.choice((0.0, 3600.0)),
        "watch_pause_s": dice.choice((0.05, 1.0, 5.0)),
        "lease_s": dice.choice((15.0, 60.0)),
        "snapshot_every": dice.choice((20, 200, 5000)),
    }
    for name in _KINDS:
        values[name] = dice.uniform(0.2, 2.0) * _INTENSE if dice.random() < 0.5 else 0.0
    for name in SHARES:
        values[name] = dice.uniform(0.01, 0.3) if dice.random() < 0.5 else 0.0
    values["preempt"] = dice.random() < 0.5
    if seed >= EDITION_2:
        values["clock_drift_ppm"] = dice.choice((0.0, 50.0, 500.0))
        values["link_faults"] = dice.uniform(0.2, 2.0) * _INTENSE if dice.random() < 0.5 else 0.0
        values["echoes"] = dice.choice((0.0, 0.5, 1.0))
    if seed >= EDITION_3:
        values["policy"] = dice.choice(("", 'mode = "observe"\n'))
    if seed >= EDITION_4:
        values |= _draw_edition_4(dice)
    if seed >= EDITION_5:
        values |= _draw_edition_5(dice, values)
    if seed >= EDITION_6:
        values |= _draw_edition_6(dice, values)
    return SimOptions(**values)


def _draw_edition_4(dice: random.Random) -> dict[str, Any]:
    """People who ask and decide, holds that last, checks by agents, warnings, and faults on several nodes at once."""
    values: dict[str, Any] = {"policy": dice.choice(_POLICIES_4)}
    for name in _KINDS_4:
        values[name] = dice.uniform(0.2, 2.0) * _INTENSE if dice.random() < 0.5 else 0.0
    return values | {
        "agents_check": dice.random() < 0.5,
        "cleans_up": True,
        "early_words": dice.random() < 0.5,
        "holds_last": dice.random() < 0.5,
        "answers": dice.choice((0.0, 0.5, 1.0)),
        "late_looks": dice.choice((0.0, 0.5)),
        "command_refuse": dice.choice((0.0, 0.0, 0.02)),
    }


def _draw_edition_5(dice: random.Random, drawn: dict[str, Any]) -> dict[str, Any]:
    """Somebody lies in half of the runs: each job has a user of its own there, and no brake joins what nodes share."""
    hostiles = dice.uniform(0.2, 2.0) * _INTENSE if dice.random() < 0.5 else 0.0
    if not hostiles:
        return {}
    return {
        "hostiles": hostiles,
        "jobs": tuple(structs.replace(job, user=f"user-{job.id}") for job in drawn["jobs"]),
        "policy": f"{drawn['policy']}[brake]\nmax_nodes = 1000\nmax_percent = 100.0\n",
    }


def _draw_edition_6(dice: random.Random, drawn: dict[str, Any]) -> dict[str, Any]:
    """`[trust]`: two kinds of evidence, brakes per reporter, two people. Each is off in about half of the runs."""
    rules = {
        "two_witnesses": dice.choice(("false", "true")),
        "reporter_nodes": dice.choice((0, 0, 1, 2)),
        "reporter_requeues": dice.choice((0, 0, 1, 2)),
        "reporter_window_s": dice.choice((600.0, 3600.0)),
        "approvals": dice.choice((1, 2)),
    }
    lines = "".join(f"{name} = {value}\n" for name, value in rules.items())
    return {"policy": f"{drawn['policy']}[trust]\n{lines}"}


def _draw_jobs(dice: random.Random, nodes: int) -> tuple[JobPlan, ...]:
    """One to three jobs that need not all fit at once."""
    return tuple(
        JobPlan(
            id=str(100 + number),
            nodes=dice.randint(1, max(1, nodes // 2)),
            work_s=dice.uniform(1800.0, 3 * 3600.0),
            priority=dice.randint(0, 2),
            arrives_s=dice.uniform(0.0, 1800.0),
            step_s=dice.choice((1.0, 10.0)),
            checkpoint_s=dice.choice((120.0, 600.0)),
            save_s=dice.choice((0.0, 10.0)),
            durable_s=dice.choice((0.0, 30.0)),
            start_s=dice.uniform(1.0, 60.0),
            load_s=dice.uniform(1.0, 120.0),
            launcher=dice.random() < 0.6,
            spares=dice.choice((0, 0, 1)),
            max_requeues=dice.choice((None, None, 1, 10)),
        )
        for number in range(dice.randint(1, 3))
    )


def changed(options: SimOptions, **fields: Any) -> SimOptions:
    """The same options with some fields changed. Raises UsageError for a field that does not exist."""
    unknown = set(fields) - set(options.__struct_fields__)
    if unknown:
        raise UsageError(f"a simulation has no option {min(unknown)!r}")
    return structs.replace(options, **fields)
