"""HF Trainer: one callback makes it tell Holdfast its steps and which checkpoints are on disk; it resumes by itself.

holdfast run examples/transformers/train.py --steps 60
"""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from holdfast.integrations.transformers import HoldfastCallback


class Sequences(torch.utils.data.Dataset):
    """Counting modulo 50 from a random start: easy to learn, and the same for the same seed."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        tokens = (torch.arange(16) + index * 7) % 50
        return {"input_ids": tokens, "labels": tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--checkpoint-dir", default="checkpoints")
    parser.add_argument("--checkpoint-every", type=int, default=10)
    options = parser.parse_args()
    arguments = TrainingArguments(
        output_dir=options.checkpoint_dir,
        max_steps=options.steps,
        per_device_train_batch_size=8,
        save_steps=options.checkpoint_every,
        eval_strategy="steps",
        eval_steps=options.checkpoint_every * 2,
        logging_steps=5,
        report_to=[],
        use_cpu=True,
        seed=1,
        disable_tqdm=True,
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Sequences(),
        eval_dataset=torch.utils.data.Subset(Sequences(), range(32)),
        callbacks=[HoldfastCallback()],  # (holdfast) the one line
    )
    last = get_last_checkpoint(options.checkpoint_dir) if Path(options.checkpoint_dir).is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    print(f"training complete at step {trainer.state.global_step}", flush=True)


if __name__ == "__main__":
    main()
