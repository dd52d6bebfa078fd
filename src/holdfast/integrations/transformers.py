"""HF Trainer: `Trainer(..., callbacks=[HoldfastCallback()])` tells steps, evaluation, loss and durable checkpoints.

Called by the Trainer on every rank. A step is an optimizer step (`state.global_step`). The trainer evaluates, then
saves, between two steps, and says so only afterwards: the phases are entered from what it has decided to do.
"""

from __future__ import annotations

import os
from typing import Any

from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from holdfast import telemetry
from holdfast.integrations.durable import report_saved

__all__ = ["HoldfastCallback"]


class HoldfastCallback(TrainerCallback):
    """Put it into `Trainer(callbacks=[...])`; nothing else is needed."""

    def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
        """The model is there, a checkpoint was loaded if there was one."""
        telemetry.set_phase("load")

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """A step begins, whatever number of batches it accumulates."""
        telemetry.step_begin(state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A step has ended; what the trainer does next has its own limit."""
        telemetry.step_end(state.global_step)
        if control.should_evaluate:
            telemetry.set_phase("eval")
        elif control.should_save:
            telemetry.set_phase("checkpoint")

    def on_log(self, *_: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """The trainer has averaged the loss since its last line."""
        loss = (logs or {}).get("loss")
        if isinstance(loss, int | float):
            telemetry.loss(float(loss))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The evaluation is over; the script's own `compute_metrics` may have given an accuracy."""
        accuracy = (kwargs.get("metrics") or {}).get("eval_accuracy")
        if isinstance(accuracy, int | float):
            telemetry.accuracy(float(accuracy))
        telemetry.set_phase("checkpoint" if control.should_save else "train")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """All ranks have written their part."""
        if state.is_world_process_zero:
            report_saved(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"), state.global_step)  # noqa: PTH118 - may be a URL
        telemetry.set_phase("train")

    def on_train_end(self, *_: Any, **kwargs: Any) -> None:
        """Training is over."""
        telemetry.set_phase("shutdown")
