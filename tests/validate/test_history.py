"""What earlier runs measured: through a real journal and back; ageing and changes in made-up series."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from holdfast.adapters.journal import open_journal
from holdfast.validate.history import Point, ageing, change_point, read, samples_of, trends
from holdfast.validate.results import Item, NodeResult, Run

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

    async def kept() -> list:
        journal = open_journal(url)
        draw = random.Random(1)
        for day in range(14):
            driver, level = ("550.54", 790.0) if day < 8 else ("560.35", 700.0)
            await journal.add_samples(samples_of(run_of(day, level * draw.gauss(1, 0.004), driver)))
        found = await read(journal, node="node01")
        await journal.close()
        return trends(found)

    (trend,) = asyncio.run(kept())
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
