"""FSDP2 on the CPU: sharded parameters and optimizer, saved asynchronously, resumed from the newest good checkpoint.

holdfast run --nproc-per-node 2 examples/fsdp/train.py --steps 200
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from holdfast import telemetry
from holdfast.checkpoint import Checkpointer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-dir", default="checkpoints")
    parser.add_argument("--checkpoint-every", type=int, default=20)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)), nn.Linear(32, 1))
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model[:-1]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(100 + dist.get_rank())

    state = {"model": model, "optimizer": optimizer, "data": GeneratorState(data)}
    with Checkpointer(options.checkpoint_dir, every_steps=options.checkpoint_every) as checkpointer:
        first = checkpointer.restore(state)  # (holdfast) 0 when there is none
        for step in range(first + 1, options.steps + 1):
            telemetry.step_begin(step)  # (holdfast)
            x = torch.randn(16, 32, generator=data)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach()
            dist.all_reduce(mean)
            telemetry.step_end(step, loss=float(mean) / dist.get_world_size(), samples=16)  # (holdfast)
            if dist.get_rank() == 0:
                print(f"step {step} loss {float(mean) / dist.get_world_size():.9f}", flush=True)
            if checkpointer.due(step):
                checkpointer.save(step, state)  # (holdfast)
    dist.destroy_process_group()


class GeneratorState:
    """A random generator as something with a state, so that a resumed run draws what it would have drawn."""

    def __init__(self, generator):
        self.generator = generator

    def state_dict(self):
        return {"state": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["state"])


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
