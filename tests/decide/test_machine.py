"""The tables: closed, reachable, what their theory says, and that nothing goes past them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.decide.play import KEY, Play

from holdfast.decide import machine
from holdfast.decide.machine import (
    AUTHORITY,
    JOB,
    JOBS,
    NODE,
    Claim,
    JobPlace,
    Rights,
    mermaid,
    move,
    place_of,
    text_table,
)
from holdfast.errors import InvalidTransition
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode, Waits
from holdfast.model.records import JOB_ENDED, JobState, JobTrigger, NodeState, NodeTrigger

BEGINNINGS = {"startswith", "endswith"}
ARROWS_MAX = 59


@pytest.mark.parametrize(("table", "states", "triggers"), [(JOB, JobPlace, JobTrigger), (NODE, NodeState, NodeTrigger)])
def test_every_state_and_trigger_has_its_line(table, states, triggers):
    """Each state is in the table, each trigger moves something, each target exists."""
    assert set(table) == set(states)
    used = {trigger for moves in table.values() for trigger in moves}
    assert used == set(triggers)
    assert {target for moves in table.values() for target in moves.values()} <= set(states)


@pytest.mark.parametrize(("table", "start"), [(JOB, JobPlace.WATCHING), (NODE, NodeState.HEALTHY)])
def test_every_state_can_be_reached_and_left(table, start):
    """No island, no trap."""
    reached, fresh = {start}, [start]
    while fresh:
        for target in table[fresh.pop()].values():
            if target not in reached:
                reached.add(target)
                fresh.append(target)
    assert reached == set(table)
    for state in table:
        seen, fresh = {state}, [state]
        while fresh:
            for target in table[fresh.pop()].values():
                if target not in seen:
                    seen.add(target)
                    fresh.append(target)
        assert start in seen, f"no way back from {state}"


@pytest.mark.parametrize("state", [place for place in JobPlace if JOBS[place].shown not in JOB_ENDED])
def test_the_exits_are_open_from_everywhere(state):
    """A job may end, be abandoned or be cancelled at any moment."""
    assert move(JOB, state, JobTrigger.COMPLETED) is JobPlace.COMPLETED
    assert move(JOB, state, JobTrigger.GIVE_UP) is JobPlace.GIVEN_UP
    assert move(JOB, state, JobTrigger.CANCEL) is JobPlace.CANCELLED


@pytest.mark.parametrize("state", [place for place in JobPlace if JOBS[place].shown in JOB_ENDED])
def test_what_is_over_is_left_only_when_somebody_queues_it_again(state):
    """Nothing else moves it."""
    assert dict(JOB[state]) == {JobTrigger.REVIVED: JobPlace.WATCHING}


def test_only_proof_leads_from_a_restart_back_to_watching():
    """A restart that is not proven is not watched as if it were."""
    assert move(JOB, JobPlace.PROVING, JobTrigger.PROVEN) is JobPlace.WATCHING
    for state in (JobPlace.IN_PLACE, JobPlace.HELD, JobPlace.RELEASED, JobPlace.RESTARTING, JobPlace.WAITING_FOR_NODES):
        assert JobPlace.WATCHING not in JOB[state].values()


def test_unknown_lies_over_every_state():
    """Silence may come at any moment, and shows what it covered when it ends."""
    for state in NodeState:
        if state is not NodeState.UNKNOWN:
            assert move(NODE, state, NodeTrigger.SILENT) is NodeState.UNKNOWN
            assert move(NODE, NodeState.UNKNOWN, NodeTrigger(f"heard_{state}")) is state


def test_a_repaired_node_cannot_return_unchecked_by_the_table_alone():
    """From repair the ordinary way back leads through the checks."""
    assert move(NODE, NodeState.REPAIRING, NodeTrigger.CHECK) is NodeState.VALIDATING
    assert move(NODE, NodeState.VALIDATING, NodeTrigger.RETURN) is NodeState.HEALTHY
    assert move(NODE, NodeState.VALIDATING, NodeTrigger.FAILED_CHECK) is NodeState.REPAIRING


def test_a_move_that_is_not_written_carries_its_story():
    """The error says what would have been possible, and how it came to this."""
    with pytest.raises(InvalidTransition, match="no move proven from watching") as caught:
        move(JOB, JobPlace.WATCHING, JobTrigger.PROVEN, story=("12:00:00Z it began", "12:00:01Z it went on"))
    assert caught.value.story == ("12:00:00Z it began", "12:00:01Z it went on")
    assert "stop" in str(caught.value)
    assert "it went on" in str(caught.value)


@pytest.mark.parametrize("table", [JOB, NODE])
def test_drawings_hold_every_move(table):
    """The diagram and the rows of the page are the table."""
    drawn, rows = mermaid(table), text_table(table).splitlines()[2:]
    moves = [(state, trigger, target) for state, targets in table.items() for trigger, target in targets.items()]
    assert rows == [f"| {state} | {trigger} | {target} |" for state, trigger, target in moves]
    for state, trigger, target in moves:
        (line,) = [line for line in drawn.splitlines() if line.strip().startswith(f"{state} --> {target}:")]
        assert trigger in line


# --- what a row says --------------------------------------------------------------------------------------------------


def test_three_rows_are_shown_as_diagnosing():
    """Clients, journals and snapshots know the states of before: each row is shown as one of them, the others as themselves."""
    assert {place for place, row in JOBS.items() if row.shown is JobState.DIAGNOSING} == {
        JobPlace.LOOKING,
        JobPlace.ASKING,
        JobPlace.DECIDING,
    }
    assert {row.shown for row in JOBS.values()} == set(JobState)
    assert all(str(row.shown) == str(place) for place, row in JOBS.items() if row.shown is not JobState.DIAGNOSING)


@pytest.mark.parametrize(
    ("asked", "lives", "place"),
    [
        (True, True, JobPlace.ASKING),
        (True, False, JobPlace.ASKING),
        (False, True, JobPlace.LOOKING),
        (False, False, JobPlace.DECIDING),
    ],
)
def test_the_row_follows_from_what_is_recorded(asked, lives, place):
    """A snapshot of any version opens in the right row; what is not shown as diagnosing is its own row."""
    assert place_of(JobState.DIAGNOSING, asked=asked, lives=lives) is place
    assert place_of(JobState.STOPPING, asked=asked, lives=lives) is JobPlace.STOPPING


@pytest.mark.parametrize(
    ("place", "wait"),
    [
        (JobPlace.IN_PLACE, "start_s"),
        (JobPlace.RESTARTING, "start_s"),
        (JobPlace.PROVING, "prove_s"),
        (JobPlace.RELEASED, "nodes_s"),
        (JobPlace.WAITING_FOR_NODES, "nodes_s"),
        (JobPlace.HELD, "order_s"),
        (JobPlace.STOPPING, "order_s"),
        (JobPlace.WATCHING, "propose_s"),
    ],
)
def test_a_row_says_how_long_it_lasts(place, wait):
    """A job is looked at when its state has lasted that long."""
    waits = Waits(start_s=1.0, prove_s=2.0, nodes_s=3.0, order_s=4.0, propose_s=5.0)
    limit = JOBS[place].wait_s
    assert limit is not None
    assert limit(waits) == getattr(waits, wait)


def test_every_claim_has_its_rights():
    """Who leads, what keeps it in the queue and whose hold it is under change by this table alone."""
    assert set(AUTHORITY) == set(Claim)
    assert all(rights != Rights() for rights in AUTHORITY.values())
    assert AUTHORITY[Claim.OVER] == Rights(in_queue=False, held=False)


def test_a_hang_in_advise_is_looked_at_asked_about_and_stopped():
    """The three rows in turn, each with what it awaits: stacks, a person's word, the end of the attempt."""
    play = Play(scope="allocation", mode=Mode.ADVISE).running()

    def place() -> JobPlace:
        last = play.engine.state
        asked = any(record.status is OrderStatus.PROPOSED for record in last.orders.values())
        return place_of(play.state, asked=asked, lives=play.j.alive and not play.j.in_queue)

    play.hang()
    assert place() is JobPlace.LOOKING
    assert play.opened(o.CaptureStacks)
    play.do(e.StacksCaptured, job=KEY, attempt=0)
    assert place() is JobPlace.ASKING
    assert play.opened(o.StopAttempt)
    assert play.j.timer not in play.engine.state.timers
    play.say(e.Command.APPROVE, order=play.open(o.StopAttempt).id)
    assert place() is JobPlace.STOPPING
    assert play.state is JobState.STOPPING
    play.ended(0)
    assert place() is JobPlace.IN_PLACE
    assert play.opened(o.RestartInPlace)


