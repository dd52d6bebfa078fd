"""The periodic checks: each problem is told once and cleared once, over restarts, reloads, hung and silent looks."""

import asyncio
import itertools
import os
from pathlib import Path

import msgspec
import pytest

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.adapters.clock import SystemClock, VirtualClock, run_virtual
from holdfast.adapters.emulated import devices
from holdfast.adapters.emulated.faults import FAULTS, Hit
from holdfast.adapters.emulated.layout import Devices
from holdfast.adapters.probes.check import Check, Mode, NodeConfig, Problem, Reading, Source
from holdfast.adapters.probes.checks import CHECKS, SOURCES
from holdfast.adapters.probes.config import parse_config
from holdfast.adapters.probes.reach import Reach
from holdfast.adapters.probes.rounds import Looker
from holdfast.agent.health import FIRST_WITHIN_S, HealthWatch
from holdfast.agent.node_facts import NodeIdentity
from holdfast.model.events import FindingSeen
from holdfast.model.evidence import Domain, Place, Remedy, Role

GPUS = [(f"0000:{bus}:00", f"GPU-{bus}") for bus in ("53", "64", "75", "86", "97", "a8", "b9", "ca")]
CATALOGUE = read_catalogue()
NODE = NodeIdentity(name="node07", boot_id="boot-1", instance_id="i-1")


def watch(folder: Path, looker: Looker, clock=None, identity=NODE):
    folder.mkdir(exist_ok=True)
    told = []
    found = HealthWatch(
        looker, identity=identity, source=f"agent:{identity.name}", catalogue=CATALOGUE, clock=clock or SystemClock(),
        report=told.append, state_dir=folder,
    )  # fmt: skip
    return found, told


def words(told):
    return [e.finding.rule if isinstance(e, FindingSeen) else f"-{e.rule}" for e in told]


class Scripted:
    """A source whose answers are written down, and one check over it that finds what they say."""

    def __init__(self, answers, **wishes):
        self.answers = list(answers)
        self.source = Source(name="nvml", about="", needs="", limit_s=5.0, read=self.read)
        self.check = Check(
            name="gpu-remap", about="", source="nvml", modes=(Mode.PERIODIC,), judge=self.judge, rules=(), **wishes
        )

    async def read(self, reach):
        answer = self.answers.pop(0)
        return answer if isinstance(answer, Reading) else Reading(facts=answer)

    def judge(self, facts, judging):
        return [Problem(rule=rule, summary=rule, place=Place(gpu=gpu)) for rule, gpu in facts]

    async def play(self, health):
        for _ in range(len(self.answers)):
            await health.look(self.source, [self.check])


def scripted(tmp_path, answers, **wishes):
    script = Scripted(answers, **wishes)
    health, told = watch(tmp_path / "state", Looker(Reach({}), NodeConfig(), clock=SystemClock()))
    asyncio.run(script.play(health))
    return words(told)


FAILED, PENDING = "check.gpu_row_remap_failed", "check.gpu_row_remap_pending"


def test_told_once_and_cleared_when_the_last_of_its_rule_is_gone(tmp_path):
    """Two GPUs with the same trouble are two findings and one clearing."""
    answers = [[], [(PENDING, 1)], [(PENDING, 1), (PENDING, 2)], [(PENDING, 2)], [(PENDING, 2)], []]
    assert scripted(tmp_path, answers) == [PENDING, PENDING, f"-{PENDING}"]


def test_a_look_that_could_not_tell_changes_nothing(tmp_path):
    """Hung and unreadable looks neither clear nor repeat; each is told once as context, and cleared by an answer."""
    hung, nonsense = Reading(failed="no answer", hung=True), Reading(failed="nonsense")
    answers = [[(FAILED, 1)], hung, hung, [(FAILED, 1)], nonsense, [(FAILED, 1)]]
    assert scripted(tmp_path, answers) == [
        FAILED, "check.hung", "-check.hung", "check.unreadable", "-check.unreadable",
    ]  # fmt: skip


