"""The data behind the cockpit's charts, against the samples and events that they are drawn from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.cockpit.history import FAULTS, NOW, Desk, Recorded, history
from tests.cockpit.served import KEY, run, served
from tests.controller.cases import until

from holdfast.api import Role
from holdfast.cockpit import charts
from holdfast.model import events as e
from holdfast.ports import Sample
from holdfast.report.series import Point

BEGIN = NOW - 1000.0


@pytest.fixture(scope="module")
def play() -> Recorded:
    return history()


def drawn(play: Recorded, make: Any, *samples: Sample) -> dict[str, Any]:
    """A chart over this history and these samples."""
    kept: list[dict[str, Any]] = []

    async def work() -> None:
        desk = Desk(play)
        await desk.write()
        await desk.journal.add_samples(samples)
        kept.append(await make(desk))

    run(work)
    return kept[0]


def of(play: Recorded, kind: type, **fields: object) -> list:
    return [
        event for event in play.events
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
    ]  # fmt: skip


def test_steps_over_time(play: Recorded) -> None:
    """A line per attempt from its first step to its end through what was sampled; diamonds at durable checkpoints; a
    band from each fault to the next first step, named by its cause."""
    first = of(play, e.FirstStepDone, attempt=3)[0]
    sampled = [Sample("step", "job:7(3)/rank:0", first.at + 10.0 * n, first.step + n) for n in range(1, 4)]
    second = of(play, e.FirstStepDone, attempt=2)[0]
    others = [Sample("step", "job:7(2)/rank:0", second.at + 60.0, 4000.0)]
    others += [Sample("step", "job:7(3)/rank:1", first.at + 5.0, 12.0), Sample("step", "job:8(3)/rank:0", NOW, 99.0)]
    incidents = sorted({one.id for entry in play.entries for one in entry.touched.incidents})
    figure = drawn(play, lambda desk: charts.steps(desk, "7", incidents), *sampled, *others)
    lines = {one["name"]: one for one in figure["data"]}
    assert list(lines) == ["7(0)", "7(1)", "7(2)", "7(3)", "durable checkpoint"]
    assert lines["7(3)"]["x"] == [round(first.at * 1000, 1), *(round(one.at * 1000, 1) for one in sampled)]
    assert lines["7(3)"]["y"] == [first.step, *(one.value for one in sampled)]
    assert lines["7(2)"]["y"][-1] == 4000.0, "what was sampled is further than what was told at the end"
    ended = of(play, e.AttemptEnded, attempt=1)[0]
    reached = max(one.step for one in of(play, e.StepReached, attempt=1))
    assert (lines["7(1)"]["x"][-1], lines["7(1)"]["y"][-1]) == (round(ended.at * 1000, 1), reached)
    saved = {(round(one.received_at * 1000, 1), one.step) for one in of(play, e.CheckpointSaved, durable=True)}
    marks = lines["durable checkpoint"]
    assert set(zip(marks["x"], marks["y"], strict=True)) == saved
    bands = sorted((one["x0"], one["x1"]) for one in figure["layout"]["shapes"])
    faults = [one.finding.at for one in of(play, e.FindingSeen)]
    firsts = [one.received_at for one in of(play, e.FirstStepDone)]
    after = [min(at for at in firsts if at > fault) for fault in faults]
    assert bands == [(round(a * 1000, 1), round(b * 1000, 1)) for a, b in zip(faults, after, strict=True)]
    notes = sorted(one["text"].partition(": ")[2] for one in figure["layout"]["annotations"])
    assert notes == ["exit.signal.11"] * len(FAULTS)
    assert len({one["line"]["color"] for one in figure["data"][:4]}) == 4


def test_losses_over_step(play: Recorded) -> None:
    """Loss stands over the step that was told at the same moment, of one rank, a line for each attempt that told any."""
    samples = [
        Sample(series, f"job:7({attempt})/rank:{rank}", BEGIN + 100.0 * attempt + n, value)
        for attempt in (1, 3)
        for rank in (0, 1)
        for n in range(5)
        for series, value in (("step", 10.0 * attempt + n), ("loss", 2.0 / (1 + n) + rank))
    ]
    figure = drawn(play, lambda desk: charts.losses(desk, "7"), *samples, Sample("loss", "job:7(3)/rank:0", BEGIN, 9.0))
    assert [(one["name"], one["x"], one["y"]) for one in figure["data"]] == [
        (f"7({n})", [10.0 * n + k for k in range(5)], [2.0 / (1 + k) for k in range(5)]) for n in (1, 3)
    ]


def test_step_times_of_ranks_are_a_grid_of_the_slowest(play: Recorded) -> None:
    """Of 70 ranks the 64 slowest, in order, a column for each sample; a cell is the longest step of its stretch; what
    nobody told is empty."""
    slow = {rank: 0.5 + rank / 100.0 for rank in range(70)}
    samples = [
        Sample("step_s", f"job:7(3)/rank:{rank}", BEGIN + n, value)
        for rank, value in slow.items()
        for n in range(0, 161, 2)
        if (rank, n) != (9, 62)
    ]
    spike = Sample("step_s", "job:7(3)/rank:3", BEGIN + 60.25, 30.0)
    left_out = [
        Sample("step_s", "job:7(2)/rank:1", BEGIN, 99.0),
        Sample("step_s", "job:7(3)/rank:9", NOW - charts.WINDOW_S - 1.0, 99.0),
        Sample("step_s", "job:7(3)/rank:x", BEGIN, 99.0),
    ]
    (grid,) = drawn(play, lambda desk: charts.ranks(desk, "7"), *samples, spike, *left_out)["data"]
    shown = [3, *range(7, 70)]
    assert grid["y"] == [f"rank {rank}" for rank in shown]
    assert grid["x"] == [round((BEGIN + n) * 1000) for n in range(0, 161, 2)]
    assert [len(row) for row in grid["z"]] == [81] * 64
    for row, rank in zip(grid["z"], shown, strict=True):
        want = [slow[rank]] * 81
        if rank == 3:
            want[30] = 30.0
        if rank == 9:
            want[31] = None
        assert row == want, rank
    assert grid["colorscale"] == "Cividis"


def test_a_grid_has_so_many_columns_at_most(play: Recorded) -> None:
    """Of 1,000 samples of a rank each column holds the longest of its stretch; one sample alone is one cell."""
    told = [Sample("step_s", "job:7(3)/rank:0", BEGIN + n, 1.0 + n / 1000.0) for n in range(1000)]
    (grid,) = drawn(play, lambda desk: charts.ranks(desk, "7"), *told)["data"]
    (row,) = grid["z"]
    assert len(row) == len(grid["x"]) == charts.COLUMNS + 1
    assert None not in row
    assert row == sorted(row)
    assert row[-1] == told[-1].value
    (grid,) = drawn(play, lambda desk: charts.ranks(desk, "7"), told[0])["data"]
    assert [one for one in grid["z"][0] if one is not None] == [1.0]


def test_a_job_without_samples_has_empty_charts(play: Recorded) -> None:
    """No samples, no grid and no line; the page says so in words."""
    assert drawn(play, lambda desk: charts.ranks(desk, "7"))["data"] == []
    assert drawn(play, lambda desk: charts.losses(desk, "7"))["data"] == []
    assert drawn(play, lambda desk: charts.temperature(desk, "n1"))["data"] == []


def test_temperature_of_a_node(play: Recorded) -> None:
    """The samples of this node within six hours, thinned when there are many: first and last stay."""
    told = [Sample("gpu_temp", "node:n1", NOW - 4000.0 + n, 40.0 + n % 50) for n in range(4000)]
    other = [Sample("gpu_temp", "node:n2", NOW, 99.0), Sample("gpu_temp", "node:n1", NOW - 6 * 3600.0 - 1, 98.0)]
    (line,) = drawn(play, lambda desk: charts.temperature(desk, "n1"), *told, *other)["data"]
    assert len(line["x"]) <= charts.POINTS_MAX + 1
    assert (line["x"][0], line["y"][0]) == (round(told[0].at * 1000), told[0].value)
    assert (line["x"][-1], line["y"][-1]) == (round(told[-1].at * 1000), told[-1].value)
    assert set(zip(line["x"], line["y"], strict=True)) <= {(round(one.at * 1000), one.value) for one in told}
    assert charts.thinned([Point(1.0, 2.0)]) == [Point(1.0, 2.0)]


def test_stack_groups_of_a_hang_stand_on_the_job_page(tmp_path: Path) -> None:
    """Each group with its ranks and innermost frame, who stands apart, who gave none; the newest capture is shown."""
    old = e.StackGroup(ranks=(0, 1), frames=("old (a.py:1)",))
    most = e.StackGroup(ranks=tuple(range(20)), frames=("all_reduce (distributed.py:9)", "step (train.py:7)"))
    odd = e.StackGroup(ranks=(20,), frames=("read <b>(loader.py:3)",))

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(Role.VIEWER) as http:
            await until(lambda: "7" in house.cockpit.fleet.jobs)
            for number, groups in enumerate(((old,), (most, odd))):
                await house.controller.submit(
                    e.StacksCaptured(
                        id=f"s{number}",
                        at=NOW + number,
                        source="launcher:7",
                        job=KEY,
                        attempt=2,
                        groups=groups,
                        odd_ranks=(20,),
                        silent_ranks=(21, 22),
                    )
                )
            page = (await http.get("/jobs/7")).text
            summaries = re.findall(r"<summary>(\d+) ranks? \(([^)]*)\): <code>([^<]*)</code>", page)
            assert summaries == [
                ("20", ", ".join(map(str, range(16))) + " ...", "all_reduce (distributed.py:9)"),
                ("1", "20", "read &lt;b&gt;(loader.py:3)"),
            ]
            assert "step (train.py:7)" in page
            assert "apart from the largest: rank 20" in page
            assert "gave no stack: rank 21, 22" in page
            assert "old (a.py:1)" not in page

    run(work)
