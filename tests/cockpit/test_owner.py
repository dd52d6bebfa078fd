"""The owner of jobs: steers their own from its page, and sees no form that would be refused."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from tests.cockpit.served import KEY, OWNER, Served, csrf_of, nodes_of, run, served, the_job
from tests.cockpit.test_pages import PAGES
from tests.controller.cases import until

from holdfast.api import Role
from holdfast.model.cluster import JobKey, JobView, SchedulerState

pytestmark = pytest.mark.timeout(600)
OTHERS = JobKey(KEY.cluster, "8")
ADVISE = 'mode = "advise"\n'
FORM = re.compile(r'<form method="post" action="/(operate|settings|drills)')


def jobs() -> list[JobView]:
    """One of the owner's, one of somebody else's."""
    other = JobView(key=OTHERS, name="bert", user="ken", state=SchedulerState.RUNNING, nodes=("n3",), want_nodes=1)
    return [the_job(), other]


async def told(http: httpx.AsyncClient, path: str) -> str:
    """What the last deed came to."""
    found = re.search(r'"banner (?:good|bad)" role="status">([^<]*)</p>', (await http.get(path)).text)
    assert found
    return found.group(1)


def test_an_owner_sees_forms_for_their_own_jobs_alone(tmp_path: Path) -> None:
    """No other page of the cockpit offers an owner what their token may not do."""

    async def work() -> None:
        async with served(tmp_path, jobs=jobs()) as house, house.browser(Role.OWNER) as http:
            await until(lambda: {"7", "8"} <= set(house.cockpit.fleet.jobs))
            page = (await http.get("/jobs/7")).text
            assert FORM.search(page)
            assert all(f'value="{one}"' in page for one in ("hold", "evacuate", "requeue", "give_up"))
            for path in (*PAGES, "/jobs/8", "/nodes/n1"):
                text = (await http.get(path)).text
                assert not FORM.search(text), path
                assert 'action="/logout"' in text

    run(work)


def test_an_owner_holds_and_releases_their_own_job_by_name(tmp_path: Path) -> None:
    """Journalled as the owner's word, whoever they say they are; another's job, a node, a mode, a brake, a policy and a
    drill are refused, and nothing of it is journalled."""

    async def work() -> None:
        async with served(tmp_path, jobs=jobs()) as house, house.browser(Role.OWNER) as http:
            await until(lambda: {"7", "8"} <= set(house.cockpit.fleet.jobs))
            form = {"csrf": await csrf_of(http, "/jobs/7"), "why": "a look", "next": "/jobs/7"}
            for command, said in (("hold", "Job 7 is held"), ("release", "Job 7 is released")):
                await http.post("/operate", data=form | {"job": "7", "command": command, "who": "root"})
                assert (await told(http, "/jobs/7")).startswith(said)
            for wrong in (
                {"job": "8", "command": "give_up"},
                {"node": "n3", "command": "drain"},
                {"command": "set_mode", "value": "observe"},
                {"group": "gpu", "command": "reset_brake"},
            ):
                await http.post("/operate", data=form | wrong)
                assert (await told(http, "/jobs/7")).startswith("Not done: "), wrong
            policy = form | {"deed": "apply", "toml": ADVISE, "based_on": "0"}
            assert "Not done: " in (await http.post("/settings", data=policy)).text
            await http.post("/drills", data=form | {"deed": "run", "drill": "kill9"})
            assert (await told(http, "/drills")).startswith("Not done: ")
            await http.post("/drills", data=form | {"deed": "stop"})
            assert (await told(http, "/drills")).startswith("Not done: ")
            words = await house.controller.journal.events(kind="operator_command")
            assert [(one.command, one.who, str(one.job)) for one in words] == [
                ("hold", OWNER, "7"), ("release", OWNER, "7")
            ]  # fmt: skip
            assert not await house.controller.journal.events(kind="drill_run")
            assert house.cockpit.board.mode == "act"

    run(work)


def test_an_owner_decides_about_orders_for_their_own_job(tmp_path: Path) -> None:
    """An advised order about the owner's job has its form and is approved; one about a node has none, and is refused."""

    async def work() -> None:
        async with (
            served(tmp_path, jobs=jobs(), nodes=nodes_of(6), policy=ADVISE) as house,
            house.browser(Role.OWNER) as http,
        ):
            await house.fault("n1")
            own = await proposed(house, "job")
            await house.fault("n5", number=1)
            node = await proposed(house, "node")
            assert FORM.search((await http.get(f"/orders/{own}")).text)
            assert not FORM.search((await http.get(f"/orders/{node}")).text)
            form = {"csrf": await csrf_of(http, "/orders"), "command": "approve", "next": "/orders"}
            await http.post("/operate", data=form | {"order": node})
            assert (await told(http, "/orders")).startswith("Not done: ")
            await http.post("/operate", data=form | {"order": own})
            assert "is approved" in await told(http, "/orders")
            words = await house.controller.journal.events(kind="operator_command")
            assert [(one.order, one.who) for one in words] == [(own, OWNER)]

    run(work)


async def proposed(house: Served, about: str) -> str:
    """The id of an order that waits for a word and is about a job or a node."""

    def found() -> list[str]:
        return [
            one.order.id for one in house.cockpit.fleet.waiting.values()
            if one.status == "proposed" and getattr(one.order, about, None)
        ]  # fmt: skip

    await until(found)
    return found()[0]