def test_hung_checks_never_fence_a_node(tmp_path):
    """The finding about them is context of the platform, and asks for no more than to tell people."""
    script = Scripted([Reading(failed="no answer", hung=True)])
    health, told = watch(tmp_path / "state", Looker(Reach({}), NodeConfig(), clock=SystemClock()))
    asyncio.run(script.play(health))
    (finding,) = (event.finding for event in told)
    assert (finding.role, finding.domain, finding.remedy, finding.place.path) == (
        Role.CONTEXT,
        Domain.PLATFORM,
        Remedy.NOTIFY,
        "gpu-remap",
    )


def test_each_look_is_written_down_for_slurms_prolog(tmp_path):
    """The newest look counts: a problem that has gone is not in it."""
    script = Scripted([[(FAILED, 1)], []])
    health, _ = watch(tmp_path / "state", Looker(Reach({}), NodeConfig(), clock=SystemClock()))
    latest = tmp_path / "state" / "latest"
    asyncio.run(health.look(script.source, [script.check]))
    assert "CRITICAL  gpu-remap" in latest.read_text()
    asyncio.run(health.look(script.source, [script.check]))
    assert "CRITICAL" not in latest.read_text()


def test_an_agent_that_starts_again_repeats_nothing_and_clears_what_has_gone(tmp_path):
    """What is open stands on disk."""
    first = scripted(tmp_path, [[(FAILED, 1)]])
    assert first == [FAILED]
    assert scripted(tmp_path, [[(FAILED, 1)]]) == []
    assert scripted(tmp_path, [[]]) == [f"-{FAILED}"]
    (tmp_path / "state" / "open.json").write_bytes(b"torn")
    assert scripted(tmp_path, [[(FAILED, 1)]]) == [FAILED]


def test_a_full_disk_under_the_state_does_not_stop_it(tmp_path):
    """Nothing can be written down: findings are told all the same."""
    script = Scripted([[(FAILED, 1)], []])
    health, told = watch(tmp_path / "state", Looker(Reach({}), NodeConfig(), clock=SystemClock()))
    os.rmdir(tmp_path / "state")  # every write fails now, as on a full or vanished disk
    asyncio.run(script.play(health))
    assert words(told) == [FAILED, f"-{FAILED}"]


def test_warnings_are_context_and_forecasts_say_so(tmp_path):
    """Role, remedy and `predicts` as the engine reads them; the device's own verdict goes before the catalogue's."""
    health, _ = watch(tmp_path / "state", Looker(Reach({}), NodeConfig(), clock=SystemClock()))
    plain = health.finding(Problem(rule=FAILED, summary="x", place=Place(gpu=3)), 5.0)
    assert (plain.role, plain.remedy, plain.place.node, plain.place.gpu, plain.predicts) == (
        Role.ROOT,
        Remedy.REPLACE,
        "node07",
        3,
        False,
    )
    assert plain.evidence[-1].text.startswith("lifted by a look that finds it well (check.gpu_row_remap_failed)")
    warned = health.finding(Problem(rule=FAILED, summary="x", warning=True), 5.0)
    assert (warned.role, warned.remedy) == (Role.CONTEXT, Remedy.NOTIFY)
    ahead = health.finding(Problem(rule="check.gpu_trend_thermal", summary="x", predicts=True), 5.0)
    assert (ahead.predicts, ahead.role, ahead.domain, ahead.remedy) == (
        True,
        Role.ROOT,
        Domain.HARDWARE,
        Remedy.EVACUATE,
    )
    verdict = health.finding(Problem(rule="check.gpu_recovery_action", summary="x", remedy=Remedy.REBOOT), 5.0)
    assert verdict.remedy is Remedy.REBOOT
    assert len({plain.id, warned.id, ahead.id, verdict.id}) == 4


