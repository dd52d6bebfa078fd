"""After every replacement: the site's commands, whoever replaced; and so many an hour."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.adapters.repair.hooks import HOUR_S, Pace, Replacing
from holdfast.adapters.repair.once import Once
from holdfast.adapters.repair.settings import RepairConfig
from holdfast.errors import PermanentOrderError, TemporaryOrderError
from holdfast.model.orders import AnyOrder, RebootNode, ReplaceNode

ORDER = ReplaceNode(id="o1", cause=1, node="node07", instance_id="m-1")


class Scheduler:
    """Replaces at once; a second time it says so, as the port asks."""

    def __init__(self) -> None:
        self.replaced: list[str] = []

    def can(self, order: AnyOrder) -> bool:
        return isinstance(order, ReplaceNode)

    async def execute(self, order: AnyOrder) -> str:
        if order.id in self.replaced:
            return "another machine already"
        self.replaced.append(order.id)
        return "m-2 took its place"


def make(tmp_path: Path, now: list[float] | None = None, **config: object) -> tuple[Replacing, Scheduler]:
    scheduler = Scheduler()
    clock = now or [0.0]
    settings = RepairConfig(**config)
    pace = Pace(settings.replace_per_hour, tmp_path / "pace.json", lambda: clock[0])
    return Replacing(settings, [scheduler], Once(tmp_path / "records", os.environ), pace), scheduler


def shell(text: str) -> tuple[str, ...]:
    return ("sh", "-c", text, "hook", "{node}")


def test_hooks_run_in_order_after_the_replacement(tmp_path: Path) -> None:
    """Each with the node's name and what took its place; the outcome says that they ran."""
    log = tmp_path / "log"
    hooks = (shell(f'echo "host key of $1" >> {log}'), shell(f'echo "home: $HOLDFAST_REPLACED_BY" >> {log}'))
    doer, _ = make(tmp_path, after_replace=hooks)
    assert asyncio.run(doer.execute(ORDER)) == "m-2 took its place; 2 site hooks run"
    assert log.read_text() == "host key of node07\nhome: m-2 took its place\n"


def test_a_hook_that_fails_keeps_the_node_out_and_is_not_hidden(tmp_path: Path) -> None:
    """The order fails with the hook's last words; hooks behind it do not run."""
    doer, scheduler = make(
        tmp_path, after_replace=(shell("echo no such export >&2; exit 3"), shell(f"touch {tmp_path}/x"))
    )
    with pytest.raises(PermanentOrderError, match=r"it was replaced .* but then sh: no such export"):
        asyncio.run(doer.execute(ORDER))
    assert scheduler.replaced == ["o1"]
    assert not (tmp_path / "x").exists()


def test_a_hook_that_hangs_is_ended_and_named(tmp_path: Path) -> None:
    """A mount that does not answer holds nobody for ever."""
    doer, _ = make(tmp_path, after_replace=(shell("sleep 300"),), hook_limit_s=0.3)
    with pytest.raises(PermanentOrderError, match="timed out"):
        asyncio.run(doer.execute(ORDER))


def test_each_hook_runs_once_per_order(tmp_path: Path) -> None:
    """A controller that asks again after a crash neither replaces nor runs a hook twice."""
    log = tmp_path / "log"
    doer, scheduler = make(tmp_path, after_replace=(shell(f"echo x >> {log}"),))
    for _ in range(2):
        asyncio.run(doer.execute(ORDER))
    assert log.read_text() == "x\n"
    assert scheduler.replaced == ["o1"]


def test_only_replacements_pass_through_here() -> None:
    """Reboots have no hooks, and without anybody who replaces there is nothing to do."""
    doer, _ = make(Path("/nonexistent"))
    assert doer.can(ORDER)
    assert not doer.can(RebootNode(id="o", cause=1, node="n"))
    alone = Replacing(RepairConfig(), [], Once(Path("/nonexistent"), {}), Pace(1, Path("/nonexistent/p"), lambda: 0.0))
    assert not alone.can(ORDER)


def test_so_many_replacements_an_hour_and_the_next_one_waits(tmp_path: Path) -> None:
    """A storm of faults does not order a fleet of machines; an order under way is not counted twice; time gives room."""
    now = [1000.0]
    doer, scheduler = make(tmp_path, now, replace_per_hour=2)
    orders = [ReplaceNode(id=f"o{n}", cause=1, node=f"n{n}") for n in range(3)]
    asyncio.run(doer.execute(orders[0]))
    now[0] += 60.0
    asyncio.run(doer.execute(orders[1]))
    asyncio.run(doer.execute(orders[1]))
    with pytest.raises(
        TemporaryOrderError, match=r"2 replacements .* the limit of replace_per_hour; .* in 3540 s"
    ) as caught:
        asyncio.run(doer.execute(orders[2]))
    assert 1.0 <= caught.value.retry_after_s <= 300.0
    again, second = make(tmp_path, now, replace_per_hour=2)  # the controller was started again: the count holds
    with pytest.raises(TemporaryOrderError):
        asyncio.run(again.execute(orders[2]))
    now[0] += HOUR_S - 59.0
    asyncio.run(again.execute(orders[2]))
    assert (scheduler.replaced, second.replaced) == (["o0", "o1"], ["o2"])


def test_zero_means_no_limit(tmp_path: Path) -> None:
    """As everywhere in the configuration."""
    doer, scheduler = make(tmp_path, replace_per_hour=0)
    for number in range(50):
        asyncio.run(doer.execute(ReplaceNode(id=f"o{number}", cause=1, node="n")))
    assert len(scheduler.replaced) == 50
