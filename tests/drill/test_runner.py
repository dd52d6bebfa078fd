"""One drill from the steady state to the verdict, on virtual time with a controller in memory."""

import asyncio
import json

import pytest

from holdfast.adapters.clock import run_virtual
from holdfast.drill.runner import Patience, run_drill
from holdfast.drill.scenario import find, read_scenario
from holdfast.errors import LinkError, UsageError
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Remedy
from holdfast.model.orders import OrderStatus, RestartInPlace
from holdfast.model.records import IncidentRecord, JobState, NodeState, OrderRecord

JOB = JobKey("c", "7")
KILL = 'name = "k"\nkind = "kill9"\n[expect]\ncauses = ["exit.signal.9"]\nsuspect = "rank"\nrecover_s_max = 5.0\nlost_steps_max = 20\n'


def drill(text_or_scenario, site, world, **options):
    what = read_scenario(text_or_scenario) if isinstance(text_or_scenario, str) else text_or_scenario

    async def work():
        obeying = asyncio.create_task(world.obey())
        try:
            return await run_drill(what, site, drill_id="k-1", seed=3, **options)
        finally:
            obeying.cancel()

    return run_virtual(work())


def checks(result):
    return {check.name: check.passed for check in result.checks}


def test_a_recovered_fault_passes_and_is_told_with_its_true_time(site, world):
    """DrillFired carries the fired mark's time, the rank and its node; the incident's figures are in the result."""
    notes = []
    result = drill(KILL, site, world, on_note=notes.append)
    assert result.passed, result.failures
    assert set(checks(result)) == {"cause", "suspect", "recovered in time", "lost steps"}
    (event,) = world.told
    assert (event.drill, event.kind, event.job) == ("k-1", "kill9", site.job)
    assert event.at == result.fired.at
    assert event.rank == result.fired.rank
    assert result.recover_s == pytest.approx(1.0)
    assert result.incident.lost_steps == 17
    assert (world.folder / "drill" / "k-1.abort").exists()
    assert len(notes) == 2


def test_whoever_reads_along_is_told_each_line_of_the_record_once(site, world):
    """Lines of a second drill on the same job begin where those of the first ended."""
    told = []
    site.on_story = told.append
    world.record.story = ["12:00:00Z It runs.", "12:00:01Z It trains."]
    drill(KILL, site, world)
    world.record.story.append("12:00:09Z It recovered.")
    drill(KILL, site, world)
    assert told == ["  12:00:00Z It runs.", "  12:00:01Z It trains.", "  12:00:09Z It recovered."]


def test_a_wrong_cause_fails_and_says_what_was_seen(site, world):
    """Expected and actual stand in the check."""
    world.cause = "hang.step"
    result = drill(KILL, site, world)
    assert not result.passed
    (failure,) = result.failures
    assert (failure.expected, failure.actual) == ("exit.signal.9", "hang.step")


def test_a_fault_that_is_never_seen_fails_at_its_limit(site, world):
    """No incident within the scenario's limits and the margin; the fault is undone."""
    world.answers = False
    result = drill(KILL, site, world, patience=Patience(margin_s=4.0))
    assert not result.passed
    assert checks(result)["cause"] is False
    assert 14.0 <= result.seconds <= 20.0
    assert (world.folder / "drill" / "k-1.abort").exists()


def test_it_waits_for_the_steady_state(site, world):
    """Not before the attempt has saved, nothing is open, and every node is healthy."""
    world.record.state = JobState.PROVING
    world.record.attempts[-1].durable_step = None
    world.node_records[2].state = NodeState.VALIDATING
    site.job, asked = JobKey("c", "8"), site.job

    async def work():
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, setattr, site, "job", asked)
        loop.call_later(5.0, setattr, world.record, "state", JobState.WATCHING)
        loop.call_later(10.0, setattr, world.record.attempts[-1], "durable_step", 50)
        loop.call_later(15.0, setattr, world.node_records[2], "state", NodeState.HEALTHY)
        obeying = asyncio.create_task(world.obey())
        result = await run_drill(read_scenario(KILL), site, drill_id="k-1")
        obeying.cancel()
        assert loop.time() > 15.0
        assert result.passed

    run_virtual(work())


def test_an_incident_that_people_were_only_told_of_is_in_nobodys_way(site, world):
    """Any other open incident of the job is waited for."""
    told = IncidentRecord(id="i0", opened_at=1.0, jobs=[JOB], outcome="observed")
    world.found.append(told)
    world.record.incident = "i0"
    assert drill(KILL, site, world).passed
    told.outcome = ""
    result = drill(KILL.replace('"k"', '"k2"'), site, world, patience=Patience(steady_s=5.0))
    assert "incident i0 is open" in result.checks[0].actual


def test_a_job_that_never_becomes_steady_fails_with_the_reason(site, world):
    """The last reason is told."""
    world.record.attempts[-1].durable_step = None
    result = drill(KILL, site, world, patience=Patience(steady_s=5.0))
    assert "has not saved a checkpoint yet" in result.checks[0].actual
    assert not (world.folder / "drill").exists()


