"""What people write into comments and reasons: understood exactly, and warned about when nearly right."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.slurm.asks import Wish, action_of, wish_of
from holdfast.model.cluster import RecoverySpec


def test_mission_controls_form_asks_for_recovery() -> None:
    """The quick-start's comment, unchanged; the owner's number is kept."""
    wish = wish_of('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 1}}')
    assert wish == Wish(recovery=RecoverySpec(max_requeues=1))


def test_our_own_form_says_more() -> None:
    """Limits, a policy by name, open to drills; beside APS it holds."""
    comment = {
        "holdfast": {"max_requeues": 5, "max_in_place": 2, "policy": "hyperpod-slurm", "drill_ok": True},
        "APS": {"auto_resume_mode": "requeue", "max_requeue_times": 1},
        "wandb": {"run": "x"},
    }
    spec = RecoverySpec(max_requeues=5, max_in_place=2, policy="hyperpod-slurm")
    assert wish_of(json.dumps(comment)) == Wish(recovery=spec, drill_ok=True)


@pytest.mark.parametrize("comment", ["", "my first run", "42", "[1, 2]", '{"wandb": 1}', "{not json", '"APS"'])
def test_other_peoples_comments_ask_for_nothing(comment: str) -> None:
    """A comment that is not about recovery has neither effect nor warning."""
    assert wish_of(comment) == Wish()


def test_recovery_can_be_declined() -> None:
    """`enabled: false` is a wish too: the site's default does not hold for this job."""
    assert wish_of('{"holdfast": {"enabled": false}}').recovery == RecoverySpec(enabled=False)


@pytest.mark.parametrize(
    ("comment", "word"),
    [
        ('{"aps": {"auto_resume_mode": "requeue"}}', "'APS'"),
        ('{"Holdfast": {}}', "'holdfast'"),
        ('{"APS": {"auto_resume_mode": "Requeue"}}', "'requeue'"),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_time": 1}}', "'max_requeue_times'"),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": "many"}}', "not a count"),
        ('{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": -1}}', "not a count"),
        ('{"APS": {"auto_resume_mode": []}}', "'requeue'"),
        ('{"APS": "requeue"}', "not an object"),
        ("{'APS': {'auto_resume_mode': 'requeue'}}", "not JSON"),
        ('{"holdfast": {"max_requeue": 1}}', "'max_requeues'"),
        ('{"holdfast": {"drill_ok": "yes"}}', "neither true nor false"),
        ('{"holdfast": {"policy": 3}}', "name of a policy"),
    ],
)
def test_a_near_miss_is_warned_about(comment: str, word: str) -> None:
    """Wrong case, wrong key, wrong type: the warning names what was meant."""
    wish = wish_of(comment)
    assert [word in warning for warning in wish.warnings] == [True], wish.warnings


def test_a_wrong_key_does_not_enable_recovery() -> None:
    """Nearly right is not guessed at."""
    assert wish_of('{"aps": {"auto_resume_mode": "requeue"}}').recovery is None
    assert wish_of('{"APS": {"auto_resume_mode": "Requeue"}}').recovery is None


@given(
    st.text()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["APS", "holdfast", "aps", "max_requeues", "auto_resume_mode", "x"]), x)
        ),
    ).map(json.dumps)
)
def test_no_comment_breaks_the_reader(comment: str) -> None:
    """It is the user's own text: whatever it is, it is read, and warnings are bounded single lines."""
    for warning in wish_of(comment).warnings:
        assert "\n" not in warning
        assert len(warning) < 600


def test_actions_are_exact() -> None:
    """HyperPod's two reasons, case-sensitive; others ask for nothing."""
    assert action_of("Action:Reboot") == ("reboot", "")
    assert action_of("Action:Replace") == ("replace", "")
    assert action_of("memory swap") == action_of("") == action_of("action taken by mei") == ("", "")


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("action:reboot", "Action:Reboot"),
        ("Action: Reboot", "Action:Reboot"),
        ("Action:reboot", "Action:Reboot"),
        ("ACTION:REPLACE", "Action:Replace"),
        ("Action:Replac", "Action:Replace"),
        ("Action:Polish", "Action:Reboot or Action:Replace"),
    ],
)
def test_nearly_an_action_is_warned_about(reason: str, meant: str) -> None:
    """It has no effect, and the warning says what would have had one."""
    asked, warning = action_of(reason)
    assert asked == ""
    assert meant in warning
