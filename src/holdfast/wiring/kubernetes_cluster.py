"""Has the adapter of Kubernetes and its controller know of each other.

Called by `holdfast controller` when it starts on such a cluster, and imported only there. No time passes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.kubernetes.client import KubernetesOrchestrator
from holdfast.adapters.kubernetes.notices import EventNotifier
from holdfast.adapters.kubernetes.pod_logs import PodLogs
from holdfast.adapters.kubernetes.settings import KubernetesConfig
from holdfast.controller import Controller
from holdfast.model.events import FindingSeen
from holdfast.model.evidence import Remedy
from holdfast.ports import Notifier, Orchestrator
from holdfast.wiring.engines import Engines

_log = structlog.get_logger("holdfast.kubernetes")


def attach(
    adapter: Orchestrator,
    the_controller: Controller,
    notifiers: list[Notifier],
    engines: Engines,
    config: KubernetesConfig,
) -> None:
    """Have the adapter and its controller know of each other, before the controller runs.

    Every notice also is an Event of its job, its pods and its node. What failed pods said last is known before their
    job's end is judged, unless `pod_log_s` is 0. Nodes with no recorded fault are labelled `Schedulable` where
    quarantines are acted on.
    """
    if not isinstance(adapter, KubernetesOrchestrator):
        return
    notifiers.append(EventNotifier(adapter))
    adapter.may_mark = lambda group: engines.acts(group, Remedy.QUARANTINE)
    if config.pod_log_s <= 0:
        return

    async def tell(found: Sequence[FindingSeen]) -> None:
        stored = [the_controller.submit(event) for event in found]
        for outcome in await asyncio.gather(*stored, return_exceptions=True):
            if isinstance(outcome, BaseException):
                _log.warning("what a pod said could not be taken in", why=str(outcome))

    clock, limit_s = the_controller.clock, config.pod_log_s
    adapter.pod_logs = PodLogs(lambda: read_matcher(read_catalogue()), clock, tell, limit_s=limit_s)
