"""`[drill.site]` of holdfast.toml: a cluster that runs already, and the job that drills break on it.

Read by `cli/config` at every start of a command, so nothing heavy is imported here; used by `site` and `queues`. No
time passes here.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from holdfast.os.tls import Trust


class SiteConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[drill.site]`: the job that `holdfast drill run --on site` breaks, as this cluster wants its jobs."""

    folder: str = ""
    """Holds a folder for each job, on a file system that its nodes and this machine share."""
    nodes: int = 0
    """Nodes of the job; 0: as the drill asks for (2)."""
    ranks_per_node: int = 0
    """Ranks on each node; 0: as the drill asks for (1)."""
    command: tuple[str, ...] = ()
    """What trains, as `holdfast run` takes it: your own script with Holdfast's telemetry. Default: a counter."""
    python: str = ""
    """The Python in the job (in the image) that has Holdfast; default: this one."""
    env: dict[str, str] = {}
    """Environment of the job, such as HOLDFAST_CONTROLLER."""
    start_s: float = 0.0
    """How long a start may take here (queue, prolog, image): added to the time in which a drill must have recovered."""
    partition: str = ""
    """Of Slurm; default: the cluster's own."""
    account: str = ""
    """Of Slurm."""
    image: str = ""
    """Container image: of `srun --container-image` (Pyxis), or of the pods."""
    mounts: str = ""
    """As `srun --container-mounts` takes it."""
    options: tuple[str, ...] = ()
    """Further options of `sbatch`."""
    namespace: str = "default"
    """Of the PyTorchJob."""
    claim: str = ""
    """PersistentVolumeClaim that the pods mount at `folder`."""
    gpus_per_node: int = 0
    """GPUs that a pod asks for."""


class SiteSettings(Struct, frozen=True, kw_only=True):
    """A site, as its holdfast.toml has it."""

    config: SiteConfig
    scheduler: str
    """`slurm`, `kubernetes` or `local`."""
    place: str = ""
    """slurm.conf, the context of a kubeconfig, or the folder of an embedded cluster; empty: the usual one."""
    kubeconfig: Path | None = None
    cluster: str = ""
    """The cluster's name on Kubernetes, where it is not the kubeconfig's."""
    folder: Path = Path()
    """Holds the jobs' folders."""
    url: str = ""
    """The controller, and the token of an operator."""
    token: str = ""
    trust: Trust = Trust()
