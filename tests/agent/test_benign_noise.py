"""A day of a healthy node, told by noisy instruments: no finding that could fence it. And the same day with one fault."""

import math
from pathlib import Path
from random import Random

import pytest

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.adapters.clock import VirtualClock, run_virtual
from holdfast.adapters.probes.check import Mode, NodeConfig, Reading, Source
from holdfast.adapters.probes.checks import CHECKS
from holdfast.adapters.probes.facts import (
    GpuFacts,
    LinkFacts,
    MemoryControllerFacts,
    MountFacts,
    NicFacts,
    NodeFacts,
    NvmlFacts,
    PortFacts,
)
from holdfast.adapters.probes.reach import Reach
from holdfast.adapters.probes.rounds import Looker
from holdfast.agent.health import HealthWatch
from holdfast.agent.node_facts import NodeIdentity
from holdfast.detect.findings import RuleRates
from holdfast.model.events import FindingSeen
from holdfast.model.evidence import Role

POLL_S = 15.0
DAY_S = 24 * 3600.0
GPUS, LINKS = 3, 3
GIB = 1 << 30
CATALOGUE = read_catalogue()


class Machine:
    """A node whose every instrument misbehaves now and then, as the seed draws it."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.corrected = [self.draw.randrange(1000) for _ in range(GPUS)]
        self.uncorrected = [self.draw.randrange(5) for _ in range(GPUS)]  # history of an earlier day
        self.crc = [[0] * LINKS for _ in range(GPUS)]
        self.replays = [0] * GPUS
        self.symbol, self.carrier, self.edac = 0, 1, 10
        self.reloading = 0
        self.step_s = 0.0
        self.lost = -1
        self.fault_at = math.inf

    def tick(self) -> None:
        """What happens in one poll interval."""
        draw = self.draw
        for gpu in range(GPUS):
            self.corrected[gpu] += draw.random() < 0.02
            self.replays[gpu] += draw.random() < 0.02
            for link in range(LINKS):
                self.crc[gpu][link] += draw.randrange(1, 40) * (draw.random() < 0.01)
        self.symbol += draw.randrange(1, 20) * (draw.random() < 0.02)
        self.edac += draw.random() < 0.01
        self.carrier += draw.random() < 0.0005
        if self.reloading:
            self.reloading -= 1
        elif draw.random() < 0.001:  # a driver reload: counters begin anew
            self.reloading = draw.randrange(2, 10)
            self.corrected = [0] * GPUS
            self.uncorrected = [0] * GPUS
            self.crc = [[0] * LINKS for _ in range(GPUS)]
            self.replays = [0] * GPUS
        if draw.random() < 0.002:
            self.step_s += draw.choice((-3600.0, -40.0, 40.0, 3600.0))

    def nvml(self, at: float) -> Reading:
        draw = self.draw
        if self.reloading > 3:
            return Reading(absent="the NVIDIA driver is not loaded")
        if self.reloading:
            return Reading(facts=NvmlFacts(driver="570", gpus=()))
        if draw.random() < 0.003:
            return Reading(hung=True, failed="no answer within 10 s")
        if draw.random() < 0.002:
            return Reading(failed="NVML gives nonsense: GPU 0: temperature 3735928559")
        job_s = at % 5400  # a job begins every hour and a half: everything warms up, then is busy, then rests
        busy = job_s < 4500
        warm = 38 + 40 * (1 - math.exp(-job_s / 90)) if busy else 38 + 40 * math.exp(-(job_s - 4500) / 120)
        gpus = [
            GpuFacts(
                index=n, uuid=f"GPU-{n}", name="H100", temperature=int(warm + draw.randrange(-2, 3)), slowdown_c=87,
                throttle=0x4 if busy else 0x1, ecc_corrected=self.corrected[n], ecc_uncorrected=self.uncorrected[n],
                remap_pending=False, remap_failed=False, pcie_gen=5 if busy else 1, pcie_gen_max=5, pcie_width=16,
                pcie_width_max=16, pcie_replays=self.replays[n], utilization=90 if busy else 0, recovery_action=0,
                links=tuple(LinkFacts(link=k, active=True, errors=self.crc[n][k], recoveries=0) for k in range(LINKS)),
                lost=n == self.lost, error="GPU is lost" if n == self.lost else "",
            )
            for n in range(GPUS)
        ]  # fmt: skip
        return Reading(facts=NvmlFacts(driver="570", gpus=tuple(gpus)))

    def others(self, at: float) -> dict[str, Reading]:
        draw = self.draw
        flap = draw.random() < 0.0005
        port = PortFacts(device="mlx5_0", port=1, state="DOWN" if flap else "ACTIVE", physical="LinkUp", rate_gbps=400.0,
                         counters={"symbol_error": self.symbol, "link_downed": 0})  # fmt: skip
        nic = NicFacts(
            name="eth0",
            carrier=draw.random() > 0.0005,
            speed_mbps=100_000,
            carrier_downs=self.carrier,
            errors=self.symbol,
        )
        slow = MountFacts(point="/shared", kind="nfs4", error="timed out" if draw.random() < 0.0008 else "")
        root = MountFacts(point="/", kind="ext4", total=100 * GIB, free=int((8 + 30 * abs(math.sin(at / 9000))) * GIB))
        memory = int((2 + 200 * abs(math.sin(at / 3000))) * GIB)
        return {
            "infiniband": Reading(facts=(port,)),
            "nics": Reading(facts=(nic,)),
            "mounts": Reading(facts=(root, slow)),
            "edac": Reading(facts=(MemoryControllerFacts(name="mc0", corrected=self.edac, uncorrected=1),)),
            "node": Reading(facts=NodeFacts(cpus=96, numa_nodes=2, memory_total=512 * GIB, memory_available=memory, clock_synced=True)),
        }  # fmt: skip


class SteppedClock(VirtualClock):
    """A wall clock that somebody sets now and then."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def now(self) -> float:
        return super().now() + self.machine.step_s


