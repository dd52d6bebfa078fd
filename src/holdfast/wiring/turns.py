"""Whose turn it is: a controller waits here until it may lead, see `controller/election.py`. Called by `controller.py`.

On SQLite all controllers share one machine and its clock, so that a lease can be judged by its time; on PostgreSQL
they do not. The only clock is the controller's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import structlog

from holdfast.adapters.journal import is_postgres, open_journal
from holdfast.adapters.journal.sql import SqlJournal
from holdfast.adapters.kubernetes.api import KubeApi
from holdfast.adapters.kubernetes.incidents import IncidentMirror
from holdfast.adapters.kubernetes.lease import KubernetesLease
from holdfast.adapters.kubernetes.own_pod import set_role
from holdfast.controller import Controller
from holdfast.controller.election import Elector, keep, until_free, win
from holdfast.errors import FencedError, HoldfastError, JournalBusyError, JournalDamagedError, JournalError, UsageError
from holdfast.os.files import BOOT_ID, text_of
from holdfast.ports import Entry

MIRRORED_AT_START = 200

_log = structlog.get_logger("holdfast.controller")


def holder_name(folder: Path, journal: str) -> str:
    """The name in the lease: of one folder on one machine, where `only_one` lets one controller run at a time.

    A journal that several machines share needs more than their host names, which cloned machines have in common.
    """
    boot = text_of(BOOT_ID)[:8] if is_postgres(journal) else ""
    return f"controller@{socket.gethostname()}:{folder}" + (f" ({boot})" if boot else "")


async def open_patiently(url: str, *, standby: bool, pause_s: float) -> SqlJournal:
    """`open_journal`; a standby waits for a server that cannot be reached. Raises what `open_journal` raises."""
    said = False
    while True:
        try:
            return await asyncio.to_thread(open_journal, url)
        except JournalDamagedError:
            raise
        except JournalError as error:
            if not standby:
                raise
            if not said:
                _log.warning("standing by: the journal cannot be opened", why=str(error))
                said = True
        await asyncio.sleep(pause_s)


@contextlib.asynccontextmanager
async def _connected(kubeconfig: str) -> AsyncIterator[KubeApi]:
    api = await KubeApi.connect(kubeconfig=kubeconfig)
    try:
        yield api
    finally:
        await api.close()


@contextlib.asynccontextmanager
async def _meanwhile(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Have this done inside the block; what is not done by its end is given up."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def pod_role(pod: str, role: str, kubeconfig: str = "") -> AsyncIterator[None]:
    """Have our own pod say, from now on, whether it leads; `pod` is `NAMESPACE/NAME`, empty outside Kubernetes."""
    if not pod:
        yield
        return
    async with _connected(kubeconfig) as api, _meanwhile(set_role(api, pod, role), "pod-role"):
        yield


@contextlib.asynccontextmanager
async def mirrored(the_controller: Controller, *, wanted: bool, kubeconfig: str = "") -> AsyncIterator[None]:
    """Show the journal's incidents as objects of the API server, where that is wanted, while this controller leads."""
    if not wanted:
        yield
        return
    async with _connected(kubeconfig) as api:
        mirror = IncidentMirror(api)

        def take(entries: Sequence[Entry]) -> None:
            mirror.tell(record for entry in entries for record in entry.touched.incidents)

        async def work() -> None:
            await mirror.tidy(the_controller.clock.now())
            await mirror.run()

        the_controller.listeners.append(take)
        mirror.tell(reversed(await the_controller.journal.incidents(limit=MIRRORED_AT_START)))
        async with _meanwhile(work(), "incident-mirror"):
            try:
                yield
            finally:
                the_controller.listeners.remove(take)


async def run_in_turn(the_controller: Controller, *, journal: str, standby: bool) -> None:
    """`Controller.run` once the lease is free; a standby waits for it, others only until they know that it is held.

    Raises:
        JournalBusyError: another leads, and `standby` was not asked for.
        FencedError: this one led, and another took over. Whoever keeps this process starts it again, to stand by.
    """
    elector = Elector(the_controller.holder, lease_s=the_controller.lease_s)
    while True:
        seen = None
        if standby or is_postgres(journal):
            seen = await until_free(
                the_controller.journal,
                elector,
                the_controller.clock,
                stopped_within=the_controller.stopped_within,
                patient=standby,
            )
            if seen is None:
                return
        try:
            await the_controller.run(seen=seen, ahead_s=elector.ahead_s)
        except (FencedError, JournalDamagedError):
            raise
        except JournalError as error:
            # Somebody else was quicker, or the store has just gone. Having led once, this process must start anew.
            if not standby or the_controller.epoch:
                raise
            if not isinstance(error, JournalBusyError):
                _log.warning("the lease could not be taken", why=str(error))
            if await the_controller.stopped_within(the_controller.lease_s / 10):
                return
        else:
            return


def lease_name(elect: str) -> tuple[str, str]:
    """Namespace and name of `kubernetes:NAMESPACE/NAME`. Raises UsageError."""
    kind, _, place = elect.partition(":")
    namespace, _, name = place.partition("/")
    if kind != "kubernetes" or not namespace or not name or "/" in name:
        raise UsageError(f"--elect {elect!r}: write kubernetes:NAMESPACE/NAME, such as kubernetes:holdfast/controller")
    return namespace, name


async def lead(
    the_controller: Controller, *, journal: str, standby: bool, elect: str = "", kubeconfig: str = ""
) -> None:
    """`run_in_turn`, with `elect` only while that Kubernetes Lease is held, too.

    Raises:
        FencedError: that lease was lost; the journal's was given back in order.
        JournalBusyError, LinkError: another is elected, or it cannot be told, and `standby` was not asked for.
    """
    if not elect:
        await run_in_turn(the_controller, journal=journal, standby=standby)
        return
    namespace, name = lease_name(elect)
    async with _connected(kubeconfig) as api:
        store, clock = KubernetesLease(api, namespace, name), the_controller.clock
        leading = await win(
            store,
            the_controller.holder,
            clock,
            lease_s=the_controller.lease_s,
            stopped_within=the_controller.stopped_within,
            patient=standby,
        )
        if leading is None:
            return
        keeping = asyncio.create_task(keep(store, leading, clock), name="election")
        keeping.add_done_callback(lambda _: the_controller.stop())
        try:
            await run_in_turn(the_controller, journal=journal, standby=standby)
            if keeping.done():
                raise FencedError(f"the lease {namespace}/{name} was lost: this controller has ended, to stand by anew")
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            try:
                await store.release(now=clock.now())
            except HoldfastError as error:
                _log.warning("the election's lease was not given back", why=str(error))
