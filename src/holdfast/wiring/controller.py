"""Wires journal, engine, orchestrator and API together and runs the controller until it is told to end.

SIGTERM and SIGINT end it in order (snapshot, lease given back), SIGHUP reads the policy anew. Other processes find it
by `DIR/controller/controller.json`, which appears, whole, when it is ready. Called by `holdfast controller`, which
imports it only to run: it loads all that a controller is made of. The only clock is the machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from holdfast import __version__
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.kubernetes.api import KubeApi
from holdfast.adapters.kubernetes.reviews import TokenReviews
from holdfast.adapters.kubernetes.settings import KubernetesConfig
from holdfast.adapters.notify import FileNotifier
from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.api import ApiServer, TokenBook
from holdfast.api.auth import ensure_tokens, too_few_people
from holdfast.api.exchange import Directory, Exchange, ensure_key
from holdfast.api.standing_by import standing_by
from holdfast.cockpit import Cockpit, router
from holdfast.controller import Controller
from holdfast.drill.calendar import Calendar
from holdfast.drill.calendar import checked as checked_calendar
from holdfast.errors import HoldfastError, JournalBusyError, JournalError, UsageError
from holdfast.model.events import PolicyLoaded
from holdfast.model.policy import PolicySet
from holdfast.os import munge
from holdfast.os.files import locked, write_whole
from holdfast.os.tls import checked
from holdfast.os.unix_sockets import NAME
from holdfast.ports import Notifier, Orchestrator
from holdfast.wiring.certificate_watch import CertificateWatch
from holdfast.wiring.engines import Engines
from holdfast.wiring.notices import FleetFacts, make_outbox
from holdfast.wiring.orchestrators import (
    close,
    inner_of,
    make_orchestrator,
    placed,
    placed_slurm,
    topology_of,
    witness_of,
)
from holdfast.wiring.repairs import make_repairs
from holdfast.wiring.settings import Config, Settings, tls_files
from holdfast.wiring.traces import make_exporter, traced
from holdfast.wiring.turns import holder_name, lead, mirrored, open_patiently, pod_role

FIRST_LOOK_S = 5.0
"""So long "ready" waits for the first look at the cluster: a cluster that cannot be there ends the controller."""

_log = structlog.get_logger("holdfast.controller")


class Options(Struct, frozen=True, kw_only=True):
    """What the command was asked for."""

    folder: Path
    """`DIR/controller`, where everything of its own stands."""
    cluster: str
    policy: Path | None
    host: str
    port: int
    journal: str
    token_file: Path | None
    lease_s: float
    standby: bool
    elect: str = ""
    pod: str = ""
    """`NAMESPACE/NAME` of the pod that this runs in."""
    settings: Settings = Settings(Config())


def keep(options: Options) -> None:
    """Run the controller of this folder, the only one in it. Raises what `serve` and `only_one` raise."""
    with only_one(options.folder):
        asyncio.run(serve(options))


def calendar_of(settings: Settings) -> Calendar:
    """The calendar of drills. One that cannot be used is said on the page: a cluster is kept all the same."""
    drill = settings.config.drill
    try:
        return checked_calendar(drill.schedule, settings.path(drill.results))
    except UsageError as error:
        return Calendar(wrong=str(error))


def make_reviewer(settings: KubernetesConfig) -> TokenReviews | None:
    """Who knows the agents' ServiceAccount tokens; None: nobody was asked for."""
    if not settings.agent_account:
        return None
    connect = partial(KubeApi.connect, kubeconfig=settings.kubeconfig)
    return TokenReviews(connect, settings.agent_account, time.monotonic)


def socket_path(folder: Path) -> Path:
    """The socket for users of this machine: in systemd's RuntimeDirectory, which all may enter, else in the folder."""
    return Path(os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0] or folder) / NAME


def make_exchange(slurm: SlurmConfig, orchestrator: Orchestrator, folder: Path) -> Exchange | None:
    """Make the exchange that gives tokens for munge credentials; None: settings name none.

    Raises:
        UsageError: the cluster is no Slurm, which alone knows users and nodes by munge's measure.
        ConfigError: see `ensure_key`.
    """
    if not slurm.munge:
        return None
    directory = inner_of(orchestrator)
    if not isinstance(directory, Directory):
        raise UsageError("[slurm] munge goes with --cluster slurm: alone")
    return Exchange(partial(munge.decode, socket=slurm.munge_socket), directory, ensure_key(folder))