def a_day(seed: int, *, fault_at: float = math.inf, until: float = DAY_S):
    """All findings of a day at node07."""
    told = []

    async def body():
        machine = Machine(seed)
        clock = SteppedClock(machine)
        looker = Looker(Reach({}), NodeConfig(), clock=clock, kernel_log=True)
        health = HealthWatch(
            looker, identity=NodeIdentity(name="node07", boot_id="b"), source="agent:node07", catalogue=CATALOGUE,
            clock=clock, report=told.append, state_dir=Path("/nonexistent-state"),
        )  # fmt: skip
        answer = {}

        async def read(reach):
            return answer["it"]

        sources = {
            name: Source(name=name, about="", needs="", limit_s=60.0, read=read)
            for name in ("nvml", "infiniband", "nics", "mounts", "edac", "node")
        }
        checks = {
            name: [c for c in CHECKS.values() if c.source == name and Mode.PERIODIC in c.modes] for name in sources
        }
        while clock.monotonic() < until:
            machine.tick()
            if clock.monotonic() >= fault_at:
                machine.lost = 2
            readings = machine.others(clock.monotonic()) | {"nvml": machine.nvml(clock.monotonic())}
            for name, reading in readings.items():
                answer["it"] = reading
                await health.look(sources[name], checks[name])
            await clock.sleep(POLL_S)

    run_virtual(body())
    return [event.finding for event in told if isinstance(event, FindingSeen)]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_day_of_noise_fences_nobody(seed):
    """Driver reloads, resets, transient errors, hung and absurd answers, clock steps, slow disks: context at most."""
    findings = a_day(seed)
    assert [f"{f.rule}: {f.summary}" for f in findings if f.role is Role.ROOT] == []
    seen = {finding.rule for finding in findings}
    assert {"check.hung", "check.unreadable", "check.clock_stepped"} <= seen, seen


def test_a_fault_in_the_noise_is_found():
    """The same day with a GPU lost in the morning: told within two looks, once."""
    roots = [finding for finding in a_day(1, fault_at=DAY_S / 4, until=DAY_S / 4 + 600) if finding.role is Role.ROOT]
    assert [(finding.rule, finding.place.gpu) for finding in roots if finding.rule == "check.gpu_lost"][:1] == [
        ("check.gpu_lost", 2)
    ]


def test_a_rule_that_chatters_is_held_back():
    """Whatever a check does, one rule tells at most sixty findings a minute."""
    rates = RuleRates()
    rule = CATALOGUE.get("check.gpu_ecc_uncorrected")
    assert sum(bool(rates.admit(rule, None, 100.0)) for _ in range(500)) == rule.rate_per_min == 60
