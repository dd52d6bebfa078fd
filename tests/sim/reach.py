"""What seeds of the swarm reach: events, orders with their outcomes, states, and moves of the tables, with how often.

`test_fuzz.py` records its own seeds and holds them to floors; `make soak` walks the whole table. To print it::

    python -m tests.sim.reach --from 30000 --seeds 200

A row that seeds do not reach stands in `NEVER` with the reason; some of those are rare, and reached by luck.
"""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args
from unittest.mock import patch

from holdfast.decide import machine
from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.orders import OrderStatus
from holdfast.model.records import JobState, NodeState
from holdfast.model.wire import kind_of
from holdfast.sim.fuzz import Trial, Verdict, examine

Row = tuple[str, str]
"""Table and name: `("event", "node_validated failed")`."""
SEVERAL: Row = ("job", "kept off several nodes at once")
LONG_HOLD: Row = ("hold", "by a person for an hour")
LONG_S = 3600.0


# --- rows -------------------------------------------------------------------------------------------------------------


def name_of(event: e.AnyEvent) -> str:
    """The event's kind, with what makes it mean something else."""
    kind = kind_of(event)
    match event:
        case e.NodeValidated():
            return f"{kind} {'passed' if event.passed else 'failed'}"
        case e.OrderFailed():
            return f"{kind} {'for good' if event.permanent else 'for now'}"
        case e.CheckpointSaved():
            return f"{kind} {'durable' if event.durable else 'written'}"
        case e.LauncherLapsed():
            return f"{kind} {'left' if event.left else 'silent'}"
        case e.WatchBlind():
            return f"{kind} {'begins' if event.blind else 'ends'}"
        case e.OperatorCommand():
            return f"{kind} {event.command}"
        case _:
            return kind


_SAME = {
    "node_validated": ("passed", "failed"),
    "order_failed": ("for good", "for now"),
    "checkpoint_saved": ("durable", "written"),
    "launcher_lapsed": ("left", "silent"),
    "watch_blind": ("begins", "ends"),
    "operator_command": tuple(e.Command),
}


def rows() -> list[Row]:
    """All that could be reached, from the model and from the tables of moves."""
    events = [one.__struct_config__.tag for one in get_args(e.AnyEvent)]
    orders = [one.__struct_config__.tag for one in get_args(o.AnyOrder) if one not in {o.StartTimer, o.CancelTimer}]
    made: list[Row] = []
    for kind in events:
        made += [("event", f"{kind} {more}".strip()) for more in _SAME.get(kind, ("",))]
    made += [("order", f"{kind} {status}") for kind in orders for status in OrderStatus]
    made += [SEVERAL, LONG_HOLD]
    made += [("job", str(state)) for state in JobState] + [("node", str(state)) for state in NodeState]
    for table, moves in (("job move", machine.JOB), ("node move", machine.NODE)):
        made += [(table, f"{state} {trigger}") for state, row in moves.items() for trigger in row]
    return made


# --- recording --------------------------------------------------------------------------------------------------------


class _Counted(dict[Any, Any]):
    """A row of a table of moves that counts its uses."""

    def __init__(self, row: Mapping[Any, Any], table: str, state: str, reached: Counter[Row]) -> None:
        super().__init__(row)
        self._name, self._state, self._reached = table, state, reached

    def __getitem__(self, trigger: Any) -> Any:
        target = super().__getitem__(trigger)
        self._reached[self._name, f"{self._state} {trigger}"] += 1
        return target


@contextlib.contextmanager
def recorded() -> Iterator[Counter[Row]]:
    """Count what engines of this process, a cluster's and launchers', handle, order and move."""
    reached: Counter[Row] = Counter()
    handle = Engine.handle

    def counted(self: Engine, event: e.AnyEvent) -> list[o.AnyOrder]:
        orders = handle(self, event)
        reached["event", name_of(event)] += 1
        touched = self.touched()
        for record in touched.orders:
            reached["order", f"{kind_of(record.order)} {record.status}"] += 1
        for job in touched.jobs:
            reached["job", str(job.state)] += 1
            if job.held_by and self.state.now - job.since > LONG_S:
                reached[LONG_HOLD] += 1
        if any(isinstance(order, o.SetExcluded) and len(order.nodes) > 1 for order in orders):
            reached[SEVERAL] += 1
        for node in touched.nodes:
            reached["node", str(node.state)] += 1
        return orders

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(Engine, "handle", counted))
        for name, table in (("job move", machine.JOB), ("node move", machine.NODE)):
            rows_of = {state: _Counted(row, name, str(state), reached) for state, row in table.items()}
            stack.enter_context(patch.dict(table, rows_of))  # type: ignore[arg-type]
        yield reached


