"""An agent as a process: from options to a running `NodeAgent`, ended by SIGTERM or SIGINT.

Called by `python -m holdfast.agent` (which the embedded cluster starts on every node) and by `holdfast agent`. SIGHUP
has agent.toml read again: what is wrong in it is logged, and the agent goes on with what it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from holdfast.adapters.catalogue_files import read_catalogue
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.emulated import devices
from holdfast.adapters.emulated.layout import Devices
from holdfast.adapters.kernel_journal import JOURNAL, can_read
from holdfast.adapters.probes.check import NodeConfig
from holdfast.adapters.probes.config import load_config
from holdfast.adapters.probes.reach import Reach
from holdfast.adapters.probes.rounds import NEVER, Looker, Memory, uptime_s
from holdfast.agent.controller_link import ControllerLink
from holdfast.agent.health import memory_file
from holdfast.agent.node_facts import NodeIdentity, embedded_gpus, read_embedded, read_machine
from holdfast.agent.node_loop import AgentSettings, NodeAgent
from holdfast.agent.parser import ParserProcess, ParserSettings
from holdfast.errors import ConfigError, UsageError
from holdfast.os.tls import DEFAULT_TRUST, Trust
from holdfast.ports import Clock

DEFAULT_STATE = Path("/var/lib/holdfast/agent")
DEFAULT_KERNEL_LOG = Path("/dev/kmsg")
MESSAGES = "var/log/messages"
SYSLOGS = (Path("/var/log/kern.log"), Path("/", MESSAGES), Path("/var/log/syslog"))
"""Files of syslog, to which any user can write in the kernel's name: `logger -t kernel`."""
EMBEDDED_CONFIG = "etc/holdfast/agent.toml"
"""Below an embedded node's folder, which stands for its file system."""
DEVICES = "devices"
EMBEDDED_VALIDATION = ("gpu-*", "nvidia-smi", "dcgm-diag-2")
"""An embedded node shares its machine with all others: what loads it fully is not run."""

_log = structlog.get_logger("holdfast.agent")


class AgentOptions(Struct, frozen=True, kw_only=True):
    """What the command line says. Exactly one of `controller_file` and `controller` is given."""

    node_dir: Path | None = None
    controller_file: Path | None = None
    controller: str = ""
    token_file: Path | None = None
    trust: Trust = DEFAULT_TRUST
    node: str = ""
    kernel_log: Path | None = None
    state_dir: Path | None = None
    rules: tuple[Path, ...] = ()
    beat_s: float = 10.0
    drill_ok: bool = False
    config: Path | None = None
    """agent.toml; None: the usual one, if there is one (an embedded node has none)."""
    checks: bool = True
    """Run the health checks."""
    emulated_devices: bool = False
    """Give an embedded node emulated GPUs."""
    poll_s: float | None = None
    """In place of the configuration's."""
    metrics: str | None = None


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
    if options.node_dir is not None:
        identity, gpus = read_embedded(options.node_dir)
    else:
        identity, gpus = read_machine(options.node, drill_ok=options.drill_ok)
    embedded = options.node_dir
    config = read_config(options)
    kernel_log = options.kernel_log or (embedded / "kmsg" if embedded is not None else find_kernel_log())
    messages = messages_file(options, config)
    settings = AgentSettings(
        kernel_log=kernel_log,
        is_syslog=kernel_log in SYSLOGS,
        is_believed=kernel_log not in SYSLOGS or options.kernel_log is not None or kernel_log == messages,
        messages=messages,
        state_dir=options.state_dir or (embedded / "agent" if embedded is not None else DEFAULT_STATE),
        node_dir=embedded,
        beat_s=options.beat_s,
        metrics=config.metrics,
        logs=config.logs,
        slurm=embedded is None or bool(os.environ.get("SLURM_CONF")),
    )
    clock = SystemClock()
    folder = embedded / DEVICES if embedded is not None and options.emulated_devices else None
    if folder is not None and embedded is not None:
        devices.prepare(folder, embedded_gpus(embedded), machine=identity.instance_id, booted=identity.boot_id)
    wanted = options.checks and (embedded is None or folder is not None)
    return NodeAgent(
        settings,
        identity=identity,
        gpus=gpus,
        parser=ParserProcess(
            read_catalogue(options.rules), clock, ParserSettings(rules=options.rules, user=config.parser_user)
        ),
        clock=clock,
        looker=make_looker(config, settings.state_dir, identity, clock, folder=folder) if wanted else None,
        on_reset=(lambda: _reset_devices(folder)) if folder is not None else None,
        controller=ControllerLink(
            options.controller.rstrip("/"),
            options.controller_file,
            token_file=options.token_file,
            trust=options.trust,
            node_dir=options.node_dir,
        ),
    )


