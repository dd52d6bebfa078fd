"""The tables of states: what each state of a job and of a node awaits, and every move that leads out of it.

Theory
------
A *state* says what is being waited for; a *trigger* says what has happened, in recovery's own words, never in a
scheduler's. The engine translates events into triggers; it never sets a state otherwise than by `move`, so a move that
is not written here cannot be made: it raises `InvalidTransition` with the record's story.

**Jobs.** There is one ring and three exits. The ring: a job is watched until its attempt is broken; the attempt is
brought to a provable end (`stopping`, or `evacuating` when it can save first); then the evidence is judged
(`deciding`) and one of two ways back is taken. The short way stays in the allocation (`in_place`). The long way goes
through the scheduler's queue (`held` -> `released` -> perhaps `waiting_for_nodes` -> `restarting`). Both end in
`proving`, and only proof leads back to `watching`. The exits `completed`, `given_up` and `cancelled` are open from
everywhere, because a job may end, be abandoned, or be cancelled by its owner at any moment; they are left again only
when somebody else has the job queued once more (`revived`).

Before `stopping` a job may be `looking`, while its attempt still lives and stacks of a hang are awaited, and `asking`,
while a person's approval is awaited. From there a job that moves again goes back without harm (`false_alarm`).
`looking`, `asking` and `deciding` are shown as `diagnosing`, to people, in journals and in snapshots. Which of the
three it is follows from what is recorded (`place_of`), so a snapshot of any version opens in the right row.

**Authority.** Who leads a job, whether our own order keeps it in the queue, and whose hold it is under are changed by
the rows of `AUTHORITY` and by nothing else.

**Leaving.** `leave` is the launcher's engine handing over. `released` and `waiting_for_nodes` need no row of it: that
engine comes there by `adopt` alone, which takes back all open orders, so none can fail there, and nothing else that
calls for it is asked in those two.

Starting an attempt (`started`) is accepted wherever a start may already be under way, since a launcher's word can
arrive before the scheduler's, and after a lost connection several words arrive at once.

**Nodes.** A line, not a ring: suspicion, fence, drain, repair, proof, return. `unknown` lies *over* the other states: a
node that falls silent keeps the state it had (`NodeRecord.before_unknown`), triggers go on moving that hidden state,
and when it is heard again it shows it. So silence never loses a repair's place, and never counts as a fault by itself.
`retired` is left only by a person or when the machine is another one.

How time passes: not at all here; `JobRow.wait_s` says how long a state lasts before the job is looked at. The page
`docs/states.md` is drawn from these tables by `docs/make_states.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from holdfast.errors import InvalidTransition
from holdfast.model import orders as o
from holdfast.model.policy import Waits
from holdfast.model.records import Authority, JobState, JobTrigger, NodeState, NodeTrigger

J = JobState
N = NodeState
T = JobTrigger
U = NodeTrigger


class JobPlace(StrEnum):
    """Where a job stands: a state as it is shown, or one of the three that are shown as `diagnosing`."""

    WATCHING = "watching"
    LOOKING = "looking"
    """Its attempt lives, and stacks are awaited."""
    ASKING = "asking"
    """A person's approval of the next order is awaited."""
    DECIDING = "deciding"
    """Its attempt is over, and the evidence settles or the launcher decides."""
    STOPPING = "stopping"
    EVACUATING = "evacuating"
    IN_PLACE = "in_place"
    HELD = "held"
    RELEASED = "released"
    WAITING_FOR_NODES = "waiting_for_nodes"
    RESTARTING = "restarting"
    PROVING = "proving"
    COMPLETED = "completed"
    GIVEN_UP = "given_up"
    CANCELLED = "cancelled"


P = JobPlace


class JobRow(Struct, frozen=True):
    """One state of a job."""

    shown: JobState
    """What records, journals, API and pages call it."""
    orders: tuple[type[o.Order], ...]
    """Orders whose outcome is awaited in it."""
    wait_s: Callable[[Waits], float] | None
    """How long it lasts before the job is looked at (`job:SLUG`); None: a person or nobody is waited for."""
    exits: Mapping[JobTrigger, JobPlace]
    """What leads out."""


