"""A stand-in for Megatron-LM's pretraining on the CPU: its checkpoint layout and its log lines, not its model.

What is Megatron's: the arguments below, `iter_0000020/mp_rank_00/model_optim_rng.pt`, its tracker file
`latest_checkpointed_iteration.txt` written last, and the form of the lines that Holdfast reads progress and
checkpoints from. Everything else is a linear model. It shows that a job that knows nothing of Holdfast is recovered by
its lines and its files alone.
"""

import argparse
import os
import time
from pathlib import Path

import torch

TRACKER = "latest_checkpointed_iteration.txt"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train-iters", type=int, default=100)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--save-interval", type=int, default=20)
    parser.add_argument("--log-interval", type=int, default=1)
    parser.add_argument("--iteration-s", type=float, default=0.02, help="the stand-in's own: seconds per iteration")
    return parser.parse_args()


def load(folder, model, optimizer):
    tracker = folder / TRACKER if folder else None
    if tracker is None or not tracker.is_file():
        print(f"WARNING: could not find the metadata file {tracker}", flush=True)
        return 0
    iteration = int(tracker.read_text())
    state = torch.load(folder / f"iter_{iteration:07d}" / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng_state"])
    print(f"  successfully loaded checkpoint from {folder} [ t 1/1, p 1/1 ] at iteration {iteration}", flush=True)
    return iteration


def save(folder, iteration, model, optimizer):
    print(f"saving checkpoint at iteration {iteration:7d} to {folder} in torch format", flush=True)
    path = folder / f"iter_{iteration:07d}" / "mp_rank_00" / "model_optim_rng.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration}
    torch.save({**state, "rng_state": torch.get_rng_state()}, path)
    (folder / TRACKER).write_text(str(iteration))
    print(f"  successfully saved checkpoint from iteration {iteration:7d} to {folder} [ t 1/1, p 1/1 ]", flush=True)


def main():
    options = arguments()
    torch.manual_seed(1234)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = load(options.load, model, optimizer)
    for iteration in range(first + 1, options.train_iters + 1):
        began = time.monotonic()
        x = torch.randn(32, 64)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.iteration_s)
        if iteration % options.log_interval == 0 and os.environ.get("RANK", "0") == "0":
            elapsed_ms = 1000 * (time.monotonic() - began)
            print(
                f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {iteration:8d}/{options.train_iters:8d} |"
                f" consumed samples: {iteration * 32:12d} | elapsed time per iteration (ms): {elapsed_ms:.1f} |"
                f" learning rate: 1.000000E-02 | global batch size:    32 | lm loss: {float(loss):.6E} |"
                " loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 |"
                " number of nan iterations:   0 |",
                flush=True,
            )
        if iteration % options.save_interval == 0:
            save(options.save, iteration, model, optimizer)


if __name__ == "__main__":
    main()
