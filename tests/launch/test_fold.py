"""From slots and lines to events."""

from __future__ import annotations

import time

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.detect.matcher import Matcher, StreamSource
from holdfast.launch.fold import AttemptFold
from holdfast.launch.frames import LineSeen, SlotBrief
from holdfast.launch.launcher_events import EventMaker
from holdfast.launch.reading import OutputReader
from holdfast.model.cluster import JobKey

JOB = JobKey("c", "7")


def fold(restored: int | None = None) -> AttemptFold:
    return AttemptFold(JOB, 2, events=EventMaker("launcher:7", "e", time.time), restored=lambda: restored)


def slot(rank: int, ended: int | None = None, *, first: int | None = None, **fields: object) -> SlotBrief:
    return SlotBrief(rank=rank, phase="train", ended=ended, first=first, **fields)  # type: ignore[arg-type]


def told(events: list) -> list[tuple]:
    names = {
        "first_step_done": ("step", "resumed_from"),
        "checkpoint_saved": ("step", "durable"),
        "step_reached": ("step",),
    }
    return [
        (tag, *(getattr(event, name) for name in names[tag]))
        for event in events
        for tag in [event.__struct_config__.tag]
    ]


def test_the_first_step_is_told_once_when_all_ranks_have_done_it():
    """And with the step that the checkpoint library noted as restored."""
    one = fold(restored=40)
    assert told(one.take_slots((slot(0, 41, first=41), slot(1)), 100.0)) == [("step_reached", 41)]
    assert told(one.take_slots((slot(1, 41, first=41),), 101.0)) == [("first_step_done", 41, 40)]
    assert told(one.take_slots((slot(0, 42, first=41), slot(1, 42, first=41)), 102.0)) == []


def test_a_durable_checkpoint_is_never_told_before_the_first_step():
    """The slots of another node come later; a proof by that checkpoint would end the recovery without its first step."""
    one = fold(restored=40)
    assert told(one.take_slots((slot(0, 50, first=41, staged=50, durable=50), slot(1)), 100.0)) == [
        ("first_step_done", 41, 40), ("checkpoint_saved", 50, True), ("step_reached", 50),
    ]  # fmt: skip
    assert told(one.take_slots((slot(1, 50, first=41),), 100.1)) == []


def test_without_a_note_it_resumed_right_before_its_first_step():
    """Scripts that keep their own checkpoints."""
    assert told(fold().take_slots((slot(0, 13, first=12),), 100.0))[0] == ("first_step_done", 12, 11)


def test_only_growing_checkpoints_are_told():
    """Staged, then durable, each once; a staged word that comes with its durable one is not worth an event."""
    one = fold()
    one.take_slots((slot(0, 1, first=1),), 0.0)
    assert told(one.take_slots((slot(0, 11, first=1, staged=10),), 1.0)) == [("checkpoint_saved", 10, False)]
    assert told(one.take_slots((slot(0, 12, first=1, staged=10, durable=10),), 2.0)) == [("checkpoint_saved", 10, True)]
    assert told(one.take_slots((slot(0, 22, first=1, staged=20, durable=20),), 3.0)) == [("checkpoint_saved", 20, True)]
    assert told(one.take_slots((slot(0, 22, first=1, staged=20, durable=20),), 4.0)) == []


def test_a_rank_that_has_only_staged_holds_the_checkpoint_back():
    """The first save of all: rank 0 has finished, rank 1 has not, and ranks that save nothing do not count."""
    one = fold()
    slots = (slot(0, 10, staged=10, durable=10), slot(1, 10, staged=10), slot(2, 10))
    assert told(one.take_slots(slots, 1.0)) == [("checkpoint_saved", 10, False)]
    (saved,) = one.take_slots((slot(1, 10, staged=10, durable=10, durable_took_s=2.5),), 2.0)
    assert (saved.step, saved.durable, saved.took_s) == (10, True, 2.5)


def test_lines_do_not_contradict_ranks_that_tell_their_saves():
    """ "Saved checkpoint" printed when it was only begun: the rank says that it is staged."""
    one = fold()
    one.take_slots((slot(0, staged=10),), 1.0)
    line = LineSeen(attempt=2, at=2.0, step=10, checkpoint=10, durable=True)
    assert told(one.take_line(line) + one.lines_due(3.0)) == [("first_step_done", 10, 9)]


def test_a_sharded_checkpoint_is_durable_when_the_slowest_rank_says_so():
    """Among the ranks that speak of checkpoints at all."""
    one = fold()
    one.take_slots((slot(0, 9, durable=5), slot(1, 9, durable=5), slot(2, 9)), 0.0)
    assert told(one.take_slots((slot(0, 11, durable=10),), 1.0)) == []
    assert told(one.take_slots((slot(1, 11, durable=10),), 2.0)) == [("checkpoint_saved", 10, True)]


def test_the_step_before_a_fault_is_told_on_demand():
    """The newest one that all ranks completed, once."""
    one = fold()
    one.take_slots((slot(0, 8, first=1), slot(1, 7, first=1)), 1.0)
    one.take_slots((slot(0, 9, first=1), slot(1, 8, first=1)), 2.0)
    assert told(one.reached(3.0)) == [("step_reached", 8)]
    assert one.reached(4.0) == []


