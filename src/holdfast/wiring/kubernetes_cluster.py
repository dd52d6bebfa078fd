"""Wires `--cluster kubernetes:[CONTEXT]` and `[kubernetes]` of holdfast.toml to the adapter.

Called by `holdfast controller` when it starts. No time passes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from holdfast.model.events import FindingSeen
from holdfast.model.evidence import Remedy
from holdfast.ports import Notifier, Orchestrator
from holdfast.wiring.engines import Engines
from holdfast.wiring.settings import KubernetesConfig

if TYPE_CHECKING:
    from holdfast.adapters.kubernetes.client import KubernetesOrchestrator
    from holdfast.controller import Controller

_log = structlog.get_logger("holdfast.kubernetes")


def make_kubernetes(
    context: str, folder: Path | None, config: KubernetesConfig, *, namespace: str = ""
) -> KubernetesOrchestrator:
    """The adapter for this context of the kubeconfig; an empty one means the current, or the pod's own account.

    Args:
        context: of the kubeconfig.
        folder: where the adapter keeps what it must remember.
        config: `[kubernetes]` of holdfast.toml.
        namespace: of the controller's own pod; empty: see `KubernetesSettings`.

    Raises:
        UsageError: kubernetes-asyncio is not installed.
        ConfigError: a setting is not understood.
    """
    from holdfast.adapters.kubernetes import library  # noqa: PLC0415 - only this kind of cluster needs it

    library.load()
    from holdfast.adapters.kubernetes.check_pod import template_place  # noqa: PLC0415
    from holdfast.adapters.kubernetes.client import KubernetesOrchestrator, KubernetesSettings  # noqa: PLC0415
    from holdfast.adapters.kubernetes.node_orders import Repairers  # noqa: PLC0415

    if config.check_template:
        template_place(config.check_template)
    repairers = Repairers(
        reboot=config.reboot_program,
        replace=config.replace_program,
        by_label=config.repair_by_label,
        limit_s=config.repair_limit_s,
        evict_s=config.evict_s,
    )
    return KubernetesOrchestrator(
        KubernetesSettings(
            context=context,
            kubeconfig=Path(config.kubeconfig).expanduser() if config.kubeconfig else None,
            folder=folder,
            cluster=config.cluster,
            namespace=namespace,
            prefix=config.prefix,
            repairers=repairers,
            check_template=config.check_template,
        )
    )


def inner_of(orchestrator: Orchestrator) -> Orchestrator:
    """The adapter itself, of any kind of cluster, also behind a topology."""
    found: Orchestrator = getattr(orchestrator, "inner", orchestrator)
    return found


def the_adapter(orchestrator: Orchestrator) -> KubernetesOrchestrator | None:
    """The Kubernetes adapter, also behind a topology; None on any other kind of cluster."""
    if orchestrator.name != "kubernetes":
        return None
    from holdfast.adapters.kubernetes.client import KubernetesOrchestrator  # noqa: PLC0415

    found = inner_of(orchestrator)
    return found if isinstance(found, KubernetesOrchestrator) else None


def more_notifiers(orchestrator: Orchestrator) -> list[Notifier]:
    """On Kubernetes every notice also is an Event of its job, its pods and its node."""
    adapter = the_adapter(orchestrator)
    if adapter is None:
        return []
    from holdfast.adapters.kubernetes.notices import EventNotifier  # noqa: PLC0415

    return [EventNotifier(adapter)]


def read_pods(orchestrator: Orchestrator, the_controller: Controller, *, limit_s: float) -> None:
    """Have what failed pods said last be known before their job's end is judged, if that is wanted at all."""
    adapter = the_adapter(orchestrator)
    if adapter is None or limit_s <= 0:
        return
    from holdfast.adapters.catalogue_files import read_catalogue, read_matcher  # noqa: PLC0415
    from holdfast.adapters.kubernetes.pod_logs import PodLogs  # noqa: PLC0415

    async def tell(found: Sequence[FindingSeen]) -> None:
        stored = [the_controller.submit(event) for event in found]
        for outcome in await asyncio.gather(*stored, return_exceptions=True):
            if isinstance(outcome, BaseException):
                _log.warning("what a pod said could not be taken in", why=str(outcome))

    adapter.pod_logs = PodLogs(lambda: read_matcher(read_catalogue()), the_controller.clock, tell, limit_s=limit_s)


def mark_well(orchestrator: Orchestrator, engines: Engines) -> None:
    """Have nodes that nothing ever befell labelled `Schedulable`, where quarantines are acted on at all."""
    adapter = the_adapter(orchestrator)
    if adapter is not None:
        adapter.may_mark = lambda group: engines.acts(group, Remedy.QUARANTINE)