_EXITS = {T.COMPLETED: P.COMPLETED, T.GIVE_UP: P.GIVEN_UP, T.CANCEL: P.CANCELLED}
_DIAGNOSING: Mapping[JobTrigger, JobPlace] = {
    T.STOP: P.STOPPING,
    T.ASK: P.ASKING,
    T.EVACUATE: P.EVACUATING,  # from `deciding`: approved while the scheduler shows the job as queued
    T.ATTEMPT_OVER: P.DECIDING,
    T.FALSE_ALARM: P.WATCHING,
    T.RESTART_IN_PLACE: P.IN_PLACE,  # from `looking`: the scheduler shows an attempt that is over as running again
    T.ADOPT: P.RELEASED,
    T.STARTED: P.PROVING,
    T.LEAVE: P.HELD,
    **_EXITS,
}
"""What leads out of `looking`, `asking` and `deciding`: what comes next does not depend on what is awaited.

Only from `deciding` a job is held: our requeue has put it into the queue, so its attempt does not live, and took back
all that had been proposed.
"""
JOBS: Mapping[JobPlace, JobRow] = {
    P.WATCHING: JobRow(
        J.WATCHING,
        (),
        lambda waits: waits.propose_s,
        {
            T.STOP: P.STOPPING,
            T.LOOK: P.LOOKING,
            T.ASK: P.ASKING,
            T.EVACUATE: P.EVACUATING,
            T.ATTEMPT_OVER: P.DECIDING,
            T.LEAVE: P.HELD,
            **_EXITS,
        },
    ),
    P.LOOKING: JobRow(
        J.DIAGNOSING,
        (o.CaptureStacks,),
        lambda waits: waits.stacks_s,
        {**_DIAGNOSING, T.PROVE_AGAIN: P.PROVING},
    ),
    P.ASKING: JobRow(
        J.DIAGNOSING,
        (o.StopAttempt, o.RestartInPlace, o.SaveAndStop, o.RequeueHeld, o.GiveUp),
        None,
        {**_DIAGNOSING, T.PROVE_AGAIN: P.PROVING},
    ),
    P.DECIDING: JobRow(
        J.DIAGNOSING,
        (),
        lambda waits: waits.order_s,
        {**_DIAGNOSING, T.HOLD: P.HELD},
    ),
    P.STOPPING: JobRow(
        J.STOPPING,
        (o.StopAttempt, o.RequeueHeld),
        lambda waits: waits.order_s,
        {
            T.ATTEMPT_OVER: P.DECIDING,
            T.ASK: P.ASKING,
            T.FALSE_ALARM: P.WATCHING,
            T.PROVE_AGAIN: P.PROVING,
            T.ADOPT: P.RELEASED,
            T.STARTED: P.PROVING,
            T.LEAVE: P.HELD,
            **_EXITS,
        },
    ),
    P.EVACUATING: JobRow(
        J.EVACUATING,
        (o.SaveAndStop,),
        lambda waits: waits.evacuate_s,
        {
            T.STOP: P.STOPPING,
            T.ASK: P.ASKING,
            T.ATTEMPT_OVER: P.DECIDING,
            T.FALSE_ALARM: P.WATCHING,
            T.PROVE_AGAIN: P.PROVING,
            T.ADOPT: P.RELEASED,
            T.STARTED: P.PROVING,
            T.LEAVE: P.HELD,
            **_EXITS,
        },
    ),
    P.IN_PLACE: JobRow(
        J.IN_PLACE,
        (o.RestartInPlace,),
        lambda waits: waits.start_s,
        {
            T.STOP: P.STOPPING,
            T.ASK: P.ASKING,
            T.ATTEMPT_OVER: P.DECIDING,
            T.ADOPT: P.RELEASED,
            T.STARTED: P.PROVING,
            T.LEAVE: P.HELD,
            **_EXITS,
        },
    ),
    P.HELD: JobRow(
        J.HELD,
        (o.SetExcluded, o.ReleaseJob),
        lambda waits: waits.order_s,
        {
            T.RELEASE: P.RELEASED,
            T.ADOPT: P.RELEASED,
            T.RUNS: P.RESTARTING,
            T.STARTED: P.PROVING,
            **_EXITS,
        },
    ),
    P.RELEASED: JobRow(
        J.RELEASED,
        (o.ReleaseJob,),
        lambda waits: waits.nodes_s,
        {
            T.STOP: P.STOPPING,
            T.HOLD: P.HELD,
            T.WAIT: P.WAITING_FOR_NODES,
            T.RUNS: P.RESTARTING,
            T.STARTED: P.PROVING,
            T.ATTEMPT_OVER: P.DECIDING,
            **_EXITS,
        },
    ),
    P.WAITING_FOR_NODES: JobRow(
        J.WAITING_FOR_NODES,
        (),
        lambda waits: waits.nodes_s,
        {
            T.STOP: P.STOPPING,
            T.HOLD: P.HELD,
            T.RUNS: P.RESTARTING,
            T.STARTED: P.PROVING,
            T.ATTEMPT_OVER: P.DECIDING,
            **_EXITS,
        },
    ),
    P.RESTARTING: JobRow(
        J.RESTARTING,
        (),
        lambda waits: waits.start_s,
        {
            T.STOP: P.STOPPING,
            T.LOOK: P.LOOKING,
            T.ASK: P.ASKING,
            T.ADOPT: P.RELEASED,
            T.STARTED: P.PROVING,
            T.ATTEMPT_OVER: P.DECIDING,
            T.LEAVE: P.HELD,
            **_EXITS,
        },
    ),
    P.PROVING: JobRow(
        J.PROVING,
        (),
        lambda waits: waits.prove_s,
        {
            T.PROVEN: P.WATCHING,
            T.STOP: P.STOPPING,
            T.LOOK: P.LOOKING,
            T.ASK: P.ASKING,
            T.EVACUATE: P.EVACUATING,
            T.ATTEMPT_OVER: P.DECIDING,
            T.ADOPT: P.RELEASED,
            T.LEAVE: P.HELD,
            **_EXITS,
        },
    ),
    P.COMPLETED: JobRow(J.COMPLETED, (), None, {T.REVIVED: P.WATCHING}),
    P.GIVEN_UP: JobRow(J.GIVEN_UP, (), None, {T.REVIVED: P.WATCHING}),
    P.CANCELLED: JobRow(J.CANCELLED, (), None, {T.REVIVED: P.WATCHING}),
}
"""Each state of a job: how it is shown, what it awaits, what leads out."""
JOB: Mapping[JobPlace, Mapping[JobTrigger, JobPlace]] = {place: row.exits for place, row in JOBS.items()}
"""The moves of jobs: place -> trigger -> next place."""


