"""A person's word through the API: who may say it, entity tags, refusals, a fresh look before an approval."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest
from tests.api.engine_house import EngineHouse, engine_served, job_view, run, until
from tests.api.test_api import TOKENS, client
from tests.controller.cases import KEY

from holdfast.api import Role, operate
from holdfast.client import AsyncClient, Commanded
from holdfast.errors import LinkError, RefusedError, StaleError, WireError
from holdfast.model import events as e
from holdfast.model.answers import CommandRequest
from holdfast.model.cluster import JobKey
from holdfast.model.orders import OrderStatus, QuarantineNode, RequeueHeld

pytestmark = pytest.mark.timeout(600)


def test_an_owner_commands_their_own_jobs_and_nothing_else(tmp_path: Path):
    """An owner holds their own job, under their own name; another's job, a node and a mode are refused alike."""

    async def work() -> None:
        async with engine_served(tmp_path, owner="mei") as house:
            house.world.set_job(job_view(JobKey("test", "8"), (), user="ken"))
            await until(lambda: "8" in house.server.app.state.fleet.jobs)
            async with client(house.server, Role.OWNER) as mei:
                done = await mei.command("hold", job=KEY, why="a look first", who="root")
                assert done.refused == ""
                said = (await house.controller.journal.events(kind="operator_command"))[-1]
                assert (said.who, said.source) == ("mei", "operator:mei")
                for wrong in (
                    {"command": "give_up", "job": JobKey("test", "8")},
                    {"command": "give_up", "job": JobKey("test", "99")},
                    {"command": "drain", "node": "n1"},
                    {"command": "set_mode", "value": "observe"},
                    {"command": "approve", "order": "o1"},
                ):
                    with pytest.raises(RefusedError):
                        await mei.command(**wrong)
                assert len(await house.controller.journal.events(kind="operator_command")) == 1
                assert [job.view.user for job in await mei.jobs()] == ["mei", "ken"]

    run(work)


async def returned(operator: AsyncClient, node: str) -> Commanded:
    """`return` as a person gives it while the engine still works on the node: look again until what was seen holds."""
    async with asyncio.timeout(300):
        while True:
            now = await operator.tag(node=node)
            with contextlib.suppress(StaleError):
                return await operator.command("return", node=node, if_match=f'"x", {now}')


def test_a_command_about_what_has_changed_since_is_not_done(tmp_path: Path):
    """With the tag of a node as it was before its fault, `return` gets 412 and nothing is journalled; with the new tag
    it is done."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, client(house.server) as operator:
            before = await operator.tag(node="n2")
            await house.fault("n2")
            with pytest.raises(StaleError, match="changed since"):
                await operator.command("return", node="n2", if_match=before)
            assert await house.controller.journal.events(kind="operator_command") == []
            assert (await returned(operator, "n2")).refused == ""
            assert (await operator.command("drain", node="n3", if_match="*")).refused == ""

    run(work)


def test_what_the_engine_refuses_comes_back_as_its_sentence(tmp_path: Path):
    """A release of a job that nobody holds is journalled, refused, and the answer says why."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, client(house.server) as operator:
            answer = await operator.command("release", job=KEY)
            assert "nobody holds it" in answer.refused
            stored = await house.controller.journal.events(kind="operator_command")
            assert [one.seq for one in stored] == [answer.seq]

    run(work)


async def proposed(house: EngineHouse) -> str:
    """A quarantine that waits for a person."""
    async with client(house.server) as operator:
        await operator.command("set_mode", value="advise", group="gpu", why="careful week")
        await house.fault("n4")
    fleet = house.server.app.state.fleet
    await until(lambda: fleet.proposed)
    found = [one for one in fleet.proposed.values() if isinstance(one.order, QuarantineNode)]
    assert found
    return found[0].order.id


