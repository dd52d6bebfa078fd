"""What seeds of the swarm reach: events, orders with their outcomes, states, and moves of the tables, with how often.

`test_fuzz.py` records its own seeds and holds them to floors; `make soak` walks the whole table. To print it::

    python -m tests.sim.reach --from 30000 --seeds 200

A row that is never reached stands in `NEVER` with the reason. A row of `NEVER` that is reached is an error, too.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args
from unittest.mock import patch

from holdfast.decide import transitions
from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.orders import OrderStatus
from holdfast.model.records import JobState, NodeState
from holdfast.model.wire import kind_of
from holdfast.sim.fuzz import Trial, Verdict, examine

Row = tuple[str, str]
"""Table and name: `("event", "node_validated failed")`."""


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
    made += [("job", str(state)) for state in JobState] + [("node", str(state)) for state in NodeState]
    for table, moves in (("job move", transitions.JOB), ("node move", transitions.NODE)):
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
        for node in touched.nodes:
            reached["node", str(node.state)] += 1
        return orders

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(Engine, "handle", counted))
        for name, table in (("job move", transitions.JOB), ("node move", transitions.NODE)):
            rows_of = {state: _Counted(row, name, str(state), reached) for state, row in table.items()}
            stack.enter_context(patch.dict(table, rows_of))  # type: ignore[arg-type]
        yield reached


def run(seeds: Iterable[int]) -> tuple[list[Verdict], Counter[Row]]:
    """Examine seeds, and count what they reach."""
    with recorded() as reached:
        return [examine(Trial(seed=seed)) for seed in seeds], reached


# --- what is never reached --------------------------------------------------------------------------------------------

NEVER: dict[str, str] = {}
"""Pattern of `TABLE: NAME` -> why no seed reaches it."""


def reason(row: Row) -> str:
    """Why the row is never reached; empty: it should be."""
    name = f"{row[0]}: {row[1]}"
    return next((why for pattern, why in NEVER.items() if fnmatch.fnmatchcase(name, pattern)), "")


def missing(reached: Mapping[Row, int]) -> list[Row]:
    """Rows without a reason that nothing has reached."""
    return [row for row in rows() if not reached.get(row) and not reason(row)]


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="first", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=200)
    given = parser.parse_args()
    verdicts, reached = run(range(given.first, given.first + given.seeds))
    for row in rows():
        print(f"{row[0]:10} {row[1]:45} {reached.get(row) or reason(row) or 'NEVER'}")
    failed = [verdict.trial.seed for verdict in verdicts if not verdict.ok]
    lines = rows()
    print(f"{given.seeds} seeds reach {sum(row in reached for row in lines)} of {len(lines)} rows; failing: {failed}")
    return 1 if failed or missing(reached) else 0


if __name__ == "__main__":
    raise SystemExit(main())
