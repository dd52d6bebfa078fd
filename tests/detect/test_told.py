"""What a line of a checkpoint tells, read by the packaged rules."""

from __future__ import annotations

import pytest

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.detect.evaluations import Evaluations
from holdfast.detect.matcher import Matcher, StreamSource
from holdfast.detect.told import path_told, seconds_told, step_told


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher(read_catalogue())


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("SAVE_CHECKPOINT: iteration: 100, ckpt saving takes 12.5 seconds", (100, "", 12.5)),
        ("Saved checkpoint to /ckpt/iter_0000120", (120, "/ckpt/iter_0000120", None)),
        ("Saved checkpoint to /ckpt/run-7/last.pt", (None, "/ckpt/run-7/last.pt", None)),
        ("    save-checkpoint ................................: (57514.53, 57514.60)", (None, "", 57.5146)),
        ("time (ms) | save-checkpoint: 57514.53", (None, "", 57.51453)),
        ("INFO:root:Successfully saved local checkpoint from iteration 20", (20, "", None)),
        ("INFO:root:Successfully saved local checkpoint from iteration 20261128010203", (None, "", None)),
    ],
)
def test_a_checkpoint_line_tells_step_path_and_seconds(
    matcher: Matcher, line: str, told: tuple[int | None, str, float | None]
) -> None:
    """The step also from a path that names one; milliseconds of Megatron's timer, the slowest rank's, as seconds."""
    (match,) = matcher.stream(StreamSource()).feed(f"{line}\n".encode(), 0.0)
    step, path, seconds = told
    assert (step_told(match), path_told(match)) == (step, path)
    assert seconds_told(match) == (None if seconds is None else pytest.approx(seconds))


def test_an_accuracy_is_told_once():
    """A slot that goes on with the accuracy of its last evaluation tells it of no later step; each slot is one."""
    evaluations = Evaluations()
    told = [evaluations.new(slot, value) for slot, value in [(0, None), (0, 0.5), (0, 0.5), (1, 0.5), (0, 0.6)]]
    assert told == [None, 0.5, None, 0.5, 0.6]
    evaluations.forget(0)
    assert evaluations.new(0, 0.6) == 0.6
