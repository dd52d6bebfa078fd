"""What the launcher says to whoever reads its output."""

from __future__ import annotations

import pytest

from holdfast.launch.leading import spoken
from holdfast.model.orders import Notify


@pytest.mark.parametrize(
    ("title", "text", "said"),
    [
        ("7(0): it died.", "it died: an error of the program.", "7(0): it died: an error of the program."),
        ("7(0) restarts in place", "it died.", "7(0) restarts in place: it died."),
        ("7(0) has recovered", "", "7(0) has recovered"),
    ],
)
def test_a_notice_says_nothing_twice(title: str, text: str, said: str):
    """The cause stands in the title and begins the story: it is told once."""
    assert spoken(Notify(id="n", cause=1, topic="t", title=title, text=text)) == said