def test_every_node_has_its_own_rhythm_and_no_look_is_late():
    """Over an hour of virtual time: looks are at most an interval apart, and nodes do not look at the same moment."""

    async def looks_of(name):
        at = []

        async def read(reach):
            at.append(clock.monotonic())
            return Reading(absent="nothing")

        clock = VirtualClock()
        source = Source(name="nvml", about="", needs="", limit_s=5.0, read=read)
        looker = Looker(Reach({}), NodeConfig(poll_s=15.0), clock=clock)
        health = HealthWatch(
            looker, identity=msgspec.structs.replace(NODE, name=name), source="a", catalogue=CATALOGUE, clock=clock,
            report=lambda event: None, state_dir=Path("/nonexistent-state"),
        )  # fmt: skip
        task = asyncio.create_task(health._follow(source, [CHECKS["gpu-ecc"]]))
        await asyncio.sleep(3600)
        task.cancel()
        return at

    first = run_virtual(looks_of("node01"))
    other = run_virtual(looks_of("node02"))
    assert first == run_virtual(looks_of("node01"))
    assert first[0] <= FIRST_WITHIN_S
    gaps = [b - a for a, b in itertools.pairwise(first)]
    assert min(gaps) >= 13.4
    assert max(gaps) <= 15.001
    together = sum(any(abs(a - b) < 0.1 for b in other) for a in first)
    assert together < len(first) / 4


@pytest.fixture
def folder(tmp_path):
    devices.prepare(tmp_path / "dev", GPUS, machine="i-1", booted="b-1")
    return tmp_path / "dev"


def test_reload_switches_checks_off_and_on_without_a_restart(tmp_path, folder):
    """A kill switch clears what its check had told; switched on again, the fault is told again."""

    async def body():
        looker = Looker(
            Reach(devices.environment(folder, dict(os.environ))), parse_config("poll_s = 0.1\n"), clock=SystemClock()
        )
        health, told = watch(tmp_path / "state", looker)
        work = asyncio.create_task(health.run())
        try:
            with Devices(folder / "state") as found:
                FAULTS["row_remap"].apply(found, Hit(gpu=2))
            ours = lambda: [word for word in words(told) if word.endswith(FAILED)]  # noqa: E731 - DCGM sees it, too
            await until(lambda: ours() == [FAILED])
            health.reload(parse_config('poll_s = 0.1\ndisable = ["gpu-remap"]\n'))
            await until(lambda: ours() == [FAILED, f"-{FAILED}"])
            health.reload(parse_config("poll_s = 0.1\n"))
            await until(lambda: ours() == [FAILED, f"-{FAILED}", FAILED])
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await looker.reach.close()

    asyncio.run(body())


async def until(holds, limit_s=20.0):
    deadline = asyncio.get_running_loop().time() + limit_s
    while not holds():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


def test_validation_passes_on_healthy_gpus_and_names_the_check_that_fails(tmp_path, folder):
    """DCGM's diagnostic and nvidia-smi included; a node that cannot be judged does not pass."""

    async def body():
        config = parse_config('validate = ["gpu-*", "nvidia-smi", "dcgm-diag-2"]\n')
        looker = Looker(Reach(devices.environment(folder, dict(os.environ))), config, clock=SystemClock())
        health, _ = watch(tmp_path / "state", looker)
        answers = [await health.validate()]
        try:
            for kind in ("nvlink", "nvml_garbage"):
                with Devices(folder / "state") as found:
                    found.reset()
                    FAULTS[kind].apply(found, Hit(gpu=5))
                answers.append(await health.validate())
        finally:
            await looker.reach.close()
        return answers

    good, down, unknown = asyncio.run(body())
    assert good[0], good
    assert (down[0], "NVLink" in down[1]) == (False, True)
    assert (unknown[0], "could not tell" in unknown[1]) == (False, True)


def test_only_sources_with_an_enabled_check_are_read(tmp_path):
    """An emulated node does not judge the machine underneath."""
    emulated = Looker(Reach({}, emulated=True), NodeConfig(), clock=SystemClock())
    health, _ = watch(tmp_path / "state", emulated)
    names = {source.name for source, _ in health._plan()}
    assert "nvml" in names
    assert not names & {"mounts", "edac", "pci", "stress-ng"}
    assert set(SOURCES) > names
