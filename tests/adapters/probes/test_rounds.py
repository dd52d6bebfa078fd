"""Looks at emulated GPUs through the real reading process and the real binding: hung, missing, garbage, lost, warm-up."""

import asyncio
import os

import pytest

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.emulated import devices
from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices
from holdfast.adapters.probes.check import Mode, NodeConfig, Profile, Reading, Source, Status
from holdfast.adapters.probes.checks import CHECKS, SOURCES
from holdfast.adapters.probes.config import chosen, parse_config
from holdfast.adapters.probes.reach import Reach
from holdfast.adapters.probes.rounds import NEVER, Looker, Memory, exit_code
from holdfast.errors import ConfigError

GPUS = [(f"0000:{bus}:00", f"GPU-{bus}") for bus in ("53", "64", "75", "86", "97", "a8", "b9", "ca")]
PERIODIC = [check for check in CHECKS.values() if check.source == "nvml" and Mode.PERIODIC in check.modes]


@pytest.fixture
def folder(tmp_path):
    devices.prepare(tmp_path / "dev", GPUS, machine="i-1", booted="b-1")
    return tmp_path / "dev"


def looker(folder, config=None, **wishes):
    env = devices.environment(folder, dict(os.environ)) if folder is not None else {"PATH": "/nowhere"}
    return Looker(Reach(env), config or NodeConfig(), clock=SystemClock(), **wishes)


def inject(folder, kind, **hit):
    with Devices(folder / "state") as found:
        FAULTS[kind].apply(found, Hit(**hit))


def run(work):
    return asyncio.run(work)


async def look(one, checks=PERIODIC, mode=Mode.PERIODIC):
    return {verdict.check: verdict for verdict in await one.look(SOURCES["nvml"], checks, mode)}


def bad(verdicts):
    return {name: verdict.status for name, verdict in verdicts.items() if verdict.status is not Status.OK}


def test_healthy_gpus_then_each_fault_by_its_check(folder):
    """One reading process serves every look; each fault is found by the check that is there for it, at the next look."""

    async def body():
        one = looker(folder)
        try:
            assert bad(await look(one)) == {}
            pid = one.reach.gpus._program.process.pid
            seen = {}
            for kind, hit in (("ecc", {"gpu": 1, "value": 2}), ("nvlink", {"gpu": 2, "link": 7}), ("gpu_lost", {"gpu": 3}),
                              ("recovery", {"gpu": 4, "value": 2}), ("row_remap", {"gpu": 5})):  # fmt: skip
                inject(folder, kind, **hit)
                seen = bad(await look(one))
            assert one.reach.gpus._program.process.pid == pid
            return seen
        finally:
            await one.reach.close()

    critical = Status.CRITICAL
    assert run(body()) == {
        "gpu-lost": critical, "gpu-remap": critical, "gpu-nvlink": critical, "gpu-recovery": critical,
    }  # fmt: skip


def test_a_hung_library_is_unknown_and_the_next_look_is_well(folder):
    """NVML does not return: the process is killed at the limit, nothing is said of the GPUs; afterwards all is as before."""

    async def body():
        config = parse_config("[checks.gpu-lost]\nlimit_s = 1.0\n")
        one = looker(folder, config)
        slow = SOURCES["nvml"]
        try:
            inject(folder, "nvml_hang")
            hung = await one.look(slow, PERIODIC, Mode.PERIODIC)
            with Devices(folder / "state") as found:
                found.state.mode = 0
            one.config = parse_config("[checks.gpu-lost]\nlimit_s = 90\n")
            after = bad({v.check: v for v in await one.look(slow, PERIODIC, Mode.PERIODIC)})
            return hung, after
        finally:
            await one.reach.close()

    hung, after = run(body())
    assert {verdict.status for verdict in hung} == {Status.UNKNOWN}
    assert all(verdict.hung and not verdict.problems for verdict in hung)
    assert after == {}
    assert exit_code(hung) == 3


def test_one_limit_for_all_checks_keeps_what_was_found_before_it(folder):
    """DCGM hangs for good: what quicker sources found stands, the rest is UNKNOWN, and the limit holds."""

    async def body():
        inject(folder, "ecc", gpu=3)
        (folder / "bin" / "dcgmi").write_text("#!/bin/sh\nexec sleep 1000\n")
        one = looker(folder)
        try:
            began = asyncio.get_running_loop().time()
            wanted = chosen(("gpu-ecc", "dcgm-diag-2", "cpu"))
            found = {verdict.check: verdict for verdict in await one.once(wanted, Mode.PROLOG, 8.0)}
            took = asyncio.get_running_loop().time() - began
        finally:
            await one.reach.close()
        assert found["gpu-ecc"].status is Status.CRITICAL
        assert (found["dcgm-diag-2"].status, found["dcgm-diag-2"].hung) == (Status.UNKNOWN, True)
        assert found["dcgm-diag-2"].detail == "no answer within the 8 s of all checks"
        assert 8.0 <= took < 12.0

    run(body())


def test_garbage_is_unknown_never_a_fault(folder):
    """The largest number there is, as temperature and counter: no verdict on any GPU."""

    async def body():
        one = looker(folder)
        try:
            await look(one)
            inject(folder, "nvml_garbage")
            return await look(one)
        finally:
            await one.reach.close()

    verdicts = run(body())
    assert {verdict.status for verdict in verdicts.values()} == {Status.UNKNOWN}
    assert "nonsense" in verdicts["gpu-ecc"].detail


def test_without_the_library_nothing_applies():
    """No driver, no GPUs, no fault."""

    async def body():
        one = looker(None)
        try:
            return await look(one)
        finally:
            await one.reach.close()

    assert {verdict.status for verdict in run(body()).values()} == {Status.ABSENT}


