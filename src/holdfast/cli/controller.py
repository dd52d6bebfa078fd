"""`holdfast controller`: wires journal, engine, orchestrator and API together and runs until it is told to end.

SIGTERM and SIGINT end it in order (snapshot, lease given back), SIGHUP reads the policy anew. Other processes find it
by `DIR/controller/controller.json`, which appears, whole, when it is ready. The only clock is the machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import structlog
import typer
from msgspec import Struct
from msgspec.structs import replace

from holdfast import __version__
from holdfast.adapters.notice_settings import NotifyConfig
from holdfast.adapters.repair.settings import RepairConfig
from holdfast.cli.config import ConfigOption, KubernetesConfig, Settings, SlurmConfig, TracesConfig, service_settings
from holdfast.cli.engines import Engines
from holdfast.cli.kubernetes_cluster import inner_of, make_kubernetes, mark_well, more_notifiers, read_pods
from holdfast.cli.repairs import make_repairs
from holdfast.cli.turns import ElectOption, JournalUrlOption, holder_name, lead, mirrored, open_patiently, pod_role
from holdfast.drill.calendar import Calendar, checked
from holdfast.errors import HoldfastError, JournalBusyError, JournalError, UsageError
from holdfast.model.events import PolicyLoaded
from holdfast.ports import Closable, Orchestrator, Witness

if TYPE_CHECKING:
    from holdfast.adapters.kubernetes.reviews import TokenReviews
    from holdfast.api import ApiServer
    from holdfast.cockpit import Cockpit
    from holdfast.controller import Controller

PORT = 8470
LEASE_S = 10.0
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
    slurm: SlurmConfig = SlurmConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    repair: RepairConfig = RepairConfig()
    notify: NotifyConfig = NotifyConfig()
    traces: TracesConfig = TracesConfig()
    traces_headers: Path | None = None
    topology: str = ""
    """`slurm`, or an absolute path."""
    calendar: Calendar = Calendar()
    """Drills that the page shows; they are run by `holdfast drill schedule run`."""


def controller(
    *,
    cluster_dir: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder of the cluster; its own files go to DIR/controller.")
    ],
    cluster: Annotated[
        str,
        typer.Option(
            help="The cluster to keep: slurm:[SLURM_CONF], kubernetes:[CONTEXT] or local:SOCKET. "
            "Default: the embedded cluster in DIR."
        ),
    ] = "",
    config: ConfigOption = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Policy file (TOML); read again on SIGHUP.", exists=False)
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the API listens; port 0 takes a free one.")
    ] = f"127.0.0.1:{PORT}",
    journal: JournalUrlOption = "",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Token book (role name sha256). Default: one is made in DIR/controller."),
    ] = None,
    lease_s: Annotated[
        float, typer.Option(min=1.0, max=300.0, help="A standby may take over this long after our last word.")
    ] = LEASE_S,
    standby: Annotated[
        bool, typer.Option("--standby", help="While another controller leads, wait for its lease to end.")
    ] = False,
    elect: ElectOption = "",
    log_json: Annotated[bool, typer.Option("--log-json", help="Write the log as JSON lines.")] = False,
) -> None:
    """Run the controller: judge what is reported, bring jobs back, keep bad nodes out."""
    log_to_stderr(as_json=log_json)
    folder = cluster_dir.absolute() / "controller"
    host, port = parse_listen(listen)
    settings = service_settings(config)
    options = Options(
        folder=folder,
        cluster=cluster or settings.config.cluster or f"local:{cluster_dir.absolute() / 'cluster.sock'}",
        policy=policy or settings.path(settings.config.policy),
        slurm=placed_slurm(settings),
        kubernetes=settings.config.kubernetes,
        repair=settings.config.repair,
        notify=settings.config.notify,
        traces=settings.config.traces,
        traces_headers=settings.path(settings.config.traces.headers_file),
        topology=topology_of(settings),
        calendar=calendar_of(settings),
        host=host,
        port=port,
        journal=journal or f"sqlite:///{folder / 'journal.db'}",
        token_file=token_file,
        lease_s=lease_s,
        standby=standby,
        elect=elect,
        pod=os.environ.get("HOLDFAST_POD", ""),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"--dir {cluster_dir}: cannot be made: {error.strerror}") from error
    with only_one(folder):
        asyncio.run(serve(options))


def make_reviewer(settings: KubernetesConfig) -> TokenReviews | None:
    """Who knows the agents' ServiceAccount tokens; None: nobody was asked for."""
    if not settings.agent_account:
        return None
    from holdfast.adapters.kubernetes.api import KubeApi  # noqa: PLC0415 - an extra
    from holdfast.adapters.kubernetes.reviews import TokenReviews  # noqa: PLC0415 - as above

    kubeconfig = Path(settings.kubeconfig) if settings.kubeconfig else None
    return TokenReviews(lambda: KubeApi.connect(kubeconfig=kubeconfig), settings.agent_account, time.monotonic)


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


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[HOST]:PORT`.

    Raises:
        UsageError: it is something else.
    """
    host, mark, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not mark or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {text!r}: write HOST:PORT, such as 127.0.0.1:{PORT}; port 0 takes a free one")
    return host, int(port)


def make_orchestrator(
    cluster: str,
    folder: Path | None = None,
    slurm: SlurmConfig | None = None,
    kubernetes: KubernetesConfig | None = None,
) -> Orchestrator:
    """The adapter for what `--cluster` names. `folder` is where it may keep what it must remember.

    Raises:
        UsageError: a kind of cluster that is not known here.
    """
    kind, _, place = cluster.partition(":")
    if kind == "local" and place:
        from holdfast.adapters.local.client import LocalOrchestrator  # noqa: PLC0415 - each kind has its own imports

        return LocalOrchestrator(Path(place))
    if kind == "slurm" and cluster.startswith("slurm:"):
        from holdfast.adapters.slurm.client import SlurmOrchestrator, SlurmSettings  # noqa: PLC0415
        from holdfast.adapters.slurm.node_orders import Programs  # noqa: PLC0415

        conf = Path(place).absolute() if place else None
        if conf is not None and not conf.is_file():
            raise UsageError(f"--cluster {cluster!r}: there is no file {conf}")
        slurm = slurm or SlurmConfig()
        programs = Programs(
            replace=slurm.replace_program, replace_by_reason=slurm.replace_by_reason, reboot=slurm.reboot_program
        )
        token_file = Path(slurm.rest_token_file) if slurm.rest_token_file else None
        return SlurmOrchestrator(
            SlurmSettings(conf=conf, folder=folder, programs=programs, rest=slurm.rest, rest_token_file=token_file)
        )
    if kind == "kubernetes":
        own = os.environ.get("HOLDFAST_POD", "").partition("/")[0]
        return make_kubernetes(place, folder, kubernetes or KubernetesConfig(), namespace=own)
    raise UsageError(
        f"--cluster {cluster!r} is not known here: write slurm:[SLURM_CONF], kubernetes:[CONTEXT] or "
        "local:/path/to/cluster.sock"
    )


def placed_slurm(settings: Settings) -> SlurmConfig:
    """`[slurm]` with its file's place made absolute."""
    slurm = settings.config.slurm
    return replace(slurm, rest_token_file=str(settings.path(slurm.rest_token_file) or ""))


def calendar_of(settings: Settings) -> Calendar:
    """The calendar of drills. One that cannot be used is said on the page: a cluster is kept all the same."""
    drill = settings.config.drill
    try:
        return checked(drill.schedule, settings.path(drill.results))
    except UsageError as error:
        return Calendar(wrong=str(error))


def topology_of(settings: Settings) -> str:
    """`slurm`, the absolute path of a file, or nothing."""
    said = settings.config.topology
    return said if said in {"", "slurm"} else str(settings.path(said))


def placed(orchestrator: Orchestrator, options: Options) -> Orchestrator:
    """The orchestrator with its nodes' failure domains; Slurm's own topology is asked for where no file is named."""
    on_slurm = options.cluster.startswith("slurm:")
    if not options.topology and not on_slurm:
        return orchestrator
    from holdfast.adapters.topology import Placed, read_file, read_slurm  # noqa: PLC0415 - few sites name one

    if options.topology not in {"", "slurm"}:
        return Placed(orchestrator, lambda: read_file(Path(options.topology)))
    if not on_slurm:
        raise UsageError(f'topology = "slurm" does not go with --cluster {options.cluster!r}: name a file')
    conf = options.cluster.partition(":")[2]
    environ = {**os.environ, **({"SLURM_CONF": str(Path(conf).absolute())} if conf else {})}
    return Placed(orchestrator, lambda: read_slurm(environ))


def witness_of(orchestrator: Orchestrator) -> Witness | None:
    """The adapter, also behind a topology, where it can prove that a node does not run."""
    found = inner_of(orchestrator)
    return found if isinstance(found, Witness) else None


async def close(orchestrator: Orchestrator) -> None:
    """End what the adapter, also behind a topology, has under way or holds open."""
    found = inner_of(orchestrator)
    if isinstance(found, Closable):
        await found.close()


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock while the controller runs; the kernel lets go of it when the process dies, in any way.

    Because of it, the name in the journal's lease may be the same for each controller of this folder, and one that was
    killed is succeeded at once, without waiting for its lease.

    Raises:
        JournalBusyError: another controller runs in this folder.
    """
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            raise JournalBusyError(
                f"a controller (pid {lock.read().strip() or 'unknown'}) runs in {folder} already: stop it first"
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def allow_connections() -> None:
    """As many open files as the system lets us have: every agent and launcher keeps a connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def serve(options: Options) -> None:
    """Run until SIGTERM or SIGINT. Raises what `Controller.run` raises."""
    allow_connections()
    from holdfast.adapters.clock import SystemClock  # noqa: PLC0415 - help and completion stay quick
    from holdfast.adapters.notify import FileNotifier  # noqa: PLC0415
    from holdfast.adapters.policy_files import packaged_presets, read_policy  # noqa: PLC0415
    from holdfast.api import ApiServer, TokenBook  # noqa: PLC0415
    from holdfast.api.auth import ensure_tokens  # noqa: PLC0415
    from holdfast.cli.notices import FleetFacts, make_outbox  # noqa: PLC0415
    from holdfast.cli.traces import make_exporter, traced  # noqa: PLC0415
    from holdfast.cockpit import Cockpit, router  # noqa: PLC0415
    from holdfast.controller import Controller  # noqa: PLC0415

    clock, facts = SystemClock(), FleetFacts()
    outbox = make_outbox(options.notify, options.folder, facts, clock)
    presets = packaged_presets()
    policies, toml = read_policy(options.policy, presets)
    exporter = make_exporter(options.traces, options.traces_headers)

    engines = Engines(policies, presets)
    orchestrator = placed(
        make_orchestrator(options.cluster, options.folder, options.slurm, options.kubernetes), options
    )
    tokens = TokenBook.load(options.token_file or ensure_tokens(options.folder))
    reviewer: TokenReviews | None = None
    journal = await open_patiently(options.journal, standby=options.standby, pause_s=options.lease_s / 10)
    try:
        the_controller = Controller(
            journal,
            engines,
            orchestrator,
            make_repairs(options.repair, orchestrator, options.folder / "repair", os.environ),
            [FileNotifier(options.folder / "notices.jsonl"), outbox, *more_notifiers(orchestrator)],
            clock,
            holder=holder_name(options.folder, options.journal),
            lease_s=options.lease_s,
            witness=witness_of(orchestrator),
        )
        read_pods(orchestrator, the_controller, limit_s=options.kubernetes.pod_log_s)
        mark_well(orchestrator, engines)
        cockpit = Cockpit(
            the_controller,
            tokens,
            presets,
            drills=options.folder / "drills",
            calendar=options.calendar,
            sessions=options.folder / "sessions.json",
        )
        api = ApiServer(
            the_controller,
            host=options.host,
            port=options.port,
            tokens=tokens,
            pages=[router(cockpit)],
            sessions=cockpit.sessions,
            collectors=[outbox],
            reviewer=(reviewer := make_reviewer(options.kubernetes)),
            fleet=cockpit.fleet,
        )
        facts.fleet = cockpit.fleet
        async with outbox, traced(the_controller, exporter, options.traces.cluster):
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
    work = lead(
        the_controller,
        journal=options.journal,
        standby=options.standby,
        elect=options.elect,
        kubeconfig=options.kubernetes.kubeconfig,
    )
    from holdfast.api.standing_by import standing_by  # noqa: PLC0415 - help and completion stay quick

    task = asyncio.create_task(work, name="controller")
    ready = asyncio.create_task(the_controller.ready.wait())
    kubeconfig = options.kubernetes.kubeconfig
    try:
        async with (
            pod_role(options.pod, "standby", kubeconfig),
            standing_by(options.host, options.port if options.standby else 0),
        ):
            await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            mirror = mirrored(the_controller, wanted=options.kubernetes.mirror_incidents, kubeconfig=kubeconfig)
            async with api, cockpit, mirror, pod_role(options.pod, "active", kubeconfig):
                await load_policy(the_controller, toml, options.policy)
                await first_look(the_controller, task)
                if task.done():
                    return
                facts = {"url": api.url, "pid": os.getpid(), "epoch": the_controller.epoch, "version": __version__}
                publish(options.folder / "controller.json", {**facts, "started_at": time.time()})
                _log.info("controller is ready", url=api.url, cluster=options.cluster)
                await asyncio.wait([task])
    finally:
        ready.cancel()
        the_controller.stop()
        await task


async def first_look(the_controller: Controller, task: asyncio.Task[None]) -> None:
    """Return when the cluster was looked at (in vain, too), the controller has ended, or `FIRST_LOOK_S` are over."""
    tried = asyncio.create_task(the_controller.watch.tried.wait())
    await asyncio.wait([task, tried], timeout=FIRST_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
    tried.cancel()


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
    from holdfast.adapters.policy_files import packaged_presets, read_policy  # noqa: PLC0415

    try:
        _, toml = read_policy(options.policy, packaged_presets())
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


def publish(path: Path, facts: dict[str, Any]) -> None:
    """Replace the file as a whole, so that a reader sees all of it or the one before."""
    staged = path.with_name(f".{path.name}.new")
    try:
        staged.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
        staged.replace(path)
    except OSError as error:
        raise JournalError(f"{path} cannot be written: {error.strerror}") from error
