"""Mode observe through the real controller: a fault is diagnosed, told by the real outbox and counted; nothing is done."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.controller.cases import House, running, until

from holdfast.adapters.clock import run_virtual
from holdfast.adapters.memory import MemoryJournal
from holdfast.adapters.notice_settings import Destination, NotifyConfig
from holdfast.adapters.notify.outbox import Outbox
from holdfast.adapters.notify.routing import Facts, Message
from holdfast.controller import Controller
from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Role, Severity
from holdfast.model.orders import OrderStatus
from holdfast.model.policy_toml import parse_policy
from holdfast.report.gather import gather

OWN = (o.StartTimer, o.CancelTimer, o.Notify)


class ToFile:
    """A destination that is a file: one title a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def refused(self, _destination: Destination) -> str:
        return ""

    async def deliver(self, _destination: Destination, message: Message, _thread: str) -> str:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{message.title}\n{message.text}\n")
        return ""


def xid_79(node: str) -> e.FindingSeen:
    found = Finding(
        id="x1",
        rule="nvidia.xid.79",
        at=1.0,
        domain=Domain.HARDWARE,
        role=Role.ROOT,
        severity=Severity.FATAL,
        remedy=Remedy.REPLACE,
        place=Place(node=node, gpu=3),
        summary="Xid 79: GPU has fallen off the bus",
        evidence=(Evidence(EvidenceKind.LOG, "NVRM: Xid 79"),),
    )
    return e.FindingSeen(id="x1", at=1.0, source=f"agent:{node}", finding=found)


@pytest.mark.parametrize("runs", [True, False])
def test_a_fault_under_observe_is_told_and_counted_and_the_world_stays_as_it_is(tmp_path: Path, runs: bool):
    """Xid 79 on the node of a running job, and on an idle node: after 80 s one open incident, its cause, its notices."""
    told = tmp_path / "told"
    policies = parse_policy('mode = "observe"\n', "", {})

    async def work() -> None:
        house = House()
        if not runs:
            house.world.jobs.clear()
        config = NotifyConfig(group_s=0.0, to=(Destination(name="file", url="x"),))
        box = Outbox(config, tmp_path / "o", ToFile(told), lambda _n: Facts(), house.clock)

        def engine(state: bytes | None) -> Engine:
            return Engine(policies) if state is None else Engine.restore(state, policies)

        async with box:
            controller = Controller(
                MemoryJournal(house.store), engine, house.world, [], [box], house.clock, holder="one", lease_s=15.0
            )
            async with running(controller):
                await asyncio.sleep(1)
                before = (dict(house.world.jobs), dict(house.world.nodes))
                await controller.submit(xid_79("n2"))
                await until(lambda: told.exists() and "would have been quarantined" in told.read_text())
                await asyncio.sleep(80)
                assert (dict(house.world.jobs), dict(house.world.nodes)) == before
                await judged(controller)
        said = told.read_text()
        assert "Xid 79" in said
        assert ("7 would have been requeued" in said or "7(0) would have been requeued" in said) is runs

    async def judged(controller: Controller) -> None:
        (incident,) = await controller.journal.incidents(open_only=True)
        assert incident.diagnosis is not None
        assert incident.diagnosis.cause == "nvidia.xid.79"
        orders = [record for record in await controller.journal.orders() if not isinstance(record.order, OWN)]
        assert {type(record.order) for record in orders} == ({o.QuarantineNode} | ({o.RequeueHeld} if runs else set()))
        assert {record.status for record in orders} == {OrderStatus.OBSERVED}
        data = await gather(controller.journal, title="t", cluster="c", now=controller.clock.now())
        assert (data.totals.incidents, data.totals.open, data.totals.recovered) == (1, 1, 0)
        assert data.totals.by_cause == {"nvidia.xid.79": 1}

    run_virtual(work())