def messages_file(options: AgentOptions, config: NodeConfig) -> Path | None:
    """Syslog's file of all messages, where the configuration has it read."""
    return (options.node_dir or Path("/")) / MESSAGES if config.reads_messages else None


def read_config(options: AgentOptions) -> NodeConfig:
    """agent.toml with what the command line says on top.

    Raises:
        ConfigError: see `load_config`.
    """
    own = options.node_dir / EMBEDDED_CONFIG if options.node_dir is not None else None
    if own is None or options.config is not None:
        config = load_config(options.config)
    else:
        config = load_config(own) if own.exists() else NodeConfig()
        if config.validate == NodeConfig().validate:
            config = msgspec.structs.replace(config, validate=EMBEDDED_VALIDATION)
    if options.poll_s is not None:
        config = msgspec.structs.replace(config, poll_s=options.poll_s)
    if options.metrics is not None:
        config = msgspec.structs.replace(config, metrics=options.metrics)
    return config


def make_looker(
    config: NodeConfig, state_dir: Path, identity: NodeIdentity, clock: Clock, *, folder: Path | None = None
) -> Looker:
    """What looks at this node.

    Args:
        config: agent.toml.
        state_dir: where an agent remembers.
        identity: the node.
        clock: the time.
        folder: emulated devices of an embedded node.
    """
    env = dict(os.environ)
    if folder is not None:
        env = devices.environment(folder, env)
    reach = Reach(env, root=devices.root_of(folder.parent if folder is not None else None), emulated=folder is not None)
    memory = Memory.load(memory_file(state_dir), machine=identity.instance_id, boot=identity.boot_id)
    born = NEVER if folder is not None else clock.monotonic() - uptime_s()
    return Looker(reach, config, clock=clock, memory=memory, born=born, kernel_log=True)


def find_kernel_log() -> Path:
    """The first kernel log that this process may read: the device, systemd's journal, syslog's files; else the device.

    The journal knows which lines the kernel wrote, and syslog's files do not.
    """
    if _readable(DEFAULT_KERNEL_LOG):
        return DEFAULT_KERNEL_LOG
    if can_read():
        return JOURNAL
    return next((path for path in SYSLOGS if _readable(path)), DEFAULT_KERNEL_LOG)


def _readable(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _reset_devices(folder: Path | None) -> None:
    """What a reset of the node's GPUs does to the emulated ones."""
    if folder is not None:
        with contextlib.suppress(OSError, ValueError), Devices(folder / "state") as found:
            found.reset()


def run_agent(options: AgentOptions) -> None:
    """Run until SIGTERM or SIGINT. Raises what `build_agent` raises."""
    asyncio.run(_run(options))


async def _run(options: AgentOptions) -> None:
    agent = build_agent(options)
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(agent.run())
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, work.cancel)
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload(agent, options))
    with contextlib.suppress(asyncio.CancelledError):
        await work


def _reload(agent: NodeAgent, options: AgentOptions) -> None:
    try:
        config = read_config(options)
    except ConfigError as error:
        _log.error("the new configuration is not taken", why=str(error))
        return
    agent.reload(config, messages_file(options, config))
    _log.info("the configuration was read again")
