"""A small GPT on characters, trained data-parallel over gloo on the CPU: the job of the demo and the drills.

Started as `python -m holdfast.workload.gpt_torch` (or by this file's path), one process per rank, by any
launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. `examples/gpt/train.py` is the same
training as a user would write it. The loss at a step has the same bits whether the run was disturbed or
not: everything random comes from generators that are saved, and the order of every sum is fixed.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from holdfast import telemetry
from holdfast.checkpoint import Checkpointer, CheckpointError
from holdfast.workload.arguments import Options, Progress, RankPlace, parse

CORPUS = Path(__file__).with_name("corpus.txt")
CONTEXT = 32
WIDTH = 48
LAYERS = 2
HEADS = 4
BATCH = 8
DROPOUT = 0.1
LEARNING_RATE = 3e-3


class Block(nn.Module):
    """One transformer layer: attention and a two-layer network, each after a norm and added back."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm_network = nn.LayerNorm(WIDTH)
        self.network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, WIDTH) to the same."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.project(mixed.transpose(1, 2).reshape(batch, length, WIDTH)))
        added: Tensor = x + self.dropout(self.network(self.norm_network(x)))
        return added


class GPT(nn.Module):
    """Next-character model; some 60 thousand weights, so that a step of four ranks fits two cores."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of the next character; both arguments are (batch, CONTEXT) of int64."""
        x = self.characters(tokens) + self.positions(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Batches:
    """Random windows of the text for one rank; its place in the data is part of the checkpoint."""

    def __init__(self, tokens: Tensor, seed: int, rank: int) -> None:
        self._tokens = tokens
        self._generator = torch.Generator().manual_seed(seed * 100_003 + rank)

    def draw(self) -> tuple[Tensor, Tensor]:
        """(inputs, targets), each (BATCH, CONTEXT)."""
        starts = torch.randint(len(self._tokens) - CONTEXT - 1, (BATCH,), generator=self._generator)
        windows = self._tokens[starts[:, None] + torch.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        """Where the drawing stands."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on drawing from there."""
        self._generator.set_state(state["generator"])


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns 0 when all steps are done; asked to leave, it ends with code 85."""
    options = parse("A small GPT on characters, data-parallel on the CPU.", argv)
    place = RankPlace.from_environment()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    with telemetry.phase("init"):
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
        else:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        return _train(options, place, Progress(options, place))
    except CheckpointError as error:
        sys.stderr.write(f"[rank{place.rank}] {type(error).__name__}: {error}\n")
        return 1


def _train(options: Options, place: RankPlace, progress: Progress) -> int:
    torch.manual_seed(options.seed)
    text = CORPUS.read_text("ascii")
    alphabet = {character: index for index, character in enumerate(sorted(set(text)))}
    model = DistributedDataParallel(GPT(len(alphabet)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    tokens = torch.tensor([alphabet[character] for character in text])
    _settle_buckets(model, Batches(tokens, options.seed, place.rank))
    batches = Batches(tokens, options.seed, place.rank)
    torch.manual_seed(options.seed * 1_000 + place.rank)  # each rank drops out other units
    state = {"model": model, "optimizer": optimizer, "batches": batches}
    every = options.checkpoint_every or None
    with Checkpointer(options.checkpoint_dir, every_steps=every, mirrors=options.mirror) as checkpointer:
        first = checkpointer.restore(state)
        progress.say(f"starting at step {first} of {options.steps}, attempt {place.attempt}, {place.world_size} ranks")
        for step in range(first + 1, options.steps + 1):
            began = time.monotonic()
            telemetry.step_begin(step)
            loss = _step(model, optimizer, batches, place.world_size)
            if (rest_s := began + options.step_time - time.monotonic()) > 0:
                time.sleep(rest_s)
            telemetry.step_end(step, loss=loss, samples=BATCH, tokens=BATCH * CONTEXT)
            progress.step(step, loss)
            if checkpointer.due(step):
                checkpointer.save(step, state)  # ends with EX_RESTART when the job was asked to leave
    progress.say("training complete")
    return 0


def _settle_buckets(model: nn.Module, batches: Batches) -> None:
    """Run once forward and backward and forget it.

    DDP orders its gradient buckets anew after the first backward pass, and a sum over three ranks or more
    depends in its last bits on where a gradient lies in its bucket. Without this, the first step after a
    resume would be summed in another order than the same step of an undisturbed run.
    """
    model(*batches.draw()).backward()
    model.zero_grad(set_to_none=True)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, world_size: int) -> float:
    """One training step; returns the loss averaged over the ranks."""
    loss = model(*batches.draw())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    mean = loss.detach()
    dist.all_reduce(mean)
    return float(mean) / world_size


if __name__ == "__main__":
    code = main()
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.exit(code)
