"""The ranks of a job as the checkpointer sees them: who am I, and how do we agree.

Called by the checkpointer in every rank, always in the same order. It uses a gloo group of its own, so
that small messages between hosts never mix with the training's collectives on NCCL, and so that they
work on CPU. Without an initialised `torch.distributed` it is a world of one and every call is local.
Waiting happens inside the collectives; a lost peer surfaces as the RuntimeError that gloo raises.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from holdfast.checkpoint.errors import CheckpointError

T = TypeVar("T")


class World:
    """Rank, size and agreement; construct it on every rank after `init_process_group`."""

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.group: Any = None
        self._pending: tuple[torch.Tensor, Any] | None = None
        if dist.is_available() and dist.is_initialized():
            self.rank = dist.get_rank()
            self.size = dist.get_world_size()
            if self.size > 1:
                self.group = dist.new_group(backend="gloo")

    @property
    def leads(self) -> bool:
        """True on the rank that lists, decides and publishes."""
        return self.rank == 0

    def tell(self, value: T) -> T:
        """The leader's value on every rank; what other ranks pass is ignored."""
        if self.group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value by rank, on the leader; None elsewhere."""
        if self.group is None:
            return [value]
        box: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(value, box, dst=0, group=self.group)
        return box

    def everyones(self, value: T) -> list[T]:
        """Every rank's value by rank, on every rank."""
        if self.group is None:
            return [value]
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, value, group=self.group)
        return box

    def ask_leader(self, ask: Callable[[], T]) -> T:
        """Do something on the leader alone; its result, or its error, reaches every rank."""
        answer: Any = None
        failure: CheckpointError | OSError | None = None
        if self.leads:
            try:
                answer = ask()
            except (CheckpointError, OSError) as error:
                failure = error
        answer, failure = self.tell((answer, failure))
        if failure is not None:
            raise failure
        return cast("T", answer)

    def strongest_so_far(self, wish: int) -> int:
        """The largest wish that any rank had brought by its previous call; the same answer on every rank.

        The reduction of this call runs beside the training step and is collected by the next call, so
        that asking after each step costs next to nothing. A wish is thus seen one call late.
        """
        if self.group is None:
            return wish
        answer = 0
        if self._pending is not None:
            tensor, work = self._pending
            work.wait()
            answer = int(tensor.item())
        tensor = torch.tensor([wish], dtype=torch.int32)
        self._pending = (tensor, dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group, async_op=True))
        return answer

    def close(self) -> None:
        """Collect the reduction that the last `strongest_so_far` left running, and give the group back.

        A group that outlives the training's own keeps threads, and those can abort a process whose interpreter ends.
        """
        if self._pending is not None:
            self._pending[1].wait()
            self._pending = None
        group, self.group = self.group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)
