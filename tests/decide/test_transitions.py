"""The two tables: closed, reachable, and what their theory says."""

from __future__ import annotations

import pytest

from holdfast.decide.machine import (
    JOB,
    NODE,
    can,
    mermaid,
    move,
    text_table,
)
from holdfast.errors import InvalidTransition
from holdfast.model.records import JOB_ENDED, JobState, JobTrigger, NodeState, NodeTrigger


@pytest.mark.parametrize(("table", "states", "triggers"), [(JOB, JobState, JobTrigger), (NODE, NodeState, NodeTrigger)])
def test_every_state_and_trigger_has_its_line(table, states, triggers):
    """Each state is in the table, each trigger moves something, each target exists."""
    assert set(table) == set(states)
    used = {trigger for moves in table.values() for trigger in moves}
    assert used == set(triggers)
    assert {target for moves in table.values() for target in moves.values()} <= set(states)


@pytest.mark.parametrize(("table", "start"), [(JOB, JobState.WATCHING), (NODE, NodeState.HEALTHY)])
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


@pytest.mark.parametrize("state", [state for state in JobState if state not in JOB_ENDED])
def test_the_exits_are_open_from_everywhere(state):
    """A job may end, be abandoned or be cancelled at any moment."""
    assert move(JOB, state, JobTrigger.COMPLETED) is JobState.COMPLETED
    assert move(JOB, state, JobTrigger.GIVE_UP) is JobState.GIVEN_UP
    assert move(JOB, state, JobTrigger.CANCEL) is JobState.CANCELLED


@pytest.mark.parametrize("state", sorted(JOB_ENDED))
def test_what_is_over_is_left_only_when_somebody_queues_it_again(state):
    """Nothing else moves it."""
    assert dict(JOB[state]) == {JobTrigger.REVIVED: JobState.WATCHING}


def test_only_proof_leads_from_a_restart_back_to_watching():
    """A restart that is not proven is not watched as if it were."""
    assert move(JOB, JobState.PROVING, JobTrigger.PROVEN) is JobState.WATCHING
    for state in (JobState.IN_PLACE, JobState.HELD, JobState.RELEASED, JobState.RESTARTING, JobState.WAITING_FOR_NODES):
        assert JobState.WATCHING not in JOB[state].values()


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
        move(JOB, JobState.WATCHING, JobTrigger.PROVEN, story=("12:00:00Z it began", "12:00:01Z it went on"))
    assert caught.value.story == ("12:00:00Z it began", "12:00:01Z it went on")
    assert "stop" in str(caught.value)
    assert "it went on" in str(caught.value)
    assert not can(JOB, JobState.WATCHING, JobTrigger.PROVEN)
    assert can(JOB, JobState.WATCHING, JobTrigger.STOP)


@pytest.mark.parametrize("table", [JOB, NODE])
def test_drawings_hold_every_move(table):
    """The diagram and the rows of the page are the table."""
    drawn, rows = mermaid(table), text_table(table).splitlines()[2:]
    moves = [(state, trigger, target) for state, targets in table.items() for trigger, target in targets.items()]
    assert rows == [f"| {state} | {trigger} | {target} |" for state, trigger, target in moves]
    for state, trigger, target in moves:
        (line,) = [line for line in drawn.splitlines() if line.strip().startswith(f"{state} --> {target}:")]
        assert trigger in line
