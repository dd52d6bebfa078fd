"""From a fault to people: the real engine's notices, with what the fleet knows of their matter, at real webhooks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from tests.adapters.test_notices import Web
from tests.api.engine_house import bad_gpu, engine_served, run, until

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.notice_settings import Destination, NotifyConfig
from holdfast.adapters.notify.routing import STEPS
from holdfast.model.evidence import Domain
from holdfast.model.orders import Notify
from holdfast.wiring.notices import FleetFacts, make_outbox

pytestmark = pytest.mark.timeout(600)
NAMES = ("all", "mei", "ken", "network", "cpu")


@pytest.fixture
def webs() -> Iterator[dict[str, Web]]:
    """A webhook for each destination."""
    with contextlib.ExitStack() as ends:
        made = {}
        for name in NAMES:
            web = made[name] = Web()
            thread = threading.Thread(target=web.server.serve_forever)
            thread.start()
            ends.callback(thread.join, 200)
            ends.callback(web.server.server_close)
            ends.callback(web.server.shutdown)
        yield made


def test_whoever_it_concerns_is_told_what_why_and_where_to_look(tmp_path: Path, webs: dict[str, Web]) -> None:
    """A node with mei's job breaks, then one without a job: cause, step, links and the matter's topic in each message;
    mei hears of hers alone, ken, the network's people and another partition's of nothing."""
    asked = {"mei": {"owners": ("mei",)}, "ken": {"owners": ("ken",)}, "network": {"domains": ("network",)}}
    asked["cpu"] = {"partitions": ("cpu",)}
    config = NotifyConfig(
        link="https://hold.example", dashboard="https://graf.example/d/1", group_s=0.0, allow=("127.0.0.1",),
        to=tuple(Destination(name=name, url=webs[name].url, **asked.get(name, {})) for name in NAMES),
    )  # fmt: skip

    async def work() -> None:
        facts = FleetFacts()
        assert facts(Notify(id="o", cause=1, topic="t")).owner == "", "before there is a fleet nothing is known"
        box = make_outbox(config, tmp_path, facts, SystemClock())
        async with engine_served(tmp_path, notifiers=[box]) as house:
            facts.fleet = house.server.app.state.fleet
            async with box:
                for number, node in enumerate(("n1", "n5")):
                    seen = bad_gpu(node, number)
                    found = structs.replace(seen.finding, domain=Domain.HARDWARE)
                    await house.controller.submit(structs.replace(seen, finding=found))
                    await house.settled()
                records = {tuple(one.nodes): one for one in await house.controller.journal.incidents()}
                with_job, without = records["n1",].id, records["n5",].id

                def of(name: str, topic: str) -> list[dict]:
                    return [one for one in webs[name].got if one["topic"] == topic]

                for name in ("all", "mei"):
                    await until(lambda name=name: any("is released" in one["title"] for one in of(name, with_job)))
                await until(lambda: of("all", without))
                words = ["is requeued", "off the bus", "is released"]
                for name in ("all", "mei"):
                    titles = [one["title"] for one in of(name, with_job)]
                    said = [title for title in titles if title.startswith("7(0)")]
                    assert [word for title in said for word in words if word in title] == words, titles
                cause = next(one for one in of("mei", with_job) if "off the bus" in one["title"])
                assert "Cause: GPU has fallen off the bus, on n1, GPU 3." in cause["message"]
                for one in (cause, of("all", without)[0]):
                    assert STEPS["hardware"] in one["message"]
                    assert f"Incident: https://hold.example/incidents/{one['topic']}" in one["message"]
                    assert "Dashboard: https://graf.example/d/1" in one["message"]
        about = {name: {one["topic"] for one in webs[name].got} for name in NAMES}
        assert without not in about["mei"]
        assert not {with_job, without} & (about["ken"] | about["network"] | about["cpu"])

    run(work)
