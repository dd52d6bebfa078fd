"""Lightning: `Trainer(callbacks=[HoldfastCallback()])` tells steps, evaluation, loss and durable checkpoints.

Called by Lightning on every rank. A step is an optimizer step (`trainer.global_step`), so that accumulated batches are
one. Saves are seen at `Trainer.save_checkpoint`, whoever calls it; with an asynchronous checkpoint plugin the save is
durable when its thread has written the file, not when the training goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from holdfast import telemetry
from holdfast.integrations.durable import report_saved

__all__ = ["HoldfastCallback"]


class HoldfastCallback(Callback):
    """Put it into `Trainer(callbacks=[...])`; nothing else is needed.

    Args:
        loss_every: read the loss of every so many steps; it waits for the device, so not each time.
    """

    def __init__(self, *, loss_every: int = 20) -> None:
        super().__init__()
        self.loss_every = max(1, loss_every)
        self._begun = 0
        self._watched: Trainer | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before anything is loaded: watch the saves of this trainer."""
        if stage == "fit" and self._watched is not trainer:
            self._watched = trainer
            telemetry.set_phase("load")
            _watch_saves(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """The first batch of a step begins it."""
        if self._begun != trainer.global_step + 1:
            self._begun = trainer.global_step + 1
            telemetry.step_begin(self._begun)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The batch after which the optimizer has stepped ends it."""
        if trainer.global_step < self._begun:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        is_due = trainer.global_step % self.loss_every == 0 or self._begun == 1
        told = float(loss.detach()) if is_due and loss is not None else None
        telemetry.step_end(trainer.global_step, loss=told)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An evaluation has its own limit."""
        telemetry.set_phase("eval")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to what was before the evaluation: the sanity check comes before the first step."""
        telemetry.set_phase("load" if trainer.sanity_checking else "train")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training is over."""
        telemetry.set_phase("shutdown")


def _watch_saves(trainer: Trainer) -> None:
    """Replace the trainer's and its innermost checkpoint plugin's way of saving by ones that report."""
    save: Callable[..., None] = trainer.save_checkpoint
    innermost, is_async = _innermost(trainer.strategy.checkpoint_io)

    def save_checkpoint(filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        step = trainer.global_step
        with telemetry.phase("checkpoint"):
            save(filepath, *args, **kwargs)
        # All ranks have passed the barrier at the end of `save`, so the parts of a sharded one are written, too.
        if trainer.is_global_zero:
            if is_async:
                telemetry.checkpoint(step, durable=False)
            else:
                report_saved(filepath, step)

    trainer.save_checkpoint = save_checkpoint
    if is_async:
        _report_from_thread(trainer, innermost)


def _report_from_thread(trainer: Trainer, innermost: Any) -> None:
    write: Callable[..., None] = innermost.save_checkpoint

    def save_checkpoint(checkpoint: dict[str, Any], path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        write(checkpoint, path, *args, **kwargs)
        report_saved(path, int(checkpoint.get("global_step", trainer.global_step)))

    innermost.save_checkpoint = save_checkpoint


def _innermost(plugin: Any) -> tuple[Any, bool]:
    """(the plugin that writes, whether one around it returns before that)."""
    is_async = False
    while (inner := getattr(plugin, "checkpoint_io", None)) is not None:
        is_async = is_async or "Async" in type(plugin).__name__
        plugin = inner
    return plugin, is_async
