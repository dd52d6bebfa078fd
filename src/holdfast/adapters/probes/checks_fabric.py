"""Checks of the network (InfiniBand, RoCE, EFA, network interfaces) and of Neuron devices. Pure but for the sources.

A link that broke and came back is told when it does so again and again; error counters count by rate.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.adapters.probes.check import Judging, Mode, Problem, check, problem
from holdfast.adapters.probes.facts import NeuronFacts, NicFacts, PortFacts
from holdfast.adapters.probes.reach import files
from holdfast.model.evidence import Place

WARM_UP_S = 120.0
WINDOW_S = 600.0
"""Errors and lost links are counted over this time."""
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


PORTS = files(
    "infiniband", "/sys/class/infiniband: InfiniBand, RoCE and EFA devices", "an RDMA device", tuple[PortFacts, ...]
)
NICS = files("nics", "/sys/class/net", "a network interface with a device", tuple[NicFacts, ...])
NEURON = files("neuron", "/sys/devices/virtual/neuron_device", "AWS Neuron devices", tuple[NeuronFacts, ...])


def ports(facts: tuple[PortFacts, ...], judging: Judging, what: str, told: int | None) -> Iterator[Problem]:
    """State, rate and errors of the ports of one kind, of which the profile says `told`."""
    mine = [port for port in facts if port.is_efa is (what == "EFA")]
    active = [port for port in mine if port.state == "ACTIVE"]
    # Ports that nobody cabled stay down for good: as many as were active at first must stay so.
    expected = judging.most(told, f"{what}:active", len(active))
    if len(active) < expected:
        down = [port for port in mine if port.state != "ACTIVE"]
        words = ", ".join(f"{port.name} {port.state or 'gone'} ({port.physical})" for port in down[:4])
        summary = f"{len(active)} of {expected} {what} ports are active" + (f": {words}" if words else "")
        where = Place(link=down[0].name if len(down) == 1 else "")
        yield problem("check.fabric_port_down", summary, where, text=words or summary)
    for port in active:
        yield from _rate(port, judging)
        yield from _errors(port, judging)


def _rate(port: PortFacts, judging: Judging) -> Iterator[Problem]:
    if port.rate_gbps is None:
        return
    least = judging.profile.rate_gbps
    if least is None:
        least = float(judging.learned.setdefault(f"{port.name}:rate", str(port.rate_gbps)))
    if port.rate_gbps < least:
        summary = f"{port.name} runs at {port.rate_gbps:g} Gb/s, not {least:g}"
        yield problem("check.fabric_rate", summary, Place(link=port.name))


def _errors(port: PortFacts, judging: Judging) -> Iterator[Problem]:
    name, where, least = port.name, Place(link=port.name), judging.limits.fabric_errors_per_10min
    for counter in (*_ERRORS, *_FLAPS):
        if counter in port.counters:
            judging.rise(f"{name}:{counter}", port.counters[counter])
    flaps = sum(judging.within(f"{name}:{one}", WINDOW_S) for one in _FLAPS)
    if flaps >= judging.limits.link_flaps_per_10min:
        yield problem("check.fabric_flaps", f"{name} lost its link {flaps} times in 10 minutes", where)
    lately = {one: judging.within(f"{name}:{one}", WINDOW_S) for one in _ERRORS}
    worst = max(lately, key=lambda one: lately[one])
    words = f"{lately[worst]} {worst}"
    if any(judging.grows(f"{name}:{one}", WINDOW_S, least) for one in _ERRORS):
        summary = f"errors on {name} come ever faster: {words} in 10 minutes"
        yield problem("check.fabric_trend", summary, where, predicts=True)
    elif lately[worst] >= least:
        yield problem("check.fabric_errors", f"{words} on {name} in 10 minutes", where, warning=True)


def fabric_absent(why: str, judging: Judging) -> list[Problem]:
    """No RDMA device at all where the profile, or the first look, had some."""
    known = max(int(judging.learned.get(f"{what}:active", "0")) for what in ("EFA", "InfiniBand"))
    expected = max(judging.profile.infiniband or 0, judging.profile.efa or 0, known)
    if not expected:
        return []
    return [problem("check.fabric_port_down", f"none of {expected} RDMA ports is there: {why}", text=why)]


@check(
    "infiniband",
    "InfiniBand and RoCE ports: active, rate, flaps, errors",
    "infiniband",
    "check.fabric_port_down",
    "check.fabric_rate",
    "check.fabric_flaps",
    "check.fabric_errors",
    "check.fabric_trend",
    on_absent=fabric_absent,
    grace_s=WARM_UP_S,
    looks=2,
)
def infiniband(facts: tuple[PortFacts, ...], judging: Judging) -> Iterator[Problem]:
    """InfiniBand and RoCE ports."""
    return ports(facts, judging, "InfiniBand", judging.profile.infiniband)


@check(
    "efa",
    "EFA devices: active, errors",
    "infiniband",
    "check.fabric_port_down",
    "check.fabric_errors",
    "check.fabric_trend",
    grace_s=WARM_UP_S,
    looks=2,
)
def efa(facts: tuple[PortFacts, ...], judging: Judging) -> Iterator[Problem]:
    """EFA devices."""
    return ports(facts, judging, "EFA", judging.profile.efa)


@check(
    "nic",
    "network interfaces: carrier, speed, flaps, errors",
    "nics",
    "check.nic_down",
    "check.nic_speed",
    "check.nic_flaps",
    "check.nic_errors",
    grace_s=WARM_UP_S,
    looks=2,
)
def nics(facts: tuple[NicFacts, ...], judging: Judging) -> Iterator[Problem]:
    """Carrier, speed, flaps and errors of network interfaces."""
    by_name = {nic.name: nic for nic in facts}
    required = judging.profile.nics or tuple(filter(None, judging.learned.get("nics", "").split(",")))
    if not judging.profile.nics:
        judging.learned.setdefault("nics", ",".join(nic.name for nic in facts if nic.carrier))
    for name in required:
        one = by_name.get(name)
        if one is None or not one.carrier:
            summary = f"network interface {name} {'is gone' if one is None else 'has no carrier'}"
            yield problem("check.nic_down", summary, Place(link=name))
    speed = judging.profile.nic_speed_mbps
    for nic in facts:
        where = Place(link=nic.name)
        if speed is not None and nic.name in required and nic.speed_mbps is not None and nic.speed_mbps < speed:
            yield problem("check.nic_speed", f"{nic.name} runs at {nic.speed_mbps} Mb/s, not {speed}", where)
        for what, value in (("carrier", nic.carrier_downs), ("errors", nic.errors)):
            if value is not None:
                judging.rise(f"nic:{nic.name}:{what}", value)
        flaps, errors = (judging.within(f"nic:{nic.name}:{what}", WINDOW_S) for what in ("carrier", "errors"))
        if flaps >= judging.limits.link_flaps_per_10min:
            yield problem("check.nic_flaps", f"{nic.name} lost its carrier {flaps} times in 10 minutes", where)
        if errors >= judging.limits.fabric_errors_per_10min:
            yield problem("check.nic_errors", f"{errors} errors on {nic.name} in 10 minutes", where, warning=True)


@check(
    "neuron",
    "AWS Neuron devices: number, uncorrectable memory errors",
    "neuron",
    "check.neuron_count",
    "check.neuron_ecc",
    modes=(Mode.PERIODIC, Mode.PROLOG, Mode.DEEP),
    grace_s=WARM_UP_S,
)
def neuron(facts: tuple[NeuronFacts, ...], judging: Judging) -> Iterator[Problem]:
    """Neuron devices that are missing; uncorrectable memory errors that came."""
    expected = judging.expected(judging.profile.neuron, "neuron", len(facts))
    if len(facts) < expected:
        yield problem("check.neuron_count", f"{len(facts)} of {expected} Neuron devices are there")
    for device in facts:
        for name in _UNCORRECTED:
            value = device.counters.get(name)
            if value is not None and (rise := judging.rise(f"neuron{device.index}:{name}", value)):
                summary = f"{rise} {name} on Neuron device {device.index}"
                yield problem("check.neuron_ecc", summary, Place(gpu=device.index), happened=True)
