"""What checks conclude from facts: faults, history, resets, warm-up, profiles. No process, no file."""

import msgspec
import pytest

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.adapters.probes import checks_fabric, checks_gpu, checks_node, checks_tools, dcgm_output
from holdfast.adapters.probes.check import Judging, Limits, Mode, Profile
from holdfast.adapters.probes.checks import CHECKS, SOURCES, of_mode
from holdfast.adapters.probes.facts import (
    GpuFacts,
    LinkFacts,
    MemoryControllerFacts,
    MountFacts,
    NeuronFacts,
    NicFacts,
    NodeFacts,
    NvmlFacts,
    PciFacts,
    PortFacts,
    ProcessFacts,
    XidFacts,
    implausible,
)  # fmt: skip
from holdfast.adapters.probes.tool_output import FabricEndpoint, PingPong, Stress, Tracking
from holdfast.detect.counters import CounterFold
from holdfast.model.evidence import Remedy

GIB = 1 << 30


class Case:
    """One node over several looks."""

    def __init__(self, **profile):
        self.judging = Judging(
            profile=Profile(**profile), limits=Limits(), mode=Mode.PERIODIC, at=0.0, now=1e9,
            counters=CounterFold(), courses={}, learned={},
        )  # fmt: skip

    def look(self, judge, facts, after=15.0):
        self.judging.at += after
        self.judging.now += after
        return judge(facts, self.judging)

    def rules(self, judge, facts, after=15.0):
        return [problem.rule for problem in self.look(judge, facts, after)]


def gpu(index=0, **facts):
    return GpuFacts(index=index, uuid=f"GPU-{index}", name="NVIDIA H100 80GB HBM3", **facts)


def nvml(*gpus, **facts):
    return NvmlFacts(driver="570.1", gpus=gpus, **facts)


def test_every_check_has_a_source_and_rules_of_the_catalogue():
    """Names fit together, and every rule that a check may raise is written down."""
    catalogue = read_catalogue()
    for name, check in CHECKS.items():
        assert check.name == name
        assert check.source in SOURCES
        for rule in check.rules:
            assert rule.removesuffix("*") in {"nvidia.xid.", "nvidia.sxid."} or rule in catalogue.rules, rule
    assert {check.name for check in of_mode(Mode.DEEP)} >= {"dcgm-diag-4", "cpu-stress", "fi-pingpong", "gpu-ecc"}
    assert "dcgm-diag-2" in {check.name for check in of_mode(Mode.PROLOG)}


def test_a_lost_gpu_and_one_that_cannot_be_read():
    """Lost is a fault; another error is a person's matter."""
    found = Case().look(
        checks_gpu.lost, nvml(gpu(0), gpu(1, error="GPU is lost", lost=True), gpu(2, error="Unknown Error"))
    )
    assert [(p.rule, p.place.gpu, p.warning) for p in found] == [
        ("check.gpu_lost", 1, False),
        ("check.gpu_unreadable", 2, True),
    ]


def test_count_is_learned_or_of_the_profile():
    """Eight at the first look, seven later; the profile knows from the first look; none is the driver's matter."""
    eight = nvml(*(gpu(n) for n in range(8)))
    case = Case()
    assert case.rules(checks_gpu.count, eight) == []
    assert case.rules(checks_gpu.count, nvml(*(gpu(n) for n in range(7)))) == ["check.gpu_count"]
    assert case.rules(checks_gpu.count, nvml()) == []
    assert case.rules(checks_gpu.driver, nvml()) == ["check.gpu_driver"]
    assert Case().rules(checks_gpu.driver, nvml()) == []
    assert Case(gpus=8).rules(checks_gpu.count, nvml(gpu(0))) == ["check.gpu_count"]
    assert Case(gpu_name="H200").rules(checks_gpu.count, eight) == ["check.gpu_identity"]
    assert [p.rule for p in checks_gpu.driver_absent("no driver", Case(gpus=8).judging)] == ["check.gpu_driver"]