def place_of(state: JobState, *, asked: bool, lives: bool) -> JobPlace:
    """The row of a recorded state.

    Args:
        state: what the record says.
        asked: an order about the job waits for a person's approval.
        lives: its newest attempt runs as far as anybody knows, and no requeue of ours has ended it.
    """
    if state is not J.DIAGNOSING:
        return P(state)
    if asked:
        return P.ASKING
    return P.LOOKING if lives else P.DECIDING


class Claim(StrEnum):
    """What changes who leads a job, or what keeps it in the queue."""

    ATTACHED = "attached"
    """A launcher holds its allocation."""
    LAPSED = "lapsed"
    """Its launcher left, or its lease has ended."""
    ESCALATED = "escalated"
    """Its launcher hands over."""
    LEFT = "left"
    """The launcher's own engine has nothing left to do in the allocation."""
    TAKEN_OVER = "taken_over"
    """The launcher did not do in time what it was to do."""
    QUEUED = "queued"
    """Our requeue is done: it is held in the queue."""
    REQUEUED = "requeued"
    """The scheduler or a person has requeued it."""
    ADOPTED = "adopted"
    """Recovery goes on from somebody else's requeue."""
    RELEASED = "released"
    STARTED = "started"
    """It has left the queue."""
    LET_GO = "let_go"
    """It has left the queue, in which it was held: a person has let it go."""
    ENDED = "ended"
    """The scheduler says that it has ended."""
    OVER = "over"
    """Nothing is waited for any more."""
    HELD = "held"
    """A person holds it."""
    HOLD_ENDED = "hold_ended"


class Rights(Struct, frozen=True):
    """What a claim changes; None leaves it as it was."""

    leader: Authority | None = None
    in_queue: bool | None = None
    """Held in the queue by our order."""
    held: bool | None = None
    """Held by a person."""


_CONTROLLER = Rights(Authority.CONTROLLER)
AUTHORITY: Mapping[Claim, Rights] = {
    Claim.ATTACHED: Rights(Authority.LAUNCHER),
    Claim.LAPSED: _CONTROLLER,
    Claim.ESCALATED: _CONTROLLER,
    Claim.LEFT: _CONTROLLER,
    Claim.TAKEN_OVER: _CONTROLLER,
    Claim.QUEUED: Rights(Authority.CONTROLLER, in_queue=True),
    Claim.REQUEUED: _CONTROLLER,
    Claim.ADOPTED: Rights(Authority.CONTROLLER, in_queue=False),
    Claim.RELEASED: Rights(in_queue=False),
    Claim.STARTED: Rights(in_queue=False),
    Claim.LET_GO: Rights(in_queue=False, held=False),
    Claim.ENDED: _CONTROLLER,
    Claim.OVER: Rights(in_queue=False, held=False),
    Claim.HELD: Rights(held=True),
    Claim.HOLD_ENDED: Rights(held=False),
}
"""Who leads a job and what keeps it in the queue: what happened -> what changes."""
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
        U.SILENT: N.UNKNOWN,
    },
    N.DRAINING: {
        U.CLEARED: N.HEALTHY,
        U.REPAIR: N.REPAIRING,
        U.CHECK: N.VALIDATING,
        U.RETIRE: N.RETIRED,
        U.SILENT: N.UNKNOWN,
    },
    N.REPAIRING: {
        U.CLEARED: N.HEALTHY,
        U.CHECK: N.VALIDATING,
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


def awaits_table() -> str:
    """What each state of a job awaits, as Markdown rows: state, as shown, orders, seconds by the default policy."""
    rows = ["| state | shown as | orders awaited | looked at after (default) |", "|---|---|---|---|"]
    for place, row in JOBS.items():
        orders = ", ".join(str(kind.__struct_config__.tag) for kind in row.orders)
        limit = f"{row.wait_s(Waits()):g} s" if row.wait_s is not None else ""
        rows.append(f"| {place} | {row.shown} | {orders} | {limit} |")
    return "\n".join(rows)


def authority_table() -> str:
    """Who leads a job and what keeps it in the queue, as Markdown rows; empty: as before."""
    rows = ["| what happened | leader | held by our order | held by a person |", "|---|---|---|---|"]
    words = {None: "", True: "yes", False: "no"}
    rows.extend(
        f"| {claim} | {rights.leader or ''} | {words[rights.in_queue]} | {words[rights.held]} |"
        for claim, rights in AUTHORITY.items()
    )
    return "\n".join(rows)
