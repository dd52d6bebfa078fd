"""What one schedule does: its jobs, its faults and the administrator's drain, drawn from the seed alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

ON_A_NODE = ("slurmd killed", "slurmd stopped", "node off", "node stopped")
KINDS = ("slurmctld killed", "slurmctld killed unsaved", "slurmctld stopped", "slurmdbd killed", "slurmdbd stopped",
         "munged killed", "munged stopped", *ON_A_NODE)  # fmt: skip
SHAPES = ("works", "works", "fails once", "fails", "step")
NODES = 8
"""Of the lab."""
START_S = 0.4
"""From a job's submission to its first line, about."""
SAVE_S = 5.0
"""slurmctld writes a change down within so many seconds."""


@dataclass(frozen=True)
class Job:
    name: str
    shape: str
    """`works`; `fails once`; `fails` at each attempt; `step`: `holdfast srun --auto-resume=1` with a spare."""
    nodes: int
    requeue: bool
    """`--requeue`, else `--no-requeue`."""
    limit: int
    """`max_requeue_times` that its owner asks for; 0: asks for no recovery."""
    work_s: float

    @property
    def ranks(self) -> int:
        return self.nodes - 1 if self.shape == "step" else self.nodes

    def __str__(self) -> str:
        words = f"{self.name} {self.shape}, {self.nodes} nodes, {'--requeue' if self.requeue else '--no-requeue'}"
        return f"{words}, {f'at most {self.limit} requeues' if self.limit else 'no recovery'}, {self.work_s:.1f} s"


@dataclass(frozen=True)
class Fault:
    kind: str
    at_s: float
    """After all jobs were submitted."""
    for_s: float
    job: int
    """Number of the job, one of whose nodes is hit, or during whose end a daemon is away."""

    def __str__(self) -> str:
        return f"{self.kind} at {self.at_s:.2f} s for {self.for_s:.2f} s"


@dataclass(frozen=True)
class Drain:
    """An administrator's drain."""

    at_s: float
    job: int
    """Number of the job, one of whose nodes is drained; -1: a node without a job."""


@dataclass(frozen=True)
class Schedule:
    number: int
    jobs: tuple[Job, ...]
    faults: tuple[Fault, ...]
    drain: Drain | None

    @property
    def needs_accounting(self) -> bool:
        return any(fault.kind.startswith("slurmdbd") for fault in self.faults)

    def __str__(self) -> str:
        drain = [f"drain of a node of {self._whose(self.drain)} at {self.drain.at_s:.2f} s"] if self.drain else []
        return "; ".join([*map(str, self.jobs), *map(str, self.faults), *drain])

    def _whose(self, drain: Drain) -> str:
        return self.jobs[drain.job].name if drain.job >= 0 else "nobody"


def draw(seed: int, number: int) -> Schedule:
    """The schedule with this number; the same for the same seed, whatever was played before."""
    rng = random.Random(f"{seed} {number}")
    kinds = [rng.choice(KINDS) for _ in range(rng.choice((1, 1, 2, 3)))]
    killed = {kind.partition(" ")[2] for kind in kinds if kind.startswith("slurmctld killed")}
    jobs: list[Job] = []
    free = NODES - 1  # one may be drained
    for index in range(rng.choice((2, 3, 3))):
        shape = (
            "fails once"
            if index == 0 and "killed unsaved" in killed
            else rng.choice(SHAPES[:4] if index == 0 else SHAPES)
        )
        nodes = 3 if shape == "step" else rng.choice((1, 1, 2))
        if nodes > free or (shape == "step" and any(job.shape == "step" for job in jobs)):
            shape, nodes = "works", 1
        free -= nodes
        # Submissions and starts are saved before slurmctld is killed; unsaved, of the first.
        work_s = rng.uniform(1.0, 3.0) + (SAVE_S if "killed" in killed or (killed and index == 0) else 0.0)
        limit = rng.choice((3, 3, 0)) if shape == "works" else rng.choice((1, 2)) if shape == "fails" else 3
        jobs.append(Job(f"j{index}", shape, nodes, rng.random() < 0.6, limit, round(work_s, 1)))
    faults = [_fault(rng, kind, jobs) for kind in kinds]
    drain = Drain(round(rng.uniform(0.0, 1.0), 2), rng.randrange(-1, len(jobs))) if rng.random() < 0.4 else None
    return Schedule(number, tuple(jobs), tuple(sorted(faults, key=lambda fault: fault.at_s)), drain)


def _fault(rng: random.Random, kind: str, jobs: list[Job]) -> Fault:
    """A node is hit while a job has it; a daemon is away while a job ends, or a moment later."""
    for_s = rng.uniform(0.5, 2.0)
    number = rng.randrange(len(jobs))
    if kind in ON_A_NODE:
        at_s = rng.uniform(0.3, 1.5)
    else:
        if kind.startswith("slurmctld killed") or jobs[number].shape == "step":
            number = 0
        ends_s = START_S + jobs[number].work_s
        at_s = ends_s + (rng.uniform(0.0, 1.5) if kind.endswith("unsaved") else -rng.uniform(0.1, 0.8) * for_s)
    return Fault(kind, round(at_s, 2), round(for_s, 2), number)
