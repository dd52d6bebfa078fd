"""What another policy would have done: what the page says when it does not replay."""

from __future__ import annotations

import pytest
from tests.cockpit.history import Desk, Recorded, history
from tests.cockpit.served import run

from holdfast.adapters.policy_files import packaged_presets
from holdfast.cockpit.what_if import EVENTS_MAX, Replayer, WhatIf
from holdfast.errors import NotFoundError


class LongDesk(Desk):
    """A journal that says how many events it has; nothing of it can be read."""

    def __init__(self, seq: int) -> None:
        super().__init__(Recorded())
        self.seq = seq
        self.journal = None  # type: ignore[assignment]


def test_a_long_journal_is_not_replayed_and_the_page_says_what_to_do() -> None:
    """Above the limit nothing is read; the note has the number and the command. An unknown preset is none."""
    told: list[WhatIf] = []

    async def work() -> None:
        presets = packaged_presets()
        told.append(await Replayer(LongDesk(EVENTS_MAX + 1), presets).ask("i1", "hyperpod-slurm"))  # type: ignore[arg-type]
        with pytest.raises(NotFoundError):
            await Replayer(LongDesk(1), presets).ask("i1", "nobody's")  # type: ignore[arg-type]

    run(work)
    (answer,) = told
    assert answer.lines == ()
    assert answer.note.startswith(
        f"Not replayed: this journal has {EVENTS_MAX + 1} events, more than a page waits for."
    )
    assert "`holdfast simulate --replay`" in answer.note


def test_a_journal_at_the_limit_is_replayed() -> None:
    """The month of the tests under another preset: the incident is found, and what would have been otherwise is told."""
    play = history()
    told: list[WhatIf] = []

    async def work() -> None:
        desk = Desk(play)
        await desk.write()
        desk.seq = EVENTS_MAX  # type: ignore[attr-defined]
        incident = next(one.id for entry in play.entries for one in entry.touched.incidents)
        told.append(await Replayer(desk, packaged_presets()).ask(incident, "hyperpod-slurm"))  # type: ignore[arg-type]

    run(work)
    assert told[0].policy == "hyperpod-slurm"
    assert "Not replayed" not in told[0].note
