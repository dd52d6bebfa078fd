"""The adapter for the cluster that a controller keeps: Slurm, Kubernetes or embedded, with its nodes' failure domains.

Called by `wiring.controller` when it starts. No time passes here.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from holdfast.adapters.kubernetes.settings import KubernetesConfig
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.adapters.topology import Placed, read_file, read_slurm
from holdfast.errors import UsageError
from holdfast.ports import Closable, Orchestrator, Witness
from holdfast.wiring.settings import Settings


def make_orchestrator(
    cluster: str,
    folder: Path | None = None,
    slurm: SlurmConfig | None = None,
    kubernetes: KubernetesConfig | None = None,
) -> Orchestrator:
    """The adapter for what `--cluster` names. `folder` is where it may keep what it must remember.

    Raises:
        UsageError: a kind of cluster that is not known here, or its library is not installed.
        ConfigError: a setting is not understood.
    """
    kind, _, place = cluster.partition(":")
    if kind == "local" and place:
        return LocalOrchestrator(Path(place))
    if kind == "slurm" and cluster.startswith("slurm:"):
        from holdfast.adapters.slurm.client import SlurmOrchestrator  # noqa: PLC0415 - as below

        conf = Path(place).absolute() if place else None
        if conf is not None and not conf.is_file():
            raise UsageError(f"--cluster {cluster!r}: there is no file {conf}")
        return SlurmOrchestrator(slurm or SlurmConfig(), conf=conf, folder=folder)
    if kind == "kubernetes":
        from holdfast.adapters.kubernetes import check_pod, library  # noqa: PLC0415 - each kind loads its own
        from holdfast.adapters.kubernetes.client import KubernetesOrchestrator  # noqa: PLC0415

        library.load()
        kubernetes = kubernetes or KubernetesConfig()
        if kubernetes.check_template:
            check_pod.template_place(kubernetes.check_template)
        own = os.environ.get("HOLDFAST_POD", "").partition("/")[0]
        return KubernetesOrchestrator(kubernetes, place, folder, own)
    raise UsageError(
        f"--cluster {cluster!r} is not known here: write slurm:[SLURM_CONF], kubernetes:[CONTEXT] or "
        "local:/path/to/cluster.sock"
    )


def placed_slurm(settings: Settings) -> SlurmConfig:
    """`[slurm]` with its file's place made absolute."""
    slurm = settings.config.slurm
    return replace(slurm, rest_token_file=str(settings.path(slurm.rest_token_file) or ""))


def topology_of(settings: Settings) -> str:
    """`slurm`, the absolute path of a file, or nothing."""
    said = settings.config.topology
    return said if said in {"", "slurm"} else str(settings.path(said))


def placed(orchestrator: Orchestrator, cluster: str, topology: str) -> Orchestrator:
    """The orchestrator with its nodes' failure domains; Slurm's own topology is asked for where no file is named."""
    on_slurm = cluster.startswith("slurm:")
    if not topology and not on_slurm:
        return orchestrator
    if topology not in {"", "slurm"}:
        return Placed(orchestrator, lambda: read_file(Path(topology)))
    if not on_slurm:
        raise UsageError(f'topology = "slurm" does not go with --cluster {cluster!r}: name a file')
    conf = cluster.partition(":")[2]
    environ = {**os.environ, **({"SLURM_CONF": str(Path(conf).absolute())} if conf else {})}
    return Placed(orchestrator, lambda: read_slurm(environ))


def inner_of(orchestrator: Orchestrator) -> Orchestrator:
    """The adapter itself, of any kind of cluster, also behind a topology."""
    found: Orchestrator = getattr(orchestrator, "inner", orchestrator)
    return found


def witness_of(orchestrator: Orchestrator) -> Witness | None:
    """The adapter, also behind a topology, where it can prove that a node does not run."""
    found = inner_of(orchestrator)
    return found if isinstance(found, Witness) else None


async def close(orchestrator: Orchestrator) -> None:
    """End what the adapter, also behind a topology, has under way or holds open."""
    found = inner_of(orchestrator)
    if isinstance(found, Closable):
        await found.close()
