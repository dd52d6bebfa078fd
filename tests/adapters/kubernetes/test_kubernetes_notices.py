"""How a notice reads as an Event: a short reason, and nothing said twice."""

import pytest

from holdfast.adapters.kubernetes.notices import message_of, reason_of


@pytest.mark.parametrize(
    ("title", "reason"),
    [
        ("node03 is back", "Node03IsBack"),
        ("default.pytorchjob.llama(1) is requeued, held", "RequeuedHeld"),
        ("default.pytorchjob.llama(0) was given up", "WasGivenUp"),
        ("default.pytorchjob.llama(0): Xid 74: NVLink", "Xid74NVLink"),
        ("", "Notice"),
    ],
)
def test_the_reason_leaves_out_the_job(title, reason):
    """`kubectl describe` shows it beside the job itself."""
    assert reason_of(title) == reason


@pytest.mark.parametrize(
    ("title", "text", "message"),
    [
        ("n3 is back", "It takes work again.", "n3 is back: It takes work again."),
        ("a(0): Xid 74, on n1.", "Xid 74, on n1: a hardware fault.", "a(0): Xid 74, on n1: a hardware fault."),
        ("a(0) is held", "a(0) is held: Xid 74", "a(0) is held: Xid 74"),
        ("a(0) is released", "", "a(0) is released"),
        ("a(0): asked for it", "asked for it", "a(0): asked for it"),
    ],
)
def test_what_title_and_text_share_is_said_once(title, text, message):
    """The title's end and the text's beginning are often the same words."""
    assert message_of(title, text) == message
