"""The two tables of states: every move that a job or a node can make in recovery, and nothing else.

Theory
------
A *state* says what is being waited for; a *trigger* says what has happened, in recovery's own words, never in a
scheduler's. The engine translates events into triggers; it never sets a state otherwise than by `move`, so a move that
is not written here cannot be made: it raises `InvalidTransition` with the record's story.

**Jobs.** There is one ring and three exits. The ring: a job is watched until its attempt is broken; the attempt is
brought to a provable end (`stopping`, or `evacuating` when it can save first); then one looks at the evidence
(`diagnosing`) and takes one of two ways back. The short way stays in the allocation (`in_place`). The long way goes
through the scheduler's queue (`held` -> `released` -> perhaps `waiting_for_nodes` -> `restarting`). Both end in
`proving`, and only proof leads back to `watching`. The exits `completed`, `given_up` and `cancelled` are open from
everywhere, because a job may end, be abandoned, or be cancelled by its owner at any moment; they are left again only
when somebody else has the job queued once more (`revived`).

`diagnosing` comes before `stopping` too, when the attempt still lives and a look is needed first: stacks of a hang, or
a person's approval. From there a job that moves again goes back without harm (`false_alarm`).

Starting an attempt (`started`) is accepted wherever a start may already be under way, since a launcher's word can
arrive before the scheduler's, and after a lost connection several words arrive at once.

**Nodes.** A line, not a ring: suspicion, fence, drain, repair, proof, return. `unknown` lies *over* the other states: a
node that falls silent keeps the state it had (`NodeRecord.before_unknown`), triggers go on moving that hidden state,
and when it is heard again it shows it. So silence never loses a repair's place, and never counts as a fault by itself.
`retired` is left only by a person or when the machine is another one.

How time passes: not at all here. The diagrams in `docs/states.md` are drawn from these tables by `docs/make_states.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from holdfast.errors import InvalidTransition
from holdfast.model.records import JobState, JobTrigger, NodeState, NodeTrigger

J = JobState
N = NodeState
T = JobTrigger
U = NodeTrigger
_EXITS = {T.COMPLETED: J.COMPLETED, T.GIVE_UP: J.GIVEN_UP, T.CANCEL: J.CANCELLED}
JOB: Mapping[JobState, Mapping[JobTrigger, JobState]] = {
    J.WATCHING: {
        T.STOP: J.STOPPING,
        T.LOOK: J.DIAGNOSING,
        T.EVACUATE: J.EVACUATING,
        T.ATTEMPT_OVER: J.DIAGNOSING,
        **_EXITS,
    },
    J.STOPPING: {
        T.ATTEMPT_OVER: J.DIAGNOSING,
        T.LOOK: J.DIAGNOSING,
        T.FALSE_ALARM: J.WATCHING,
        T.PROVE_AGAIN: J.PROVING,
        T.ADOPT: J.RELEASED,
        T.STARTED: J.PROVING,
        **_EXITS,
    },
    J.EVACUATING: {
        T.STOP: J.STOPPING,
        T.LOOK: J.DIAGNOSING,
        T.ATTEMPT_OVER: J.DIAGNOSING,
        T.FALSE_ALARM: J.WATCHING,
        T.PROVE_AGAIN: J.PROVING,
        T.ADOPT: J.RELEASED,
        T.STARTED: J.PROVING,
        **_EXITS,
    },
    J.DIAGNOSING: {
        T.STOP: J.STOPPING,
        T.EVACUATE: J.EVACUATING,
        T.FALSE_ALARM: J.WATCHING,
        T.PROVE_AGAIN: J.PROVING,
        T.RESTART_IN_PLACE: J.IN_PLACE,
        T.HOLD: J.HELD,
        T.ADOPT: J.RELEASED,
        T.STARTED: J.PROVING,
        **_EXITS,
    },
    J.IN_PLACE: {
        T.STOP: J.STOPPING,
        T.LOOK: J.DIAGNOSING,
        T.ATTEMPT_OVER: J.DIAGNOSING,
        T.ADOPT: J.RELEASED,
        T.STARTED: J.PROVING,
        **_EXITS,
    },
    J.HELD: {
        T.RELEASE: J.RELEASED,
        T.ADOPT: J.RELEASED,
        T.RUNS: J.RESTARTING,
        T.STARTED: J.PROVING,
        **_EXITS,
    },
    J.RELEASED: {
        T.STOP: J.STOPPING,
        T.HOLD: J.HELD,
        T.WAIT: J.WAITING_FOR_NODES,
        T.RUNS: J.RESTARTING,
        T.STARTED: J.PROVING,
        T.ATTEMPT_OVER: J.DIAGNOSING,
        **_EXITS,
    },
    J.WAITING_FOR_NODES: {
        T.STOP: J.STOPPING,
        T.HOLD: J.HELD,
        T.RUNS: J.RESTARTING,
        T.STARTED: J.PROVING,
        T.ATTEMPT_OVER: J.DIAGNOSING,
        **_EXITS,
    },
    J.RESTARTING: {
        T.STOP: J.STOPPING,
        T.LOOK: J.DIAGNOSING,
        T.ADOPT: J.RELEASED,
        T.STARTED: J.PROVING,
        T.ATTEMPT_OVER: J.DIAGNOSING,
        **_EXITS,
    },
    J.PROVING: {
        T.PROVEN: J.WATCHING,
        T.STOP: J.STOPPING,
        T.LOOK: J.DIAGNOSING,
        T.EVACUATE: J.EVACUATING,
        T.ATTEMPT_OVER: J.DIAGNOSING,
        T.ADOPT: J.RELEASED,
        **_EXITS,
    },
    J.COMPLETED: {T.REVIVED: J.WATCHING},
    J.GIVEN_UP: {T.REVIVED: J.WATCHING},
    J.CANCELLED: {T.REVIVED: J.WATCHING},
}
"""The moves of jobs: state -> trigger -> next state."""
NODE: Mapping[NodeState, Mapping[NodeTrigger, NodeState]] = {
    N.HEALTHY: {
        U.SUSPECT: N.SUSPECT,
        U.QUARANTINE: N.QUARANTINED,
        U.SILENT: N.UNKNOWN,
    },
    N.SUSPECT: {
        U.CLEARED: N.HEALTHY,
        U.QUARANTINE: N.QUARANTINED,
        U.SILENT: N.UNKNOWN,
    },
    N.QUARANTINED: {
        U.SUSPECT: N.SUSPECT,
        U.CLEARED: N.HEALTHY,
        U.FENCED: N.DRAINING,
        U.RETURN: N.HEALTHY,
        U.RETIRE: N.RETIRED,
        U.SILENT: N.UNKNOWN,
    },
    N.DRAINING: {
        U.CLEARED: N.HEALTHY,
        U.REPAIR: N.REPAIRING,
        U.CHECK: N.VALIDATING,
        U.RETURN: N.HEALTHY,
        U.RETIRE: N.RETIRED,
        U.SILENT: N.UNKNOWN,
    },
    N.REPAIRING: {
        U.CLEARED: N.HEALTHY,
        U.CHECK: N.VALIDATING,
        U.RETURN: N.HEALTHY,
        U.RETIRE: N.RETIRED,
        U.SILENT: N.UNKNOWN,
    },
    N.VALIDATING: {
        U.CLEARED: N.HEALTHY,
        U.FAILED_CHECK: N.REPAIRING,
        U.RETURN: N.HEALTHY,
        U.RETIRE: N.RETIRED,
        U.SILENT: N.UNKNOWN,
    },
    N.RETIRED: {
        U.CLEARED: N.HEALTHY,
        U.CHECK: N.VALIDATING,
        U.RETURN: N.HEALTHY,
        U.SILENT: N.UNKNOWN,
    },
    N.UNKNOWN: {
        U.HEARD_HEALTHY: N.HEALTHY,
        U.HEARD_SUSPECT: N.SUSPECT,
        U.HEARD_QUARANTINED: N.QUARANTINED,
        U.HEARD_DRAINING: N.DRAINING,
        U.HEARD_REPAIRING: N.REPAIRING,
        U.HEARD_VALIDATING: N.VALIDATING,
        U.HEARD_RETIRED: N.RETIRED,
    },
}
"""The moves of nodes: state -> trigger -> next state."""
S = TypeVar("S", bound=StrEnum)
G = TypeVar("G", bound=StrEnum)


def move(table: Mapping[S, Mapping[G, S]], state: S, trigger: G, *, story: tuple[str, ...] = ()) -> S:
    """The next state.

    Args:
        table: `JOB` or `NODE`.
        state: where the record is.
        trigger: what happened.
        story: the record's last sentences, carried by the error.

    Raises:
        InvalidTransition: no such line.
    """
    try:
        return table[state][trigger]
    except KeyError:
        known = ", ".join(table.get(state, {})) or "nothing"
        raise InvalidTransition(f"no move {trigger} from {state} (from there only: {known})", story=story) from None


def can(table: Mapping[S, Mapping[G, S]], state: S, trigger: G) -> bool:
    """Is there such a line?"""
    return trigger in table[state]


def mermaid(table: Mapping[S, Mapping[G, S]]) -> str:
    """The table as a mermaid state diagram; triggers between the same two states share an arrow."""
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table))}"]
    for state, moves in table.items():
        arrows: dict[S, list[str]] = {}
        for trigger, target in moves.items():
            arrows.setdefault(target, []).append(trigger)
        lines.extend(f"    {state} --> {target}: {', '.join(triggers)}" for target, triggers in arrows.items())
    return "\n".join(lines)


def text_table(table: Mapping[S, Mapping[G, S]]) -> str:
    """The table as Markdown rows: from, trigger, to."""
    rows = ["| from | what happened | to |", "|---|---|---|"]
    rows.extend(
        f"| {state} | {trigger} | {target} |" for state, moves in table.items() for trigger, target in moves.items()
    )
    return "\n".join(rows)
