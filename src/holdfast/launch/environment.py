"""The environment of a rank, as torchrun would set it, and Holdfast's own variables. Pure.

Names and meanings of torchrun's are those of PyTorch's documentation ("torchrun (Elastic Launch)", section
"Environment Variables") and of its local agent; `PET_*` are the defaults that torchrun reads for its own options.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class AttemptSpec(Struct, frozen=True, kw_only=True):
    """One attempt, as the leader lays it out over the nodes."""

    attempt: int
    epoch: int
    in_place: int = 0
    nodes: tuple[str, ...]
    local_ranks: tuple[int, ...]
    """Ranks on each of `nodes`, in the same order."""
    master_addr: str
    master_port: int
    restore_step: int | None = None
    max_restarts: int = 0

    @property
    def world_size(self) -> int:
        """Ranks of the whole attempt."""
        return sum(self.local_ranks)

    def ranks_of(self, node: str) -> range:
        """The ranks of one node, consecutive as torchrun numbers them; empty for a node that takes no part."""
        if node not in self.nodes:
            return range(0)
        index = self.nodes.index(node)
        first = sum(self.local_ranks[:index])
        return range(first, first + self.local_ranks[index])

    def node_of(self, rank: int) -> str:
        """The node of a rank, empty when there is no such rank."""
        return next((node for node in self.nodes if rank in self.ranks_of(node)), "")


def attempt_environment(
    base: Mapping[str, str], spec: AttemptSpec, *, job_dir: str, telemetry_dir: str
) -> dict[str, str]:
    """What every process of the attempt on this node has; without memory for slots there is no `telemetry_dir`."""
    environ = dict(base)
    environ["HOLDFAST_JOB_DIR"] = job_dir
    environ["HOLDFAST_ATTEMPT"] = str(spec.attempt)
    environ["HOLDFAST_EPOCH"] = str(spec.epoch)
    if telemetry_dir:
        environ["HOLDFAST_TELEMETRY_DIR"] = telemetry_dir
    environ.pop("HOLDFAST_RESTORE_STEP", None)
    if spec.restore_step is not None:
        environ["HOLDFAST_RESTORE_STEP"] = str(spec.restore_step)
    return environ


def rank_environment(
    common: Mapping[str, str], spec: AttemptSpec, *, node: str, rank: int, job_id: str
) -> dict[str, str]:
    """One rank's environment in script mode."""
    ranks = spec.ranks_of(node)
    environ = dict(common)
    environ.update(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank - ranks.start),
            "WORLD_SIZE": str(spec.world_size),
            "LOCAL_WORLD_SIZE": str(len(ranks)),
            "GROUP_RANK": str(spec.nodes.index(node)),
            "GROUP_WORLD_SIZE": str(len(spec.nodes)),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(spec.world_size),
            "MASTER_ADDR": spec.master_addr,
            "MASTER_PORT": str(spec.master_port),
            "TORCHELASTIC_RUN_ID": job_id,
            "TORCHELASTIC_RESTART_COUNT": str(spec.in_place),
            "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
            # Rank 0 holds the store itself: the launcher does not carry torch.
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
    )
    environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if len(ranks) > 1:
        environ.setdefault("OMP_NUM_THREADS", "1")
    return environ


def command_environment(common: Mapping[str, str], spec: AttemptSpec, *, node: str, nproc: str) -> dict[str, str]:
    """The environment of a supervised command: torchrun's defaults, unless the user has set them."""
    environ = dict(common)
    environ.update(
        {
            "PET_NNODES": str(len(spec.nodes)),
            "PET_NODE_RANK": str(spec.nodes.index(node)),
            "PET_MASTER_ADDR": spec.master_addr,
            "PET_MASTER_PORT": str(spec.master_port),
        }
    )
    if nproc != "1":
        environ["PET_NPROC_PER_NODE"] = nproc
    return environ
