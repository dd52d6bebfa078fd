"""What is plotted of a job: points over time or step, per attempt. Made by `gather`, read by plots and comparisons."""

from __future__ import annotations

from msgspec import Struct, field


class Point(Struct, frozen=True):
    """One point of a plot: Unix seconds or step on x."""

    x: float
    y: float


class JobSeries(Struct):
    """What is plotted of one job."""

    steps: dict[int, list[Point]] = field(default_factory=dict)
    """Per attempt: completed step over Unix seconds."""
    losses: dict[int, list[Point]] = field(default_factory=dict)
    """Per attempt: loss over step."""
    accuracies: dict[int, list[Point]] = field(default_factory=dict)
    """Per attempt: accuracy over step, where the job tells any."""
    checkpoints: list[Point] = field(default_factory=list)
    """Durable checkpoints: step over Unix seconds."""
    samples: dict[int, list[Point]] = field(default_factory=dict)
    tokens: dict[int, list[Point]] = field(default_factory=dict)
    """Per attempt: samples and tokens consumed by all ranks, over Unix seconds."""
    saves: list[Point] = field(default_factory=list)
    """Seconds that each save held the training, over Unix seconds."""