def test_an_approval_is_judged_by_a_fresh_look_at_the_world(tmp_path: Path):
    """The node's machine was swapped a moment ago and no look has seen it yet: the approval finds out, and is refused."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, client(house.server) as operator:
            order = await proposed(house)
            quiet = asyncio.Event()
            house.world.wait_change = lambda _limit: quiet.wait()
            await asyncio.sleep(0.3)
            node = house.world.nodes["n4"]
            house.world.nodes["n4"] = msgspec.structs.replace(node, instance_id="another", boot_id="another")
            answer = await operator.command("approve", order=order, why="go")
            assert "another machine" in answer.refused or "by now" in answer.refused or "not waiting" in answer.refused
            assert not house.world.nodes["n4"].drained
            quiet.set()

    run(work)


def test_an_approved_order_is_carried_out(tmp_path: Path):
    """Approving the proposed quarantine drains the node; a second approval says that it no longer waits."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, client(house.server) as operator:
            order = await proposed(house)
            assert (
                await operator.command("approve", order=order, if_match=await operator.tag(order=order))
            ).refused == ""
            await house.settled()
            assert house.world.nodes["n4"].drained
            record = (await house.controller.journal.orders(order=order))[0]
            assert record.status is OrderStatus.DONE
            assert "not waiting" in (await operator.command("approve", order=order)).refused

    run(work)


def test_two_people_approve_by_their_tokens(tmp_path: Path):
    """The operator's token under two names is one person; the job's owner is the second. The audit names the tokens."""

    async def work() -> None:
        async with engine_served(tmp_path, owner="mei") as house, client(house.server) as operator:
            two = "[trust]\napprovals = 2\n[mode]\ndefault = 'advise'\n"
            await house.controller.submit(e.PolicyLoaded(id="p", at=1.0, source="controller", toml=two))
            await house.fault("n1")
            await until(lambda: [*house.server.app.state.fleet.proposed.values()])
            proposals = house.server.app.state.fleet.proposed.values()
            order = next(one.order.id for one in proposals if isinstance(one.order, RequeueHeld))
            first = await operator.command("approve", order=order, who="mei")
            assert (first.refused, first.waits) == ("", "1 of 2 approvals")
            assert "it takes 2 people" in (await operator.command("approve", order=order, who="ken")).refused
            assert (await operator.command("withdraw", order=order)).waits == "0 of 2 approvals"
            body = msgspec.json.encode({"command": "approve", "order": order, "id": "twice"})
            for _ in range(2):
                assert (await operator._call("POST", "/v1/commands", dict, content=body))["waits"] == "1 of 2 approvals"
            await operator.command("withdraw", order=order)
            async with client(house.server, Role.OWNER) as mei:
                assert "has not approved it" in (await mei.command("withdraw", order=order)).refused
                assert (await mei.command("approve", order=order)).waits == "1 of 2 approvals"
            last = await operator.command("approve", order=order)
            assert (last.refused, last.waits) == ("", "")
            (record,) = await house.controller.journal.orders(order=order)
            assert [known.by.partition(" ")[0] for known in record.approvals] == ["mei", "the-operator"]
            deed = (await operator.audit(limit=1))[0]
            assert (deed.what, deed.by.partition(" ")[0]) == ("approve", "the-operator")
            assert len(deed.by.partition(" ")[2]) == 12

    run(work)


def test_an_approval_counts_while_its_token_is_accepted(tmp_path: Path):
    """Mei's token is revoked after her approval: the operator's is the first of two then, not the last."""

    async def work() -> None:
        async with engine_served(tmp_path, owner="mei") as house, client(house.server) as operator:
            two = "[trust]\napprovals = 2\n[mode]\ndefault = 'advise'\n"
            await house.controller.submit(e.PolicyLoaded(id="p", at=1.0, source="controller", toml=two))
            await house.fault("n1")
            fleet, book = house.server.app.state.fleet, house.server.app.state.tokens
            await until(lambda: any(isinstance(one.order, RequeueHeld) for one in fleet.proposed.values()))
            order = next(one.order.id for one in fleet.proposed.values() if isinstance(one.order, RequeueHeld))
            async with client(house.server, Role.OWNER) as mei:
                assert (await mei.command("approve", order=order)).waits == "1 of 2 approvals"
            book._take([line for line in book.lines if line.identity.name != "mei"])
            assert (await operator.command("approve", order=order)).waits == "1 of 2 approvals"
            (record,) = await house.controller.journal.orders(order=order)
            assert (record.status, [known.who for known in record.approvals]) == (
                OrderStatus.PROPOSED,
                ["the-operator"],
            )
            book._take([line for line in book.lines if line.identity.name != "the-operator"])
            await until(lambda: not fleet.proposed[order].approvals)  # nobody gives a command for it
            (record,) = await house.controller.journal.orders(order=order)
            assert record.approvals == []
            told = (await house.controller.journal.events(kind="operator_command"))[-1]
            assert (told.command, told.who, told.why) == (
                "withdraw",
                "token book",
                "tokens were revoked, or have ended",
            )

    run(work)


