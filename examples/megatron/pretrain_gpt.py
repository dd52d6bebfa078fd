"""A small GPT trained for real on processors, with the options, the log lines and the checkpoint files of Megatron-LM.

Started as Megatron-LM's own script is, by torchrun or by anything else that sets RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT. Data parallel over gloo. Options that this trainer has no use for (data files, tokenizer, precision) are
taken and left alone. Tensor and pipeline parallelism must be 1.

A run that was interrupted and resumed prints the same losses as one that was not: weights, optimizer, generator and
consumed samples are saved, and each sample of the synthetic data is computed from its number.
"""

import argparse
import math
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional

TRACKER = "latest_checkpointed_iteration.txt"
VOCABULARY = 128


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    sizes = parser.add_argument_group("model")
    sizes.add_argument("--num-layers", type=int, default=2)
    sizes.add_argument("--hidden-size", type=int, default=32)
    sizes.add_argument("--num-attention-heads", type=int, default=2)
    sizes.add_argument("--seq-length", type=int, default=16)
    sizes.add_argument("--max-position-embeddings", type=int)
    sizes.add_argument("--tensor-model-parallel-size", type=int, default=1, choices=[1])
    sizes.add_argument("--pipeline-model-parallel-size", type=int, default=1, choices=[1])
    run = parser.add_argument_group("training")
    run.add_argument("--micro-batch-size", type=int, default=4)
    run.add_argument("--global-batch-size", type=int, help="default: one micro batch on every rank")
    run.add_argument("--train-iters", type=int, default=100)
    run.add_argument("--lr", type=float, default=1e-3)
    run.add_argument("--min-lr", type=float, default=0.0)
    run.add_argument("--lr-warmup-iters", type=int, default=0)
    run.add_argument("--weight-decay", type=float, default=0.01)
    run.add_argument("--clip-grad", type=float, default=1.0)
    run.add_argument("--seed", type=int, default=1234)
    run.add_argument("--log-interval", type=int, default=1)
    run.add_argument("--eval-interval", type=int, default=1000)
    run.add_argument("--eval-iters", type=int, default=0)
    run.add_argument("--distributed-backend", default="gloo", choices=["gloo", "nccl"])
    run.add_argument("--distributed-timeout-minutes", type=int, default=10)
    run.add_argument("--iteration-s", type=float, default=0.0, help="not Megatron's: an iteration takes this long")
    files = parser.add_argument_group("checkpoints")
    files.add_argument("--save", type=Path)
    files.add_argument("--load", type=Path)
    files.add_argument("--save-interval", type=int, default=20)
    files.add_argument("--ckpt-format", default="torch", choices=["torch", "torch_dist"])
    options, others = parser.parse_known_args()
    if unknown := [word for word in others if word.startswith("-") and not word.startswith("--")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


class Layer(torch.nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.up, self.down = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class GPT(torch.nn.Module):
    def __init__(self, options):
        super().__init__()
        hidden = options.hidden_size
        self.words = torch.nn.Embedding(VOCABULARY, hidden)
        self.places = torch.nn.Embedding(options.seq_length, hidden)
        self.layers = torch.nn.ModuleList(Layer(hidden, options.num_attention_heads) for _ in range(options.num_layers))
        self.last = torch.nn.LayerNorm(hidden)
        self.dropout = torch.nn.Dropout(0.1)
        for weight in self.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):
        x = self.dropout(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return self.last(x) @ self.words.weight.T


class Trainer:
    def __init__(self, options):
        self.options = options
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.batch = options.global_batch_size or options.micro_batch_size * self.ranks
        share = options.micro_batch_size * self.ranks
        if self.batch % share:
            raise SystemExit(
                f"--global-batch-size {self.batch} is no multiple of micro batch size times ranks, {share}"
            )
        self.micro_batches = self.batch // share
        torch.manual_seed(options.seed)
        self.model = GPT(options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
        torch.manual_seed(options.seed + 1 + self.rank)  # dropout differs between ranks
        self.iteration = self.consumed = 0

    def say(self, text, *, last=False):
        """Megatron-LM prints checkpoints from the first rank and iterations from the last one."""
        if self.rank == (self.ranks - 1 if last else 0):
            print(text, flush=True)

    # --- training ---

    def samples(self, first):
        """One micro batch: the same words for a sample's number in every run."""
        options = self.options
        rows = []
        for number in range(first, first + options.micro_batch_size):
            place = torch.arange(options.seq_length + 1)
            rows.append((number * 7 + place * (1 + number % 5)) % VOCABULARY)
        return torch.stack(rows)

    def learning_rate(self):
        options, done = self.options, self.iteration
        if done < options.lr_warmup_iters:
            return options.lr * (done + 1) / options.lr_warmup_iters
        return max(options.min_lr, options.lr * (1 - done / max(1, options.train_iters)))

    def step(self):
        total = torch.zeros(())
        for part in range(self.micro_batches):
            first = self.consumed + (part * self.ranks + self.rank) * self.options.micro_batch_size
            words = self.samples(first)
            loss = functional.cross_entropy(self.model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            (loss / self.micro_batches).backward()
            total += loss.detach() / self.micro_batches
        gradients = torch.cat([weight.grad.flatten() for weight in self.model.parameters()] + [total.view(1)])
        dist.all_reduce(gradients)
        gradients /= self.ranks
        at = 0
        for weight in self.model.parameters():
            weight.grad.copy_(gradients[at : at + weight.numel()].view_as(weight))
            at += weight.numel()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip_grad)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.iteration += 1
        self.consumed += self.batch
        return float(gradients[-1]), float(norm)

    def train(self):
        options = self.options
        self.say("training ...")
        self.say(f"[before the start of training step] datetime: {time.strftime('%Y-%m-%d %H:%M:%S')} ")
        while self.iteration < options.train_iters:
            began = time.monotonic()
            rate = self.learning_rate()
            loss, norm = self.step()
            time.sleep(max(0.0, options.iteration_s - (time.monotonic() - began)))
            if self.iteration % options.log_interval == 0:
                self.log(loss, norm, rate, 1000 * (time.monotonic() - began))
            if options.eval_iters and self.iteration % options.eval_interval == 0:
                self.evaluate()
            if options.save and self.iteration % options.save_interval == 0:
                self.save()
        self.say(f"[after training is done] datetime: {time.strftime('%Y-%m-%d %H:%M:%S')} ")

    def log(self, loss, norm, rate, elapsed_ms):
        self.say(
            f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {self.iteration:8d}/{self.options.train_iters:8d} |"
            f" consumed samples: {self.consumed:12d} | elapsed time per iteration (ms): {elapsed_ms:.1f} |"
            f" learning rate: {rate:.6E} | global batch size: {self.batch:5d} | lm loss: {loss:.6E} | loss scale: 1.0 |"
            f" grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |",
            last=True,
        )

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            words = self.samples(10**6)
            loss = float(functional.cross_entropy(self.model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()))
        self.model.train()
        text = (
            f" validation loss at iteration {self.iteration} | lm loss value: {loss:.6E} |"
            f" lm loss PPL: {math.exp(loss):.6E} | "
        )
        self.say("-" * len(text), last=True)
        self.say(text, last=True)
        self.say("-" * len(text), last=True)

    # --- checkpoints ---

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def generators(self):
        """The generator's state of every rank: dropout of a resumed run is that of an undisturbed one."""
        states = [None] * self.ranks
        dist.all_gather_object(states, torch.get_rng_state())
        return states

    def save(self):
        options = self.options
        began = time.monotonic()
        self.say(
            f"saving checkpoint at iteration {self.iteration:7d} to {options.save} in {options.ckpt_format} format"
        )
        folder = options.save / f"iter_{self.iteration:07d}"
        rest = {"iteration": self.iteration, "consumed_train_samples": self.consumed, "rng_state": self.generators()}
        if options.ckpt_format == "torch_dist":
            self.save_sharded(folder, rest)
        elif self.rank == 0:
            path = folder / "mp_rank_00" / "model_optim_rng.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"args": vars(options), "checkpoint_version": 3.0, **rest, **self.state()}, path)
        dist.barrier()
        if self.rank == 0:
            staged = options.save / f".{TRACKER}"
            staged.write_text(str(self.iteration))
            staged.replace(options.save / TRACKER)
        self.say(
            f"  successfully saved checkpoint from iteration {self.iteration:7d} to {options.save} [ t 1/1, p 1/1 ]"
        )
        times = [None] * self.ranks
        dist.all_gather_object(times, 1000 * (time.monotonic() - began))
        dots = "save-checkpoint ................................:"
        self.say(f"(min, max) time across ranks (ms):\n    {dots} ({min(times):.2f}, {max(times):.2f})", last=True)

    def save_sharded(self, folder, rest):
        from torch.distributed import checkpoint as dcp  # noqa: PLC0415 - a second that the other format need not wait

        if self.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        dcp.save(self.state(), checkpoint_id=folder)
        if self.rank == 0:
            torch.save(rest, folder / "common.pt")
            (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')

    def load(self):
        folder = self.options.load
        tracker = folder / TRACKER if folder else None
        if tracker is None or not tracker.is_file():
            self.say(f"WARNING: could not find the metadata file {tracker}")
            self.say("    will not load any checkpoints and will start from random")
            return
        iteration = int(tracker.read_text())
        self.say(f" loading checkpoint from {folder} at iteration {iteration}")
        place = folder / f"iter_{iteration:07d}"
        if (place / ".metadata").exists():
            from torch.distributed import checkpoint as dcp  # noqa: PLC0415

            # Adam has its state from the first step on: one with zero gradients makes the places to load into.
            for weight in self.model.parameters():
                weight.grad = torch.zeros_like(weight)
            self.optimizer.step()
            self.optimizer.zero_grad()
            state = self.state()
            dcp.load(state, checkpoint_id=place)
            rest = torch.load(place / "common.pt", weights_only=False)
        else:
            rest = state = torch.load(place / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if len(rest["rng_state"]) == self.ranks:
            torch.set_rng_state(rest["rng_state"][self.rank])
        self.iteration, self.consumed = rest["iteration"], rest["consumed_train_samples"]
        self.say(f"  successfully loaded checkpoint from {folder} [ t 1/1, p 1/1 ] at iteration {iteration}")


def main():
    options = arguments()
    torch.set_num_threads(1)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if "RANK" not in os.environ:
        os.environ.update(alone)
    dist.init_process_group(options.distributed_backend, timeout=timedelta(minutes=options.distributed_timeout_minutes))
    trainer = Trainer(options)
    ranks = trainer.ranks
    trainer.say(f"using world size: {ranks}, data-parallel size: {ranks}, tensor-model-parallel size: 1")
    trainer.load()
    trainer.train()
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # PyTorch 2.13 sometimes aborts in its own static destructors, after all work is done


if __name__ == "__main__":
    main()
