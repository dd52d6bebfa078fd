"""Every suite and its steps, by name: what the command, the fleet, the agent and the docs read.

A step is a function `(Options) -> list[Item]`, named by `module:function` so that a light one never imports what a
heavy one needs. No time passes here.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.errors import UsageError
from holdfast.model.toml_lines import did_you_mean

RESENT = "resent"
"""What a rank of a sweep tells the leader: the share of its host's TCP segments that was sent again."""
WITHOUT_GPU = "nccl.sweep.gpu"
"""The item of a rank that found no GPU where others found one."""


class Options(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step is told."""

    deep: bool = False
    storage: str = ""
    """Folder that the storage suite writes to; empty: the machine's folder for temporary files."""
    shared: str = ""
    """Folder that all nodes see."""
    device: str = ""
    """torch device of the `gpu` suite; empty: `cuda` where there is one."""
    seconds: float = 0.4
    """About how long a measurement may take."""
    node: str = ""
    rank: int = 0
    world: int = 1
    peer: str = ""
    """Address of the partner of a paired test; empty: this one listens."""
    port: int = 0
    listen: str = ""
    """Address to listen on; empty: all."""
    token: str = ""
    """What both ends of a paired test must say."""
    nccl_tests: str = ""
    """Folder of nccl-tests' programs; empty: they are looked for on the PATH."""
    rendezvous_s: float = 0.0
    """torchrun's rendezvous time-out that jobs use; 0: its own default."""
    replacement_s: float = 1800.0
    """How long the replacement of a node takes here."""
    peers: tuple[str, ...] = ()
    """Names of all nodes, by rank."""
    gpu: int = 0
    """The GPU of its node that a rank of a sweep takes."""
    gpus: int = 1
    """How many GPUs of its node the sweep takes."""
    limit_s: float = 0.0
    """The step's limit for this time, when it is shorter than its own."""
    size_max: int = 0
    """Largest message of a sweep in bytes; 0: as large as it has them."""


class Step(Struct, frozen=True):
    """One process of a suite."""

    name: str
    call: str
    """`module:function` below `holdfast.validate`."""
    limit_s: float
    deep_limit_s: float = 0.0
    """Limit of a deep run, when it is another."""
    deep_only: bool = False


class Suite(Struct, frozen=True):
    """What belongs together."""

    name: str
    about: str
    needs: str
    steps: tuple[Step, ...] = ()
    """Run on each node by itself."""
    quick: bool = True
    """Part of a run that names no suites."""
    once: bool = False
    """Asked of one node only: it is about the whole cluster."""


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            "software",
            "versions, driver, limits, container, environment variables that hurt",
            "nothing",
            (Step("software", "software:look", 60.0),),
        ),
        Suite(
            "cpu",
            "speed, processor time that is held back, right results, memory bandwidth; deep: stress",
            "nothing; deep: stress-ng",
            (Step("cpu", "cpu:measure", 90.0), Step("cpu-stress", "tool_steps:stress", 90.0, deep_only=True)),
        ),
        Suite(
            "storage",
            "write, fsync, read back, metadata, the pattern of a checkpoint of many ranks",
            "a folder (--storage)",
            (Step("storage", "storage:measure", 120.0, 600.0),),
        ),
        Suite(
            "network",
            "between pairs of nodes: latency, bandwidth, loss, retransmissions, MTU, clock offset, sums",
            "two nodes; alone: the loopback",
            (Step("interfaces", "pair:interfaces", 60.0),),
        ),
        Suite(
            "shared",
            "a folder seen from all nodes: exclusive creation, locks, what one wrote the others read",
            "--shared DIR",
        ),
        Suite(
            "pytorch",
            "versions, build, devices, back ends, one all-reduce of each, threads; deep: torch.compile",
            "PyTorch",
            (Step("pytorch", "pytorch_torch:look", 180.0, 600.0),),
            quick=False,
        ),
        Suite(
            "gpu",
            "matrix product by type, memory and host bandwidth, the same bits twice and on every node",
            "PyTorch with CUDA or ROCm",
            (Step("gpu", "gpu_torch:measure", 300.0, 900.0),),
            quick=False,
        ),
        Suite(
            "nccl",
            "collectives: nccl-tests where they are built, else a sweep of torch.distributed over all nodes",
            "nccl-tests or PyTorch",
            (Step("nccl-tests", "tool_steps:nccl_tests", 600.0, 1800.0),),
            quick=False,
        ),
        Suite(
            "openmp",
            "a program of parallel threads, compiled here: right sums, all threads",
            "a C compiler",
            (Step("openmp", "compiled:openmp", 120.0),),
            quick=False,
        ),
        Suite(
            "mpi",
            "a program of two ranks on this node, compiled here: right sums, ranks that find each other",
            "mpicc, mpiexec",
            (Step("mpi", "compiled:mpi", 120.0),),
            quick=False,
        ),
        Suite(
            "efa",
            "EFA and libfabric: fi_info, fi_pingpong",
            "libfabric's programs",
            (Step("efa", "tool_steps:efa", 120.0),),
            quick=False,
        ),
        Suite(
            "ib",
            "InfiniBand and RoCE: ports, ib_write_bw over the loopback of each port",
            "an RDMA device, perftest",
            (Step("ib", "tool_steps:infiniband", 180.0),),
            quick=False,
        ),
        Suite(
            "scheduler",
            "Slurm settings that would defeat recovery, with the line for slurm.conf",
            "scontrol",
            (Step("scheduler", "scheduler:look", 60.0),),
            quick=False,
            once=True,
        ),
    )
}
_OF_SEVERAL_NODES = (
    Step("pair", "pair:run", 150.0),
    Step("shared-make", "shared:make", 60.0),
    Step("shared-count", "shared:count", 90.0),
    Step("shared-read", "shared:read", 60.0),
    Step("shared-forget", "shared:forget", 60.0),
    Step("sweep", "sweep_torch:sweep", 240.0, 600.0),
)
STEPS: dict[str, Step] = {
    step.name: step for step in (*(step for suite in SUITES.values() for step in suite.steps), *_OF_SEVERAL_NODES)
}


def limit_of(step: str, options: Options) -> float:
    """Seconds until a step that is told this is killed."""
    known = STEPS[step]
    own = known.deep_limit_s if options.deep and known.deep_limit_s else known.limit_s
    return min(own, options.limit_s) if options.limit_s else own


def chosen(names: tuple[str, ...]) -> tuple[Suite, ...]:
    """Suites by name, in the registry's order; without names the quick ones; `all` for all.

    Raises:
        UsageError: there is no such suite; names the nearest.
    """
    for name in names:
        if name != "all" and name not in SUITES:
            raise UsageError(f'there is no suite "{name}"{did_you_mean(name, [*SUITES, "all"])}')
    if not names:
        return tuple(suite for suite in SUITES.values() if suite.quick)
    return tuple(suite for suite in SUITES.values() if "all" in names or suite.name in names)
