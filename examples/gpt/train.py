"""Train a small GPT on characters, data-parallel on the CPU, with Holdfast: nine added lines.

    holdfast run --nproc-per-node 2 examples/gpt/train.py --steps 400
    torchrun --nproc-per-node 2 examples/gpt/train.py --steps 400     # works the same, nobody watches

Lines marked with (holdfast) are what Holdfast adds to the script. Stop it in any way and start it again:
it goes on from its newest good checkpoint, and the losses are the same, bit for bit.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast import telemetry  # (holdfast)
from holdfast.checkpoint import Checkpointer  # (holdfast)

CONTEXT, WIDTH, BATCH = 32, 48, 8


class GPT(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        x = self.characters(tokens) + self.positions(torch.arange(length))
        x = self.layers(x, mask=nn.Transformer.generate_square_subsequent_mask(length), is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class Batches:
    """Random windows of the text. Its generator is saved with the checkpoint, so no window is lost or seen twice."""

    def __init__(self, tokens: torch.Tensor, seed: int) -> None:
        self.tokens = tokens
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(self.tokens) - CONTEXT - 1, (BATCH,), generator=self.generator)
        windows = self.tokens[starts[:, None] + torch.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.generator.set_state(state["generator"])


def read_tokens(text: str) -> tuple[torch.Tensor, int]:
    alphabet = sorted(set(text))
    number = {character: index for index, character in enumerate(alphabet)}
    return torch.tensor([number[character] for character in text]), len(alphabet)


def main() -> int:
    corpus = Path(telemetry.__file__).parents[1] / "workload/corpus.txt"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, nargs="?", default=corpus)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--checkpoint-every", type=int, default=50)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tokens, vocabulary = read_tokens(arguments.text.read_text())

    torch.manual_seed(arguments.seed)
    model = DistributedDataParallel(GPT(vocabulary))
    # DDP reorders its gradient buckets after the first backward pass, and with three ranks or more the order
    # decides on the last bits of a sum. One pass before the restore, and all runs add up in the same order.
    model(*Batches(tokens, seed=0).draw()).backward()
    model.zero_grad()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = Batches(tokens, seed=arguments.seed * 1000 + rank)
    torch.manual_seed(arguments.seed * 1000 + rank)

    state = {"model": model, "optimizer": optimizer, "batches": batches}
    checkpointer = Checkpointer(arguments.checkpoint_dir, every_steps=arguments.checkpoint_every)  # (holdfast)
    first = checkpointer.restore(state)  # (holdfast)

    for step in range(first + 1, arguments.steps + 1):
        telemetry.step_begin(step)  # (holdfast)
        loss = model(*batches.draw())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        telemetry.step_end(step, loss=loss.item(), samples=BATCH, tokens=BATCH * CONTEXT)  # (holdfast)
        if rank == 0:
            print(f"step {step}/{arguments.steps} loss {loss.item():.4f}", flush=True)

        if checkpointer.due(step):  # (holdfast) also when asked to make room, for example before a repair
            checkpointer.save(step, state)  # (holdfast) holds the training only while it copies

    checkpointer.close()  # (holdfast)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
