"""What the ranks of the checkpointer's tests do; run in processes forked from one that has torch loaded.

Every function is called as `f(rank, world, folder, **options)` with a process group up, and returns
something that JSON can hold.
"""

import contextlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from holdfast.checkpoint import Checkpointer


def enter(rank, world, port, environ, function, folder, options):
    """Body of one rank's process: result and stderr go to files beside the folder."""
    os.environ.update(environ, RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    out = Path(folder).with_name(f"result-{rank}")
    with Path(f"{out}.err").open("w", buffering=1) as errors, contextlib.redirect_stderr(errors):
        try:
            dist.init_process_group("gloo")
            result = globals()[function](rank, world, folder, **options)
            out.with_suffix(".json").write_text(json.dumps(result))
            dist.destroy_process_group()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            raise


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 4))


def build(kind, rank, world):
    torch.manual_seed(3)
    net = Net()
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (world,))
        fully_shard(net[0], mesh=mesh)
        fully_shard(net[3], mesh=mesh)
        model = fully_shard(net, mesh=mesh)
    elif kind == "ddp":
        model = DistributedDataParallel(net)
        model(torch.zeros(2, 8)).sum().backward()
        model.zero_grad()
    else:
        model = net
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)
    return {"model": model, "optimizer": optimizer, "mine": {"drawn": 0, "rank": rank}, "epoch": 0}


def one_step(state):
    x = torch.randn(4, 8)
    loss = state["model"](x).square().mean()
    loss.backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()
    state["mine"]["drawn"] += 1
    state["epoch"] += 1
    return loss.item()


def train(rank, world, folder, kind="ddp", steps=6, every=2, die_after=None, kill=None, mirrors=(), **options):
    """Train to `steps`, saving at multiples of `every`; the losses by step, and where it began."""
    state = build(kind, rank, world)
    with Checkpointer(folder, every_steps=every, mirrors=mirrors, **options) as checkpointer:
        first = checkpointer.restore(state)
        losses = {}
        for step in range(first + 1, steps + 1):
            losses[step] = one_step(state)
            if kill is not None and step == kill:
                os.kill(os.getpid(), signal.SIGUSR1 if rank == 1 else 0)
            if checkpointer.due(step):
                checkpointer.save(step, state)
            if die_after == step:
                checkpointer.wait()
                break
    return {"first": first, "losses": losses, "mine": state["mine"], "epoch": state["epoch"]}


def train_on(rank, world, folder, log, kind="ddp", steps=100_000, every=1):
    """Train until killed, saving at every step; each rank appends its losses to a log of its own."""
    state = build(kind, rank, world)
    with (
        Path(f"{log}-{rank}").open("a", buffering=1) as lines,
        Checkpointer(folder, every_steps=every, signals=()) as checkpointer,
    ):
        first = checkpointer.restore(state)
        lines.write(f"{first} began\n")
        for step in range(first + 1, steps + 1):
            lines.write(f"{step} {one_step(state)!r}\n")
            if checkpointer.due(step):
                checkpointer.save(step, state)
    return first


def weights(rank, world, folder, kind="ddp"):
    """Restore only; the whole model and optimizer as seen by rank 0, to compare layouts."""
    state = build(kind, rank, world)
    with Checkpointer(folder) as checkpointer:
        first = checkpointer.restore(state)
    options = torch.distributed.checkpoint.state_dict.StateDictOptions(full_state_dict=True)
    full = torch.distributed.checkpoint.state_dict.get_model_state_dict(state["model"], options=options)
    moments = torch.distributed.checkpoint.state_dict.get_optimizer_state_dict(
        state["model"], state["optimizer"], options=options
    )["state"]
    return {
        "first": first,
        "model": {name: tensor.double().sum().item() for name, tensor in full.items()},
        "moments": {name: entry["exp_avg_sq"].double().sum().item() for name, entry in moments.items()},
    }


def blind_rank(rank, world, folder):
    """Rank 1 cannot read the newest checkpoint: all ranks must agree on the older one."""
    state = build("ddp", rank, world)
    view = folder
    if rank == 1:
        # The same names and content, except that the newest has lost a file on this rank's mount.
        view = f"{folder}-as-rank-1-sees-it"
        os.symlink(folder, f"{view}-link")
        os.makedirs(view)
        for name in os.listdir(folder):
            if name.startswith("step-") and name != max(n for n in os.listdir(folder) if n.startswith("step-")):
                os.symlink(f"{folder}/{name}", f"{view}/{name}")
    # Ranks verify the path that the leader names; rank 1 sees it through its own mount.
    import holdfast.checkpoint.checkpointer_torch as module

    real = module.verify
    module.verify = lambda path, **options: real(Path(str(path).replace(str(folder), str(view))), **options)
    with Checkpointer(folder) as checkpointer:
        return {"first": checkpointer.restore(state)}
