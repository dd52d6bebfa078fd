"""The training jobs that drills, the demo and benchmarks break: their command lines, and are their losses right?

Called by `stage` and the command line. Reads the loss log that rank 0 of the workload writes; no time passes here.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.cluster import RecoverySpec
from holdfast.workload.counter import loss_of, next_value

LOSS_LOG = "losses.jsonl"
CHECKPOINTS = "checkpoints"
WORKLOADS = {"counter": "holdfast.workload.counter", "gpt": "holdfast.workload.gpt_torch"}

Losses = dict[int, float]
"""Loss after each completed step."""


class TrainingJob(Struct, frozen=True, kw_only=True):
    """A job of a drill. Its folder is its working folder, so that relative paths are its own."""

    workload: Literal["counter", "gpt"] = "counter"
    launcher: Literal["holdfast", "torchrun"] = "holdfast"
    name: str = "training"
    nodes: int = 2
    ranks_per_node: int = 1
    steps: int = 100_000
    checkpoint_every: int = 10
    step_s: float = 0.1
    seed: int = 1
    checkpoint_dir: str = CHECKPOINTS
    mirror: str = ""
    standbys: str = "auto"
    arguments: tuple[str, ...] = ()
    """Further arguments of the workload."""
    command: tuple[str, ...] = ()
    """Another program in the workload's place."""
    python: str = sys.executable
    """The Python that runs it, with Holdfast."""
    recovery: RecoverySpec | None = None
    """What it asks of Holdfast; None: recovery as policy has it."""

    def placed(self, places: Mapping[str, str]) -> TrainingJob:
        """The same with what its folders begin with, such as `{scratch}`, replaced by a place."""
        found = self.checkpoint_dir
        for mark, place in places.items():
            found = found.replace(mark, place)
        return replace(self, checkpoint_dir=found)

    @property
    def ranks(self) -> int:
        """World size."""
        return self.nodes * self.ranks_per_node

    def script(self) -> list[str]:
        """`-m MODULE ARGUMENTS`, as Python and both launchers take it."""
        said = ["-m", WORKLOADS[self.workload], "--steps", str(self.steps), "--seed", str(self.seed)]
        said += ["--checkpoint-every", str(self.checkpoint_every), "--checkpoint-dir", self.checkpoint_dir]
        said += ["--mirror", self.mirror] if self.mirror else []
        said += ["--step-time", str(self.step_s), "--loss-log", LOSS_LOG, *self.arguments]
        return said

    def argv(self) -> list[str]:
        """What runs on every node of the allocation."""
        run = [self.python, "-m", "holdfast", "run"]
        if self.command:
            return [*run, "--nproc-per-node", str(self.ranks_per_node), *self.command]
        if self.launcher == "torchrun":
            inner = [self.python, "-m", "torch.distributed.run", "--nproc-per-node", str(self.ranks_per_node)]
            return [*run, "--", *inner, *self.script()]
        preload = "torch,torch.distributed,holdfast.telemetry" if self.workload == "gpt" else "holdfast.telemetry"
        run += ["--nproc-per-node", str(self.ranks_per_node), "--standbys", self.standbys, "--preload", preload]
        return [*run, *self.script()]


def read_losses(job_dir: Path) -> dict[str, Losses]:
    """Per attempt, the losses in the job's log. A line that a kill cut short is passed over."""
    found: dict[str, Losses] = {}
    try:
        lines = (job_dir / LOSS_LOG).read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            word = json.loads(line)
            found.setdefault(str(word["attempt"]), {})[int(word["step"])] = float(word["loss"])
        except (ValueError, KeyError, TypeError):
            continue
    return found


def counter_losses(job: TrainingJob, steps: int) -> Losses:
    """What an undisturbed run of the counter gives: it can be computed without one."""
    value, losses = job.seed, {}
    for step in range(1, steps + 1):
        summed = sum(step * (rank + 1) for rank in range(job.ranks)) % 2**64
        value = next_value(value, job.seed, summed)
        losses[step] = loss_of(step, value)
    return losses


def largest_difference(attempts: Mapping[str, Losses], reference: Losses) -> float | None:
    """Largest difference at any step of any attempt to `reference`; None when no step could be compared.

    A loss that is NaN counts only where no later attempt did the step again: that it was wrong was noticed.
    """
    return _largest((loss, reference.get(step)) for step, loss in _kept(attempts))


def repeated_difference(attempts: Mapping[str, Losses]) -> float | None:
    """Largest difference between attempts at a step that several completed; None when there is none.

    A step that was lost and done again must give the same loss to the last bit. NaN as in `largest_difference`.
    """
    first: Losses = {}
    pairs: list[tuple[float, float | None]] = []
    for step, loss in _kept(attempts):
        if step in first or math.isnan(loss):
            pairs.append((loss, first.get(step, loss)))
        first.setdefault(step, loss)
    return _largest(pairs)


def _kept(attempts: Mapping[str, Losses]) -> Iterator[tuple[int, float]]:
    runs = list(attempts.values())
    for index, losses in enumerate(runs):
        for step, loss in losses.items():
            if not math.isnan(loss) or not any(step in later for later in runs[index + 1 :]):
                yield step, loss


def _largest(pairs: Iterable[tuple[float, float | None]]) -> float | None:
    differences = [math.inf if math.isnan(loss) else abs(loss - right) for loss, right in pairs if right is not None]
    return max(differences, default=None)


def loss_difference(job: TrainingJob, job_dir: Path) -> float | None:
    """How far the job's losses are from an undisturbed run's.

    The counter's are computed; those of other workloads are compared with themselves, where a step was done again.
    """
    attempts = read_losses(job_dir)
    if job.workload == "counter":
        last = max((step for losses in attempts.values() for step in losses), default=0)
        return largest_difference(attempts, counter_losses(job, last))
    return repeated_difference(attempts)
