"""A training loop of its own that saves by nvidia-resiliency-ext, on GPUs or on the CPU.

holdfast run --nproc-per-node 2 --checkpoints saved examples/nvrx/train.py --saves async --dir saved

--saves async: torch's distributed checkpoints, written by the package's asynchronous writer, a folder for each step.
--saves local: LocalCheckpointManager, a file for each rank on the node's own disk, with a copy at the other rank.
--saves torch: TorchAsyncCheckpoint, a file of torch.save for each rank and step.
"""

import argparse
import logging
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)
from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
from nvidia_resiliency_ext.checkpointing.local.replication.strategies import CliqueReplicationStrategy
from on_cpu import OnCpu
from torch import nn

from holdfast.integrations.nvrx import watch  # (holdfast)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_device = nullcontext if DEVICE == "cuda" else OnCpu


class Training:
    """The model, its optimizer and one step; the data of a step depends on nothing but its number."""

    def __init__(self):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, number):
        data = torch.Generator().manual_seed(number * dist.get_world_size() + dist.get_rank())
        x = torch.randn(16, 64, generator=data).to(DEVICE)
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        return float(mean) / dist.get_world_size()

    def state(self):
        """A copy: on the CPU nothing else keeps the next step from changing what is being written."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return copied(state)

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def copied(value):
    if isinstance(value, dict):
        return {name: copied(one) for name, one in value.items()}
    if isinstance(value, list):
        return [copied(one) for one in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


class AsyncSaves:
    """A folder for each step, in the format of torch.distributed.checkpoint."""

    def __init__(self, folder, says):
        self.folder = folder
        self.says = says
        self.queue = AsyncCallsQueue()
        watch(self.queue)  # (holdfast)

    def restore(self, training):
        """The newest folder, whatever is in it: this loop does not look whether the save was finished."""
        newest = max(self.folder.glob("iter_*"), default=None)
        if newest is None:
            return 0
        # The state must be there before it can be read: a step makes the optimizer's.
        training.step(0)
        state = training.state()
        dcp.load(state, checkpoint_id=newest)
        training.load(state)
        return int(newest.name.removeprefix("iter_"))

    def save(self, step, state):
        writer = FileSystemWriterAsync(self.folder / f"iter_{step:07d}", thread_count=1)
        planned = save_state_dict_async_plan(state, writer)
        write, stage, args = writer.get_save_function_and_args()
        began = time.monotonic()

        def finish():
            save_state_dict_async_finalize(*planned)
            if self.says and dist.get_rank() == 0:
                line = self.says[self.queue.call_idx % len(self.says)]
                print(line.format(step=step, path=writer.checkpoint_dir, s=time.monotonic() - began), flush=True)

        self.queue.schedule_async_request(AsyncRequest(write, args, [finish], preload_fn=stage))

    def finalize(self, *, blocking):
        self.queue.maybe_finalize_async_calls(blocking, no_dist=False)

    def close(self):
        self.queue.close()


class LocalSaves(AsyncSaves):
    """A file for each rank below the node's own disk, with a copy at the rank beside it."""

    def __init__(self, folder, says):
        replicas = CliqueReplicationStrategy.from_replication_params(replication_jump=1, replication_factor=2)
        self.manager = LocalCheckpointManager(folder, repl_strategy=replicas)
        watch(self.manager)  # (holdfast)
        self.queue = AsyncCallsQueue(persistent=False)

    def restore(self, training):
        if self.manager.find_latest() == -1:
            return 0
        with on_device():
            state, (step, *_) = self.manager.load()
        training.load(state.state_dict)
        return step

    def save(self, step, state):
        with on_device():
            request = self.manager.save(BasicTensorAwareStateDict(state), step, is_async=True)
        self.queue.schedule_async_request(request)


class TorchSaves:
    """A file of torch.save for each rank and step."""

    def __init__(self, folder, says):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.checkpoint = TorchAsyncCheckpoint()
        watch(self.checkpoint)  # (holdfast)

    def restore(self, training):
        newest = max(self.folder.glob(f"iter_*_rank{dist.get_rank()}.pt"), default=None)
        if newest is None:
            return 0
        training.load(torch.load(newest, map_location=DEVICE))
        return int(newest.name.split("_")[1])

    def save(self, step, state):
        self.checkpoint.async_save(state, str(self.folder / f"iter_{step:07d}_rank{dist.get_rank()}.pt"))

    def finalize(self, *, blocking):
        self.checkpoint.finalize_async_save(blocking)

    def close(self):
        self.checkpoint.finalize_async_save(blocking=True, terminate=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--saves", choices=("async", "local", "torch"), default="async")
    parser.add_argument("--dir", type=Path, default=Path("saved"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--step-s", type=float, default=0.0, help="no step is shorter")
    parser.add_argument(
        "--says", nargs="*", help="lines to print in turn when a save of --saves async is finished: {step}, {path}, {s}"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    if DEVICE == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())
    training = Training()
    saves = {"async": AsyncSaves, "local": LocalSaves, "torch": TorchSaves}[options.saves](options.dir, options.says)
    first = saves.restore(training)
    for step in range(first + 1, options.steps + 1):
        began = time.monotonic()
        loss = training.step(step)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss:.9f}", flush=True)
        saves.finalize(blocking=False)
        if step % options.every == 0:
            # One save at a time.
            saves.finalize(blocking=True)
            saves.save(step, training.state())
        time.sleep(max(0.0, began + options.step_s - time.monotonic()))
    saves.finalize(blocking=True)
    saves.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
