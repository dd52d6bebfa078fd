"""Steps that run other people's programs: stress-ng, nccl-tests, fi_info and fi_pingpong, ib_write_bw.

Each program has its limit, and the step that of its suite. What is not installed is not applicable, not a failure.
Time: that of the programs.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from holdfast.adapters.probes.checks_tools import pingpong_argv, stress_argv
from holdfast.adapters.probes.reach import with_itself
from holdfast.adapters.probes.tool_output import domains, parse_fi_info, parse_pingpong, parse_stress
from holdfast.os.files import text_of
from holdfast.validate import tool_runs
from holdfast.validate.registry import Options
from holdfast.validate.results import Item, absent, failed
from holdfast.validate.tool_output import Collective, parse_nccl_json, parse_nccl_table, parse_perftest

STRESS_LIMIT_S = 60.0
PROGRAMS = ("all_reduce_perf", "all_gather_perf", "reduce_scatter_perf")
PINGPONG_S = 30.0
VERBS = Path("/sys/class/infiniband")
PORT = 18515
"""perftest's own default; the next ones for further ports."""


def stress(options: Options) -> list[Item]:
    """All processors at full load with verified results."""
    del options
    path = tool_runs.where("stress-ng")
    if not path:
        return [absent("cpu.stress", "there is no stress-ng")]
    done = tool_runs.run((path, *stress_argv()[1:]), STRESS_LIMIT_S)
    found = parse_stress(f"{done.out}\n{done.err}")
    if found.failures:
        why = f"processors failed stress-ng's verification: {found.failures[0]}"
        return [failed("cpu.stress", why, "keep work away: silent corruption; have the processor or memory replaced")]
    if not found.finished:
        return [failed("cpu.stress", f"stress-ng did not finish: {done.said}", "run it by hand")]
    rate = found.rates.get("cpu")
    return [Item(name="cpu.stress", value=rate, unit="bogo operations/s", better="higher", text="verified")]


# --- nccl-tests -------------------------------------------------------------------------------------------------------


def nccl_tests(options: Options) -> list[Item]:
    """nccl-tests on this node's GPUs."""
    if not tool_runs.where(PROGRAMS[0], options.nccl_tests):
        return [absent("nccl.all_reduce", "nccl-tests are not built here (--nccl-tests DIR)")]
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) or 1
    items: list[Item] = []
    for program in PROGRAMS:
        path = tool_runs.where(program, options.nccl_tests)
        if path:
            items += collective_items(program.removesuffix("_perf"), _nccl(path, gpus, deep=options.deep))
    return items


def _nccl(path: str, gpus: int, *, deep: bool) -> Collective:
    last = "8G" if deep else "1G"
    limit_s = 500.0 if deep else 180.0
    with tempfile.TemporaryDirectory(prefix="holdfast-nccl-") as folder:
        said = Path(folder) / "result.json"
        argv = (path, "-b", "8M", "-e", last, "-f", "2", "-g", str(gpus))
        done = tool_runs.run((*argv, "-J", str(said)), limit_s)
        if said.exists() and (found := parse_nccl_json(said.read_bytes())).sizes:
            return found
        if done.code and "-J" in f"{done.out}{done.err}":
            done = tool_runs.run(argv, limit_s)  # before 2.17 there is no -J
    if done.hung:
        return Collective(error=f"{Path(path).name} did not end within {limit_s:g} s and was killed")
    return parse_nccl_table(done.out, done.err)


def collective_items(name: str, found: Collective) -> list[Item]:
    """What a collective's figures say."""
    if found.error or found.best is None:
        return [
            failed(f"nccl.{name}", found.error or "no figures", "run it with NCCL_DEBUG=INFO and `holdfast explain`")
        ]
    last = max(found.sizes, key=lambda one: one.size)
    items = [
        Item(name=f"nccl.{name}", value=found.best.busbw, unit="GB/s bus bandwidth", better="higher"),
        Item(name=f"nccl.{name}.largest", value=last.busbw, unit=f"GB/s at {last.size} bytes", better="higher"),
    ]
    if found.wrong:
        why = f"{found.wrong} elements were wrong"
        advice = "keep work away: silent corruption; `holdfast check dcgm-diag-3`, then test GPUs and links in pairs"
        items.append(failed(f"nccl.{name}.wrong", why, advice))
    else:
        items.append(Item(name=f"nccl.{name}.wrong", value=0.0, unit="wrong elements"))
    return items


