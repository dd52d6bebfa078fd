"""Checks of the network (InfiniBand, RoCE, EFA, network interfaces) and of Neuron devices. Pure but for the sources.

A link that broke and came back is told when it does so again and again; error counters count by rate.
"""

from __future__ import annotations

from holdfast.adapters.probes.check import ANY_TIME, Check, Judging, Mode, Problem, Reading, Source
from holdfast.adapters.probes.facts import NeuronFacts, NicFacts, PortFacts
from holdfast.adapters.probes.reach import Reach
from holdfast.model.evidence import Place

READ_LIMIT_S = 5.0
_ERRORS = (
    "symbol_error",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "packet_seq_err",
    "out_of_sequence",
    "local_ack_timeout_err",
    "rx_drops",
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "retrans_timeout_events",
    "unresponsive_remote_events",
)
"""Files of `counters` and `hw_counters` (kernel, mlx5 and efa drivers) that stand for trouble on the wire."""
_FLAPS = ("link_downed", "link_error_recovery")
_UNCORRECTED = ("mem_ecc_uncorrected", "sram_ecc_uncorrected", "mem_ecc_repairable_uncorrected")


async def _ports(reach: Reach) -> Reading:
    return await reach.read("infiniband", tuple[PortFacts, ...], READ_LIMIT_S)


async def _nics(reach: Reach) -> Reading:
    return await reach.read("nics", tuple[NicFacts, ...], READ_LIMIT_S)


async def _neuron(reach: Reach) -> Reading:
    return await reach.read("neuron", tuple[NeuronFacts, ...], READ_LIMIT_S)


FABRIC_SOURCES = (
    Source(
        name="infiniband",
        about="/sys/class/infiniband: InfiniBand, RoCE and EFA devices",
        needs="an RDMA device",
        limit_s=READ_LIMIT_S,
        read=_ports,
    ),
    Source(
        name="nics", about="/sys/class/net", needs="a network interface with a device", limit_s=READ_LIMIT_S, read=_nics
    ),
    Source(
        name="neuron",
        about="/sys/devices/virtual/neuron_device",
        needs="AWS Neuron devices",
        limit_s=READ_LIMIT_S,
        read=_neuron,
    ),
)


def ports(facts: tuple[PortFacts, ...], judging: Judging, *, efa: bool) -> list[Problem]:
    """State, rate and errors of the ports of one kind."""
    mine = [port for port in facts if port.is_efa is efa]
    active = [port for port in mine if port.state == "ACTIVE"]
    what = "EFA" if efa else "InfiniBand"
    problems = []
    expected = judging.profile.efa if efa else judging.profile.infiniband
    if expected is None:
        # Ports that nobody cabled stay down for good: as many as were active at first must stay so.
        known = int(judging.learned.get(f"{what}:active", "0"))
        expected = max(known, len(active))
        judging.learned[f"{what}:active"] = str(expected)
    if len(active) < expected:
        down = [port for port in mine if port.state != "ACTIVE"]
        words = ", ".join(f"{port.device}/{port.port} {port.state or 'gone'} ({port.physical})" for port in down[:4])
        summary = f"{len(active)} of {expected} {what} ports are active" + (f": {words}" if words else "")
        link = f"{down[0].device}/{down[0].port}" if len(down) == 1 else ""
        problems.append(
            Problem(rule="check.fabric_port_down", summary=summary, place=Place(link=link), text=words or summary)
        )
    for port in active:
        problems += _rate(port, judging) + _errors(port, judging)
    return problems


def _rate(port: PortFacts, judging: Judging) -> list[Problem]:
    name = f"{port.device}/{port.port}"
    least = judging.profile.rate_gbps
    if least is None and port.rate_gbps is not None:
        known = float(judging.learned.setdefault(f"{name}:rate", str(port.rate_gbps)))
        least = known
    if least is None or port.rate_gbps is None or port.rate_gbps >= least:
        return []
    summary = f"{name} runs at {port.rate_gbps:g} Gb/s, not {least:g}"
    return [Problem(rule="check.fabric_rate", summary=summary, place=Place(link=name), text=summary)]


def _errors(port: PortFacts, judging: Judging) -> list[Problem]:
    name = f"{port.device}/{port.port}"
    problems = []
    for key_name in (*_ERRORS, *_FLAPS):
        if key_name in port.counters:
            judging.counters.rise(f"{name}:{key_name}", port.counters[key_name], judging.at)
    flaps = sum(judging.counters.within(f"{name}:{one}", 600.0, judging.at) for one in _FLAPS)
    if flaps >= judging.limits.link_flaps_per_10min:
        summary = f"{name} lost its link {flaps} times in 10 minutes"
        problems.append(Problem(rule="check.fabric_flaps", summary=summary, place=Place(link=name), text=summary))
    least = judging.limits.fabric_errors_per_10min
    lately = {one: judging.counters.within(f"{name}:{one}", 600.0, judging.at) for one in _ERRORS}
    worst = max(lately, key=lambda one: lately[one])
    if any(judging.counters.grows(f"{name}:{one}", 600.0, judging.at, least=least) for one in _ERRORS):
        summary = f"errors on {name} come ever faster: {lately[worst]} {worst} in 10 minutes"
        problems.append(
            Problem(rule="check.fabric_trend", summary=summary, place=Place(link=name), text=summary, predicts=True)
        )
    elif lately[worst] >= least:
        summary = f"{lately[worst]} {worst} on {name} in 10 minutes"
        problems.append(
            Problem(rule="check.fabric_errors", summary=summary, place=Place(link=name), text=summary, warning=True)
        )
    return problems


