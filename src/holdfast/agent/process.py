"""An agent as a process: from options to a running `NodeAgent`, ended by SIGTERM or SIGINT.

Called by `python -m holdfast.agent` (which the embedded cluster starts on every node) and by `holdfast agent`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

from msgspec import Struct

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.agent.controller_link import AddressSource, ControllerFile, ControllerLink, FixedAddress
from holdfast.agent.node_facts import read_embedded, read_machine
from holdfast.agent.node_loop import AgentSettings, NodeAgent
from holdfast.errors import UsageError

DEFAULT_STATE = Path("/var/lib/holdfast/agent")
DEFAULT_KERNEL_LOG = Path("/dev/kmsg")


class AgentOptions(Struct, frozen=True, kw_only=True):
    """What the command line says. Exactly one of `controller_file` and `controller` is given."""

    node_dir: Path | None = None
    controller_file: Path | None = None
    controller: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    node: str = ""
    kernel_log: Path | None = None
    state_dir: Path | None = None
    rules: tuple[Path, ...] = ()
    beat_s: float = 10.0
    drill_ok: bool = False


def build_agent(options: AgentOptions) -> NodeAgent:
    """An agent that is ready to run.

    Raises:
        UsageError: options that do not fit together.
        ConfigError: the node's facts or the site's rules cannot be read.
    """
    if (options.controller_file is None) == (not options.controller):
        raise UsageError("say where the controller is: --controller URL, or --controller-file FILE")
    if options.beat_s <= 0:
        raise UsageError(f"--beat-s {options.beat_s:g} must be above zero")
    address: AddressSource = (
        ControllerFile(options.controller_file)
        if options.controller_file is not None
        else FixedAddress(options.controller.rstrip("/"))
    )
    token_file = options.token_file
    if token_file is None and options.controller_file is not None:
        token_file = options.controller_file.with_name("agent-token")

    if options.node_dir is not None:
        identity, gpus = read_embedded(options.node_dir)
    else:
        identity, gpus = read_machine(options.node, drill_ok=options.drill_ok)
    embedded = options.node_dir
    settings = AgentSettings(
        kernel_log=options.kernel_log or (embedded / "kmsg" if embedded is not None else DEFAULT_KERNEL_LOG),
        state_dir=options.state_dir or (embedded / "agent" if embedded is not None else DEFAULT_STATE),
        node_dir=embedded,
        beat_s=options.beat_s,
    )
    return NodeAgent(
        settings,
        identity=identity,
        gpus=gpus,
        matcher=read_matcher(read_catalogue(options.rules)),
        clock=SystemClock(),
        controller=ControllerLink(address, token_file=token_file, ca_file=options.ca_file, node_dir=options.node_dir),
    )


def run_agent(options: AgentOptions) -> None:
    """Run until SIGTERM or SIGINT. Raises what `build_agent` raises."""
    asyncio.run(_run(options))


async def _run(options: AgentOptions) -> None:
    agent = build_agent(options)
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(agent.run())
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work