def run(seeds: Iterable[int]) -> tuple[list[Verdict], Counter[Row]]:
    """Examine seeds, and count what they reach."""
    with recorded() as reached:
        return [examine(Trial(seed=seed)) for seed in seeds], reached


# --- what is never reached --------------------------------------------------------------------------------------------

_NEVER: tuple[tuple[str, str, str], ...] = (
    ("event", "operator_command: withdraw", "two people decide in seeds from 2,000,000,000 on alone"),
    (
        "order",
        "capture_stacks escalate notify retire_node: proposed observed expired rejected",
        "it is asked of no mode: it is part of another rung, or none",
    ),
    (
        "order",
        "set_excluded release_job return_node validate_node: proposed observed expired rejected",
        "it belongs to a rung that was asked for, or to none: no mode is asked",
    ),
    ("order", "stop_attempt restart_in_place save_and_stop: rejected", "nobody answers what a launcher proposes"),
    ("order", "restart_in_place: expired observed", "a launcher's proposal is withdrawn when its attempt ends"),
    ("order", "save_and_stop: proposed observed expired withdrawn", "a person who asks for it has approved it"),
    ("order", "capture_stacks stop_attempt save_and_stop escalate notify: failed", "simulated launchers do not fail"),
    ("order", "reset_gpu reboot_node: failed", "simulated resets and reboots end, if without success"),
    ("order", "capture_stacks retire_node notify: withdrawn", "it is over within a second"),
    ("order", "reset_gpu give_up: observed", "rare: few swarms only observe the last rung or the least repair"),
    (
        "job move",
        "evacuating: look false_alarm prove_again adopt started completed give_up cancel",
        "a save takes seconds, and nothing else happens meanwhile",
    ),
    ("job move", "looking asking deciding proving: evacuate", "rare: a warning during the look at another fault"),
    ("job move", "in_place: look completed give_up cancel", "a restart in place takes seconds"),
    (
        "job move",
        "held released waiting_for_nodes: started completed give_up",
        "a job in the queue has no process: only a word that is far too late says so",
    ),
    ("job move", "waiting_for_nodes: attempt_over", "what waits is seen to run before it is seen to end"),
    ("job move", "restarting: stop look completed give_up", "between its start and its processes a job does not fail"),
    ("job move", "stopping: false_alarm completed", "rare: it ends by itself while its end is under way"),
    ("job move", "cancelled completed: revived", "rare: an owner queues it again within the run"),
    (
        "node move",
        "quarantined draining repairing retired: return",
        "a node is returned from its checks; a person's word clears it at once",
    ),
    ("node move", "quarantined: retire", "nobody retires a node whose fence is under way"),
)
"""Table, the rows' names (each of the first part with each of the second), and why no seed, or hardly one, gets there."""
NEVER: dict[Row, str] = {
    (table, f"{first} {second}"): why
    for table, names, why in _NEVER
    for first in names.partition(":")[0].split()
    for second in names.partition(":")[2].split()
}


def missing(reached: Mapping[Row, int]) -> list[Row]:
    """Rows without a reason that nothing has reached."""
    return [row for row in rows() if not reached.get(row) and row not in NEVER]


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="first", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=200)
    given = parser.parse_args()
    verdicts, reached = run(range(given.first, given.first + given.seeds))
    for row in rows():
        print(f"{row[0]:10} {row[1]:45} {reached.get(row) or NEVER.get(row) or 'NEVER'}")
    failed = [verdict.trial.seed for verdict in verdicts if not verdict.ok]
    lines = rows()
    print(f"{given.seeds} seeds reach {sum(row in reached for row in lines)} of {len(lines)} rows; failing: {failed}")
    return 1 if failed or missing(reached) else 0


if __name__ == "__main__":
    raise SystemExit(main())