def log_to_stderr(*, as_json: bool) -> None:
    """Structured log lines on stderr, with time and level."""
    render: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock while the controller runs; the kernel lets go of it when the process dies, in any way.

    Because of it, the name in the journal's lease may be the same for each controller of this folder, and one that was
    killed is succeeded at once, without waiting for its lease.

    Raises:
        JournalBusyError: another controller runs in this folder.
        JournalError: it cannot be locked.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "lock"))
        except BlockingIOError as error:
            raise JournalBusyError(
                f"a controller runs in {folder} already ({error.strerror}): stop it first"
            ) from error
        except OSError as error:
            raise JournalError(f"the lock {folder / 'lock'} cannot be taken: {error.strerror}") from error
        yield


def allow_connections() -> None:
    """As many open files as the system lets us have: every agent and launcher keeps a connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def serve(options: Options) -> None:
    """Run until SIGTERM or SIGINT. Raises what `Controller.run` raises."""
    allow_connections()
    config = options.settings.config
    clock, facts = SystemClock(), FleetFacts()
    outbox = make_outbox(config.notify, options.folder, facts, clock)
    presets = packaged_presets()
    policies, toml = read_policy(options.policy, presets)
    exporter = make_exporter(config.traces, options.settings.path(config.traces.headers_file))
    tls = tls_files(options.settings)
    if tls is not None:
        checked(tls)  # a standby says so at its start, not when it is needed
    engines = Engines(policies, presets)
    slurm, topology = placed_slurm(options.settings), topology_of(options.settings)
    orchestrator = make_orchestrator(options.cluster, options.folder, slurm, config.kubernetes)
    orchestrator = placed(orchestrator, options.cluster, topology)
    tokens = TokenBook.load(book := options.token_file or ensure_tokens(options.folder))
    warn_of_people(policies, book)
    reviewer: TokenReviews | None = None
    journal = await open_patiently(options.journal, standby=options.standby, pause_s=options.lease_s / 10)
    try:
        notifiers: list[Notifier] = [FileNotifier(options.folder / "notices.jsonl"), outbox]
        the_controller = Controller(
            journal,
            engines,
            orchestrator,
            make_repairs(config.repair, orchestrator, options.folder / "repair", os.environ),
            notifiers,
            clock,
            holder=holder_name(options.folder, options.journal),
            lease_s=options.lease_s,
            witness=witness_of(orchestrator),
        )
        if orchestrator.name == "kubernetes":
            from holdfast.wiring import kubernetes_cluster  # noqa: PLC0415 - loaded by `make_orchestrator`, there alone

            kubernetes_cluster.attach(inner_of(orchestrator), the_controller, notifiers, engines, config.kubernetes)
        certificate = CertificateWatch(tls, notifiers, options.folder, clock)
        cockpit = Cockpit(
            the_controller,
            tokens,
            presets,
            drills=options.folder / "drills",
            calendar=calendar_of(options.settings),
            sessions=options.folder / "sessions.json",
        )
        api = ApiServer(
            the_controller,
            host=options.host,
            port=options.port,
            tokens=tokens,
            fleet=cockpit.fleet,
            pages=[router(cockpit)],
            sessions=cockpit.sessions,
            open_metrics=config.api.open_metrics,
            collectors=[outbox, certificate],
            reviewer=(reviewer := make_reviewer(config.kubernetes)),
            exchange=make_exchange(slurm, orchestrator, options.folder),
            tls=tls,
            socket=socket_path(options.folder),
        )
        facts.fleet = cockpit.fleet
        async with outbox, certificate.running(), traced(the_controller, exporter, config.traces.cluster):
            with signals(the_controller, options):
                await until_ended(the_controller, api, cockpit, options, toml)
    finally:
        if reviewer is not None:
            await reviewer.close()
        await close(orchestrator)
        await journal.close()


async def until_ended(
    the_controller: Controller, api: ApiServer, cockpit: Cockpit, options: Options, toml: str
) -> None:
    """Run the controller; once it is ready, serve the API with the cockpit and say where."""
    kubernetes, tls = options.settings.config.kubernetes, tls_files(options.settings)
    work = lead(
        the_controller,
        journal=options.journal,
        standby=options.standby,
        elect=options.elect,
        kubeconfig=kubernetes.kubeconfig,
    )
    task = asyncio.create_task(work, name="controller")
    ready = asyncio.create_task(the_controller.ready.wait())
    kubeconfig = kubernetes.kubeconfig
    try:
        async with (
            pod_role(options.pod, "standby", kubeconfig),
            standing_by(options.host, options.port if options.standby else 0, tls),
        ):
            await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            mirror = mirrored(the_controller, wanted=kubernetes.mirror_incidents, kubeconfig=kubeconfig)
            async with api, cockpit, mirror, pod_role(options.pod, "active", kubeconfig):
                await load_policy(the_controller, toml, options.policy)
                await first_look(the_controller, task)
                if task.done():
                    return
                facts = {"url": api.url, "pid": os.getpid(), "epoch": the_controller.epoch, "version": __version__}
                address = options.folder / "controller.json"
                written = publish(address, {**facts, "started_at": time.time()})
                _log.info("controller is ready", url=api.url, cluster=options.cluster)
                try:
                    await asyncio.wait([task])
                finally:
                    withdraw(address, written)
    finally:
        ready.cancel()
        the_controller.stop()
        await task


async def first_look(the_controller: Controller, task: asyncio.Task[None]) -> None:
    """Return when the cluster was looked at (in vain, too), the controller has ended, or `FIRST_LOOK_S` are over."""
    tried = asyncio.create_task(the_controller.watch.tried.wait())
    await asyncio.wait([task, tried], timeout=FIRST_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
    tried.cancel()


def warn_of_people(policies: PolicySet, book: Path) -> None:
    """Log it where policy asks for more people than may approve."""
    if why := too_few_people(policies, book, time.time(), os.geteuid()):
        _log.warning("what is proposed cannot be approved", why=why)


async def load_policy(the_controller: Controller, toml: str, file: Path | None, why: str = "start") -> None:
    """Have the policy in the journal, unless it is the one that holds: a replay must judge by it, too.

    Without a policy file the one that the journal knows goes on to hold.
    """
    known = await the_controller.journal.events(kind="policy_loaded")
    if file is None or (known and isinstance(known[-1], PolicyLoaded) and known[-1].toml == toml):
        return
    number = len(known) + 1
    loaded = PolicyLoaded(
        id=f"policy:{the_controller.epoch}.{number}",
        at=the_controller.clock.now(),
        source=f"controller:{why}",
        toml=toml,
        file=str(file),
    )
    await the_controller.submit(loaded)
    _log.info("policy loaded", file=str(file))


async def reload_policy(the_controller: Controller, options: Options) -> None:
    """Read the policy file again; a wrong one changes nothing."""
    try:
        policies, toml = read_policy(options.policy, packaged_presets())
        warn_of_people(policies, options.token_file or ensure_tokens(options.folder))
        await load_policy(the_controller, toml, options.policy, "SIGHUP")
    except HoldfastError as error:
        _log.error("the policy was not loaded; the former one holds", why=str(error))


@contextlib.contextmanager
def signals(the_controller: Controller, options: Options) -> Iterator[None]:
    """SIGTERM and SIGINT ask for an orderly end, SIGHUP reads the policy again."""
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = loop.create_task(reload_policy(the_controller, options))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, the_controller.stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def publish(path: Path, facts: dict[str, Any]) -> bytes:
    """Say where the controller is; what was written. Raises JournalError when that fails."""
    written = msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n"
    try:
        write_whole(path, written)
    except OSError as error:
        raise JournalError(f"{path} cannot be written: {error.strerror}") from error
    return written


def withdraw(path: Path, written: bytes) -> None:
    """Remove what `publish` wrote, unless another controller has replaced it: others may listen on the port next."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == written:
            path.unlink()