def test_a_job_that_is_over_cannot_be_drilled(site, world):
    """A person must name another job."""
    world.record.state = JobState.COMPLETED
    with pytest.raises(UsageError, match="nothing to drill"):
        drill(KILL, site, world)


def test_a_fault_that_cannot_be_injected_fails_and_tells_nobody(site, world):
    """No DrillFired for a fault that did not happen."""
    (world.folder / "drill").mkdir()
    for rank in range(4):
        (world.folder / "drill" / f"k-1.rank-{rank:05d}.failed").write_text(json.dumps({"error": "it had ended"}))
    result = drill(KILL, site, world)
    assert result.checks[0].actual == "it had ended"
    assert world.told == []


def test_nothing_may_be_done_about_a_good_job(site, world):
    """It looks on for `watch_s`; an order fails the drill."""
    world.answers = False
    quiet = 'name = "g"\nkind = "good"\n[expect]\nmust_not_act = true\nwatch_s = 8.0\n'
    result = drill(quiet, site, world)
    assert result.passed
    assert result.seconds >= 8.0
    assert world.told == []
    deed = RestartInPlace(id="1", cause=1, job=site.job, attempt=3, epoch=4, remedy=Remedy.RESTART_IN_PLACE)
    record = OrderRecord(order=deed, status=OrderStatus.DONE, issued_at=2e9)
    looks = []

    async def orders_later(**_):
        looks.append(1)
        return [record] if len(looks) > 1 else []

    world.orders = orders_later
    assert checks(drill(quiet, site, world))["does not act"] is False


def test_an_order_from_before_the_fault_is_no_answer_to_it(site, world):
    """What was ordered a moment before, such as a repaired node's return, does not fail a drill."""
    world.answers = False
    deed = RestartInPlace(id="1", cause=1, job=site.job, attempt=3, epoch=4, remedy=Remedy.RESTART_IN_PLACE)
    world.orders_given.append(OrderRecord(order=deed, status=OrderStatus.DONE, issued_at=2e9))
    quiet = 'name = "g"\nkind = "good"\n[expect]\nmust_not_act = true\nwatch_s = 8.0\n'
    assert drill(quiet, site, world).passed


def test_cancelled_in_the_middle_it_still_undoes(site, world):
    """Ctrl-C while the network is cut heals it before the task ends."""
    world.answers = False

    async def work():
        task = asyncio.create_task(run_drill(find("network_cut"), site, drill_id="k-1"))
        await asyncio.sleep(3.0)
        assert [call[0] for call in world.calls] == ["cut"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [call[0] for call in world.calls] == ["cut", "heal"]

    run_virtual(work())


def test_a_controller_that_is_away_for_a_while_is_asked_again(site, world):
    """A fault may take the controller's machine along."""
    real = world.incidents
    failures = iter([True] * 3)

    async def incidents(**where):
        if next(failures, False):
            raise LinkError("connection refused")
        return await real(**where)

    world.incidents = incidents
    assert drill(KILL, site, world).passed


def test_the_incident_is_found_among_very_many_of_other_jobs(site, world):
    """A large cluster has hundreds of newer ones within the drill's minutes."""
    tell = world.recover

    def recover(fault):
        tell(fault)
        at = world.found[0].opened_at
        world.found += [IncidentRecord(id=f"other{n}", opened_at=at + n, nodes=["node09"]) for n in range(300)]

    world.recover = recover
    assert drill(KILL, site, world).passed


def test_losses_are_compared_when_it_is_over(site, world):
    """The largest difference to the undisturbed run decides."""
    site.losses = lambda: 0.0
    text = KILL + "loss_matches = true\n"
    assert drill(text, site, world).passed
    world.found.clear()
    (world.folder / "drill" / "k-1.json").unlink()
    site.losses = lambda: 0.5
    assert [check.name for check in drill(text, site, world).failures] == ["loss"]


def test_a_fenced_node_must_come_back_when_that_is_expected(site, world):
    """The drill waits for the node, and fails when it stays out."""
    world.node_records[0].state = world.node_records[1].state = NodeState.HEALTHY
    text = (
        'name = "n"\nkind = "xid"\n[params]\nxid = 74\n[target]\nnode = "node01"\n'
        '[expect]\ncauses = ["*"]\nrecover_s_max = 5.0\nnode_returns = true\n'
    )

    async def work(comes_back):
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, setattr, world.node_records[0], "state", NodeState.REPAIRING)
        if comes_back:
            loop.call_later(30.0, setattr, world.node_records[0], "state", NodeState.HEALTHY)
        return await run_drill(read_scenario(text), site, drill_id="n-1", patience=Patience(margin_s=2.0))

    assert run_virtual(work(True)).passed
    world.found.clear()
    result = run_virtual(work(False))
    assert [check.name for check in result.failures] == ["node returns"]


def test_a_closed_connection_is_a_lost_link_not_a_defect():
    """Whoever still looks while the stage is taken down is told that the controller cannot be reached."""
    from holdfast.drill.eyes import ControllerEyes
    from holdfast.errors import LinkError

    async def look():
        eyes = ControllerEyes("http://127.0.0.1:9")
        await eyes.close()
        await eyes.nodes()

    with pytest.raises(LinkError, match="closed"):
        asyncio.run(look())