# --- EFA, libfabric ---------------------------------------------------------------------------------------------------


def efa(options: Options) -> list[Item]:
    """What libfabric offers, and a loopback through it."""
    del options
    path = tool_runs.where("fi_info")
    if not path:
        return [absent("efa.providers", "there is no fi_info")]
    done = tool_runs.run((path,), 30.0)
    endpoints = parse_fi_info(done.out)
    providers = sorted({one.provider for one in endpoints})
    items = [Item(name="efa.providers", text=", ".join(providers) or "none", same=True)]
    provider = os.environ.get("FI_PROVIDER") or ("efa" if "efa" in providers else "")
    devices = domains(one for one in endpoints if one.provider == "efa")
    has_efa = any(VERBS.glob("efa_*")) or any(VERBS.glob("rdmap*"))
    if devices:
        items.append(Item(name="efa.devices", value=float(len(devices)), unit="devices", better="higher"))
    elif has_efa:
        advice = "install the EFA software (libfabric with the efa provider), or put it on the library path"
        items.append(failed("efa.devices", "the kernel has EFA devices that libfabric does not see", advice))
    if not provider or not tool_runs.where("fi_pingpong"):
        return [*items, absent("efa.pingpong", "no provider, or no fi_pingpong")]
    return items + pingpong(provider)


def pingpong(provider: str) -> list[Item]:
    """fi_pingpong with itself on this machine."""
    serve, ask = pingpong_argv(tool_runs.where("fi_pingpong"), provider)
    found, _ = asyncio.run(with_itself(serve, ask, parse_pingpong, os.environ, PINGPONG_S))
    if found.error:
        advice = "see `fi_info -p " + provider + "` and the security group or firewall of the fabric"
        return [failed("efa.pingpong", f"fi_pingpong through {provider}: {found.error}", advice)]
    small, large = min(found.rates), max(found.rates)
    return [
        Item(name="efa.pingpong", value=found.rates[large], unit=f"MB/s at {large} bytes, {provider}", better="higher"),
        Item(
            name="efa.latency", value=found.latencies[small], unit=f"us per transfer of {small} bytes", better="lower"
        ),
    ]


# --- InfiniBand -------------------------------------------------------------------------------------------------------


def infiniband(options: Options) -> list[Item]:
    """Every active port: its rate, and ib_write_bw with itself."""
    ports = sorted(path for path in VERBS.glob("*/ports/*") if not path.parts[-3].startswith(("efa_", "rdmap")))
    if not ports:
        return [absent("ib.ports", "there is no InfiniBand or RoCE device")]
    items: list[Item] = []
    program = tool_runs.where("ib_write_bw")
    for number, path in enumerate(ports):
        device, port = path.parts[-3], path.name
        state, rate = text_of(path / "state"), text_of(path / "rate")
        if "ACTIVE" not in state:
            items.append(
                failed(f"ib.{device}.{port}", f"it is {state or 'gone'}", "check cable, transceiver and switch")
            )
            continue
        value = float(rate.split()[0]) if rate and rate.split()[0].replace(".", "", 1).isdigit() else None
        items.append(Item(name=f"ib.{device}.{port}.rate", value=value, unit="Gb/s", better="higher", text=rate))
        if program:
            items.append(_write_bw(program, device, port, PORT + number, deep=options.deep))
    return items if program else [*items, absent("ib.write_bw", "there is no ib_write_bw (perftest)")]


def _write_bw(program: str, device: str, port: str, at: int, *, deep: bool) -> Item:
    base = (program, "-d", device, "-i", port, "-p", str(at), "--report_gbits", "-F", *(("-a",) if deep else ()))
    name = f"ib.{device}.{port}.write_bw"
    found, _ = asyncio.run(with_itself(base, (*base, "127.0.0.1"), parse_perftest, os.environ, PINGPONG_S))
    if found.error:
        return failed(name, f"ib_write_bw: {found.error}", "see `ibstat`, the subnet manager and memory locking limits")
    size = max(found.gbits)
    return Item(name=name, value=found.gbits[size], unit=f"Gb/s at {size} bytes", better="higher")