def test_nothing_is_approved_while_the_world_cannot_be_seen(tmp_path: Path):
    """Without a fresh look an approval is not taken at all, and the order goes on waiting."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, client(house.server) as operator:
            order = await proposed(house)

            async def blind() -> None:
                raise LinkError("slurmctld does not answer")

            house.world.observe = blind
            with pytest.raises(LinkError, match="does not answer"):
                await operator.command("approve", order=order)
            assert order in house.server.app.state.fleet.proposed
            assert (await operator.command("reject", order=order, why="no")).refused == ""

    run(work)


@pytest.mark.parametrize("field", ["who", "why", "node", "value"])
def test_texts_are_bounded_and_hold_no_control_characters(tmp_path: Path, field: str):
    """A command cannot bring a terminal's escape sequence, a NUL or a novel into the journal."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, client(house.server) as operator:
            for bad in ("a\x1b[31mb", "a\x00b", "x" * 3000):
                with pytest.raises(WireError, match=field):
                    await operator.command(**{"command": "drain", "node": "n1", "why": "x", field: bad})
            assert await house.controller.journal.events(kind="operator_command") == []

    run(work)


@pytest.mark.parametrize("bad", ["a\nb", "a\tb", "a\x7fb", "a\x9bb"])
def test_an_id_is_one_printable_line(bad: str):
    """The id of a command stands in logs, topics and the audit."""
    with pytest.raises(WireError, match="id holds control characters"):
        operate.check_form(CommandRequest(command=e.Command.DRAIN, node="n1", id=bad))


def test_a_command_sent_twice_is_done_once(tmp_path: Path):
    """A client that gives an id may send again after a broken line: one event, the same answer."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, TOKENS[Role.OPERATOR]) as operator:
            body = msgspec.json.encode({"command": "drain", "node": "n5", "id": "once"})
            first = await operator._call("POST", "/v1/commands", dict, content=body)
            second = await operator._call("POST", "/v1/commands", dict, content=body)
            assert first["id"] == second["id"] == "command:once"
            stored = await house.controller.journal.events(kind="operator_command")
            assert [one.command for one in stored] == [e.Command.DRAIN]
            assert second == first

    run(work)


def test_a_refused_command_sent_twice_is_refused_twice(tmp_path: Path):
    """The client whose first answer was lost must not take the second one for a yes, also when much was said since."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, TOKENS[Role.OPERATOR]) as operator:
            body = msgspec.json.encode({"command": "drain", "node": "n99", "id": "once"})
            first = await operator._call("POST", "/v1/commands", dict, content=body)
            assert "no node n99" in first["refused"]
            for number in range(3):
                await house.controller.submit(
                    e.OperatorCommand(id=f"c{number}", at=1.0, command=e.Command.DRAIN, who="mei", node="n98")
                )
            assert await operator._call("POST", "/v1/commands", dict, content=body) == first

    run(work)


@pytest.mark.parametrize("change", [{"command": "return"}, {"node": "n4"}, {"why": "y"}, {"who": "ben"}])
def test_an_id_that_another_command_has_is_refused(tmp_path: Path, change: dict[str, str]):
    """Nothing is done, and the answer does not say that it was: a name like `1` comes to two people's minds."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, TOKENS[Role.OPERATOR]) as operator:
            asked = {"command": "drain", "node": "n5", "why": "x", "id": "once"}
            await operator._call("POST", "/v1/commands", dict, content=msgspec.json.encode(asked))
            with pytest.raises(WireError, match="another command"):
                await operator._call("POST", "/v1/commands", dict, content=msgspec.json.encode({**asked, **change}))
            assert len(await house.controller.journal.events(kind="operator_command")) == 1

    run(work)