def test_memory_errors_count_when_they_come():
    """Old errors are history; a rise is a fault; a counter that fell was reset by a driver reload."""
    case = Case()
    told = [case.rules(checks_gpu.ecc, nvml(gpu(ecc_uncorrected=value))) for value in (4, 4, 6, 0, 0)]
    assert told == [[], [], ["check.gpu_ecc_uncorrected"], [], []]
    by_hand = Case()
    by_hand.judging.mode = Mode.PROLOG
    (old,) = by_hand.look(checks_gpu.ecc, nvml(gpu(ecc_uncorrected=4)))
    assert old.warning
    (pending,) = by_hand.look(checks_gpu.ecc, nvml(gpu(ecc_uncorrected=4, remap_pending=True)))
    assert not pending.warning


def test_corrected_errors_by_rate_and_by_trend():
    """Many in an hour are a warning; ever more of them foretell worse; a steady few are nothing."""
    few, many, rising = Case(), Case(), Case()
    total = {"few": 0, "many": 0, "rising": 0}
    out = {"few": [], "many": [], "rising": []}
    for look in range(240):
        total["few"] += 1
        total["many"] += 10
        total["rising"] += (int(look % 4 == 0), 1, 4)[look // 80]
        for name, case in (("few", few), ("many", many), ("rising", rising)):
            out[name] = case.look(checks_gpu.ecc, nvml(gpu(ecc_corrected=total[name])))
    assert out["few"] == []
    assert [p.rule for p in out["many"]] == ["check.gpu_ecc_corrected"]
    assert [(p.rule, p.predicts) for p in out["rising"]] == [("check.gpu_trend_ecc", True)]


def test_rows_and_pages():
    """Failed goes before pending; retirement is a matter of its own."""
    case = Case()
    assert case.rules(checks_gpu.remap, nvml(gpu(remap_failed=True, remap_pending=True))) == [
        "check.gpu_row_remap_failed"
    ]
    found = case.rules(checks_gpu.remap, nvml(gpu(remap_pending=True, retired_pending=True)))
    assert found == ["check.gpu_row_remap_pending", "check.gpu_retired_pending"]


def test_heat_now_and_heat_to_come():
    """At its slowdown temperature, slowed down by hardware, or on a steady way there; a job's start is neither."""
    case = Case()
    hot = {"slowdown_c": 87, "shutdown_c": 92}
    assert case.rules(checks_gpu.thermal, nvml(gpu(temperature=88, throttle=0, **hot))) == ["check.gpu_thermal"]
    assert case.rules(checks_gpu.thermal, nvml(gpu(temperature=60, throttle=0x40, **hot))) == ["check.gpu_thermal"]
    warming = Case()
    told = [warming.rules(checks_gpu.thermal, nvml(gpu(temperature=min(30 + 10 * n, 74), **hot))) for n in range(60)]
    assert not any(told)
    rising = Case()
    told = [rising.look(checks_gpu.thermal, nvml(gpu(temperature=74 + n // 5, **hot))) for n in range(50)]
    (first,) = next(found for found in told if found)
    assert (first.rule, first.predicts) == ("check.gpu_trend_thermal", True)


def test_nvlinks_down_errors_and_recoveries():
    """As many as were up must stay up; transient CRC errors are nothing; a link that breaks again and again is told."""
    links = tuple(LinkFacts(link=n, active=True, errors=5, recoveries=0) for n in range(18))
    case = Case()
    assert case.rules(checks_gpu.nvlink, nvml(gpu(links=links))) == []
    down = (*links[:6], LinkFacts(link=6, active=False), *links[7:])
    (problem,) = case.look(checks_gpu.nvlink, nvml(gpu(links=down)))
    assert (problem.rule, problem.place.link) == ("check.gpu_nvlink_down", "6")
    noisy = tuple(LinkFacts(link=n, active=True, errors=105, recoveries=0) for n in range(18))
    assert case.rules(checks_gpu.nvlink, nvml(gpu(links=noisy))) == []
    shaky = tuple(LinkFacts(link=n, active=True, errors=105, recoveries=3 * (n == 2)) for n in range(18))
    (problem,) = case.look(checks_gpu.nvlink, nvml(gpu(links=shaky)))
    assert (problem.rule, problem.place.link, problem.warning) == ("check.gpu_nvlink_errors", "2", True)


def test_pcie_width_generation_and_replays():
    """Fewer lanes always count; a lower generation only at work, because an idle GPU saves power."""
    case = Case(pcie_gen=5)
    idle = gpu(pcie_width=16, pcie_width_max=16, pcie_gen=1, utilization=0, pcie_replays=0)
    assert case.rules(checks_gpu.pcie, nvml(idle)) == []
    busy = msgspec.structs.replace(idle, utilization=50, pcie_width=8, pcie_replays=9)
    assert case.rules(checks_gpu.pcie, nvml(busy)) == [
        "check.gpu_pcie_width",
        "check.gpu_pcie_gen",
        "check.gpu_pcie_replay",
    ]


@pytest.mark.parametrize(
    ("action", "remedy"), [(1, Remedy.RESET_GPU), (2, Remedy.REBOOT), (4, Remedy.RESET_GPU), (99, Remedy.QUARANTINE)]
)
def test_the_drivers_own_verdict_is_honoured(action, remedy):
    """The remedy is what the driver asks for."""
    (problem,) = Case().look(checks_gpu.recovery, nvml(gpu(recovery_action=action)))
    assert problem.remedy is remedy


def test_xids_are_told_once():
    """By NVML only where nobody reads the kernel log."""
    facts = nvml(gpu(3), xids=(XidFacts(3, 79),))
    case = Case()
    (problem,) = case.look(checks_gpu.xids, facts)
    assert (problem.rule, problem.place.gpu, problem.happened) == ("nvidia.xid.79", 3, True)
    case.judging.kernel_log = True
    assert case.rules(checks_gpu.xids, facts) == []


def test_absurd_numbers_are_no_facts():
    """The largest number there is, a GPU at 3735928559 degrees, a thousand GPUs."""
    assert implausible(nvml(gpu(temperature=40, ecc_uncorrected=3))) == ""
    for bad in (gpu(temperature=0xDEADBEEF), gpu(ecc_uncorrected=(1 << 64) - 1), gpu(pcie_width=0xDEADBEEF)):
        assert "GPU 0" in implausible(nvml(bad))
    assert "counts 65 GPUs" in implausible(nvml(*(gpu(n) for n in range(65))))


def port(name="mlx5_0", state="ACTIVE", rate=400.0, **counters):
    return PortFacts(device=name, port=1, state=state, physical="LinkUp", rate_gbps=rate, counters=counters)


def test_fabric_ports():
    """Down, slower than before, flapping, noisy; a port that nobody cabled is none."""
    case = Case()
    good = (port("mlx5_0", symbol_error=0, link_downed=0), port("mlx5_1", state="DOWN"))
    assert case.rules(checks_fabric.infiniband, good) == []
    assert case.rules(checks_fabric.infiniband, (port("mlx5_0", state="DOWN"), port("mlx5_1", state="DOWN"))) == [
        "check.fabric_port_down"
    ]
    assert case.rules(checks_fabric.infiniband, (port("mlx5_0", rate=200.0),)) == ["check.fabric_rate"]
    shaky = (port("mlx5_0", symbol_error=50, link_downed=3),)
    assert case.rules(checks_fabric.infiniband, shaky) == ["check.fabric_flaps"]
    noisy = (port("mlx5_0", symbol_error=200, link_downed=3),)
    assert case.rules(checks_fabric.infiniband, noisy, after=700.0) == ["check.fabric_errors"]
    assert case.rules(checks_fabric.efa, good) == []
    assert Case(efa=2).rules(checks_fabric.efa, (port("rdmap16s27"),)) == ["check.fabric_port_down"]
    assert [p.rule for p in checks_fabric.fabric_absent("no device", case.judging)] == ["check.fabric_port_down"]
    assert checks_fabric.fabric_absent("no device", Case().judging) == []


def test_nics():
    """Those that had a carrier must keep it; a flap is nothing, three are."""
    case = Case()
    assert (
        case.rules(
            checks_fabric.nics, (NicFacts(name="e0", carrier=True, carrier_downs=1), NicFacts(name="e1", carrier=False))
        )
        == []
    )
    assert case.rules(checks_fabric.nics, (NicFacts(name="e0", carrier=False, carrier_downs=2),)) == ["check.nic_down"]
    assert case.rules(checks_fabric.nics, (NicFacts(name="e0", carrier=True, carrier_downs=5),)) == ["check.nic_flaps"]
    slow = Case(nics=("e0",), nic_speed_mbps=100_000)
    assert slow.rules(checks_fabric.nics, (NicFacts(name="e0", carrier=True, speed_mbps=10_000),)) == [
        "check.nic_speed"
    ]
    assert slow.rules(checks_fabric.nics, ()) == ["check.nic_down"]


def test_neuron():
    """Missing devices; uncorrectable errors that came."""
    case = Case()
    devices = tuple(
        NeuronFacts(index=n, counters={"mem_ecc_uncorrected": 1, "sram_ecc_uncorrected": 0}) for n in range(2)
    )
    assert case.rules(checks_fabric.neuron, devices) == []
    worse = (NeuronFacts(index=0, counters={"mem_ecc_uncorrected": 2}),)
    assert case.rules(checks_fabric.neuron, worse) == ["check.neuron_count", "check.neuron_ecc"]


def mount(point="/", kind="ext4", total=100 * GIB, free=50 * GIB, **more):
    return MountFacts(point=point, kind=kind, total=total, free=free, **more)


def test_disks():
    """Full, nearly full, turned read-only; what was mounted read-only stays fine; snaps and the like are not looked at."""
    case = Case()
    assert case.rules(checks_node.space, (mount(free=1 << 19), mount("/b", free=2 * GIB), mount("/s", kind="squashfs", free=0))) == [
        "check.disk_full", "check.disk_low",
    ]  # fmt: skip
    assert case.rules(checks_node.read_only, (mount("/"), mount("/iso", read_only=True))) == []
    assert case.rules(checks_node.read_only, (mount("/", read_only=True), mount("/iso", read_only=True))) == [
        "check.disk_read_only"
    ]


def test_network_file_systems():
    """One that does not answer, one whose handle is stale, one that is not mounted."""
    case = Case(mounts=("/shared", "/data"))
    facts = (mount("/shared", kind="nfs4", error="timed out"), mount("/old", kind="lustre", error="Stale file handle"))
    assert case.rules(checks_node.stale, facts) == ["check.mount_stale", "check.mount_stale"]
    assert [p.place.path for p in case.look(checks_node.required_mounts, facts)] == ["/data"]


def test_write_probe_errors():
    """A full disk is told as what it is."""
    facts = (
        checks_node.WriteFacts("/a", "No space left on device"),
        checks_node.WriteFacts("/b", "timed out"),
        checks_node.WriteFacts("/c", ""),
    )
    assert Case().rules(checks_node.write, facts) == ["check.disk_full", "check.disk_write"]


def node(**facts):
    known = {"cpus": 96, "numa_nodes": 2, "memory_total": 512 * GIB, "memory_available": 100 * GIB}
    return NodeFacts(**(known | facts))


def test_memory_and_processors():
    """Against the profile; nearly out of memory is a warning."""
    case = Case(cpus=96, numa_nodes=2, memory_gib=512.0)
    assert case.rules(checks_node.memory, node()) == case.rules(checks_node.cpu, node()) == []
    assert case.rules(checks_node.memory, node(memory_total=480 * GIB, memory_available=GIB)) == [
        "check.memory_missing",
        "check.memory_low",
    ]
    assert case.rules(checks_node.cpu, node(cpus=48, numa_nodes=1)) == ["check.cpu_count", "check.cpu_count"]


def test_edac():
    """Uncorrectable ones when they come, corrected ones by rate."""
    case = Case()
    assert case.rules(checks_node.edac, (MemoryControllerFacts(name="mc0", corrected=5, uncorrected=1),)) == []
    assert case.rules(checks_node.edac, (MemoryControllerFacts(name="mc0", corrected=205, uncorrected=2),)) == [
        "check.edac_uncorrected", "check.edac_corrected",
    ]  # fmt: skip


def test_a_clock_that_is_set_and_one_that_nothing_disciplines():
    """A step is told once; a clock that never was disciplined is not news."""
    case = Case()
    assert case.rules(checks_node.clock, node(clock_synced=False)) == []
    assert case.rules(checks_node.clock, node(clock_synced=True)) == []
    case.judging.now -= 3600
    (step,) = case.look(checks_node.clock, node(clock_synced=True))
    assert (step.rule, "back by 3600" in step.summary, step.happened, step.warning) == (
        "check.clock_stepped",
        True,
        True,
        True,
    )
    assert case.rules(checks_node.clock, node(clock_synced=False)) == ["check.clock_unsynced"]
    assert case.rules(checks_node.chrony, Tracking("ntp", 0.9, "Normal")) == ["check.clock_offset"]
    assert case.rules(checks_node.chrony, Tracking("", 0.0, "Not synchronised")) == ["check.clock_unsynced"]


def test_services_left_overs_and_topology():
    """What is not active, what an old job left, what is not in its slot."""
    assert Case().rules(checks_node.services, {"slurmd": "active", "munge": "failed", "x": "activating"}) == [
        "check.service_down"
    ]
    assert Case().rules(checks_node.left_over, (ProcessFacts(pid=7, name="python", job="12"),)) == ["check.left_over"]
    devices = (PciFacts(address="0000:53:00.0", kind="gpu", numa=1, width=8, width_max=16, speed_max=32.0),)
    (problem,) = Case(pci={"0000:53:00.0": "kind=gpu numa=0 width=16"}).look(checks_node.topology, devices)
    assert "numa 1, not 0; width 8, not 16" in problem.summary
    assert Case(pci={"0000:64:00.0": "kind=gpu"}).look(checks_node.topology, ())[0].rule == "check.topology"
    assert Case().look(checks_node.topology, devices)[0].warning


def test_dcgm_diag_condemns_only_what_dcgm_isolates():
    """A setting that DCGM does not like is a warning; a failed test is a fault; a reset is what it asks for."""
    failures = (
        dcgm_output.DiagFailure(test="software", gpu=0, severity=5, text="persistence"),
        dcgm_output.DiagFailure(test="memory", gpu=3, severity=2, text="ECC"),
        dcgm_output.DiagFailure(test="pcie", gpu=4, severity=6, text="x"),
        dcgm_output.DiagFailure(test="old", gpu=5, text="2.x has no severity"),
    )
    found = Case().look(checks_tools.diag, dcgm_output.Diag(failures=failures))
    assert [(p.rule, p.warning, p.remedy) for p in found] == [
        ("check.dcgm_config", True, None), ("check.dcgm_diag", False, None),
        ("check.dcgm_diag", False, Remedy.RESET_GPU), ("check.dcgm_diag", False, None),
    ]  # fmt: skip


def test_tools_that_find_nothing_wrong_and_those_that_do():
    """Loopback, stress, fi_info, exporter."""
    case = Case(efa=2)
    assert case.rules(checks_tools.pingpong, PingPong({64: 1.0}, {})) == []
    assert case.rules(checks_tools.pingpong, PingPong(error="refused")) == ["check.fabric_loopback"]
    assert case.rules(checks_tools.stress, Stress(finished=True)) == []
    assert case.rules(checks_tools.stress, Stress(("wrong",))) == ["check.cpu_stress"]
    assert case.rules(
        checks_tools.fi_info,
        (FabricEndpoint("efa", domain="rdmap0s31-rdm"), FabricEndpoint("efa", domain="rdmap0s31-dgrm")),
    ) == ["check.fabric_port_down"]
    gauge = lambda xid: (dcgm_output.ExporterGpu(gpu=0, uuid="GPU-0", values={"DCGM_FI_DEV_XID_ERRORS": xid}),)  # noqa: E731
    assert [case.rules(checks_tools.exporter, gauge(xid)) for xid in (31.0, 31.0, 79.0, 79.0)] == [
        [],
        [],
        ["nvidia.xid.79"],
        [],
    ]