def test_lines_speak_for_scripts_without_telemetry():
    """First step, loss, checkpoint; slots with steps know better and silence them."""
    one = fold()
    assert told(one.take_line(LineSeen(attempt=2, at=0.2, step=2, loss=3.5))) == []
    assert told(one.take_line(LineSeen(attempt=2, at=1.0, step=3, loss=2.5))) == [("first_step_done", 2, 1)]
    assert told(one.take_line(LineSeen(attempt=2, at=2.0, checkpoint=3, durable=True))) == [
        ("checkpoint_saved", 3, True)
    ]
    assert [(p.series, p.subject, p.value) for p in one.samples(3.0)] == [
        ("checkpoint", "job:7(2)", 3.0),
        ("step", "job:7(2)", 3.0),
        ("loss", "job:7(2)", 2.5),
    ]
    one.take_slots((slot(0, 5, first=5),), 20.0)
    assert one.take_line(LineSeen(attempt=2, at=30.0, checkpoint=9, durable=True)) == []


def test_the_first_lines_count_with_their_own_times():
    """They wait for slots half a second, and are lost neither by that nor by an end that comes sooner."""
    one = fold()
    assert one.take_line(LineSeen(attempt=2, at=5.0, step=1)) == []
    assert one.take_line(LineSeen(attempt=2, at=5.1, checkpoint=1, durable=True)) == []
    assert one.lines_due(5.4) == []
    events = one.lines_due(5.6)
    assert told(events) == [("first_step_done", 1, 0), ("checkpoint_saved", 1, True)]
    assert [event.at for event in events] == [5.0, 5.1]
    short = fold()
    short.take_line(LineSeen(attempt=2, at=5.0, checkpoint=7, durable=True))
    assert told(short.lines_due(5.1, is_urgent=True)) == [("checkpoint_saved", 7, True)]


def test_a_fault_does_not_wait_for_slots():
    """A loss that is no number in the first half second is noted at once, and what came before it told."""
    one = fold()
    assert one.take_line(LineSeen(attempt=2, at=5.0, rank=1, step=1, loss=float("nan"))) == []
    assert one.bad_loss is not None
    assert told(one.reached(5.0)) == [("first_step_done", 1, 0), ("step_reached", 1)]


def test_lines_read_together_tell_the_first_of_their_steps():
    """On a busy machine many lines are read at once: the attempt still began at the first of them."""
    reader = OutputReader(job=JOB, node="n1", attempt=2, source="x")
    lines = "".join(f"0:  iteration {step}/ 60 | lm loss: 1.0E+00 |\n" for step in (11, 12, 13))
    matches = Matcher(read_catalogue()).stream(StreamSource()).feed(lines.encode(), 50.0)
    line = reader.progress(matches, rank=None, at=50.0)
    assert line is not None
    one = fold()
    assert told(one.take_line(line) + one.lines_due(51.0))[0] == ("first_step_done", 11, 10)


def test_lines_that_wait_are_bounded():
    """A flood in the first half second is told before that is over."""
    one = fold()
    events = [event for step in range(1, 1000) for event in one.take_line(LineSeen(attempt=2, at=5.0, step=step))]
    assert told(events)[0] == ("first_step_done", 1, 0)


def test_samples_are_given_once_per_step_and_only_finite():
    """NaN has no place on a plot; it is noted as a bad loss instead."""
    one = fold()
    one.take_slots((slot(0, 5, loss=1.5, step_s=0.1), slot(1, 5, loss=float("nan"), step_s=0.2)), 1.0)
    assert {(p.series, p.subject[-6:], p.value) for p in one.samples(2.0)} == {
        ("step", "rank:0", 5.0), ("loss", "rank:0", 1.5), ("step_s", "rank:0", 0.1),
        ("step", "rank:1", 5.0), ("step_s", "rank:1", 0.2),
    }  # fmt: skip
    assert one.samples(3.0) == []
    assert one.bad_loss is not None
    assert one.bad_loss[0] == 1


def test_the_cost_of_saves_is_one_point_per_rank_that_saved():
    """Two saves since the last point give their mean; a rank that saved nothing since gives none."""
    one = fold()
    one.take_slots((slot(0, saves=2, saves_s=3.0), slot(1)), 1.0)
    assert [(p.series, p.subject[-6:], p.value) for p in one.samples(2.0)] == [("save_s", "rank:0", 1.5)]
    one.take_slots((slot(0, saves=3, saves_s=7.0),), 3.0)
    assert [(p.series, p.value) for p in one.samples(4.0)] == [("save_s", 4.0)]
    assert one.samples(5.0) == []


def test_an_accuracy_belongs_to_the_step_after_which_it_was_told():
    """A slot keeps the newest one: it is a point once, and again when the next evaluation has given another."""
    one = fold()
    found = []
    for step, accuracy in ((5, None), (6, 0.25), (7, 0.25), (8, 0.5)):
        one.take_slots((slot(0, step, accuracy=accuracy),), float(step))
        found += [(p.at, p.value) for p in one.samples(float(step)) if p.series == "accuracy"]
    assert found == [(6.0, 0.25), (8.0, 0.5)]


def test_an_accuracy_in_a_step_line_is_a_point():
    """As users print it, beside the loss; a line without one has none."""
    reader = OutputReader(job=JOB, node="n1", attempt=2, source="x")
    stream = Matcher(read_catalogue()).stream(StreamSource())
    found = []
    for text in (
        "step 240/400 | loss 1.912 | acc 0.4375",
        "step 41 loss 1.902 accuracy: 0.31",
        "step 42/400 | loss 1.9",
    ):
        line = reader.progress(stream.feed(f"{text}\n".encode(), 50.0), rank=None, at=50.0)
        assert line is not None
        found.append((line.step, line.loss, line.accuracy))
    assert found == [(240, 1.912, 0.4375), (41, 1.902, 0.31), (42, 1.9, None)]
    one = fold()
    one.take_line(LineSeen(attempt=2, at=1.0, step=3, loss=2.5, accuracy=0.5))
    one.lines_due(9.0)
    assert ("accuracy", "job:7(2)", 0.5) in [(p.series, p.subject, p.value) for p in one.samples(9.0)]
