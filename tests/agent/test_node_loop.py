"""The node loop against a controller that refuses, fails and comes back."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.fake_controller import FakeController
from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.agent.controller_link import ControllerLink
from holdfast.agent.node_facts import GpuTable, NodeIdentity
from holdfast.agent.node_loop import AgentSettings, NodeAgent
from holdfast.agent.process import AgentOptions, build_agent
from holdfast.detect.matcher import Matcher
from holdfast.errors import ConfigError, UsageError
from holdfast.model.cluster import JobKey
from holdfast.model.events import AgentAttached, FindingSeen, OrderFailed
from holdfast.model.orders import CaptureStacks
from parsers import ParserInside

XID_79 = "[    1.000000] NVRM: Xid (PCI:0000:53:00): 79, pid=1234, GPU has fallen off the bus.\n"


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return read_matcher(read_catalogue())


def make_agent(folder: Path, url: str, matcher: Matcher) -> NodeAgent:
    (folder / "kmsg").touch()
    return NodeAgent(
        AgentSettings(kernel_log=folder / "kmsg", state_dir=folder / "state", beat_s=0.05),
        identity=NodeIdentity(name="node07", boot_id="boot-1", instance_id="i-1"),
        gpus=GpuTable({}),
        parser=ParserInside(matcher),
        clock=SystemClock(),
        controller=ControllerLink(url),
    )


def run(tmp_path: Path, matcher: Matcher, scenario) -> None:
    async def body() -> None:
        controller = FakeController()
        agent = make_agent(tmp_path, await controller.start(), matcher)
        work = asyncio.create_task(agent.run())
        try:
            await scenario(controller, agent)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await controller.stop()

    asyncio.run(body())


async def emptied(agent: NodeAgent) -> None:
    """Everything is delivered."""
    assert await agent.reporter.flush(10.0)


def test_an_event_that_is_refused_does_not_hold_up_the_others(tmp_path: Path, matcher: Matcher) -> None:
    """The controller cannot read one of many events: that one is dropped, all others arrive."""

    async def scenario(controller: FakeController, agent: NodeAgent) -> None:
        controller.refuse = lambda raw: b"nvidia.xid.48" in raw
        codes = (13, 31, 48, 62, 79)
        (tmp_path / "kmsg").write_text("".join(XID_79.replace(": 79", f": {code}") for code in codes))
        await controller.until(lambda: len(controller.of(FindingSeen)) == len(codes) - 1)
        assert len(controller.of(AgentAttached)) == 1
        await emptied(agent)

    run(tmp_path, matcher, scenario)


def test_what_it_finds_stands_in_its_own_log(tmp_path: Path, matcher: Matcher) -> None:
    """Rule, place and sentence of a root cause."""

    async def scenario(controller: FakeController, agent: NodeAgent) -> None:
        await controller.until(lambda: controller.of(AgentAttached))
        with capture_logs() as said:
            (tmp_path / "kmsg").write_text(XID_79)
            await controller.until(lambda: controller.of(FindingSeen))
        (found,) = [one for one in said if one["event"] == "found"]
        assert (found["rule"], found["log_level"]) == ("nvidia.xid.79", "warning")
        assert (found["where"], found["what"]) == ("node07, GPU 0000:53:00", "Xid 79: GPU has fallen off the bus")
        await emptied(agent)

    run(tmp_path, matcher, scenario)


def test_a_failing_controller_is_tried_again_until_it_recovers(tmp_path: Path, matcher: Matcher) -> None:
    """HTTP 503 keeps events in the spool; when the controller is well again they arrive without being asked for."""

    async def scenario(controller: FakeController, agent: NodeAgent) -> None:
        await controller.until(lambda: controller.of(AgentAttached))
        await emptied(agent)
        controller.status = 503
        (tmp_path / "kmsg").write_text(XID_79)
        refused = controller.refused
        await controller.until(lambda: controller.refused > refused)
        assert (len(agent.reporter.spool), controller.of(FindingSeen)) == (1, [])
        controller.status = 200
        await controller.until(lambda: controller.of(FindingSeen), limit_s=3)

    run(tmp_path, matcher, scenario)


def test_an_order_that_is_not_for_agents_fails_with_its_reason(tmp_path: Path, matcher: Matcher) -> None:
    """The controller hears that this agent does not do that, once."""

    async def scenario(controller: FakeController, agent: NodeAgent) -> None:
        controller.requests = [CaptureStacks(id="o1", cause=1, job=JobKey("c", "1"), attempt=0)]
        (failed,) = await controller.until(lambda: controller.of(OrderFailed))
        assert failed.order == "o1"
        assert "does not carry out capture_stacks" in failed.why

    run(tmp_path, matcher, scenario)


def test_options_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """Neither or both ways to find the controller, and a beat of no time."""
    with pytest.raises(UsageError, match="say where the controller is"):
        build_agent(AgentOptions())
    with pytest.raises(UsageError, match="say where the controller is"):
        build_agent(AgentOptions(controller="http://x", controller_file=tmp_path))
    with pytest.raises(UsageError, match="--beat-s 0"):
        build_agent(AgentOptions(controller="http://x", beat_s=0))


def test_a_rule_that_hyperscan_refuses_ends_the_start(tmp_path: Path) -> None:
    """One sentence names file and rule. The parser would die of it again and again."""
    rules = tmp_path / "site.toml"
    rules.write_text(
        '[[rule]]\nid = "site.pump"\ndomain = "hardware"\nrole = "root"\npattern = "pump stopped"\n'
        'core = "pump (?=stopped)"\nmatches = ["pump stopped"]\n'
    )
    with pytest.raises(ConfigError) as caught:
        build_agent(AgentOptions(controller="http://x", state_dir=tmp_path, rules=(rules,)))
    assert str(caught.value) == (
        f'{rules}:1: rule "site.pump", core pump (?=stopped): Hyperscan refuses it: '
        "Zero-width assertions are not supported."
    )
