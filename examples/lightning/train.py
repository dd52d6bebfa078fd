"""Lightning: one callback makes it tell Holdfast its steps and which checkpoints are on disk; it resumes by itself.

holdfast run examples/lightning/train.py --steps 200
"""

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.integrations.lightning import HoldfastCallback


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.layers(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.layers(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def newest(folder):
    """Lightning's own last checkpoint, or the newest that is left when Holdfast has set a damaged one aside."""
    found = [path for path in folder.glob("*.ckpt") if not path.name.startswith("bad-")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--checkpoint-every", type=int, default=20)
    options = parser.parse_args()
    pl.seed_everything(1, verbose=False)
    x = torch.randn(640, 16)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    saver = ModelCheckpoint(options.checkpoint_dir, every_n_train_steps=options.checkpoint_every, save_top_k=-1)
    trainer = pl.Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saver, HoldfastCallback()],  # (holdfast) the one line
    )
    loader = DataLoader(data, batch_size=32)
    trainer.fit(Regression(), loader, DataLoader(data, batch_size=320), ckpt_path=newest(options.checkpoint_dir))
    print(f"training complete at step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
