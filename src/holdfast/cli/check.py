"""`holdfast check`: run health checks of this node now. For a person, and for Slurm's Prolog, Epilog, health check.

Exit codes are those of Nagios: 0 ok, 1 warning, 2 critical, 3 unknown. It works in an almost empty environment, needs
no controller and no agent, and changes nothing. A check that hangs is UNKNOWN, never CRITICAL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.emulated import devices
from holdfast.adapters.probes.check import NAGIOS, Check, Mode, NodeConfig, Problem, Status
from holdfast.adapters.probes.checks import CHECKS, SOURCES, of_mode
from holdfast.adapters.probes.checks_node import describe
from holdfast.adapters.probes.config import chosen, load_config
from holdfast.adapters.probes.reach import Reach
from holdfast.adapters.probes.rounds import (
    NEVER,
    Looker,
    Memory,
    Verdict,
    exit_code,
    is_bad,
    line_of,
    uptime_s,
)
from holdfast.agent.health import memory_file
from holdfast.agent.node_facts import current_boot_id, read_machine
from holdfast.agent.process import DEFAULT_STATE
from holdfast.cli import screen
from holdfast.cli.answer import Answer, answering
from holdfast.cli.json_forms import fields_of, form
from holdfast.cli.options import AgentConfigOption
from holdfast.errors import HoldfastError, UsageError


@answering
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Checks, as --list shows them; `gpu-*` takes all that begin so."),
    ] = None,
    *,
    mode: Annotated[Mode | None, typer.Option(help="All checks of this mode. Default without names: periodic.")] = None,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks, run none.")] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print the [profile] that describes this node as it is, run none.")
    ] = False,
    config: AgentConfigOption = None,
    node_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", envvar="HOLDFAST_NODE_DIR", help="An embedded node's folder: its emulated GPUs."),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="For all checks together; without an answer by then: UNKNOWN."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print problems only.")] = False,
) -> Answer | None:
    """Run health checks of this node: exit code 0 ok, 1 warning, 2 critical, 3 unknown."""
    try:
        settings = load_config(config)
        wanted = _wanted(tuple(names or ()), mode)
    except HoldfastError as error:
        # As a monitoring plug-in ends when it was asked for wrongly: 2 would say that the node is bad.
        screen.say(f"holdfast: {error}", err=True)
        raise typer.Exit(NAGIOS[Status.UNKNOWN]) from error
    if list_checks:
        return _list(wanted if names or mode else list(CHECKS.values()))
    if profile:
        asyncio.run(_profile(settings, node_dir))
        return None
    verdicts = asyncio.run(_run(settings, wanted, mode or Mode.PERIODIC, node_dir, by_hand=bool(names), limit_s=limit))
    return Answer(lambda: _form(verdicts, mode), lambda: _lines(verdicts, quiet=quiet), exit_code(verdicts))


def _wanted(names: tuple[str, ...], mode: Mode | None) -> list[Check]:
    if names and mode is not None:
        raise UsageError("name checks or give --mode, not both")
    return chosen(names) if names else of_mode(mode or Mode.PERIODIC)


def make_looker(settings: NodeConfig, node_dir: Path | None) -> Looker:
    """What looks at this machine, or at an embedded node. Knows what the agent has learned, if it may read it."""
    clock = SystemClock()
    folder = node_dir / "devices" if node_dir is not None and (node_dir / "devices" / "state").exists() else None
    env = dict(os.environ)
    reach = Reach(
        devices.environment(folder, env) if folder is not None else env,
        root=devices.root_of(node_dir),
        emulated=node_dir is not None,
    )
    if node_dir is not None:
        reach.kernel_log = node_dir / "kmsg"
    reach.job = env.get("SLURM_JOB_ID", "")
    machine, boot = read_machine()[0].instance_id, current_boot_id(None)
    memory = Memory.load(memory_file(DEFAULT_STATE), machine=machine, boot=boot) if node_dir is None else Memory()
    born = NEVER if node_dir is not None else clock.monotonic() - uptime_s()
    return Looker(reach, settings, clock=clock, memory=memory, born=born)


async def _run(
    settings: NodeConfig,
    wanted: Sequence[Check],
    mode: Mode,
    node_dir: Path | None,
    *,
    by_hand: bool,
    limit_s: float | None,
) -> list[Verdict]:
    looker = make_looker(settings, node_dir)
    # A single look has no look before it: it is judged by what stands, as in a deep check.
    judged = Mode.DEEP if by_hand or mode is Mode.PERIODIC else mode
    try:
        return await looker.once(wanted, judged, limit_s)
    finally:
        await looker.reach.close()


def _lines(verdicts: Sequence[Verdict], *, quiet: bool) -> Iterator[str]:
    width = max((len(verdict.check) for verdict in verdicts), default=0)
    return (line_of(verdict, width) for verdict in verdicts if is_bad(verdict) or not quiet)


def _form(verdicts: Sequence[Verdict], mode: Mode | None) -> dict[str, object]:
    checks = [
        fields_of(verdict, "check status detail")
        | {"seconds": round(verdict.seconds, 3), "problems": [_problem(one) for one in verdict.problems]}
        for verdict in verdicts
    ]
    return form(mode=mode or Mode.PERIODIC, exit_code=exit_code(verdicts), checks=checks)


def _problem(one: Problem) -> dict[str, object]:
    warning = one.warning or one.predicts
    return fields_of(one, "rule summary place") | {"evidence": one.text, "warning": warning}


def _list(checks: Sequence[Check]) -> Answer:
    forms: list[dict[str, Any]] = [
        {
            "check": one.name,
            **fields_of(one, "about source"),
            "needs": SOURCES[one.source].needs,
            "modes": [mode.value for mode in one.modes],
            "limit_s": SOURCES[one.source].limit_s,
            "grace_s": max(one.grace_s, one.lasting_s),
            "rules": list(one.rules),
        }
        for one in checks
    ]
    rows = (
        (
            made["check"],
            ", ".join(made["modes"]) or "by name only",
            f"{made['limit_s']:g} s",
            made["about"],
            made["needs"],
        )
        for made in forms
    )
    table = screen.table("check", "modes", "limit", "about", "needs", rows=rows, keep=("check",))
    return Answer(lambda: form(checks=forms), lambda: [table])


async def _profile(settings: NodeConfig, node_dir: Path | None) -> None:
    """The node as it is, to be read by a person and kept for all nodes of its type."""
    looker = make_looker(settings, node_dir)
    reach = looker.reach
    lines = ["[profile]"]
    try:
        nvml = await SOURCES["nvml"].read(reach)
        if nvml.facts is not None and nvml.facts.gpus:
            first = nvml.facts.gpus[0]
            lines += [f"gpus = {len(nvml.facts.gpus)}", f'gpu_name = "{first.name}"']
            lines += [f"nvlinks_per_gpu = {sum(link.active for link in first.links)}"] if first.links else []
            lines += [f"pcie_gen = {first.pcie_gen_max}", f"pcie_width = {first.pcie_width_max}"]
        ports = await SOURCES["infiniband"].read(reach)
        for name, efa in (("infiniband", False), ("efa", True)):
            active = [port for port in ports.facts or () if port.state == "ACTIVE" and port.is_efa is efa]
            lines += [f"{name} = {len(active)}"] if active else []
        node = await SOURCES["node"].read(reach)
        if node.facts is not None:
            lines += [f"cpus = {node.facts.cpus}", f"numa_nodes = {node.facts.numa_nodes}"]
            lines += [f"memory_gib = {int(node.facts.memory_total / 2**30)}.0"]
        pci = await SOURCES["pci"].read(reach)
        if pci.facts:
            lines += ["", "[profile.pci]", *(f'"{one.address}" = "{describe(one)}"' for one in pci.facts)]
    finally:
        with contextlib.suppress(OSError):
            await reach.close()
    screen.say("\n".join(lines))
