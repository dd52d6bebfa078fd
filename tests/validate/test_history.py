"""What earlier runs measured: through a real journal and back; ageing and changes in made-up series."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from holdfast.adapters.journal import open_journal
from holdfast.adapters.journal.schema import NAME_MAX
from holdfast.validate.history import Point, ageing, change_point, read, samples_of, trends
from holdfast.validate.latest import PIECES_MAX, SUBJECT_MAX, TOLD, latest, read_latest, suite_of, told_of
from holdfast.validate.results import Item, NodeResult, Run, Verdict

DAY = 86400.0


def run_of(day: int, value: float, driver: str) -> Run:
    items = (
        Item(name="gpu.matmul.bfloat16", value=value, unit="TFLOP/s", better="higher"),
        Item(name="software.driver.nvidia", text=driver, same=True),
    )
    return Run(id=f"v{day}", at=1_700_000_000 + day * DAY, nodes=(NodeResult(node="node01", items=items),))


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_change_after_a_driver_update_is_found_with_the_driver(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Kept in the journal, in a file or in PostgreSQL, read back, told with what changed at the same run."""
    url = f"sqlite:///{tmp_path}/j.db" if store == "sqlite" else request.getfixturevalue("postgres").schema_url()

    async def kept() -> tuple:
        journal = open_journal(url)
        draw = random.Random(1)
        for day in range(14):
            driver, level = ("550.54", 790.0) if day < 8 else ("560.35", 700.0)
            await journal.add_samples(samples_of(run_of(day, level * draw.gauss(1, 0.004), driver)))
        found = await read(journal, node="node01")
        words = await read_latest(journal, "node01")
        await journal.close()
        return trends(found), words

    (trend,), words = asyncio.run(kept())
    assert [(one.suite, one.at, [item.name for item in one.items]) for one in words] == [
        ("gpu", trend.points[-1].at, ["gpu.matmul.bfloat16"]),
        ("software", trend.points[-1].at, ["software.driver.nvidia"]),
    ]
    assert words[1].items[0].measured == "560.35"
    assert (trend.node, trend.item, len(trend.points)) == ("node01", "gpu.matmul.bfloat16", 14)
    assert trend.changed_at == 1_700_000_000 + 8 * DAY
    assert trend.with_it == ("nvidia 550.54 -> 560.35",)
    assert trend.told.startswith("gpu.matmul.bfloat16 changed from 789 to 700 (-11%)")
    assert trend.told.endswith("%) with nvidia 550.54 -> 560.35")


def test_steady_figures_have_nothing_to_tell() -> None:
    """1,000 drawn series with 3 % noise: no change and no ageing is seen in more than 1 of 100."""
    draw = random.Random(2)
    wrong = 0
    for _ in range(1000):
        values = [100 * draw.gauss(1, 0.03) for _ in range(draw.randrange(6, 30))]
        points = [Point(day * DAY, value) for day, value in enumerate(values)]
        wrong += bool(change_point(values)) or bool(ageing(points))
    assert wrong <= 10


def test_a_slow_decline_is_told_as_a_rate() -> None:
    """One percent a day is about minus 26 percent in 30 days of its median level."""
    points = [Point(day * DAY, 100.0 - day) for day in range(30)]
    assert -0.40 < ageing(points) < -0.30
    assert ageing(points[:5]) == 0.0


def test_one_bad_run_is_no_change() -> None:
    """Three runs at least stand on either side."""
    assert change_point([100.0] * 6 + [50.0] + [100.0] * 6) == 0
    assert change_point([100.0] * 6 + [50.0] * 2) == 0
    assert change_point([100.0] * 6 + [50.0] * 3) == 6
    assert change_point([100.0, 50.0]) == 0


def test_words_of_any_length_fit_into_subjects_and_come_back() -> None:
    """Long reasons are cut, long suites go over several subjects; what is torn gives way to the run before."""
    node = "n" * 60
    bad = Item(name="network.pairs", verdict=Verdict.FAIL, why="w\u00e9 = / " * 90, advice="look " * 20)
    many = tuple(Item(name=f"network.{n:03d}", text="x" * 50) for n in range(60))
    first = told_of(Run(id="a", at=1.0, nodes=(NodeResult(node=node, items=(bad, *many)),)))
    assert max(len(one.subject) for one in first) <= SUBJECT_MAX == NAME_MAX
    assert {(one.series, one.at, one.value) for one in first} == {(TOLD, 1.0, 3.0)}
    (word,) = latest(first[::-1])
    assert (word.suite, word.verdict, word.at, len(word.items)) == ("network", Verdict.FAIL, 1.0, 61)
    assert word.items[0].why == f"{bad.why[:297]}..."
    assert word.items[0].advice == bad.advice
    second = told_of(Run(id="b", at=2.0, nodes=(NodeResult(node=node, items=many),)))
    assert latest([*first, *second[:-1]])[0].at == 1.0
    assert latest([*first, *second])[0].at == 2.0
    huge = tuple(Item(name=f"cpu.{n}", text="y" * 200) for n in range(500))
    kept = told_of(Run(id="c", at=3.0, nodes=(NodeResult(node=node, items=huge),)))
    assert 1 < len(kept) <= PIECES_MAX
    assert latest(kept)[0].suite == "cpu"
    assert told_of(Run(id="d", at=4.0, nodes=(NodeResult(node="n" * 290, items=many),))) == []


def test_a_step_that_did_not_end_belongs_to_its_suite() -> None:
    """So that the next good run of the suite takes its place."""
    assert suite_of("cpu-stress.ended") == "cpu"
    assert suite_of("interfaces.ended") == "network"
    assert suite_of("shared-make.ended") == "shared"
    assert suite_of("nccl.group") == "nccl"
