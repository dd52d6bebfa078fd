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
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import structlog
import typer
from msgspec import Struct

from holdfast import __version__
from holdfast.errors import HoldfastError, JournalBusyError, JournalError, UsageError
from holdfast.model.events import PolicyLoaded
from holdfast.ports import Orchestrator

if TYPE_CHECKING:
    from holdfast.api import ApiServer
    from holdfast.controller import Controller

PORT = 8470
LEASE_S = 10.0

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


def controller(
    *,
    cluster_dir: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder of the cluster; its own files go to DIR/controller.")
    ],
    cluster: Annotated[
        str, typer.Option(help="The cluster to keep: local:SOCKET. Default: the embedded cluster in DIR.")
    ] = "",
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Policy file (TOML); read again on SIGHUP.", exists=False)
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the API listens; port 0 takes a free one.")
    ] = f"127.0.0.1:{PORT}",
    journal: Annotated[str, typer.Option(metavar="URL", help="Journal. Default: sqlite in DIR/controller.")] = "",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Token book (role name sha256). Default: one is made in DIR/controller."),
    ] = None,
    lease_s: Annotated[
        float, typer.Option(min=1.0, max=300.0, help="A standby may take over this long after our last word.")
    ] = LEASE_S,
    standby: Annotated[
        bool, typer.Option("--standby", help="While another controller is active, wait for its lease to end.")
    ] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Write the log as JSON lines.")] = False,
) -> None:
    """Run the controller: judge what is reported, bring jobs back, keep bad nodes out."""
    log_to_stderr(as_json=log_json)
    folder = cluster_dir.absolute() / "controller"
    host, port = parse_listen(listen)
    options = Options(
        folder=folder,
        cluster=cluster or f"local:{cluster_dir.absolute() / 'cluster.sock'}",
        policy=policy,
        host=host,
        port=port,
        journal=journal or f"sqlite:///{folder / 'journal.db'}",
        token_file=token_file,
        lease_s=lease_s,
        standby=standby,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"--dir {cluster_dir}: cannot be made: {error.strerror}") from error
    with only_one(folder):
        asyncio.run(serve(options))


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


def make_orchestrator(cluster: str) -> Orchestrator:
    """The adapter for what `--cluster` names.

    Raises:
        UsageError: a kind of cluster that is not known here.
    """
    kind, _, place = cluster.partition(":")
    if kind == "local" and place:
        from holdfast.adapters.local.client import LocalOrchestrator  # noqa: PLC0415 - each kind has its own imports

        return LocalOrchestrator(Path(place))
    raise UsageError(f"--cluster {cluster!r} is not known here: write local:/path/to/cluster.sock")


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


async def serve(options: Options) -> None:
    """Run until SIGTERM or SIGINT. Raises what `Controller.run` raises."""
    from holdfast.adapters.clock import SystemClock  # noqa: PLC0415 - help and completion stay quick
    from holdfast.adapters.journal import open_journal  # noqa: PLC0415
    from holdfast.adapters.notify import FileNotifier  # noqa: PLC0415
    from holdfast.adapters.policy_files import packaged_presets, read_policy  # noqa: PLC0415
    from holdfast.api import ApiServer, TokenBook  # noqa: PLC0415
    from holdfast.api.auth import ensure_tokens  # noqa: PLC0415
    from holdfast.controller import Controller  # noqa: PLC0415
    from holdfast.decide.engine import Engine  # noqa: PLC0415

    presets = packaged_presets()
    policies, toml = read_policy(options.policy, presets)

    def engine(state: bytes | None) -> Engine:
        if state is None:
            return Engine(policies, scope="cluster", presets=presets)
        return Engine.restore(state, policies, presets=presets)

    orchestrator = make_orchestrator(options.cluster)
    tokens = TokenBook.load(options.token_file or ensure_tokens(options.folder))
    journal = open_journal(options.journal)
    try:
        the_controller = Controller(
            journal,
            engine,
            orchestrator,
            [],
            [FileNotifier(options.folder / "notices.jsonl")],
            SystemClock(),
            holder=f"controller@{socket.gethostname()}:{options.folder}",
            lease_s=options.lease_s,
        )
        api = ApiServer(the_controller, host=options.host, port=options.port, tokens=tokens)
        with signals(the_controller, options):
            await until_ended(the_controller, api, options, toml)
    finally:
        await journal.close()


async def until_ended(the_controller: Controller, api: ApiServer, options: Options, toml: str) -> None:
    """Run the controller; once it is ready, serve the API and say where."""
    task = asyncio.create_task(run(the_controller, options), name="controller")
    ready = asyncio.create_task(the_controller.ready.wait())
    try:
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            async with api:
                await load_policy(the_controller, toml, options.policy)
                facts = {"url": api.url, "pid": os.getpid(), "epoch": the_controller.epoch, "version": __version__}
                publish(options.folder / "controller.json", {**facts, "started_at": time.time()})
                _log.info("controller is ready", url=api.url, cluster=options.cluster)
                await asyncio.wait([task])
    finally:
        ready.cancel()
        the_controller.stop()
        await task


async def run(the_controller: Controller, options: Options) -> None:
    """`Controller.run`; with `--standby`, again and again until the lease is free."""
    said = False
    while True:
        try:
            await the_controller.run()
        except JournalBusyError as error:
            if not options.standby:
                raise
            if not said:
                _log.info("standing by", why=str(error))
                said = True
            if await the_controller.stopped_within(options.lease_s / 5):
                return
            continue
        return


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