def test_a_driver_reload_is_no_lost_gpu(folder):
    """Not loaded, then no GPU, then all of them with counters at zero: no check condemns the node; then a loss counts again."""

    async def body():
        one = looker(folder)
        states = []
        try:
            inject(folder, "ecc_corrected", value=500)
            await look(one)
            for kind in ("driver_unloaded", "driver_loading"):
                inject(folder, kind)
                states.append(bad(await look(one)))
            with Devices(folder / "state") as found:
                found.reset()
                found.state.count = 6  # two are not up yet
            states.append(bad(await look(one)))
            with Devices(folder / "state") as found:
                found.state.count = 8
            states.append(bad(await look(one)))
            return states
        finally:
            await one.reach.close()

    states = run(body())
    assert all(Status.CRITICAL not in state.values() for state in states), states
    assert states[2]["gpu-count"] is Status.WARMING
    assert states[3] == {}


def test_looks_in_a_row_and_what_lasts(folder):
    """Heat counts at the second look in a row; one cool look in between begins anew. By hand it counts at once."""

    async def body():
        one = looker(folder)
        seen = []
        try:
            for kind, hit in (("thermal", {}), ("temperature", {"value": 40}), ("thermal", {}), ("thermal", {})):
                with Devices(folder / "state") as found:
                    found.gpu(0).throttle = 0
                inject(folder, kind, **hit)
                seen.append((await look(one))["gpu-thermal"].status)
            by_hand = await one.once(chosen(("gpu-thermal",)), Mode.DEEP)
            return seen, by_hand[0].status
        finally:
            await one.reach.close()

    ok = Status.OK
    assert run(body()) == ([ok, ok, ok, Status.CRITICAL], Status.CRITICAL)


def test_warm_up_after_boot(folder):
    """Within its grace a missing GPU does not count; with the grace switched off it does."""

    async def body(config):
        one = looker(folder, config, born=SystemClock().monotonic() - 10)
        try:
            return (await look(one))["gpu-count"].status
        finally:
            await one.reach.close()

    nine = Profile(gpus=9)
    assert run(body(NodeConfig(profile=nine))) is Status.WARMING
    assert run(body(parse_config("[profile]\ngpus = 9\n[checks.gpu-count]\ngrace_s = 0.0\n"))) is Status.CRITICAL


def test_what_was_learned_survives_a_restart_but_not_the_machine(folder, tmp_path):
    """Counters go on within a boot, the number of GPUs within a machine."""

    async def body():
        one = looker(folder, memory=Memory(machine="i-1", boot="b-1"))
        try:
            await look(one)
            one.remember().save(tmp_path / "m.json")
        finally:
            await one.reach.close()

    run(body())
    same = Memory.load(tmp_path / "m.json", machine="i-1", boot="b-1")
    assert (same.learned["gpus"], same.counters["GPU-53:ue"]) == ("8", 0)
    rebooted = Memory.load(tmp_path / "m.json", machine="i-1", boot="b-2")
    assert (rebooted.learned["gpus"], rebooted.counters) == ("8", {})
    assert Memory.load(tmp_path / "m.json", machine="i-2", boot="b-3").learned == {}
    (tmp_path / "m.json").write_bytes(b"torn")
    assert Memory.load(tmp_path / "m.json", machine="i-1", boot="b-1").learned == {}


def test_remembering_forgets_nothing_of_this_boot():
    """The clock is compared with the look before, also when the memory was written down in between."""

    async def body():
        clock = SystemClock()
        one = Looker(Reach(dict(os.environ)), NodeConfig(), clock=clock)
        checks = [CHECKS["clock"]]
        try:
            await one.look(SOURCES["node"], checks, Mode.PERIODIC)
            assert "clock:offset" not in one.remember().learned
            real = clock.now
            clock.now = lambda: real() + 3600
            (verdict,) = await one.look(SOURCES["node"], checks, Mode.PERIODIC)
            return [problem.rule for problem in verdict.problems]
        finally:
            await one.reach.close()

    assert "check.clock_stepped" in run(body())


def test_kill_switches_and_wrong_names():
    """By name, by beginning, by table; a wrong name is told with the nearest right one."""
    config = parse_config('disable = ["gpu-*"]\n[checks.clock]\nenabled = false\n')
    assert [config.of(name).enabled for name in ("gpu-ecc", "clock", "memory")] == [False, False, True]
    with pytest.raises(ConfigError, match='no check "gpu-eck"; did you mean "gpu-ecc"'):
        parse_config("[checks.gpu-eck]\nenabled = false\n", "agent.toml")
    with pytest.raises(ConfigError, match=r'agent.toml:1: there is no check "deap"'):
        parse_config('validate = ["deap"]\n', "agent.toml")
    with pytest.raises(ConfigError, match="poll_s must be above zero"):
        parse_config("poll_s = 0.0\n")
    with pytest.raises(ConfigError, match="unknown key"):
        parse_config("[limits]\ngpu_hot = 80\n")


def test_a_source_that_hangs_in_itself_is_cut_off():
    """Whatever a source does, the look ends at its limit."""

    async def forever(reach):
        await asyncio.sleep(1000)
        return Reading()

    async def body():
        one = looker(None, born=NEVER)
        source = Source(name="x", about="", needs="", limit_s=0.05, read=forever)
        (verdict,) = await one.look(source, [CHECKS["memory"]], Mode.PERIODIC)
        return verdict

    verdict = run(body())
    assert (verdict.status, verdict.hung, verdict.detail) == (Status.UNKNOWN, True, "no answer within 0.05 s")
