"""What breaks, how often, and how it shows: published counts of causes, each with the rule by which Holdfast knows it.

Read by `faults.py`, which draws causes by their counts, and by the report. Data only; no time passes here.

Sources. Llama 3: A. Dubey et al., The Llama 3 Herd of Models, arXiv:2407.21783, table 5: 419 unexpected stops in 54
days on 16,384 H100. Rates: A. Kokolis et al., Revisiting Reliability in Large-Scale Machine Learning Research Clusters,
arXiv:2410.21680: 6.50 failures per 1000 node-days on RSC-1 and 2.34 on RSC-2 (8 GPUs a node). The formula of ETTR and
its best interval are that paper's, too. Which rule shows a cause and what mends it is our reading.
"""

from __future__ import annotations

import math

from msgspec import Struct

LLAMA3_STOPS = 419
LLAMA3_DAYS = 54.0
LLAMA3_GPUS = 16_384
LLAMA3_NODES = LLAMA3_GPUS // 8
LLAMA3_ETTR = 0.90
"""Published as "over 90 % effective training time"."""
LLAMA3_RATE = LLAMA3_STOPS / (LLAMA3_NODES * LLAMA3_DAYS) * 1000.0
"""Stops per 1000 node-days of that run: 3.79."""
META_RSC1 = 6.50
META_RSC2 = 2.34
META_U0_S = 300.0
"""Restart overhead u0 assumed in Meta's projections: 5 minutes."""


class Cause(Struct, frozen=True):
    """One cause: how often of all, how it shows, what mends it."""

    label: str
    count: int
    kind: str
    """The physical kind of fault, as in `faults.KINDS`."""
    rule: str
    """The rule whose finding names it, in the catalogue or of a detector."""
    remedy: str = ""
    """The least repair that mends the machine: `reset`, `reboot`, `replace`; empty: nothing is broken."""


LLAMA3: tuple[Cause, ...] = (
    Cause("Faulty GPU", 148, "gpu", "nvidia.xid.79", "replace"),
    Cause("GPU HBM3 memory", 72, "gpu", "nvidia.xid.95", "reset"),
    Cause("Software bug", 54, "crash", "exit.signal.11"),
    Cause("Network switch or cable", 35, "link", "nccl.ib.port"),
    Cause("Host maintenance", 32, "node", "node.lost", "reboot"),
    Cause("GPU SRAM memory", 19, "gpu", "nvidia.xid.48", "reset"),
    Cause("GPU system processor", 17, "gpu", "nvidia.xid.119", "reset"),
    Cause("NIC", 7, "gpu", "kernel.mlx5.health", "replace"),
    Cause("NCCL watchdog time-outs", 7, "hang", "hang.step"),
    Cause("Silent data corruption", 6, "corruption", "loss.nan"),
    Cause("GPU thermal interface and sensor", 6, "gpu", "nvidia.xid.62", "replace"),
    Cause("SSD", 3, "gpu", "kernel.nvme", "replace"),
    Cause("Power supply", 3, "node", "node.lost", "replace"),
    Cause("Server chassis", 2, "node", "node.lost", "replace"),
    Cause("IO expansion board", 2, "node", "node.lost", "replace"),
    Cause("Dependency", 2, "crash", "exit.code.1"),
    Cause("CPU", 2, "gpu", "kernel.mce", "replace"),
    Cause("System memory", 2, "gpu", "kernel.edac.ue", "replace"),
)
TABLES: dict[str, tuple[Cause, ...]] = {
    "llama3": LLAMA3,
    "node": (Cause("Node lost", 1, "node", "node.lost", "reboot"),),
    "gpu": (Cause("Faulty GPU", 1, "gpu", "nvidia.xid.79", "replace"),),
    "software": (Cause("Software bug", 1, "crash", "exit.signal.11"),),
}


def formula_ettr(nodes: int, rate: float, u0_s: float, w_s: float, dt_s: float) -> float:
    """Meta's expected ETTR: (1 - N rf (u0 + dt/2)) / (1 + w/dt).

    Args:
        nodes: of the job.
        rate: failures per node and second.
        u0_s: restart overhead in seconds.
        w_s: seconds that one checkpoint keeps the job from training.
        dt_s: seconds of training between checkpoints.
    """
    return (1.0 - nodes * rate * (u0_s + dt_s / 2.0)) / (1.0 + w_s / dt_s)


def best_interval_s(nodes: int, rate: float, w_s: float) -> float:
    """Daly's first order, as Meta writes it: sqrt(2 w / (N rf)), in seconds."""
    return math.sqrt(2.0 * w_s / (nodes * rate))