# --- who writes -------------------------------------------------------------------------------------------------------

DECIDE = Path(machine.__file__).parent
GUARDED = {"state", "before_unknown", "authority", "in_queue", "held_by"}
"""Fields that only the tables change."""


def test_only_the_turn_moves_a_record_or_changes_who_leads_it():
    """`records/turn.py` writes state and authority, by the tables; nothing else in `decide` assigns to these fields."""
    for path in sorted(DECIDE.rglob("*.py")):
        if path.name == "turn.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign | ast.AugAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
                    assert not (isinstance(target, ast.Attribute) and target.attr in GUARDED) or own, (
                        f"{path.name}:{node.lineno} writes {ast.unparse(target)}: use Turn.move_job, move_node or claim"
                    )


def test_no_decision_compares_a_sentence():
    """What is asked later is a code: no comparison with a text that has spaces, and none by its beginning."""
    for path in sorted(DECIDE.rglob("*.py")):
        if path.name in {"diagnosis.py", "diagnosis_story.py"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            texts: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                texts = [node.left, *node.comparators]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BEGINNINGS:
                texts = list(node.args)
            for text in texts:
                said = text.value if isinstance(text, ast.Constant) else ""
                assert not (isinstance(said, str) and " " in said), f"{path.name}:{text.lineno} compares {said!r}"


def test_decide_is_no_knot():
    """At most `ARROWS_MAX` arrows between its modules."""
    names = {path.stem for path in DECIDE.glob("*.py")}
    arrows = set()
    for path in DECIDE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "holdfast.decide":
                arrows |= {(path.stem, one.name) for one in node.names if one.name in names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast.decide."):
                arrows.add((path.stem, str(node.module).split(".")[2]))
    assert len(arrows) <= ARROWS_MAX, sorted(arrows)