def infiniband(facts: tuple[PortFacts, ...], judging: Judging) -> list[Problem]:
    """InfiniBand and RoCE ports."""
    return ports(facts, judging, efa=False)


def efa(facts: tuple[PortFacts, ...], judging: Judging) -> list[Problem]:
    """EFA devices."""
    return ports(facts, judging, efa=True)


def fabric_absent(why: str, judging: Judging) -> list[Problem]:
    """No RDMA device at all where the profile, or the first look, had some."""
    known = max(int(judging.learned.get(f"{what}:active", "0")) for what in ("EFA", "InfiniBand"))
    expected = max(judging.profile.infiniband or 0, judging.profile.efa or 0, known)
    if not expected:
        return []
    return [Problem(rule="check.fabric_port_down", summary=f"none of {expected} RDMA ports is there: {why}", text=why)]


def nics(facts: tuple[NicFacts, ...], judging: Judging) -> list[Problem]:
    """Carrier, speed, flaps and errors of network interfaces."""
    problems = []
    by_name = {nic.name: nic for nic in facts}
    required = judging.profile.nics or tuple(filter(None, judging.learned.get("nics", "").split(",")))
    if not judging.profile.nics and "nics" not in judging.learned:
        judging.learned["nics"] = ",".join(nic.name for nic in facts if nic.carrier)
    for name in required:
        nic = by_name.get(name)
        if nic is None or not nic.carrier:
            summary = f"network interface {name} {'is gone' if nic is None else 'has no carrier'}"
            problems.append(Problem(rule="check.nic_down", summary=summary, place=Place(link=name), text=summary))
    for nic in facts:
        speed = judging.profile.nic_speed_mbps
        if speed is not None and nic.name in required and nic.speed_mbps is not None and nic.speed_mbps < speed:
            summary = f"{nic.name} runs at {nic.speed_mbps} Mb/s, not {speed}"
            problems.append(Problem(rule="check.nic_speed", summary=summary, place=Place(link=nic.name), text=summary))
        for what, value in (("carrier", nic.carrier_downs), ("errors", nic.errors)):
            if value is not None:
                judging.counters.rise(f"nic:{nic.name}:{what}", value, judging.at)
        flaps = judging.counters.within(f"nic:{nic.name}:carrier", 600.0, judging.at)
        if flaps >= judging.limits.link_flaps_per_10min:
            summary = f"{nic.name} lost its carrier {flaps} times in 10 minutes"
            problems.append(Problem(rule="check.nic_flaps", summary=summary, place=Place(link=nic.name), text=summary))
        errors = judging.counters.within(f"nic:{nic.name}:errors", 600.0, judging.at)
        if errors >= judging.limits.fabric_errors_per_10min:
            summary = f"{errors} errors on {nic.name} in 10 minutes"
            problems.append(
                Problem(
                    rule="check.nic_errors", summary=summary, place=Place(link=nic.name), text=summary, warning=True
                )
            )
    return problems


def neuron(facts: tuple[NeuronFacts, ...], judging: Judging) -> list[Problem]:
    """Neuron devices that are missing; uncorrectable memory errors that came."""
    problems = []
    expected = judging.profile.neuron
    if expected is None:
        expected = int(judging.learned.setdefault("neuron", str(len(facts))))
    if len(facts) < expected:
        summary = f"{len(facts)} of {expected} Neuron devices are there"
        problems.append(Problem(rule="check.neuron_count", summary=summary, text=summary))
    for device in facts:
        for name in _UNCORRECTED:
            if name not in device.counters:
                continue
            rise = judging.counters.rise(f"neuron{device.index}:{name}", device.counters[name], judging.at)
            if rise:
                summary = f"{rise} {name} on Neuron device {device.index}"
                problems.append(
                    Problem(
                        rule="check.neuron_ecc",
                        summary=summary,
                        place=Place(gpu=device.index),
                        text=summary,
                        happened=True,
                    )
                )
    return problems


FABRIC_CHECKS = (
    Check(
        name="infiniband",
        about="InfiniBand and RoCE ports: active, rate, flaps, errors",
        source="infiniband",
        modes=ANY_TIME,
        judge=infiniband,
        on_absent=fabric_absent,
        rules=(
            "check.fabric_port_down",
            "check.fabric_rate",
            "check.fabric_flaps",
            "check.fabric_errors",
            "check.fabric_trend",
        ),
        grace_s=120.0,
        looks=2,
    ),
    Check(
        name="efa",
        about="EFA devices: active, errors",
        source="infiniband",
        modes=ANY_TIME,
        judge=efa,
        rules=("check.fabric_port_down", "check.fabric_errors", "check.fabric_trend"),
        grace_s=120.0,
        looks=2,
    ),
    Check(
        name="nic",
        about="network interfaces: carrier, speed, flaps, errors",
        source="nics",
        modes=ANY_TIME,
        judge=nics,
        rules=("check.nic_down", "check.nic_speed", "check.nic_flaps", "check.nic_errors"),
        grace_s=120.0,
        looks=2,
    ),
    Check(
        name="neuron",
        about="AWS Neuron devices: number, uncorrectable memory errors",
        source="neuron",
        modes=(Mode.PERIODIC, Mode.PROLOG, Mode.DEEP),
        judge=neuron,
        rules=("check.neuron_count", "check.neuron_ecc"),
        grace_s=120.0,
    ),
)
