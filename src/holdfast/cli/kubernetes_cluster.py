"""Wires `--cluster kubernetes:[CONTEXT]` and `[kubernetes]` of holdfast.toml to the adapter.

Called by `holdfast controller` when it starts. No time passes here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.config import KubernetesConfig
from holdfast.errors import UsageError
from holdfast.ports import Notifier, Orchestrator

if TYPE_CHECKING:
    from holdfast.adapters.kubernetes.client import KubernetesOrchestrator


def make_kubernetes(context: str, folder: Path | None, config: KubernetesConfig) -> KubernetesOrchestrator:
    """The adapter for this context of the kubeconfig; an empty one means the current, or the pod's own account.

    Raises:
        UsageError: kubernetes-asyncio is not installed.
    """
    try:
        import kubernetes_asyncio.config  # noqa: F401, PLC0415 - only this kind of cluster needs it
    except ImportError as error:
        raise UsageError("--cluster kubernetes needs a library more: pip install 'holdfast[kubernetes]'") from error
    from holdfast.adapters.kubernetes.client import KubernetesOrchestrator, KubernetesSettings  # noqa: PLC0415
    from holdfast.adapters.kubernetes.node_orders import Repairers  # noqa: PLC0415

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
            prefix=config.prefix,
            repairers=repairers,
        )
    )


def more_notifiers(orchestrator: Orchestrator) -> list[Notifier]:
    """On Kubernetes every notice also is an Event of its job and node."""
    if orchestrator.name != "kubernetes":
        return []
    from holdfast.adapters.kubernetes.client import KubernetesOrchestrator  # noqa: PLC0415
    from holdfast.adapters.kubernetes.notices import EventNotifier  # noqa: PLC0415

    return [EventNotifier(orchestrator)] if isinstance(orchestrator, KubernetesOrchestrator) else []


async def close(orchestrator: Orchestrator) -> None:
    """Let go of the API server. Other kinds of clusters hold nothing open."""
    if orchestrator.name == "kubernetes":
        from holdfast.adapters.kubernetes.client import KubernetesOrchestrator  # noqa: PLC0415

        if isinstance(orchestrator, KubernetesOrchestrator):
            await orchestrator.close()
